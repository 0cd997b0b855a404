//! A migration as stored, and as callers read it.

use std::sync::Arc;

use berth_api::{Migration, MigrationReason, MigrationState};
use berth_engine::elastic::Size;
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{
    Answer as Told, Audited, DocumentWrite, Expect, Op, Outcome, Text, WithDocuments,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::KIND;
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::control_plane::unexpected;
use crate::error::{ControlError, ControlResult};

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
    /// How far it is.
    pub state: MigrationState,
    /// Why.
    pub reason: MigrationReason,
    /// What it costs.
    pub cost: u64,
    /// What it frees on the source.
    pub frees: Size,
    /// The fence of the claim that moves, when it was decided.
    pub fence: i64,
    /// How much is copied, as far as agents say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_permille: Option<u16>,
    /// Why it failed or was called off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it was decided.
    pub since: Timestamp,
    /// When it last went on.
    pub changed_at: Timestamp,
}

impl MigrationRecord {
    /// Whether it goes on.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !self.state.is_over()
    }

    /// Whether a place is held for it, and it runs on the source.
    #[must_use]
    pub const fn is_on_its_way(&self) -> bool {
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

/// The write of a record.
pub(super) fn write(
    id: &str,
    record: &MigrationRecord,
    expect: Expect,
) -> ControlResult<DocumentWrite> {
    let body = serde_json::to_string(record)
        .map_err(|error| ControlError::invalid(format!("a migration: {error}")))?;
    Ok(DocumentWrite { kind: Text::from(KIND), id: Text::from(id), body, expect })
}

/// What became of a step.
pub(super) enum Stepped {
    /// It is done and stored.
    Done,
    /// Somebody else was faster: read it again.
    Stale,
    /// The ledger did not do it, for this reason.
    Rejected(ControlError),
}

/// Does something to claims and stores the migration with it: both, or nothing.
pub(super) async fn step(
    control: &Arc<ControlPlane>,
    id: &str,
    op: Op,
    documents: Vec<DocumentWrite>,
    by: Option<(&Caller, &'static str, String)>,
) -> ControlResult<Stepped> {
    let op = Op::WithDocuments(Box::new(WithDocuments { op, documents }));
    let op = match by {
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
    let stepped = match control.submit(op).await? {
        Told::Claim(Ok(_)) | Told::Outcome(Outcome::Done | Outcome::Unchanged) => Stepped::Done,
        Told::Outcome(Outcome::Stale { .. }) => Stepped::Stale,
        Told::Claim(Err(rejected)) => Stepped::Rejected(rejected.into()),
        Told::Outcome(Outcome::Impossible(why)) => {
            Stepped::Rejected(ControlError::conflict("impossible", why))
        }
        other => return Err(unexpected(&other)),
    };
    take_in(control, id).await;
    Ok(stepped)
}

/// Reads a migration anew, so that whoever asks this server next is told of it.
pub(super) async fn take_in(control: &Arc<ControlPlane>, id: &str) {
    // Not the guard: it must not be known before the decision that it stands for.
    let migrations = Arc::clone(&control.migrations);
    control.refresh_document(migrations, id).await;
}
