//! Evacuation: where every instance of some nodes would go, or why it cannot.
//!
//! A plan works as a drain does: the nodes accept no new instances, a replacement is placed like any
//! other instance while the old one still counts, and then the old one is released. It is tried in the
//! fleet and undone, so that one engine can plan for node after node. A possible plan is proven by its
//! moves. An impossible one means that neither the planner's own order nor a bounded search found a
//! way.

mod steps;

use std::sync::Arc;

use super::batch::Batch;
use crate::engine::Engine;
use crate::explain::Refusal;
use crate::fleet::NodeIndex;
use crate::model::{InstanceId, InstanceRequest, InvalidRequest, NodeId, NodeState, Timestamp};
use steps::EvacuationPlanner;
pub(super) use steps::{has_placement_rules, replacement, temporary_id};

/// How much a plan may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Refusals that are explained; instances of one class share one. To explain costs far more
    /// than to plan.
    pub explained: usize,
    /// Whether explanations look for fixes.
    pub fixes: bool,
    /// How many steps the search may take when the first pass leaves an instance unplaced: see
    /// [`Batch::search_budget`].
    pub search_budget: u32,
}

impl Effort {
    /// For a few nodes, with full explanations.
    pub const FULL: Self =
        Self { explained: 64, fixes: true, search_budget: Batch::DEFAULT_BUDGET };

    /// For thousands of nodes: possible or not, with one reason.
    pub const VERDICT: Self = Self { explained: 1, fixes: false, search_budget: 256 };
}

/// What is known of an instance on a node that is to be emptied.
#[derive(Clone, Debug)]
pub enum EvacuationInstance {
    /// It must move; this is what it asked for.
    Requested(Arc<InstanceRequest>),
    /// It is being released already: it counts until then, and needs no replacement.
    Leaving,
    /// Its request is not known.
    Unknown,
}

/// What becomes of one instance when its node is emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// A replacement fits there while the instance still runs.
    Moves {
        /// Where.
        to: NodeId,
    },
    /// No node can take a replacement while the instance still runs.
    Refused {
        /// Why; absent where the plan's effort was spent on others.
        refusal: Option<Box<Refusal>>,
        /// Where it could go if it were released first, when it blocks its own replacement.
        after_release: Option<NodeId>,
    },
    /// It uses local volumes, which must be moved first.
    VolumeNeedsMove {
        /// Its volumes.
        volumes: Vec<String>,
        /// Where it could go if they were there.
        to: Option<NodeId>,
        /// Why it could go nowhere even then, if so.
        refusal: Option<Box<Refusal>>,
    },
    /// It could not be asked for again as things are.
    Invalid(InvalidRequest),
    /// Its request is not known.
    RequestUnknown,
}

impl MoveOutcome {
    /// The reason code of [`MoveOutcome::VolumeNeedsMove`].
    pub const VOLUME_CODE: &'static str = "volume_needs_move";

    /// Whether it can move without manual intervention.
    #[must_use]
    pub const fn is_possible(&self) -> bool {
        matches!(self, Self::Moves { .. })
    }

    /// Whether it could move if it were released before its replacement is placed.
    #[must_use]
    pub const fn only_after_release(&self) -> bool {
        matches!(self, Self::Refused { after_release: Some(_), .. })
    }

    /// The stable code of the obstacle; absent when there is none, or it was not explained.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Moves { .. } => None,
            Self::Refused { refusal, .. } => refusal.as_ref().map(|refusal| &*refusal.code),
            Self::VolumeNeedsMove { .. } => Some(Self::VOLUME_CODE),
            Self::Invalid(_) => Some("invalid_request"),
            Self::RequestUnknown => Some("request_unknown"),
        }
    }
}

/// One instance of a node that is to be emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMove {
    /// Which.
    pub instance: InstanceId,
    /// Where it is.
    pub from: NodeId,
    /// What becomes of it.
    pub outcome: MoveOutcome,
}

/// What emptying some nodes together would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvacuationPlan {
    /// Every instance of theirs: those that move in the order in which they can, then the others.
    pub moves: Vec<PlannedMove>,
}

impl EvacuationPlan {
    /// Whether every instance can move without manual intervention.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.moves.iter().all(|planned| planned.outcome.is_possible())
    }
}

impl Engine {
    /// Plans to empty some nodes together. `instance_info` says what an instance asked for; what it is
    /// charged now is taken from the fleet. The fleet is as before when this returns.
    pub fn plan_evacuation(
        &mut self,
        nodes: &[NodeId],
        instance_info: impl Fn(InstanceId) -> EvacuationInstance,
        effort: Effort,
        now: Timestamp,
    ) -> EvacuationPlan {
        let mut indexes: Vec<NodeIndex> =
            nodes.iter().filter_map(|node| self.fleet.index_of(node)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        // An empty node needs no plan; in a large fleet there are many.
        if indexes
            .iter()
            .all(|index| self.fleet.row(*index).is_none_or(|row| row.instances.is_empty()))
        {
            return EvacuationPlan::default();
        }
        let closed: Vec<(NodeIndex, (NodeState, u64))> =
            indexes.iter().map(|&index| (index, self.close_node(index))).collect();
        let mut planner = EvacuationPlanner::new(self, &indexes, &instance_info, effort, now);
        planner.run();
        let plan = planner.finish();
        for (index, was) in closed {
            self.fleet.swap_state(index, was);
        }
        plan
    }

    /// Closes a node to new instances. Its facts count as unchanged, since this is only a plan.
    fn close_node(&mut self, index: NodeIndex) -> (NodeState, u64) {
        let constraint_gen = self.fleet.row(index).map_or(0, |row| row.constraint_gen);
        self.fleet.swap_state(index, (NodeState::Draining, constraint_gen))
    }
}

#[cfg(test)]
mod tests;
