//! The imitation, seen through the client that the product uses and through plain HTTP.

mod lists;
mod pods;
mod support;
mod watches;
