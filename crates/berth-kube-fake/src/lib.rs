//! A strict imitation of a Kubernetes API server, for tests. Not part of the product.
//!
//! [`FakeApi`] listens on a local port and answers as the real server is documented to: one resource
//! version for all changes, paged lists, watches with bookmarks, 409 for stale writes, 410 for expired
//! versions, one binding per pod, evictions within budgets, dry runs, webhooks over TLS. What it cannot
//! imitate it rejects, so that no test passes by accident.
//!
//! It must never be lenient where the real server is not: code that works here should work there.
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
//! Field ownership (`managedFields`): an apply merges, never conflicts and never removes fields. Match
//! conditions of webhooks are rejected. Protobuf and tables are not supported. Custom resources are served
//! in their stored version, without schemas. Nodes never become unresponsive, taints do not evict, jobs do
//! not run, `minReadySeconds` counts as zero, and a deployment that is scaled during a roll-out is not
//! scaled proportionally. The kubelet starts whatever is bound to an existing node, even if it does not
//! fit.

mod admission;
mod admission_state;
mod api;
mod controllers;
mod create;
mod defaults;
mod delete;
mod failure;
mod fake;
mod json_patch;
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
mod snapshots;
mod store;
mod subresources;
mod update;
mod validate;
mod view;
mod watch;

pub use admission_state::AdmissionCall;
pub use failure::Failure;
pub use fake::{FakeApi, Reply};
pub use options::{Account, AuditEntry, Faults, Options};
pub use rbac::Rule;
pub use server::StartError;
pub use store::{Binding, DeletedPod};
