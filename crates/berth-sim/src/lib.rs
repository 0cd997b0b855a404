//! Simulated fleets and requests, the same for the same seed.
//!
//! Benchmarks, demos and instruction counts all run on what is made here, so that their figures
//! speak of the same thing. Nothing here decides anything: it only sets the stage. `agents` plays a
//! whole fleet with its tenants against a server, through its public API; `elastic` plays a day of
//! instances that grow and shrink against the engine's own arithmetic.

#[cfg(feature = "agents")]
pub mod agents;
pub mod elastic;
mod fleet;

pub use fleet::{
    NOW, SeededRng, SimulationError, add_groups, add_nodes, fill_half, node_id, nodes_at, shapes,
};
