//! The scorers that a policy weighs, by kind, so that hot loops need not look for theirs.

use std::fmt;

use super::{BlockScorer, DenseValue, LoadValue, ScorerKind, Sparse};
use crate::policy::{Combine, Policy};

/// The scorers of one policy, each with its weight in thousandths.
#[derive(Clone, Default)]
pub(crate) struct WeightedScorers {
    /// Scorers of what is used on a node.
    pub(crate) load: Vec<(LoadValue, u32)>,
    /// Scorers of where other instances are.
    pub(crate) sparse: Vec<(Sparse, u32)>,
    /// Scorers of a node's usage and the request together.
    pub(crate) dense: Vec<(DenseValue, u32)>,
    /// Scorers of the same, for 64 nodes at a time.
    pub(crate) blocks: Vec<(BlockScorer, u32)>,
    /// The weight that whole racks are repaired by.
    pub(crate) spread_racks: u32,
    /// Whether a tenant's instances count beyond their workload.
    pub(crate) counts_tenants: bool,
    /// Whether the measured load of nodes counts.
    pub(crate) counts_measured_load: bool,
    /// Rises when the load of the fleet changed the weights.
    pub(crate) version: u64,
    /// Whether totals can be scanned from columns: a plain sum of terms, none of which compares
    /// the surviving nodes with each other.
    pub(crate) is_columnar: bool,
}

impl WeightedScorers {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut scorers = Self { is_columnar: policy.combine == Combine::Sum, ..Self::default() };
        for (id, weight) in policy.weights() {
            match id.scorer().kind {
                ScorerKind::Load(value) => scorers.load.push((value, weight)),
                ScorerKind::Sparse(sparse) => scorers.sparse.push((sparse, weight)),
                ScorerKind::Facts(_) | ScorerKind::Zone(_) => {}
                ScorerKind::Blocks(prepare) => scorers.blocks.push((prepare, weight)),
                ScorerKind::Dense(value) => scorers.dense.push((value, weight)),
                ScorerKind::Relative(_) => scorers.is_columnar = false,
            }
            match id.scorer().name {
                "spread-racks" => scorers.spread_racks = weight,
                "fewest-of-owner" => scorers.counts_tenants = true,
                "measured-load" => scorers.counts_measured_load = true,
                _ => {}
            }
        }
        scorers
    }
}

// Functions have no useful form in a message.
impl fmt::Debug for WeightedScorers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightedScorers").finish_non_exhaustive()
    }
}
