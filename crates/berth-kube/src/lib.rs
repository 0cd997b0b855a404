//! Berth in Kubernetes: an admission webhook that shares replicas between on-demand and spot nodes,
//! and a scheduler that binds pods.

pub mod cluster;
pub mod wire;
