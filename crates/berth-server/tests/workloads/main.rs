//! Workloads, through the real server: seats, roll-outs, drains, and what is said when it cannot be.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod auditor;
#[path = "../common/mod.rs"]
mod common;
mod model;
mod spot;
mod world;
