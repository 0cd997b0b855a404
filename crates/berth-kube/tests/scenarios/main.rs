//! Kubernetes' documented examples, and cases around them: each rule of the core by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

#[path = "../support/core.rs"]
mod core;
#[path = "../support/objects.rs"]
mod objects;

mod affinity;
mod gangs;
mod load;
mod news;
mod nodes;
mod preemption;
mod promises;
mod refusals;
mod spreading;
