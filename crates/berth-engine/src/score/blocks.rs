//! Scores of a node's usage and the request together, for 64 nodes at a time.

use super::slots::{self, SlotLoss};
use super::term;
use crate::fleet::{Block, Columns, LANES, NodeIndex};
use crate::prepared_request::PreparedRequest;

/// Prepares the values of all nodes for one request.
pub(crate) type BlockScorer = fn(&PreparedRequest<'_>) -> BlockValues;

/// The values of all nodes for one request, computed where they are asked for.
#[derive(Clone, Debug)]
pub(crate) enum BlockValues {
    /// Of `slot-loss`.
    SlotLoss(SlotLoss),
}

/// Points of nodes by usage and request together.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockScores(Vec<(BlockValues, u32)>);

impl BlockValues {
    /// The value of one node.
    pub(crate) fn value(&self, columns: &Columns, index: NodeIndex) -> u32 {
        match self {
            Self::SlotLoss(loss) => loss.value(columns, index),
        }
    }

    /// Adds the points of a block.
    #[inline(always)]
    fn add(&self, columns: &Columns, block: usize, weight: u32, points: &mut Block<i32>) {
        match self {
            Self::SlotLoss(loss) => {
                slots::add_points(&loss.losses(columns, block), weight, points);
            }
        }
    }
}

impl BlockScores {
    /// Of one request; with the weight of each scorer in thousandths.
    pub(crate) fn new(scorers: &[(BlockScorer, u32)], prepared: &PreparedRequest<'_>) -> Self {
        Self(scorers.iter().map(|(prepare, weight)| (prepare(prepared), *weight)).collect())
    }

    /// Whether no scorer of this kind has a weight.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The points of one node.
    pub(crate) fn points(&self, columns: &Columns, index: NodeIndex) -> i32 {
        self.0.iter().map(|(values, weight)| term(values.value(columns, index), *weight)).sum()
    }

    /// The points of a block.
    #[inline(always)]
    pub(crate) fn points_of_block(&self, columns: &Columns, block: usize) -> Block<i32> {
        let mut points = Block([0; LANES]);
        for (values, weight) in &self.0 {
            values.add(columns, block, *weight, &mut points);
        }
        points
    }
}
