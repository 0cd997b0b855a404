//! The imitation, seen through the client that the product uses and through plain HTTP.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod access;
mod budgets;
mod lists;
mod objects;
mod pods;
mod support;
mod volumes;
mod watches;
mod webhooks;
mod workloads;
