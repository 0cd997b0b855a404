//! Moving volumes from one node to another. Agents copy the data and report their progress.
//!
//! A move is a document of the ledger, one per volume, which is only changed from the revision that
//! was read, so any server can continue it: copy while the volume is in use, stop the instance that
//! uses it, sync what changed since, then switch its home. Agents handle the data; the server only
//! knows where the volume lives and which instance may use it.
//!
//! A move is always requested for one volume, by name: no planner produces these steps, so they are
//! not part of a [`MovePlan`](super::plan::MovePlan).

mod driver;
mod record;
mod report;
mod start;

use std::sync::Arc;

use berth_api::{VolumeMoveAction, VolumeMoveState, VolumeMoveTask};
use berth_engine::NodeId;

pub(crate) use driver::run;
pub use record::{StoppedInstance, VolumeMoveRecord, view};
pub use report::report;
pub use start::{cancel, start};

use crate::documents::{CacheableDocument, DocumentCache, Versioned};

/// The kind of document that a move is stored as; its id is the volume.
pub const KIND: &str = "volume_move";

type StoredMove = Arc<Versioned<VolumeMoveRecord>>;

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

    fn all(&self) -> Vec<(String, StoredMove)> {
        self.records.all()
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
            Some(VolumeMoveTask { volume: volume.clone(), from, to, action })
        };
        concerned.filter_map(task).collect()
    }
}
