//! The existing name that a mistyped one was meant to be: the engine's, which selectors use too.

pub(crate) use berth_engine::suggest::closest;
