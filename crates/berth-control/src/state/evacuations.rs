//! Whether each node could be emptied, as of the last check.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use berth_api::NodeEvacuation;
use berth_engine::NodeId;
use jiff::Timestamp;
use rustc_hash::FxHashMap;

/// The results of the last round.
#[derive(Default)]
pub struct Evacuations(ArcSwapOption<CheckResults>);

struct CheckResults {
    at: Timestamp,
    nodes: FxHashMap<NodeId, NodeEvacuation>,
}

/// The results of the last round in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Nodes that can be emptied.
    pub can: usize,
    /// Nodes that cannot.
    pub cannot: usize,
    /// When the round was made.
    pub at: Timestamp,
}

impl Evacuations {
    /// The result for a node; absent before the first round.
    #[must_use]
    pub fn of(&self, node: &NodeId) -> Option<NodeEvacuation> {
        self.0.load().as_ref()?.nodes.get(node).cloned()
    }

    /// How many nodes can be emptied; absent before the first round.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        let round = self.0.load();
        let round = round.as_ref()?;
        let can = round.nodes.values().filter(|node| node.can_be_emptied).count();
        Some(Counts { can, cannot: round.nodes.len() - can, at: round.at })
    }

    /// Replaces the results by those of a round.
    pub(crate) fn set(&self, at: Timestamp, nodes: FxHashMap<NodeId, NodeEvacuation>) {
        self.0.store(Some(Arc::new(CheckResults { at, nodes })));
    }

    /// Drops the results: checks were switched off.
    pub(crate) fn clear(&self) {
        self.0.store(None);
    }
}
