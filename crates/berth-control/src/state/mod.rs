//! What reconcilers and handlers share in memory: typed caches of documents, and what agents reported
//! since it was last stored.
//!
//! State only: whatever acts on it is above the control plane.

pub mod degradations;
mod heartbeats;
mod permit_cache;
mod permit_signer;
pub(crate) mod ticket_order;
pub mod tickets;

pub use degradations::Degradations;
pub use heartbeats::Heartbeats;
pub use permit_cache::PermitCache;
pub use permit_signer::PermitSigner;
pub use tickets::{Queue, TicketRecord};
