//! Moving instances that could stay: planned, looked at, and then done.

use berth_engine::{
    InstanceId, NodeId, RebalanceGoal, RebalanceMeasure, RebalanceTerms, StopReason,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::elastic::Migration;

/// Asks which moves would bring nodes closer to a goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRebalance {
    /// What instances are moved for.
    pub goal: RebalanceGoal,
    /// Most moves.
    #[serde(default = "default_budget")]
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub budget: u32,
    /// With `spread`: the least that one move must gain, in millionths of a full node.
    #[serde(default = "default_min_gain_ppm")]
    #[schema(default = 5000)]
    pub min_gain_ppm: u32,
    /// With `spread`: whether nodes that hold nothing are filled. Otherwise they stay empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub onto_empty: bool,
    /// Whether instances that are not elastic move too. Their agents must be able to move them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// Begins moves: those that are given, or those of a plan that is made now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRebalance {
    /// What instances are moved for.
    pub goal: RebalanceGoal,
    /// Most moves.
    #[serde(default = "default_budget")]
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub budget: u32,
    /// As in a plan.
    #[serde(default = "default_min_gain_ppm")]
    #[schema(default = 5000)]
    pub min_gain_ppm: u32,
    /// As in a plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub onto_empty: bool,
    /// As in a plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Moves of a plan that was made before, as it has them. Each is checked again, and one that is
    /// no longer possible is not begun. Absent: a plan is made now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves: Option<Vec<RebalanceStep>>,
}

impl PlanRebalance {
    /// Most moves of a plan.
    pub const MAX_BUDGET: u32 = 1000;

    /// Moves of a plan by default.
    pub const DEFAULT_BUDGET: u32 = 10;

    /// What a planner is asked.
    #[must_use]
    pub const fn terms(&self) -> RebalanceTerms {
        RebalanceTerms {
            goal: self.goal,
            budget: self.budget,
            min_gain_ppm: self.min_gain_ppm,
            onto_empty: self.onto_empty,
        }
    }
}

impl ApplyRebalance {
    /// The plan that is made if no moves are given.
    #[must_use]
    pub const fn plan(&self) -> PlanRebalance {
        PlanRebalance {
            goal: self.goal,
            budget: self.budget,
            min_gain_ppm: self.min_gain_ppm,
            onto_empty: self.onto_empty,
            all: self.all,
        }
    }
}

const fn default_budget() -> u32 {
    PlanRebalance::DEFAULT_BUDGET
}

const fn default_min_gain_ppm() -> u32 {
    RebalanceTerms::DEFAULT_MIN_GAIN_PPM
}

/// One instance that should go elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebalanceStep {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tenant.
    #[serde(default)]
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Where it is.
    pub from: NodeId,
    /// Where it should be.
    pub to: NodeId,
    /// What it gains, in the plan's `gain_unit`. The gains of a plan add up.
    #[serde(default)]
    pub gain: u64,
    /// What it costs: MiB that are expected to be copied.
    #[serde(default)]
    pub cost: u64,
    /// Why, in words, with both numbers.
    #[serde(default)]
    pub why: String,
}

/// Moves that bring nodes closer to a goal. Nothing is claimed or changed by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebalance {
    /// The goal.
    pub goal: RebalanceGoal,
    /// In one sentence: what the moves would do.
    pub message: String,
    /// The moves, in an order in which each can be made.
    pub moves: Vec<RebalanceStep>,
    /// What gains are counted in: `ppm` of the measure, or `MiB` that a node frees.
    pub gain_unit: String,
    /// What `value_ppm` of `before` and `after` is.
    pub measure: String,
    /// How nodes stand.
    pub before: RebalanceMeasure,
    /// How they would stand with all moves made.
    pub after: RebalanceMeasure,
    /// Nodes that would hold nothing any more.
    pub emptied: Vec<NodeId>,
    /// Why there are no more moves.
    pub stopped_by: StopReason,
    /// Whether instances that are not elastic may be among the moves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// What was begun of a rebalance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebalanceApplied {
    /// The goal.
    pub goal: RebalanceGoal,
    /// In one sentence: how many moves were begun, and what became of the others.
    pub message: String,
    /// The plan that was made; absent when moves were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Rebalance>,
    /// Migrations that were begun, in the order of the moves.
    pub begun: Vec<Migration>,
    /// Moves that were not begun.
    pub not_begun: Vec<NotBegun>,
    /// How many of those could be begun once others are done.
    pub waiting: u32,
}

/// A move that was not begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotBegun {
    /// Which.
    pub step: RebalanceStep,
    /// Why not.
    pub why: String,
    /// Whether it could be begun once others are done: a limit is reached, or room is not free yet.
    pub waits: bool,
}
