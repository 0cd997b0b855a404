//! Nodes as their agents report them: heartbeats, and which nodes count as lost.

pub(crate) mod heartbeats;
pub(crate) mod liveness;

pub(crate) use heartbeats::Heartbeats;
