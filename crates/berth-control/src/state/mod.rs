//! What reconcilers and handlers share in memory: typed caches of documents, and what agents reported
//! since it was last stored.
//!
//! State only: whatever acts on it is above the control plane.

pub mod degradations;
pub mod drains;
mod evacuations;
mod heartbeats;
pub mod migrations;
mod permit_cache;
mod permit_signer;
pub(crate) mod refused_moves;
pub(crate) mod ticket_order;
pub mod tickets;
pub mod volume_moves;

pub use degradations::Degradations;
pub use drains::{DrainRecord, Drains};
pub use evacuations::{Counts, Evacuations};
pub use heartbeats::Heartbeats;
pub use migrations::{MigrationRecord, Migrations};
pub use permit_cache::PermitCache;
pub use permit_signer::PermitSigner;
pub(crate) use refused_moves::{RefusedMove, StepRefusal};
pub use tickets::{Queue, TicketRecord};
pub use volume_moves::{VolumeMoveRecord, VolumeMoves};
