//! The control plane of Berth: everything between the ledger and its callers.
//!
//! A placement goes from [`placement`] (whose it is, which ids its instances get) to [`placer`]
//! (planned on the fleet replica, claimed in the ledger, planned again after a conflict) and back.
//! Readers ask the [`catalog`], streams the [`feed`], and reconcilers keep workloads, drains, moves
//! and permits going.
//!
//! This crate must never know HTTP, pages or configuration files: the server, the Kubernetes
//! scheduler and the simulator all drive the same control plane.

pub mod adoption;
mod applied_from_log;
mod backlog;
pub mod caller;
pub mod catalog;
pub mod clock;
pub mod control_plane;
pub mod debug;
pub mod documents;
pub mod elastic;
pub mod error;
mod explanation_queue;
pub mod explanations;
pub mod exposition;
pub mod feed;
mod fleet_replica;
mod fleet_snapshots;
pub mod instance_spec;
pub mod invariant_metrics;
mod kept_lists;
mod liveness;
mod loop_runner;
mod maintenance;
pub mod metrics;
pub mod metrics_format;
pub mod moves;
mod patience;
pub mod placement;
mod placer;
pub mod policy_effects;
pub mod policy_warnings;
pub mod preemption;
pub mod queue;
pub mod queue_table;
mod replay;
mod resource_lists;
mod settings;
mod slots;
pub mod stall_watch;
mod start;
pub mod state;
pub mod supervision;
pub mod tenant_limits;
pub mod tenant_requests;
pub mod tenants;
pub mod workload;
pub mod workloads;

pub use caller::{Caller, Scope};
pub use control_plane::{ControlPlane, unexpected};
pub use error::{
    ControlError, ControlResult, ErrorKind, StartError, describe_guard, describe_limit,
};
pub use fleet_replica::FleetReplica;
pub use kept_lists::ListRead;
pub use maintenance::{MaintenanceConfig, MaintenanceWorker};
pub use placement::attachments;
pub use placer::{
    Actor, AttemptOrder, Clock, Granted, MoveAnswer, MoveRequest, OrderedAttempt, Overload,
    OverloadCause, PlaceAnswer, PlaceJob, PlaceRequest, Placer, PlacerOptions, PreemptionPlan,
    QueueLength, RequestedSlot,
};
pub use replay::{ExplanationRange, explain_decision, replay};
pub use settings::{Adoption, Settings, UNMANAGED};
pub use start::ControlOptions;

/// The target of spans that are traces: one for every request.
pub const REQUESTS: &str = "berth::request";
