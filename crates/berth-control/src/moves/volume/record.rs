//! A move as stored, and as callers read it.

use std::sync::Arc;

use berth_api::{VolumeMove, VolumeMoveState};
use berth_engine::{InstanceRequest, NodeId};
use berth_ledger::Expect;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::documents::DocumentFollower;
use crate::error::ControlResult;
use crate::moves::records;

/// An instance that was stopped for the move and that no workload restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedInstance {
    /// The instance, as it was placed.
    pub request: InstanceRequest,
    /// Pools it held values of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// The release it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The fence of the claim that was stopped.
    pub fence: i64,
}

/// A move as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMoveRecord {
    /// Where it was.
    pub from: NodeId,
    /// Where it goes.
    pub to: NodeId,
    /// Its state.
    pub state: VolumeMoveState,
    /// How much is copied, as reported by agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_permille: Option<u16>,
    /// Whether all data are on the new node and nothing was written since: the switch is next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synced: bool,
    /// Why it failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The instance that is started again when the move has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Box<StoppedInstance>>,
    /// When it was started.
    pub since: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
}

impl VolumeMoveRecord {
    /// A move that starts now.
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

    /// Whether it is under way.
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
pub fn view(volume: &str, record: &VolumeMoveRecord) -> VolumeMove {
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

/// Stores a move if it still is in the expected revision. Returns whether it was stored.
pub(super) async fn store(
    control: &Arc<ControlPlane>,
    volume: &str,
    record: &VolumeMoveRecord,
    expect: Expect,
    by: Option<(&Caller, &'static str)>,
) -> ControlResult<bool> {
    let audit = by.map(|(caller, action)| {
        (caller, action, format!("{volume} from {} to {}", record.from, record.to))
    });
    records::store(control, cache(control), volume, record, expect, audit).await
}

pub(super) fn cache(control: &ControlPlane) -> Arc<dyn DocumentFollower> {
    Arc::clone(&control.volume_moves.records) as _
}
