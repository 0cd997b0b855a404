//! Draining nodes.
//!
//! A drain is stored as a document of the ledger, in addition to the node's state, so it survives
//! restarts and every server knows it. The workload reconciler replaces members of workloads, and
//! asks here how urgent that is; all other instances are moved by the loop here.
//!
//! The node's state is authoritative: a node is being drained while it is `draining`. The document
//! adds since when, why and by when. A server that was killed between the two writes leaves a state
//! without a document or a document without the state; the loop repairs both.

mod planner;
mod reconciler;
mod start;
mod status;

pub(crate) use reconciler::DrainReconciler;
pub use start::{DrainRequest, remove, start};
pub(crate) use status::is_kept_by_workload;
pub use status::{all, status};

pub use crate::state::drains::{DrainRecord, Drains, KIND};
