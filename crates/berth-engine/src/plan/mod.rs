//! Plans for several instances: batches, evacuation, rebalancing, relief and preemption.
//!
//! A plan is a proposal. It is tried in the fleet, by the same choice that places one instance, and
//! taken back before the answer is given.

mod batch;
mod batch_fixes;
mod batch_nodes;
mod batch_waiting;
mod evacuate;
mod preempt;
mod rebalance;
mod relief;
mod search;

pub use batch::{Batch, BatchMode, BatchOutcome};
pub use evacuate::{Effort, EvacuationInstance, EvacuationPlan, MoveOutcome, PlannedMove};
pub use preempt::Preemption;
pub use rebalance::{
    RebalanceGoal, RebalanceInstance, RebalanceMeasure, RebalanceMove, RebalancePlan,
    RebalanceTerms, StopReason,
};
