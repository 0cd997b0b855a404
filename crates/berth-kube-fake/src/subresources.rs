//! What is done to objects through a door of its own.

mod binding;
mod eviction;
pub(crate) mod scale;
