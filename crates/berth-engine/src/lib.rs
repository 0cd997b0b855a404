//! The brain of Berth: which node?
//!
//! Give an [`Engine`] a fleet, a policy and a request, and it returns a plan or a refusal, with
//! every term explained. Pure: no I/O, no clock, no randomness of its own, no floats in a
//! decision. Time, ids and seeds are arguments; the same inputs give the same bytes.
//!
//! ```
//! use berth_engine::{Amounts, Engine, InstanceId, InstanceRequest, NodeFacts, Policy, Timestamp};
//!
//! let mut engine = Engine::new(Policy::builtin("balanced")?);
//! engine.fleet_mut().add_node(&NodeFacts::new("a", Amounts::new(8000, 16_384).with_disk(65_536)))?;
//! let request = InstanceRequest::new(InstanceId::from_u128(1), "acme", Amounts::new(1000, 2048));
//! let placed = engine.place(&request, Timestamp(0))?;
//! assert_eq!(placed.node.as_str(), "a");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod affinity;
pub mod elastic;
mod explain;
pub mod filter;
mod fleet;
mod model;
mod plan;
pub mod policy;
#[cfg(feature = "schema")]
mod schema;
pub mod score;
pub mod workload;

pub use explain::{
    Audience, Decision, Explanation, FilterCount, Fix, NearestMiss, NodeVerdict, Refusal, Term,
};
pub use filter::Evidence;
pub use fleet::{ClaimError, Fleet, NodeUsage, UsedOf};
pub use model::*;
pub use plan::{
    Batch, BatchMode, BatchOutcome, Effort, Engine, EvacuationPlan, Guest, MoveOutcome, NotHere,
    Notice, PlaceError, Placement, PlannedMove, Preemption, RebalanceGoal, RebalanceGuest,
    RebalanceMeasure, RebalanceMove, RebalancePlan, RebalanceTerms, Reuse, SearchEnd, StopReason,
};
pub use policy::Policy;
