//! The scheduler against an imitation of the API server.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod binding;
mod drains;
mod faults;
mod gangs;
mod leadership;
mod measuring;
mod preemption;
mod rights;
mod storm;
mod support;
mod telling;
mod volumes;
