//! The scheduler against an imitation of the API server.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../support/checker/mod.rs"]
mod checker;

mod autoscalers;
mod benchmark;
mod binding;
mod debug_state;
mod devices;
mod drains;
mod elastic;
mod fault_storm;
mod faults;
mod gangs;
mod leadership;
mod notifications;
mod overfull;
mod permissions;
mod pod_fields;
mod preemption;
mod shared_nodes;
mod support;
mod volumes;
