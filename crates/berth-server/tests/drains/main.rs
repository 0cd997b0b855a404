//! Emptying nodes, through the real server: what moves, what cannot, and what is done about it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../common/mod.rs"]
mod common;
mod handover;
mod moves;
mod notices;
mod stage;
mod volumes;
