//! What should run, kept running.
//!
//! A workload is a template and a count. Its members are claims with a seat; the loop here compares
//! what is wanted with what is there and acts through the one claim path. Any server may do so, and
//! several at once: a seat is given by the ledger in the same commit as its claim, and a release
//! names the fence, so whoever comes second finds it done.

mod deaths;
mod definition;
mod keeper;
mod members;
mod orphans;
mod placing;
mod scheduling;
pub mod status;
mod turn;
mod wrong;

pub use deaths::Deaths;
pub use definition::{Body, Definition, WorkloadKey};
pub use keeper::keep_running;
pub use members::{Hosts, Outside, claims, desired};
pub use scheduling::Degradations;
pub(crate) use scheduling::tell;
pub use turn::look_at_all;

/// Reasons that the loop gives when it lets a member go.
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

/// Whether a claim with this reason was let go by us, and did not die.
#[must_use]
pub fn is_ours(reason: &str) -> bool {
    REASONS.contains(&reason)
}
