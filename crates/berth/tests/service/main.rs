//! The service under strain: servers that die, clients that misbehave.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

#[path = "../up/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of berth up")]
mod harness;
mod hostile;
mod three_servers;
