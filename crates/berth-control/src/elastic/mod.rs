//! Elastic instances on a server: what the policy says of each, and permits asked for and signed.
//!
//! The arithmetic is the engine's and the decision the ledger's; here is only what holds for an
//! instance at the moment of its request, and how it is told.

mod account;
mod ask;
mod bounds;
mod classify;
mod reserve;

pub use account::node_account;
pub use ask::unit_of;
pub use ask::{PermitCaller, read_permit, request_permit};
pub use bounds::set_bounds;
pub use classify::classify;
pub(crate) use reserve::{ReserveReconciler, reserved_by};
