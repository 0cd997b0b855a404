//! Draining nodes.
//!
//! A drain is stored as a document of the ledger, in addition to the node's state, so it survives
//! restarts and every server knows it. The workload reconciler replaces members of workloads, and
//! asks here how urgent that is; all other instances are moved by the loop here.
//!
//! The node's state is authoritative: a node is being drained while it is `draining`. The document
//! adds since when, why and by when. A server that was killed between the two writes leaves a state
//! without a document or a document without the state; the loop repairs both.

mod planner;
mod reconciler;
mod refusals;
mod start;
mod status;

use std::sync::Arc;

use berth_engine::NodeId;
use berth_engine::workload::HostState;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use reconciler::run;
use refusals::Refusals;
pub use start::{DrainRequest, remove, start};
pub(crate) use status::is_kept_by_workload;
pub use status::{all, status};

use crate::documents::{CacheableDocument, DocumentCache, Versioned};

/// The kind of document that a drain is stored as; its id is the node.
pub const KIND: &str = "drain";

/// A drain as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// When it was started.
    pub since: Timestamp,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the node should be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Whether the provider takes the node away.
    #[serde(default)]
    pub reclaimed: bool,
    /// How many instances there were at the start.
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
    /// Why instances could not be moved when this server last tried.
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

    /// How urgent it is to leave a draining node.
    #[must_use]
    pub fn urgency(&self, node: &NodeId, now: Timestamp) -> HostState {
        match self.get(node).map(|drain| (drain.value.reclaimed, drain.value.deadline)) {
            Some((true, _)) => HostState::Reclaimed,
            Some((_, Some(deadline))) if deadline <= now => HostState::Overdue,
            Some(_) | None => HostState::Draining,
        }
    }
}
