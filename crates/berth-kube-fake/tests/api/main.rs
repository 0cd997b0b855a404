//! The imitation, seen through the client that the product uses and through plain HTTP.

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
