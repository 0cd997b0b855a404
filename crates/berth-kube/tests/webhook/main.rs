//! The admission webhook through its public interface: reviews as JSON over TLS, and pods created at
//! an imitation of the API server that calls it.

mod answers;
mod cluster;
mod examples;
mod live;
mod many;
mod rebuilds;
mod stage;
mod tokens;
mod whole;
