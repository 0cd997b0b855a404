//! Volumes that move from one node to another, driven by what agents report.
//!
//! A move is a document of the ledger, one per volume, changed only from the revision it was read
//! in, so any server may drive it and a killed one loses nothing: copying while it is in use,
//! stopping who uses it, syncing what changed since, then the switch of its home. Data are agents'
//! business; here is only where the volume lives and who may use it meanwhile.

mod begin;
mod drive;
mod record;
mod report;

use std::sync::Arc;

use berth_api::{VolumeMoveAction, VolumeMoveState, VolumeMoveTask};
use berth_engine::NodeId;

pub use begin::{begin, cancel};
pub(crate) use drive::keep_moving;
pub use record::{MoveRecord, Stopped, view};
pub use report::report;

use crate::documents::{CacheableDocument, DocumentCache, Versioned};

/// The kind of document that a move is stored as; its id is the volume.
pub const KIND: &str = "volume_move";

type Known = Arc<Versioned<MoveRecord>>;

impl CacheableDocument for MoveRecord {
    const KIND: &'static str = KIND;

    fn decode(_: &str, body: &str) -> serde_json::Result<Option<Self>> {
        serde_json::from_str(body).map(Some)
    }
}

/// All moves of volumes, also those that have ended.
#[derive(Default)]
pub struct VolumeMoves {
    /// The records.
    pub records: Arc<DocumentCache<MoveRecord>>,
}

impl VolumeMoves {
    /// A volume's move, and the revision of its document.
    #[must_use]
    pub fn get(&self, volume: &str) -> Option<Known> {
        self.records.get(volume)
    }

    fn all(&self) -> Vec<(String, Known)> {
        self.records.all()
    }

    /// Whether a volume is being moved.
    #[must_use]
    pub fn is_under_way(&self, volume: &str) -> bool {
        self.get(volume).is_some_and(|known| {
            let state = known.value.state;
            state == VolumeMoveState::Copying || self.is_stopping(volume)
        })
    }

    /// Whether nobody may begin to use a volume, since it is about to live elsewhere.
    #[must_use]
    pub fn is_stopping(&self, volume: &str) -> bool {
        self.get(volume).is_some_and(|known| {
            matches!(known.value.state, VolumeMoveState::Stopping | VolumeMoveState::Syncing)
        })
    }

    /// What a node's agent has to do for moves from or to it.
    #[must_use]
    pub fn tasks(&self, node: &NodeId) -> Vec<VolumeMoveTask> {
        let records = self.records.read();
        let concerned = records.documents.iter().filter(|(_, known)| known.value.concerns(node));
        let task = |(volume, known): (&String, &Known)| {
            let record = &known.value;
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
