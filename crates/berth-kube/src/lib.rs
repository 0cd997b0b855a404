//! Berth in Kubernetes: an admission webhook that splits the pods of a workload between on-demand and
//! spot nodes, and a scheduler that binds pods.
//!
//! `cluster` is the pure core of the scheduler; `client`, `watch`, `leader_election`, `http_server`
//! and `probes` are shared by both.

pub mod client;
pub mod cluster;
mod http_server;
pub mod leader_election;
mod metrics;
pub mod names;
pub mod probes;
pub mod queue_table;
pub mod scheduler;
mod watch;
pub mod webhook;
pub mod wire;
