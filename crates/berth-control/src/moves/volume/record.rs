//! A move as stored, and as callers read it.

use std::sync::Arc;

use berth_api::{VolumeMove, VolumeMoveState};
use berth_engine::{InstanceRequest, NodeId};
use berth_ledger::{Answer as Told, Expect, Op, Outcome, Text};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::KIND;
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::control_plane::unexpected;
use crate::error::{ControlError, ControlResult};

/// An instance that was stopped for the move and that no workload keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// The instance, as it was placed.
    pub request: InstanceRequest,
    /// Pools it held values of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// The release it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The fence it was told to stop with.
    pub fence: i64,
}

/// A move as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRecord {
    /// Where it was.
    pub from: NodeId,
    /// Where it goes.
    pub to: NodeId,
    /// How far it is.
    pub state: VolumeMoveState,
    /// How much is copied, as far as agents say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_permille: Option<u16>,
    /// Whether all is there and nobody wrote since: the switch is next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synced: bool,
    /// Why it failed or was called off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Who is started again when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Box<Stopped>>,
    /// When it was begun.
    pub since: Timestamp,
    /// When it last went on.
    pub changed_at: Timestamp,
}

impl MoveRecord {
    /// A move that begins.
    pub(super) fn new(from: NodeId, to: NodeId, now: Timestamp) -> Self {
        Self {
            from,
            to,
            state: VolumeMoveState::Copying,
            copied_permille: None,
            synced: false,
            why: None,
            stopped: None,
            since: now,
            changed_at: now,
        }
    }

    /// Whether it goes on.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        use VolumeMoveState::{Copying, Stopping, Syncing};
        matches!(self.state, Copying | Stopping | Syncing)
    }

    pub(super) fn concerns(&self, node: &NodeId) -> bool {
        self.from == *node || self.to == *node
    }

    fn message(&self) -> String {
        let (from, to) = (&self.from, &self.to);
        let why = self.why.as_deref().unwrap_or("no reason was given");
        let mut text = match self.state {
            VolumeMoveState::Planned => format!("it could be moved from {from} to {to}"),
            VolumeMoveState::Copying => {
                format!("the agents of {from} and {to} copy it; it is in use meanwhile")
            }
            VolumeMoveState::Stopping => {
                "it was copied; the instance that uses it is told to stop".to_owned()
            }
            VolumeMoveState::Syncing if self.synced => {
                format!("all of it is on {to}; its home is switched")
            }
            VolumeMoveState::Syncing => {
                format!("nobody uses it; the agents of {from} and {to} copy what changed since")
            }
            VolumeMoveState::Done => format!("it lives on {to}"),
            VolumeMoveState::Failed => format!("it lives on {from} as before: {why}"),
            VolumeMoveState::Cancelled => format!("it lives on {from} as before: {why}"),
        };
        if let Some(stopped) = self.stopped.as_deref().filter(|_| !self.is_open()) {
            text = format!("{text}; instance {} is about to be started again", stopped.request.id);
        }
        text
    }
}

/// A move as callers read it.
#[must_use]
pub fn view(volume: &str, record: &MoveRecord) -> VolumeMove {
    VolumeMove {
        volume: volume.to_owned(),
        from: record.from.clone(),
        to: record.to.clone(),
        state: record.state,
        message: record.message(),
        copied_permille: record.copied_permille,
        since: record.since,
        changed_at: record.changed_at,
    }
}

/// Stores a move, if it is in the revision that was read. Returns whether it was.
pub(super) async fn store(
    control: &Arc<ControlPlane>,
    volume: &str,
    record: &MoveRecord,
    expect: Expect,
    by: Option<(&Caller, &'static str)>,
) -> ControlResult<bool> {
    let body = serde_json::to_string(record)
        .map_err(|error| ControlError::invalid(format!("a volume's move: {error}")))?;
    let (kind, id) = (Text::from(KIND), Text::from(volume));
    let op = Op::PutDocument { kind, id, body, expect };
    let answer = match by {
        Some((caller, action)) => {
            let subject = format!("{volume} from {} to {}", record.from, record.to);
            control.call(caller, action, subject, None, op).await?
        }
        None => control.submit(op).await?,
    };
    let stored = match answer {
        Told::Outcome(Outcome::Done | Outcome::Unchanged) => true,
        Told::Outcome(Outcome::Stale { .. } | Outcome::Impossible(_)) => false,
        other => return Err(unexpected(&other)),
    };
    take_in(control, volume).await;
    Ok(stored)
}

/// Reads a move anew, so that whoever asks this server next is told of it.
pub(super) async fn take_in(control: &Arc<ControlPlane>, volume: &str) {
    let moves = Arc::clone(&control.volume_moves.records);
    control.refresh_document(moves, volume).await;
}
