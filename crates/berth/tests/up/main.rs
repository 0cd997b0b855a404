//! Real servers, on free ports and in folders of their own, from the first start to the last answer.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod connections;
mod harness;
mod policy_file;
mod reload;
mod start;
mod stop;
mod stored_policy;
mod tls;
mod wire;
