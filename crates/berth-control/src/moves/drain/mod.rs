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

use std::sync::Arc;

use berth_engine::NodeId;
use berth_engine::workload::HostState;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use begin::{Wish, begin, forget};
pub(crate) use empty::keep_emptying;
pub(crate) use progress::is_kept_by_workload;
pub use progress::{all, one};
use refused::Refusals;

use crate::documents::{CacheableDocument, DocumentCache, Versioned};

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

impl CacheableDocument for DrainRecord {
    const KIND: &'static str = KIND;

    fn decode(_: &str, body: &str) -> serde_json::Result<Option<Self>> {
        serde_json::from_str(body).map(Some)
    }
}

/// All drains, by node.
#[derive(Default)]
pub struct Drains {
    /// The records.
    pub records: Arc<DocumentCache<DrainRecord>>,
    /// Why instances could not be moved, the last time it was tried here.
    refused: Refusals,
}

impl Drains {
    /// A node's drain, and the revision of its document.
    #[must_use]
    pub fn get(&self, node: &NodeId) -> Option<Arc<Versioned<DrainRecord>>> {
        self.records.get(node.as_str())
    }

    /// Nodes that have one.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.records.read().documents.keys().map(|node| NodeId::new(node)).collect()
    }

    /// How urgent it is to leave a node that is being emptied.
    #[must_use]
    pub fn urgency(&self, node: &NodeId, now: Timestamp) -> HostState {
        match self.get(node).map(|known| (known.value.reclaimed, known.value.deadline)) {
            Some((true, _)) => HostState::Reclaimed,
            Some((_, Some(deadline))) if deadline <= now => HostState::Overdue,
            Some(_) | None => HostState::Draining,
        }
    }
}
