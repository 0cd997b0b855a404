//! Chooses nodes for instances and explains the choice.
//!
//! Give an [`Engine`] a fleet, a policy and a request, and it returns a placement or a refusal, with
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
mod engine;
mod example;
mod explain;
pub mod filter;
mod fleet;
mod model;
pub mod node_selector;
mod plan;
pub mod policy;
mod policy_document;
mod prepared_request;
mod reference;
pub mod score;
pub mod suggest;
pub mod units;
pub mod workload;

pub use engine::{CheckError, Engine, PlaceError, Placement, Reuse};
pub use explain::{
    Audience, Decision, Explanation, ExplanationPage, FilterCount, Fix, NearestMiss, NodeVerdict,
    QuotaLimits, Refusal, SearchEnd, Term,
};
pub use fleet::{
    ClaimError, Fleet, FleetChange, NodeUsage, ResidentRuleCounts, UsedOf, UsualShape,
};
pub use model::*;
pub use plan::{
    Batch, BatchMode, BatchOutcome, Effort, EvacuationInstance, EvacuationPlan, MoveOutcome,
    PlannedMove, Preemption, RebalanceGoal, RebalanceInstance, RebalanceMeasure, RebalanceMove,
    RebalancePlan, RebalanceTerms, StopReason,
};
pub use policy::Policy;
pub use policy_document::{BUILTIN_POLICIES, PolicyError, PolicyProblem};
pub use prepared_request::Notice;
pub use reference::policy_reference;
