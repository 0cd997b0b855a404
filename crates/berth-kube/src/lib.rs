//! Berth in Kubernetes: an admission webhook that shares replicas between on-demand and spot nodes,
//! and a scheduler that binds pods.
//!
//! `cluster` is the pure core of the scheduler; `client`, `lease` and `probes` are shared by both.

pub mod client;
pub mod cluster;
pub mod lease;
pub mod probes;
pub mod scheduler;
pub mod webhook;
pub mod wire;
