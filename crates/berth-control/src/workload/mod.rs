//! Workloads as they are stored, and how their members fared: what readers and reconcilers share.

mod crash_history;
mod definition;
mod quarantine;

pub use crash_history::{CrashHistories, CrashHistory};
pub use definition::{Body, Definition, WorkloadKey};

/// Reasons that the reconciler gives when it releases a member.
const REASONS: [&str; 11] = [
    "moved",
    "scale_down",
    "roll_out",
    "rebuild",
    "drain",
    "reclaim",
    "node_lost",
    "replaced",
    "deleted",
    "volume_move",
    "drain_deadline",
];

/// Whether a claim with this reason was released by a reconciler, and did not crash.
#[must_use]
pub fn is_planned_release(reason: &str) -> bool {
    REASONS.contains(&reason)
}
