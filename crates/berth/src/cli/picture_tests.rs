//! Pictures of real refusals.
