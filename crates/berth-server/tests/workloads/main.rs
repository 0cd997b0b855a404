//! Workloads, through the real server: slots, roll-outs, drains, and what is said when it cannot be.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod acceptance;
mod auditor;
#[path = "../common/mod.rs"]
mod common;
mod fairness;
mod gates;
mod limits;
mod lost;
mod model;
mod rollout;
mod simultaneous;
mod slot_ids;
mod slots;
mod spot;
mod status;
mod world;
