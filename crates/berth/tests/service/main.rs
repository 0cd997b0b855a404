//! The service under strain: servers that die, clients that misbehave.

#[path = "../up/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of berth up")]
mod harness;
mod hostile;
mod three_servers;
