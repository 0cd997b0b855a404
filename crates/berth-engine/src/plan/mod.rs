//! Planning: from a request to a node, a batch of nodes, or a refusal.
//!
//! [`Engine`] is the door. Behind it, `derived` keeps per-node answers that no request changes,
//! `masks` those that a request's static part changes, `scan` reads the columns, and `rankings`
//! keep the result of a scan and repair it where nodes changed. All of them follow the fleet's
//! one change log. A plan is a proposal: what a batch claims while it is tried is taken back.

mod ask;
mod batch;
mod derived;
mod engine;
mod evacuate;
mod masks;
mod neighbours;
mod preempt;
mod ranking;
mod rankings;
mod rebalance;
mod relief;
mod scan;
mod search;
mod shown;
mod words;

pub(crate) use ask::Ask;
pub use batch::{Batch, BatchMode, BatchOutcome, SearchEnd};
pub use engine::{Engine, NotHere, PlaceError, Placement, Reuse};
pub use evacuate::{Effort, EvacuationPlan, Guest, MoveOutcome, PlannedMove};
pub use neighbours::Notice;
pub(crate) use neighbours::{DomainRule, Origin};
pub use preempt::Preemption;
pub(crate) use preempt::smallest_release;
pub use rebalance::{
    RebalanceGoal, RebalanceGuest, RebalanceMeasure, RebalanceMove, RebalancePlan, RebalanceTerms,
    StopReason,
};
