//! The admission webhook through its public interface: reviews as JSON over TLS, and pods created at
//! an imitation of the API server that calls it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod answers;
mod certificates;
mod cluster;
mod examples;
mod live;
mod many;
mod rebuilds;
mod rights;
mod stage;
mod storms;
mod tokens;
mod whole;
