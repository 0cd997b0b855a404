//! The admission webhook through its public interface: reviews as JSON over TLS, and pods created at
//! an imitation of the API server that calls it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod certificates;
mod cluster;
mod concurrency;
mod examples;
mod fault_storms;
mod fixture;
mod lifecycle;
mod live;
mod permissions;
mod rebuild;
mod registration;
mod responses;
mod slots;
mod tokens;
