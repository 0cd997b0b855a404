//! Signs of life, gathered so that a thousand agents cost one write a second.
//!
//! They are no part of the log: the planner and the catalogue are told at once, other servers look
//! in the ledger.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use berth_engine::NodeId;

/// Nodes heard since the last write.
#[derive(Default)]
pub struct Heartbeats(Mutex<BTreeMap<NodeId, i64>>);

impl Heartbeats {
    /// Notes that a node was heard, in whole seconds.
    pub fn note(&self, node: &NodeId, at: i64) {
        self.lock().insert(node.clone(), at);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was gathered.
    pub(crate) fn take(&self) -> Vec<(NodeId, i64)> {
        std::mem::take(&mut *self.lock()).into_iter().collect()
    }
}
