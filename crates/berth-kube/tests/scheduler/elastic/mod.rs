//! Elastic pods: permits, pressure, and policies that change while the scheduler runs.

mod config;
mod limits;
mod permits;
mod relief;
mod resizable;
pub(crate) mod support;
