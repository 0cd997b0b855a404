//! Moves of volumes as they are stored, and what agents have to do for them.

use std::sync::Arc;

use berth_api::{VolumeMoveAction, VolumeMoveState, VolumeMoveTask};
use berth_engine::{InstanceRequest, NodeId};
use berth_ledger::invariant;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::documents::{CacheableDocument, DocumentCache, Versioned};

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
    /// Counts what agents were asked to copy, over all moves of the volume.
    #[serde(default)]
    pub round: u32,
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
    /// A move that starts now. `last_round` is that of the volume's last move.
    pub(crate) fn new(from: NodeId, to: NodeId, last_round: u32, now: Timestamp) -> Self {
        Self {
            from,
            to,
            state: VolumeMoveState::Copying,
            round: last_round.saturating_add(1),
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

    /// Takes the move to its next state. Whether it may go there was checked before: what agents and callers
    /// ask for is refused, and does not come here.
    pub(crate) fn enter(&mut self, next: VolumeMoveState) {
        invariant!(
            self.state.may_become(next),
            "volume_move_state_transition",
            volume_goes_to = self.to,
            round = self.round,
            from = self.state,
            to = next
        );
        self.state = next;
    }

    /// Has agents copy what changed since the last copy: what they report of earlier ones is void.
    pub(crate) fn start_sync(&mut self) {
        self.enter(VolumeMoveState::Syncing);
        self.round = self.round.saturating_add(1);
    }

    pub(crate) fn concerns(&self, node: &NodeId) -> bool {
        self.from == *node || self.to == *node
    }

    pub(crate) fn message(&self) -> String {
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
                format!("not in use; the agents of {from} and {to} copy what changed since")
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

/// The kind of document that a move is stored as; its id is the volume.
pub const KIND: &str = "volume_move";

/// A move as last read, with its revision.
pub type StoredMove = Arc<Versioned<VolumeMoveRecord>>;

impl CacheableDocument for VolumeMoveRecord {
    const KIND: &'static str = KIND;

    fn decode(_: &str, body: &str) -> serde_json::Result<Option<Self>> {
        serde_json::from_str(body).map(Some)
    }
}

/// All moves of volumes, including those that have ended.
#[derive(Default)]
pub struct VolumeMoves {
    /// The records.
    pub records: Arc<DocumentCache<VolumeMoveRecord>>,
}

impl VolumeMoves {
    /// A volume's move, and the revision of its document.
    #[must_use]
    pub fn get(&self, volume: &str) -> Option<StoredMove> {
        self.records.get(volume)
    }

    /// All moves, in order of volume.
    pub(crate) fn all(&self) -> Vec<(String, StoredMove)> {
        self.records.all()
    }

    /// Moves from a node that are under way, in order of volume.
    pub(crate) fn leaving(&self, node: &NodeId) -> Vec<(String, StoredMove)> {
        let mut moves = self.all();
        moves.retain(|(_, stored)| stored.value.is_open() && stored.value.from == *node);
        moves
    }

    /// Whether a volume is being moved.
    #[must_use]
    pub fn is_under_way(&self, volume: &str) -> bool {
        self.get(volume).is_some_and(|stored| {
            let state = stored.value.state;
            state == VolumeMoveState::Copying || self.is_stopping(volume)
        })
    }

    /// Whether no instance may start to use a volume, since its home is about to change.
    #[must_use]
    pub fn is_stopping(&self, volume: &str) -> bool {
        self.get(volume).is_some_and(|stored| {
            matches!(stored.value.state, VolumeMoveState::Stopping | VolumeMoveState::Syncing)
        })
    }

    /// What a node's agent has to do for moves from or to it.
    #[must_use]
    pub fn tasks(&self, node: &NodeId) -> Vec<VolumeMoveTask> {
        let records = self.records.read();
        let concerned = records.documents.iter().filter(|(_, stored)| stored.value.concerns(node));
        let task = |(volume, stored): (&String, &StoredMove)| {
            let record = &stored.value;
            let action = match record.state {
                VolumeMoveState::Copying => VolumeMoveAction::Copy,
                VolumeMoveState::Syncing if !record.synced => VolumeMoveAction::Sync,
                _ => return None,
            };
            let (from, to) = (record.from.clone(), record.to.clone());
            let round = Some(record.round);
            Some(VolumeMoveTask { volume: volume.clone(), from, to, action, round })
        };
        concerned.filter_map(task).collect()
    }
}
