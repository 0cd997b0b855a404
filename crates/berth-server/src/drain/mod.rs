//! Nodes that are being emptied.
//!
//! A drain is a document of the ledger beside the node's state, so it survives restarts and every
//! server knows of it. Members of workloads are moved by the workloads' own loop, which asks here
//! how urgent it is; what is not a member is moved by the loop here.
//!
//! The node's state is the truth: a node is being emptied while it is `draining`. The document adds
//! since when, why and by when. A server that was killed between the two writes leaves either a
//! state without a document or a document without the state, and the loop mends both.

mod begin;
mod empty;
mod progress;
mod refused;

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use berth_engine::NodeId;
use berth_engine::workload::HostState;
use berth_ledger::{Ledger, LedgerError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use begin::{Wish, begin, forget};
pub(crate) use empty::keep_emptying;
pub(crate) use progress::is_kept_by_workload;
pub use progress::{all, one};
use refused::Refusals;

/// The kind of document that a drain is stored as; its id is the node.
pub const KIND: &str = "drain";

/// A drain as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// When it was begun.
    pub since: Timestamp,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// By when it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Whether the node will be taken away.
    #[serde(default)]
    pub reclaimed: bool,
    /// How many instances were there.
    pub total: u32,
}

/// All drains, by node.
#[derive(Default)]
pub struct Drains {
    records: RwLock<BTreeMap<NodeId, (DrainRecord, i64)>>,
    /// Why instances could not be moved, the last time it was tried here.
    refused: Refusals,
    /// Told whenever a drain was begun, changed or ended.
    wake: Notify,
}

impl Drains {
    /// Reads all drains there are.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn load(ledger: &Ledger) -> Result<Self, LedgerError> {
        let drains = Self::default();
        let mut after: Option<String> = None;
        loop {
            let page = ledger.documents(KIND, after.as_deref(), 1000)?;
            let Some(last) = page.last() else { return Ok(drains) };
            after = Some(last.id.to_string());
            for document in &page {
                drains.learn(&document.id, &document.body, document.rev);
            }
        }
    }

    /// Reads one drain anew: a server began, changed or ended it.
    pub fn reload(&self, ledger: &Ledger, node: &str) {
        match ledger.document(KIND, node) {
            Ok(Some(document)) => self.learn(node, &document.body, document.rev),
            Ok(None) => {
                let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
                records.remove(&NodeId::new(node));
            }
            Err(error) => tracing::warn!(%error, node, "a drain could not be read"),
        }
    }

    fn learn(&self, node: &str, body: &str, revision: i64) {
        match serde_json::from_str::<DrainRecord>(body) {
            Ok(record) => {
                let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
                records.insert(NodeId::new(node), (record, revision));
            }
            Err(error) => tracing::error!(%error, node, "a stored drain cannot be read"),
        }
    }

    /// A node's drain, and the revision of its document.
    #[must_use]
    pub fn get(&self, node: &NodeId) -> Option<(DrainRecord, i64)> {
        self.records.read().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// Has nodes that are being emptied looked at now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Nodes that have one.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        records.keys().cloned().collect()
    }

    /// How urgent it is to leave a node that is being emptied.
    #[must_use]
    pub fn urgency(&self, node: &NodeId, now: Timestamp) -> HostState {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        match records.get(node) {
            Some((record, _)) if record.reclaimed => HostState::Reclaimed,
            Some((record, _)) if record.deadline.is_some_and(|end| end <= now) => {
                HostState::Overdue
            }
            Some(_) | None => HostState::Draining,
        }
    }
}
