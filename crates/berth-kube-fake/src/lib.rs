//! A strict imitation of a Kubernetes API server, for tests. Not part of the product.
//!
//! [`FakeApi`] listens on this machine and answers as the real server is documented to: one
//! version for all changes, lists in pages, watches with bookmarks, 409 for what is stale, 410 for
//! what is forgotten, binding once, evictions within budgets, dry runs, webhooks over TLS. What it
//! cannot imitate it refuses, so that a test does not pass by accident.
//!
//! It must never be lenient where the real server is not: code that works here is to work there.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use berth_kube_fake::{FakeApi, Options, samples};
//!
//! let fake = FakeApi::start(Options { kubelet: true, ..Options::default() }).await?;
//! fake.create(samples::node("n1", 4000, 8192)).await?;
//! fake.create(samples::pod("default", "a", "berth", 100, 64)).await?;
//! // The code under test talks to fake.url() and binds the pod.
//! assert!(fake.bindings().len() <= 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What is not imitated
//!
//! Who owns which field (`managedFields`): an apply merges, never conflicts and never removes.
//! Match conditions of webhooks are refused. Protobuf and tables are not spoken. Of custom
//! resources the stored version is served, and their schemas are not enforced. No node is ever
//! found dead, no taint evicts, no job runs, `minReadySeconds` is taken as zero, and a deployment
//! that is scaled in the middle of a roll-out is not scaled in proportion. The kubelet starts
//! whatever is bound to a node that exists, even if it does not fit.

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
pub use options::{Account, AuditEntry, Faults, Options};
pub use rbac::Rule;
pub use store::{Binding, Departure};
