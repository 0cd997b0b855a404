//! What should run, kept running.
//!
//! A workload is a template and a count. Its members are claims with a slot; the loop here compares
//! what should run with what does and acts through the one claim path. Any server may do so, and
//! several at once: a slot is assigned by the ledger in the same commit as its claim, a release
//! names the fence, so the second one finds it done, and the members that must keep running.

mod availability;
mod degraded;
mod members;
mod orphans;
mod placing;
mod plan;
mod preemption;
mod reconciler;
mod releasing;
pub mod status;

pub(crate) use availability::{CallerMembers, StopPermit};
pub use members::{HostContext, Hosts, claims, desired};
pub use plan::plan_all;
pub(crate) use preemption::{PreemptionLimit, preemption_limit};
pub use reconciler::remove_workload;
pub(crate) use reconciler::{MAX_PER_PASS as MEMBERS_PER_PASS, WorkloadReconciler};
