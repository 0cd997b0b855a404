//! A server that follows the log late never grants by what it used to know.
//!
//! `docs/ledger.md` has a table of everything that a decision depends on. One server changes each of
//! these things, and has its answer; another, which has not read the log since it started, is asked
//! for an instance right after.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../common/mod.rs"]
mod common;

mod inputs;
mod permits;
mod servers;
mod table;
