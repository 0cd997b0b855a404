//! Moving instances that could stay: to empty whole nodes, or to even out their use.
//!
//! Such a move is optional, so it must pay off: each states its gain and its cost, and a plan never
//! makes more moves than its budget allows. Moves are tried in the fleet, in order, by the same code as
//! any placement, and undone. A move is planned as a migration works: the target exists while the
//! instance still runs, then the source is released; the rules hold at both times. A plan never lets a
//! destination exceed its watermark, never breaks a hard rule of another instance, and never brings the
//! replicas of a workload closer together.
//!
//! # Why it never ping-pongs
//! An instance moves at most once in a plan. Spreading lowers one number, the measure, with every
//! move, so no chain of plans can come back to where it was. Consolidating only ever lets the number
//! of nodes in use fall. The two work against each other, so do not run both on the same nodes: unless
//! `onto_empty` is set, spreading leaves empty nodes empty. The caller that applies a plan leaves the
//! moved instances alone for a while (`movable: false` in the next plan), as after any migration; then
//! a plan that ended with nothing to gain is followed by one without moves.

mod consolidate;
mod measure;
mod rebalance_state;
mod spread;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::elastic::Free;
use crate::engine::Engine;
use crate::model::{InstanceId, InstanceRequest, NodeId, Timestamp};
use rebalance_state::RebalanceState;

/// What instances are moved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RebalanceGoal {
    /// Empty whole nodes, so that they can be switched off or given back.
    Consolidate,
    /// Even out the use of nodes.
    Spread,
}

impl RebalanceGoal {
    /// What [`RebalanceMeasure::value_ppm`] is.
    #[must_use]
    pub const fn measure(self) -> &'static str {
        match self {
            Self::Consolidate => "share of the nodes in service that hold instances",
            Self::Spread => {
                "sum over the nodes in service of their squared use, by size; a full node of \
                 average size is 1000000"
            }
        }
    }

    /// What [`RebalanceMove::gain`] is counted in.
    #[must_use]
    pub const fn gain_unit(self) -> &'static str {
        match self {
            Self::Consolidate => "MiB",
            Self::Spread => "ppm",
        }
    }
}

/// What a plan may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RebalanceTerms {
    /// What it is for.
    pub goal: RebalanceGoal,
    /// Most moves.
    pub budget: u32,
    /// Of spreading: the least that one move must lower the measure by, in millionths of a full node
    /// of average size. It does not depend on how many nodes there are. Zero counts as one.
    ///
    /// Moving 5 % of a node from one that is 20 % fuller gains 15000, from one that is 10 % fuller
    /// 5000, and from one that is 6 % fuller 1000.
    #[serde(default = "RebalanceTerms::default_min_gain_ppm")]
    pub min_gain_ppm: u32,
    /// Of spreading: whether nodes that hold nothing are filled. Otherwise they stay empty, so that
    /// what was consolidated stays so.
    #[serde(default)]
    pub onto_empty: bool,
}

impl RebalanceTerms {
    /// The default of [`RebalanceTerms::min_gain_ppm`].
    pub const DEFAULT_MIN_GAIN_PPM: u32 = 5000;

    /// The usual terms.
    #[must_use]
    pub const fn new(goal: RebalanceGoal, budget: u32) -> Self {
        Self { goal, budget, min_gain_ppm: Self::DEFAULT_MIN_GAIN_PPM, onto_empty: false }
    }

    const fn default_min_gain_ppm() -> u32 {
        Self::DEFAULT_MIN_GAIN_PPM
    }
}

/// What a plan needs to know about an instance. Its charge is taken from the fleet, which is the one
/// source for it. An instance that is not listed stays where it is.
#[derive(Clone, Debug)]
pub struct RebalanceInstance {
    /// Which.
    pub id: InstanceId,
    /// What it asked for.
    pub request: Arc<InstanceRequest>,
    /// Memory that must be copied to move it.
    pub copy_mib: u32,
    /// Its load as last reported by its agent, in thousandths; absent: counts as 1000.
    pub load_milli: Option<u32>,
    /// Of moves that gain about the same, the one with the lowest priority is made.
    pub priority: i32,
    /// Whether it may be moved: not when it opted out, is being moved already, or was moved recently.
    /// One with local volumes never moves, whatever this says.
    pub movable: bool,
}

impl RebalanceInstance {
    /// What moving it costs: MiB that are expected to be copied. What it changes meanwhile is copied
    /// again, so a load of 1000 counts its memory twice; above 4000 it makes no more difference.
    #[must_use]
    pub fn cost(&self) -> u64 {
        let load = u64::from(self.load_milli.unwrap_or(1000).min(4000));
        (u64::from(self.copy_mib) * (1000 + load) / 1000).max(1)
    }
}

/// One instance that should go elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RebalanceMove {
    /// Which.
    pub instance: InstanceId,
    /// Where it is.
    pub from: NodeId,
    /// Where it should be.
    pub to: NodeId,
    /// MiB that are expected to be copied; see [`RebalanceInstance::cost`].
    pub cost: u64,
    /// What it gains. Of spreading: by how many ppm it lowers the measure. Of consolidating: its
    /// part of the MiB of memory that its node frees, which are only free when all of the node's moves
    /// are made. Either way the gains of a plan add up.
    pub gain: u64,
    /// Why, in words, with both numbers.
    pub why: String,
}

/// The measure of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RebalanceMeasure {
    /// What the plan wants to be lower; [`RebalanceGoal::measure`] says what it is.
    pub value_ppm: u64,
    /// The use of the fullest node in service: the larger of its shares of CPU and memory.
    pub fullest_ppm: u64,
    /// The use of the emptiest of those that hold instances.
    pub emptiest_ppm: u64,
    /// Nodes in service: those that could take an instance as far as their facts and state go.
    /// Others are left alone and not counted.
    pub nodes: u32,
    /// Those of them that hold instances.
    pub in_use: u32,
}

/// Why a plan ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Another move would be made, or another node might be emptied, with a larger budget.
    Budget,
    /// No further move is possible and worth it.
    NothingToGain,
}

/// Moves that bring a fleet closer to a goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RebalancePlan {
    /// The goal.
    pub goal: RebalanceGoal,
    /// The moves, in an order in which each can be made.
    pub moves: Vec<RebalanceMove>,
    /// The measure before the plan.
    pub before: RebalanceMeasure,
    /// The measure after all moves.
    pub after: RebalanceMeasure,
    /// Nodes that hold nothing any more then, in order of id.
    pub emptied: Vec<NodeId>,
    /// Why there are no more moves.
    pub stopped_by: StopReason,
}

impl Engine {
    /// Plans moves towards a goal. `below_watermark` says what may be added to a node before it
    /// passes a watermark, as things are now; see [`crate::elastic::Account::below_watermark`]. The
    /// fleet is as before when this returns.
    pub fn plan_rebalance(
        &mut self,
        terms: RebalanceTerms,
        instances: &[RebalanceInstance],
        below_watermark: &dyn Fn(&NodeId) -> Free,
        now: Timestamp,
    ) -> RebalancePlan {
        let mut state = RebalanceState::new(self, instances, below_watermark, now);
        let before = state.measure(terms.goal);
        let stopped_by = match terms.goal {
            RebalanceGoal::Consolidate => consolidate::run(&mut state, &terms),
            RebalanceGoal::Spread => spread::run(&mut state, &terms),
        };
        let after = state.measure(terms.goal);
        let emptied = state.emptied();
        let moves = state.finish();
        RebalancePlan { goal: terms.goal, moves, before, after, emptied, stopped_by }
    }
}

#[cfg(test)]
mod tests;
