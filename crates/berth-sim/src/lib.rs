//! Simulated fleets and requests, the same for the same seed.
//!
//! Benchmarks, demos and instruction counts all use these fleets, so that their figures are
//! comparable. Nothing here makes decisions. `agents` simulates a whole fleet with its tenants against
//! a server, through its public API; `elastic` simulates a day of instances that grow and shrink, with
//! the engine's own arithmetic; `packing` replays traces of real arrivals under policies and simple rules.

#[cfg(feature = "agents")]
pub mod agents;
pub mod elastic;
mod fleet;
#[cfg(feature = "packing")]
pub mod packing;

pub use fleet::{
    NOW, SeededRng, SimulationError, add_groups, add_nodes, fill_half, node_id, nodes_at, shapes,
};
