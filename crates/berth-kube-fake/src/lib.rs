//! A strict imitation of a Kubernetes API server, for tests. Not part of the product.
//!
//! [`FakeApi`] listens on this machine and answers as the real server is documented to: one
//! version for all changes, lists in pages, watches with bookmarks, 409 for what is stale, 410 for
//! what is forgotten, binding once, evictions within budgets, dry runs, webhooks over TLS. What it
//! cannot imitate it refuses, so that a test does not pass by accident.
//!
//! It must never be lenient where the real server is not: code that works here is to work there.

mod admission;
mod api;
mod controllers;
mod create;
mod defaults;
mod delete;
mod failure;
mod fake;

mod list;
mod names;
mod object;
mod options;
mod patch;
mod quantity;
mod rbac;
mod resource;
pub mod samples;
mod schema;
mod selector;
mod server;
mod store;
mod subresources;
mod update;
mod validate;
mod view;
mod watch;

pub use admission::AdmissionCall;
pub use failure::Failure;
pub use fake::{FakeApi, Reply, StartError};
pub use options::{AuditEntry, Faults, Options};
pub use rbac::Rule;
pub use store::{Binding, Departure};
