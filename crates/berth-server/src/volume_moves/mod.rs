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

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use berth_api::{VolumeMoveAction, VolumeMoveState, VolumeMoveTask};
use berth_engine::NodeId;
use berth_ledger::{Ledger, LedgerError};
use tokio::sync::Notify;

pub use begin::{begin, cancel};
pub(crate) use drive::keep_moving;
pub use record::{MoveRecord, Stopped, view};
pub use report::report;

/// The kind of document that a move is stored as; its id is the volume.
pub const KIND: &str = "volume_move";

type Known = Arc<(MoveRecord, i64)>;

/// All moves of volumes, also those that have ended.
#[derive(Default)]
pub struct VolumeMoves {
    records: RwLock<BTreeMap<String, Known>>,
    /// Told whenever one was begun or went on.
    wake: Notify,
}

impl VolumeMoves {
    /// Reads all moves there are.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn load(ledger: &Ledger) -> Result<Self, LedgerError> {
        let moves = Self::default();
        let mut after: Option<String> = None;
        loop {
            let page = ledger.documents(KIND, after.as_deref(), 1000)?;
            let Some(last) = page.last() else { return Ok(moves) };
            after = Some(last.id.to_string());
            for document in &page {
                moves.learn(&document.id, &document.body, document.rev);
            }
        }
    }

    /// Reads one move anew: a server changed it.
    pub fn reload(&self, ledger: &Ledger, volume: &str) {
        match ledger.document(KIND, volume) {
            Ok(Some(document)) => self.learn(volume, &document.body, document.rev),
            Ok(None) => {
                let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
                records.remove(volume);
            }
            Err(error) => tracing::warn!(%error, volume, "a volume's move could not be read"),
        }
        self.wake.notify_one();
    }

    fn learn(&self, volume: &str, body: &str, revision: i64) {
        match serde_json::from_str::<MoveRecord>(body) {
            Ok(record) => {
                let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
                records.insert(volume.to_owned(), Arc::new((record, revision)));
            }
            Err(error) => tracing::error!(%error, volume, "a stored move cannot be read"),
        }
    }

    /// A volume's move, and the revision of its document.
    #[must_use]
    pub fn get(&self, volume: &str) -> Option<Known> {
        self.records.read().unwrap_or_else(PoisonError::into_inner).get(volume).cloned()
    }

    fn all(&self) -> Vec<(String, Known)> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        records.iter().map(|(volume, known)| (volume.clone(), Arc::clone(known))).collect()
    }

    /// Whether a volume is being moved.
    #[must_use]
    pub fn is_under_way(&self, volume: &str) -> bool {
        self.get(volume).is_some_and(|known| {
            let state = known.0.state;
            state == VolumeMoveState::Copying || self.is_stopping(volume)
        })
    }

    /// Whether nobody may begin to use a volume, since it is about to live elsewhere.
    #[must_use]
    pub fn is_stopping(&self, volume: &str) -> bool {
        self.get(volume).is_some_and(|known| {
            matches!(known.0.state, VolumeMoveState::Stopping | VolumeMoveState::Syncing)
        })
    }

    /// What a node's agent has to do for moves from or to it.
    #[must_use]
    pub fn tasks(&self, node: &NodeId) -> Vec<VolumeMoveTask> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        let concerned = records.iter().filter(|(_, known)| known.0.concerns(node));
        let task = |(volume, known): (&String, &Known)| {
            let record = &known.0;
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
