//! What the service keeps apart from claims: documents, the audit log, stored policies; and what an
//! operation may expect of the row it changes.

use super::claim::{Micros, Text};
use super::op::{Op, Quota};

/// What an operation expects of the row it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Expect {
    /// Anything, or nothing.
    #[default]
    Any,
    /// That it is not there.
    Absent,
    /// That it is there, in this revision.
    Revision(i64),
}

impl Expect {
    /// Whether a row in this revision, or none, is what was expected.
    #[must_use]
    pub fn holds(self, current: Option<i64>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Revision(wanted) => current == Some(wanted),
        }
    }
}

/// A small thing that the service keeps and nothing is counted by, such as a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// What it is.
    pub kind: Text,
    /// Its name among those of its kind.
    pub id: Text,
    /// 1 at first, one more with every change.
    pub rev: i64,
    /// Its content.
    pub body: String,
    /// When it was last changed.
    pub at: Micros,
}

/// An operation and its actor: if it changes something, an audit entry is written.
#[derive(Clone, Debug)]
pub struct Audited {
    /// The actor.
    pub actor: Text,
    /// Where the actor came from: an address, a program.
    pub origin: Text,
    /// The action.
    pub action: Text,
    /// Its subject. If empty for a plan, it names the chosen node.
    pub subject: Text,
    /// The request it came with.
    pub request_id: Option<Text>,
    /// What to do.
    pub op: Op,
}

/// An operation that belongs to a request, and is done only while the request has no answer. Where it
/// has one, the answer is that: a grant again, or that the id was used for something else. A ticket of the
/// same request is no answer until it was closed; then it is `Stale`.
#[derive(Clone, Debug)]
pub struct IfUnanswered {
    /// The request's id.
    pub request_id: Text,
    /// Its tenant.
    pub tenant: Text,
    /// What becomes the request's answer if it is done; absent: it still has none.
    pub ticket: Option<TicketAnswer>,
    /// What to do.
    pub op: Op,
}

/// That a request waits under a ticket, or did until the ticket was closed without a grant. From then on
/// its id is taken: a plan under it is refused unless it is for the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketAnswer {
    /// Hash of the request as its caller wrote it.
    pub request_hash: [u8; 16],
    /// Since when it is kept as long as other answers are.
    pub kept_from: Micros,
    /// The ticket as it was closed; absent while it has a document of its own.
    pub closed: Option<String>,
}

/// A waiting request that an earlier version accepted and this one does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedTicket {
    /// The tenant.
    pub tenant: Text,
    /// The ticket.
    pub ticket: Text,
    /// Which limit it exceeds: the field, what was found and what is accepted.
    pub excess: Text,
}

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number. Numbers grow and may have gaps.
    pub n: i64,
    /// When.
    pub at: Micros,
    /// The actor.
    pub actor: Text,
    /// Where they came from.
    pub origin: Text,
    /// The action.
    pub action: Text,
    /// Its subject.
    pub subject: Text,
    /// The request it came with.
    pub request_id: Option<Text>,
}

/// Which entries of the audit log are wanted; what is absent does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AuditFilter {
    /// Only this actor's.
    pub actor: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Only those whose subject has this in it, letter by letter.
    pub subject_contains: Option<String>,
}

/// What a tenant uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TenantUse {
    /// Milli-CPU.
    pub cpu_milli: i64,
    /// MiB of memory, as requested.
    pub memory_mib: i64,
    /// MiB of disk.
    pub disk_mib: i64,
    /// Instances.
    pub instances: i64,
}

/// A tenant's limits, and what it uses of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// The tenant.
    pub tenant: Text,
    /// Its limits.
    pub quota: Quota,
    /// What it uses.
    pub used: TenantUse,
}

/// A policy as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPolicy {
    /// Its name.
    pub name: String,
    /// The hash of its content.
    pub hash: String,
    /// Its content, as JSON.
    pub body: String,
    /// When it was stored.
    pub at: Micros,
    /// Whether it is active.
    pub active: bool,
}
