//! Kubernetes' documented examples, and cases around them: each rule of the core by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

#[path = "../support/core.rs"]
mod core;
#[path = "../support/objects.rs"]
mod objects;

mod affinity;
mod changes;
mod devices;
mod gangs;
mod memory;
mod nodes;
mod nominations;
mod overfull;
mod preemption;
mod refusals;
mod resources;
mod topology_spread;
