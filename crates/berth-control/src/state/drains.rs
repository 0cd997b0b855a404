//! Drains as stored, and what this server knows of them.

use std::sync::Arc;

use berth_engine::NodeId;
use berth_engine::workload::HostState;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::refused_moves::Refusals;
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
    pub(crate) refused: Refusals,
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
