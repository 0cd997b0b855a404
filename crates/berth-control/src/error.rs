//! What goes wrong in the control plane, as its callers need to know it: what kind of failure it is,
//! a stable code, what happened and what would help.
//!
//! Nothing here knows how an answer travels. The HTTP server makes problem documents of these errors;
//! a waiting request stores one with its ticket.

use std::borrow::Cow;
use std::fmt;

use berth_api::limits::LimitExceeded;
use berth_api::{FieldError, InstanceExplanation, Problem};
use berth_engine::elastic::InvalidPermitRequest;
use berth_engine::{Fix, Refusal, Unit};
use berth_ledger::{ClaimRejection, Guard, LedgerError, RefusalReason, Text};
use thiserror::Error;

/// What kind of failure an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request makes no sense, whatever the state of the fleet.
    Invalid,
    /// The request is well formed but contradicts an earlier one.
    Unprocessable,
    /// There is nothing of that name, or nothing that the caller may see.
    NotFound,
    /// It conflicts with the current state.
    Conflict,
    /// The object changed since the caller read it.
    Stale,
    /// The caller's position in the event log is no longer kept.
    CursorExpired,
    /// A limit on how much may be asked for is reached.
    LimitReached,
    /// It cannot be answered now; a later try may succeed.
    Unavailable,
    /// A fault of the server or its database.
    Internal,
}

impl ErrorKind {
    /// The status that a problem document of this kind carries, also when it is stored with a ticket.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::CursorExpired => 410,
            Self::Stale => 412,
            Self::Unprocessable => 422,
            Self::LimitReached => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }
}

/// Why something could not be done.
#[derive(Debug)]
pub struct ControlError(Box<Details>);

#[derive(Debug)]
struct Details {
    kind: ErrorKind,
    code: Cow<'static, str>,
    title: Cow<'static, str>,
    detail: String,
    remedy: Option<String>,
    fields: Vec<FieldError>,
    refusals: Vec<Refusal>,
    hints: Vec<String>,
    fixes: Vec<Fix>,
    explanation: Option<Box<InstanceExplanation>>,
    retry: Option<bool>,
    retry_after_s: Option<u32>,
}

/// The result of an operation of the control plane.
pub type ControlResult<T> = Result<T, ControlError>;

impl ControlError {
    /// An error of a kind, with a stable code, the meaning of that code, and what happened.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        code: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
    ) -> Self {
        Self(Box::new(Details {
            kind,
            code: code.into(),
            title: title.into(),
            detail: detail.into(),
            remedy: None,
            fields: Vec::new(),
            refusals: Vec::new(),
            hints: Vec::new(),
            fixes: Vec::new(),
            explanation: None,
            retry: None,
            retry_after_s: None,
        }))
    }

    /// A request that cannot be understood.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, "invalid_request", "the request is not valid", detail)
    }

    /// A field that cannot be accepted.
    #[must_use]
    pub fn field(field: &str, value: Option<String>, accepted: &str) -> Self {
        let detail = match &value {
            Some(value) => format!("{field} is {value}; accepted is {accepted}"),
            None => format!("{field} is missing; accepted is {accepted}"),
        };
        let (field, accepted) = (field.to_owned(), accepted.to_owned());
        Self::invalid(detail).with_field(FieldError { field, value, accepted })
    }

    /// A stored object that exceeds a limit of this version.
    #[must_use]
    pub fn quarantined(what: &str, excess: &str) -> Self {
        let detail = format!("{what} exceeds a limit: {excess}");
        Self::new(ErrorKind::Unprocessable, "quarantined", "a stored object is too large", detail)
            .retry(false)
    }

    /// A size that an instance cannot have.
    #[must_use]
    pub fn invalid_size(invalid: &InvalidPermitRequest) -> Self {
        let (field, value, accepted) = match invalid {
            InvalidPermitRequest::OutsideBounds { field, value, min, max } => {
                (format!("resources.{field}"), *value, format!("{min} to {max}, its bounds"))
            }
            InvalidPermitRequest::NotWholeUnits { field, value, has, unit } => (
                format!("resources.{field}"),
                *value,
                format!(
                    "a multiple of {unit}, the compute unit last told, its bounds, or {has}, what it has"
                ),
            ),
            InvalidPermitRequest::ZeroUnit { field } => {
                (format!("compute_unit.{field}"), 0, "1 or more".to_owned())
            }
        };
        Self::field(&field, Some(value.to_string()), &accepted)
    }

    /// Nothing of that name, or nothing that this caller may see.
    #[must_use]
    pub fn not_found(what: &str, name: &str) -> Self {
        let detail = format!("there is no {what} {name:?}");
        Self::new(ErrorKind::NotFound, "not_found", "there is no such thing", detail)
    }

    /// A change that conflicts with the current state.
    #[must_use]
    pub fn conflict(code: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, code, "conflict with the current state", detail)
    }

    /// The object changed since the caller read it.
    #[must_use]
    pub fn stale(current: Option<String>) -> Self {
        let detail = match current {
            Some(current) => format!("it is now version {current}; read it again"),
            None => "it is not there; read it again".to_owned(),
        };
        Self::new(ErrorKind::Stale, "stale", "it changed since it was read", detail)
    }

    /// The server is not in a position to answer.
    #[must_use]
    pub fn unavailable(code: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        let title = "the server cannot answer now";
        Self::new(ErrorKind::Unavailable, code, title, detail).retry_after(1)
    }

    /// The server is shutting down.
    #[must_use]
    pub fn stopping() -> Self {
        Self::unavailable("stopping", "the server is stopping")
    }

    /// The same under another title.
    #[must_use]
    pub fn titled(mut self, title: &'static str) -> Self {
        self.0.title = Cow::Borrowed(title);
        self
    }

    /// The same with what would help.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// The same with explanations of a placement.
    #[must_use]
    pub fn refusals(mut self, refusals: Vec<Refusal>) -> Self {
        self.0.refusals = refusals;
        self
    }

    /// Names in the request that do not exist, and which were probably meant.
    #[must_use]
    pub fn hints(mut self, hints: Vec<String>) -> Self {
        self.0.hints = hints;
        self
    }

    /// What would help: each was tried.
    #[must_use]
    pub fn fixes(mut self, fixes: Vec<Fix>) -> Self {
        self.0.fixes = fixes;
        self
    }

    /// The explanations of a placement.
    #[must_use]
    pub fn explained(&self) -> &[Refusal] {
        &self.0.refusals
    }

    /// The same with the verdicts on single nodes.
    #[must_use]
    pub fn explanation(mut self, explanation: InstanceExplanation) -> Self {
        self.0.explanation = Some(Box::new(explanation));
        self
    }

    /// The same, stating whether another try may succeed.
    #[must_use]
    pub fn retry(mut self, retry: bool) -> Self {
        self.0.retry = Some(retry);
        self
    }

    /// The same, stating when another try may succeed.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after_s = Some(seconds);
        self.0.retry = Some(true);
        self
    }

    /// The same with a field that cannot be accepted.
    #[must_use]
    pub fn with_field(mut self, field: FieldError) -> Self {
        self.0.fields.push(field);
        self
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Its stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// What happened.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Whether another try may succeed, where that is known.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        self.0.retry == Some(true)
    }

    /// After how many seconds another try may succeed, where that is known.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u32> {
        self.0.retry_after_s
    }

    /// Whether it is the caller who must change something.
    #[must_use]
    pub fn is_callers(&self) -> bool {
        !matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Internal)
    }

    /// The error as a problem document.
    #[must_use]
    pub fn into_problem(self) -> Problem {
        let details = *self.0;
        Problem {
            kind: format!("/problems/{}", details.code),
            title: details.title.into_owned(),
            status: details.kind.status(),
            code: details.code.into_owned(),
            detail: details.detail,
            remedy: details.remedy,
            fields: details.fields,
            refusals: details.refusals,
            hints: details.hints,
            fixes: details.fixes,
            explanation: details.explanation,
            retry: details.retry,
            trace: None,
        }
    }
}

/// The control plane cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The ledger cannot be opened or read.
    #[error("the ledger cannot be used")]
    Ledger(#[from] LedgerError),
    /// A thread cannot be started.
    #[error("a thread cannot be started")]
    Thread(#[from] std::io::Error),
    /// A stored document that the control plane needs cannot be used.
    #[error("what is stored cannot be used: {0}")]
    Stored(String),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.detail)
    }
}

impl std::error::Error for ControlError {}

impl From<LimitExceeded> for ControlError {
    fn from(error: LimitExceeded) -> Self {
        let (field, value, accepted) = (error.field(), Some(error.found()), error.accepted());
        Self::invalid(error.to_string()).with_field(FieldError { field, value, accepted })
    }
}

impl From<LedgerError> for ControlError {
    fn from(error: LedgerError) -> Self {
        let detail = error.to_string();
        match error {
            LedgerError::Unreachable(_) => Self::unavailable("ledger_unreachable", detail),
            LedgerError::Overloaded { .. } => Self::unavailable("overloaded", detail),
            LedgerError::StorageFull(_) => Self::unavailable("storage_full", detail),
            LedgerError::Contention { .. } => Self::unavailable("contention", detail),
            LedgerError::Closed => Self::unavailable("stopping", detail),
            LedgerError::CursorTooOld { .. } => {
                Self::new(ErrorKind::CursorExpired, "cursor_too_old", "the log was cut", detail)
            }
            LedgerError::CursorInFuture { .. } | LedgerError::InvalidCursor { .. } => {
                Self::invalid(detail)
            }
            LedgerError::Corrupt(_)
            | LedgerError::Database(_)
            | LedgerError::NewerSchema { .. }
            | LedgerError::InvalidUrl { .. }
            | LedgerError::TransactionPooling
            | LedgerError::InvalidUrlSetting { .. } => {
                tracing::error!(%detail, "ledger operation failed");
                let title = "the ledger failed; the server's log says more";
                Self::new(ErrorKind::Internal, "ledger_failed", title, detail)
            }
        }
    }
}

impl From<ClaimRejection> for ControlError {
    fn from(rejected: ClaimRejection) -> Self {
        let code = rejected.code();
        match rejected {
            // Another tenant's claim is as if it were not there.
            ClaimRejection::NoClaim(key) | ClaimRejection::NotOwner { key, .. } => {
                Self::not_found("claim", &key.instance.to_string())
            }
            ClaimRejection::StaleFence { presented, current, .. } if presented > current => {
                let detail = format!("fence {presented} is not this claim's, which is {current}");
                Self::conflict(code, detail).remedy("read the claim: its fence and its role")
            }
            ClaimRejection::StaleFence { presented, current, .. } => Self::conflict(
                code,
                format!("fence {presented} is no longer valid, a later holder has {current}"),
            )
            .remedy("stop what runs under the old fence and read the claim again"),
            ClaimRejection::LeaseExpired { expired_at, now, .. } => {
                let late_s = (now.0 - expired_at.0) / 1_000_000;
                Self::conflict(code, format!("its lease ended {late_s} s ago"))
                    .remedy("place the instance again, with a longer lease_s or earlier renewals")
            }
            ClaimRejection::WrongState { found, wanted, .. } => {
                Self::conflict(code, format!("it is {}; this step needs {wanted}", found.name()))
            }
            ClaimRejection::NotElastic(key) => {
                let detail =
                    format!("instance {} is not elastic: it stays as large as it is", key.instance);
                Self::conflict(code, detail).remedy("place it with `elastic`: its min and its max")
            }
            ClaimRejection::Moving(key) => {
                let detail =
                    format!("instance {} is being moved and stays as large as it is", key.instance);
                Self::conflict(code, detail).remedy("ask again when the migration is over")
            }
            ClaimRejection::Wish(invalid) => Self::invalid_size(&invalid),
            ClaimRejection::Guard(guard) => Self::conflict(code, describe_guard(&guard)),
            ClaimRejection::Refused(by) => Self::from(&by),
        }
    }
}

impl ControlError {
    /// Something would be made for a tenant that is being removed.
    #[must_use]
    pub fn tenant_removing(tenant: &Text) -> Self {
        let by = RefusalReason::TenantRemoving(Text::clone(tenant));
        Self::conflict(by.code(), describe_limit(&by))
            .titled("the tenant is being removed")
            .remedy("wait until GET /v1/tenants/{tenant} no longer finds it, or use another name")
    }
}

impl From<&RefusalReason> for ControlError {
    /// A limit of the ledger that another node would not change.
    fn from(by: &RefusalReason) -> Self {
        let code = by.code();
        match by {
            RefusalReason::Quota { .. } => Self::conflict(code, describe_limit(by))
                .titled("the tenant's quota does not allow it")
                .remedy("ask for less, release instances, or have an operator raise the quota")
                .retry(true),
            RefusalReason::PoolExhausted { .. } => Self::conflict(code, describe_limit(by))
                .titled("a pool has no free value")
                .remedy("release instances that hold its values, or widen its range")
                .retry(true),
            RefusalReason::UnknownPool(_) => Self::conflict(code, describe_limit(by))
                .remedy("create the pool, or leave it out of the request"),
            RefusalReason::TenantRemoving(tenant) => Self::tenant_removing(tenant),
            RefusalReason::VolumeMoving { .. } => {
                Self::conflict(code, describe_limit(by)).retry_after(5)
            }
            RefusalReason::RequestIdReused { .. } => Self::new(
                ErrorKind::Unprocessable,
                code,
                "the request id was used for something else",
                describe_limit(by),
            )
            .remedy("send the first body again to get the first answer, or use a new id"),
            RefusalReason::Malformed(why) => Self::invalid(why.clone()),
        }
    }
}

/// Which limit stood against a plan, in one sentence.
#[must_use]
pub fn describe_limit(by: &RefusalReason) -> String {
    match by {
        RefusalReason::Quota { tenant, resource, used, wanted, limit } => {
            let (name, unit) = match *resource {
                "memory_mib" => (" memory", Unit::Mib),
                "cpu_milli" => ("", Unit::MilliCpu),
                "disk_mib" => (" disk", Unit::Mib),
                _ if *wanted == 1 => (" instance", Unit::Count),
                _ => (" instances", Unit::Count),
            };
            let text = |amount: i64| unit.text(amount);
            let (wanted, used, limit) = (text(*wanted), text(*used), text(*limit));
            format!(
                "tenant {tenant} asks for {wanted}{name} and uses {used} of its quota of {limit}"
            )
        }
        RefusalReason::PoolExhausted { pool, addresses, free: 0, size } => {
            let what = if *addresses { "address" } else { "value" };
            format!("pool {pool} has no free {what}: {size} of {size} are in use or just released")
        }
        RefusalReason::PoolExhausted { pool, addresses, free, size } => {
            let what = if *addresses { "address" } else { "value" };
            format!("pool {pool} has no free {what} for every instance: {free} of {size} are free")
        }
        RefusalReason::UnknownPool(pool) => format!("there is no pool {pool}"),
        RefusalReason::TenantRemoving(tenant) => {
            format!("tenant {tenant} is being removed, and gets nothing new")
        }
        RefusalReason::VolumeMoving { volume, to } => {
            format!("volume {volume} is on its way to node {to}")
        }
        RefusalReason::RequestIdReused { request_id } => {
            format!("request id {request_id:?} was used with another body")
        }
        RefusalReason::Malformed(why) => why.clone(),
    }
}

/// What stood against a step, in one sentence.
#[must_use]
pub fn describe_guard(guard: &Guard) -> String {
    match guard {
        Guard::UnknownNode(node) => format!("there is no node {node}"),
        Guard::Changed { now, .. } => format!("node {} changed meanwhile", now.node),
        Guard::RulesChanged { now, .. } => {
            format!("an instance with rules of its own came to node {} meanwhile", now.node)
        }
        Guard::NotSchedulable(now) => {
            format!("node {} is {} and takes no instances", now.node, now.state.name())
        }
        Guard::Room { now, lack } => format!("node {}: {}", now.node, lack.evidence),
        Guard::Class { node, lack } => format!("node {node}: {}", lack.evidence),
        Guard::UnknownGroup(group) => format!("there is no group {group}"),
        Guard::Group { group, members, limit, .. } => {
            format!("group {group} has {members} of at most {limit} members there")
        }
        Guard::UnknownVolume(volume) => format!("there is no volume {volume}"),
        Guard::VolumeHome { volume, home } => format!("volume {volume} lives on node {home}"),
        Guard::VolumeInUse { volume, .. } => format!("volume {volume} is in use"),
        Guard::AlreadyPlaced { key, .. } => format!("instance id {} is in use", key.instance),
        Guard::SlotTaken { slot, .. } => format!("slot {} is taken", slot.slot),
        Guard::PolicyChanged { .. } => "another policy was put in force meanwhile".to_owned(),
        Guard::SecretsChanged { env, .. } => {
            format!("the secrets of environment {env} changed meanwhile")
        }
        Guard::WorkloadChanged { workload, .. } => {
            format!("workload {workload} changed meanwhile")
        }
        Guard::TooFewRunning { workload, running, at_least } => {
            format!("workload {workload}: {running} members run, of which {at_least} must")
        }
        Guard::VictimChanged { instance } => {
            format!("instance {instance}, which was to make room, is gone, moving or leaving")
        }
    }
}
