//! What changes while servers run, and what is inside them: policies on a live fleet, dumps, checks.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod adopted;
mod broken_ledger;
#[path = "../common/mod.rs"]
mod common;
mod diff;
mod dump;
mod policy;
mod stage;
mod two_servers;
