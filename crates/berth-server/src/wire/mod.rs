//! The protocol that existing agents of autoscaled virtual machines speak: `POST /` on a port of its
//! own, off unless it has an address. `docs/wire.md` describes which parts are supported, and how.
//!
//! It is another way to ask for the same permits: nothing is decided here. It must never answer with
//! more than was asked for, nor with less than the agent may be using.

mod pod;
mod serve;

pub use serve::{WirePermits, WireSettings, router};
