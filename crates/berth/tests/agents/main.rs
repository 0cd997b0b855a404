//! Agents against a server: what is placed really runs, what is released is really gone, and the
//! simulated fleet keeps itself busy.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that panics has failed")]

mod exec;
mod fixture;
mod moves;
mod play;
