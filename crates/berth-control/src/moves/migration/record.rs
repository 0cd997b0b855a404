//! A migration as stored, and as callers read it.

use std::sync::Arc;

use berth_api::{Migration, MigrationReason, MigrationState};
use berth_engine::elastic::Size;
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{Answer, Audited, DocumentWrite, Expect, Op, Outcome, Text, WithDocuments};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::KIND;
use crate::control_plane::{ControlPlane, unexpected};
use crate::error::{ControlError, ControlResult};
use crate::moves::records::{Audit, encode};

/// A migration as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationRecord {
    /// The instance.
    pub instance: InstanceId,
    /// The tenant.
    pub owner: String,
    /// Where it was.
    pub source: NodeId,
    /// Where it goes.
    pub target: NodeId,
    /// Its state.
    pub state: MigrationState,
    /// Why.
    pub reason: MigrationReason,
    /// What it costs.
    pub cost: u64,
    /// What it frees on the source.
    pub frees: Size,
    /// The fence of the claim that moves, when it was decided.
    pub fence: i64,
    /// How much is copied, as reported by agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_permille: Option<u16>,
    /// Why it failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it was decided.
    pub since: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
}

impl MigrationRecord {
    /// Whether it is under way.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !self.state.is_over()
    }

    /// Whether its target is held, and the instance runs on the source.
    #[must_use]
    pub const fn is_in_transit(&self) -> bool {
        matches!(self.state, MigrationState::TargetHeld | MigrationState::Copying)
    }

    pub(super) fn concerns(&self, node: &NodeId) -> bool {
        self.source == *node || self.target == *node
    }

    fn message(&self) -> String {
        let (source, target) = (&self.source, &self.target);
        let why = self.why.as_deref().unwrap_or("no reason was given");
        match self.state {
            MigrationState::Planned => format!("a place on {target} is about to be held"),
            MigrationState::TargetHeld => {
                format!("a place on {target} is held; the agent of {source} is to send it")
            }
            MigrationState::Copying => {
                format!("the agents of {source} and {target} copy it; it runs on {source}")
            }
            MigrationState::Switched => {
                format!("it runs on {target}; the agent of {source} cleans up")
            }
            MigrationState::Done => format!("it runs on {target}"),
            MigrationState::Failed | MigrationState::Cancelled => {
                format!("it was not moved off {source}: {why}")
            }
        }
    }
}

/// A migration as callers read it.
#[must_use]
pub fn view(id: &str, record: &MigrationRecord) -> Migration {
    Migration {
        id: id.to_owned(),
        instance: record.instance,
        owner: record.owner.clone(),
        source: record.source.clone(),
        target: record.target.clone(),
        state: record.state,
        reason: record.reason,
        message: record.message(),
        cost: record.cost,
        frees: record.frees,
        copied_permille: record.copied_permille,
        since: record.since,
        changed_at: record.changed_at,
    }
}

/// The document of a migration, to be written with other changes.
pub(super) fn document(
    id: &str,
    record: &MigrationRecord,
    expect: Expect,
) -> ControlResult<DocumentWrite> {
    let body = encode(KIND, record)?;
    Ok(DocumentWrite { kind: Text::from(KIND), id: Text::from(id), body, expect })
}

/// What became of a commit.
pub(super) enum CommitOutcome {
    /// It is stored.
    Done,
    /// Another server changed the migration; read it again.
    Stale,
    /// The ledger rejected it.
    Rejected(ControlError),
}

/// Commits a change of claims together with the migration that it belongs to, or the migration alone.
pub(super) async fn commit(
    control: &Arc<ControlPlane>,
    id: &str,
    claims: Option<Op>,
    document: DocumentWrite,
) -> ControlResult<CommitOutcome> {
    commit_guarded(control, id, claims, document, Vec::new(), None).await
}

/// Like [`commit`], with other documents that must be in the expected revision, and with an entry in
/// the audit log.
pub(super) async fn commit_guarded(
    control: &Arc<ControlPlane>,
    id: &str,
    claims: Option<Op>,
    document: DocumentWrite,
    mut documents: Vec<DocumentWrite>,
    audit: Option<Audit<'_>>,
) -> ControlResult<CommitOutcome> {
    let op = match claims {
        Some(op) => {
            documents.push(document);
            op
        }
        None => {
            let DocumentWrite { kind, id, body, expect } = document;
            Op::PutDocument { kind, id, body, expect }
        }
    };
    let op = Op::WithDocuments(Box::new(WithDocuments { op, documents }));
    let op = match audit {
        Some((caller, action, subject)) => Op::Audited(Box::new(Audited {
            actor: Text::from(caller.actor()),
            origin: Text::from(caller.origin()),
            action: Text::from(action),
            subject: Text::from(subject),
            request_id: None,
            op,
        })),
        None => op,
    };
    let outcome = match control.submit(op).await? {
        Answer::Claim(Ok(_)) | Answer::Outcome(Outcome::Done | Outcome::Unchanged) => {
            CommitOutcome::Done
        }
        Answer::Outcome(Outcome::Stale { .. }) => CommitOutcome::Stale,
        Answer::Claim(Err(rejected)) => CommitOutcome::Rejected(rejected.into()),
        Answer::Outcome(Outcome::Impossible(why)) => {
            CommitOutcome::Rejected(ControlError::conflict("impossible", why))
        }
        other => return Err(unexpected(&other)),
    };
    // Not the guard: it must not be known before the decision that it stands for.
    control.refresh_document(Arc::clone(&control.migrations) as _, id).await;
    Ok(outcome)
}
