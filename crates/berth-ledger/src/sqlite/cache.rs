//! Counters of nodes, and the policy in force, as this connection last saw or wrote them.
//!
//! SQLite has one writer at a time, and reports whether another connection has written since: while
//! none has, what was written here is what would be read. The guards in SQL hold all the same, and
//! anything unexpected empties the cache.

use berth_engine::NodeId;
use rustc_hash::FxHashMap;

use crate::model::Text;
use crate::unit_of_work::{NodeRow, Rows};

/// Rows kept; about 40 MiB.
pub const ROWS_MAX: usize = 200_000;

#[derive(Default)]
pub(super) struct NodeCache {
    rows: FxHashMap<NodeId, NodeRow>,
    /// The policy in force, once it was read.
    policy: Option<Option<Text>>,
    /// SQLite's count of others' commits, as of the last transaction.
    version: i64,
    /// Rows as they will be once the transaction has committed.
    pending: Vec<(NodeId, Option<NodeRow>)>,
}

impl NodeCache {
    /// A transaction has begun, and others have committed so many times.
    pub(super) fn begin(&mut self, version: i64) {
        if version != self.version {
            self.rows.clear();
            self.policy = None;
            self.version = version;
        }
        self.pending.clear();
    }

    pub(super) fn get(&self, node: &NodeId) -> Option<&NodeRow> {
        self.rows.get(node)
    }

    pub(super) fn put(&mut self, node: &NodeId, row: &NodeRow) {
        if self.rows.len() >= ROWS_MAX {
            self.rows.clear();
        }
        self.rows.insert(node.clone(), row.clone());
    }

    /// The policy in force, if that is known.
    pub(super) const fn policy(&self) -> Option<&Option<Text>> {
        self.policy.as_ref()
    }

    /// Notes the policy in force.
    pub(super) fn put_policy(&mut self, policy: Option<Text>) -> Option<Text> {
        self.policy.insert(policy).clone()
    }

    /// Notes what the transaction writes.
    pub(super) fn write(&mut self, rows: &Rows) {
        if !rows.activated.is_empty() {
            self.policy = None;
        }
        let changes = rows.nodes.changes();
        self.pending.extend(changes.iter().map(|change| (change.key.clone(), change.now.cloned())));
    }

    /// The transaction has committed.
    pub(super) fn commit(&mut self) {
        for (node, row) in self.pending.drain(..) {
            match row {
                Some(row) => drop(self.rows.insert(node, row)),
                None => drop(self.rows.remove(&node)),
            }
        }
    }

    /// Nothing is known any more.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.policy = None;
        self.pending.clear();
    }
}
