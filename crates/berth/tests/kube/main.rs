//! Berth in Kubernetes as users install and run it: the manifests, the chart, the commands.
//!
//! Commands run as processes against an imitation of the API server that allows no more than the
//! manifests ask for.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod commands;
mod manifests;
mod rights;
mod stage;
