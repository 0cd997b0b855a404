//! Berth in Kubernetes: an admission webhook that shares replicas between on-demand and spot nodes,
//! and a scheduler that binds pods.

pub mod client;
pub mod cluster;
pub mod lease;
pub mod probes;
