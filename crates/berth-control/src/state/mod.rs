//! What reconcilers and handlers share in memory: typed caches of documents, and what agents reported
//! since it was last stored.
//!
//! State only: whatever acts on it is above the control plane.

pub mod degradations;
pub mod drains;
pub mod evacuations;
pub mod migrations;
mod node_liveness;
mod permits;
mod secrets;
pub(crate) mod ticket_order;
pub mod tickets;
pub mod volume_moves;

use std::sync::Arc;

pub use degradations::Degradations;
pub(crate) use node_liveness::NodeLiveness;
pub use permits::{PermitSigner, Permits};
pub(crate) use secrets::load_secret;
pub use tickets::{Queue, TicketRecord};

/// Records of everything that changes its node, or could.
#[derive(Default)]
pub struct MoveRecords {
    /// Nodes that are being emptied.
    pub drains: drains::Drains,
    /// Whether each node could be emptied.
    pub evacuations: evacuations::Evacuations,
    /// Volumes that move.
    pub volume_moves: volume_moves::VolumeMoves,
    /// Instances that move while they run.
    pub migrations: Arc<migrations::Migrations>,
}
