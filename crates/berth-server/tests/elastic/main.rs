//! Elastic instances, through the real server: permits by its own API and by the wire protocol that
//! existing agents speak, on the same nodes with the same numbers.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../common/mod.rs"]
mod common;
mod examples;
mod permits;
mod rebalance;
mod scene;
mod wire;
