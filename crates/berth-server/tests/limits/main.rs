//! Nothing that a caller sends, or once sent, is more than a server can bear.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod attacks;
#[path = "../common/mod.rs"]
mod common;
mod every_field;
mod largest;
mod quarantine;
mod sites;
