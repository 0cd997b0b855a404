//! Subresources with logic of their own: binding, eviction, scale.

mod binding;
mod eviction;
pub(crate) mod scale;
