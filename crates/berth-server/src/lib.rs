//! The server of Berth: the HTTP API over the control plane, sign-in, pages, configuration, and the
//! protocol of existing agents.
//!
//! A request goes from `http` (read, signed in, allowed) to the control plane and back; a domain error
//! becomes a problem document in `problem`. Nothing is decided here.

pub mod access;
pub mod config;
mod console;
pub mod http;
pub mod metrics;
mod pacing;
mod pages;
pub mod policy_file;
pub mod problem;
pub mod queue_table;
pub mod serve;
mod state;
pub mod telemetry;
pub mod wire;

pub use access::{Access, AccessControl, AccessError, ROUTES, TokenError, TokenRecord};
pub use http::{HttpLimits, openapi, router};
pub use problem::ApiError;
pub use state::AppState;
