//! Messages of the protocol that existing agents of autoscaled virtual machines use with their
//! scheduler. `docs/wire.md` says what of it is understood, and how.
//!
//! Only the messages: the server and the Kubernetes scheduler each answer them with permits of their
//! own.

mod message;
mod quantity;

pub use message::{Pod as WirePod, Request as WireRequest};
