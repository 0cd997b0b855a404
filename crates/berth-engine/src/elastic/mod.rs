//! Elastic instances: how large each may be, when a node is under pressure, and which instances should
//! leave it.
//!
//! Pure, like all of the engine. Only integers are used, and a lint forbids arithmetic that could
//! overflow or wrap below zero.
#![deny(clippy::arithmetic_side_effects)]

mod account;
mod permit;
mod relief;
mod settings;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows has failed")]
mod tests;

pub use crate::model::size::{Free, InvalidOvercommit, Overcommit, Size};
pub use account::{Account, Holding, ResourceAccount, Sums, watermark_free};
pub use permit::{
    Grants, InvalidPermitRequest, Limit, Permit, PermitContext, PermitDecision, PermitRequest,
    decide_permit,
};
pub(crate) use relief::{ReliefCandidate, cheapest_set};
pub use relief::{ReliefInstance, ReliefMove, ReliefPlan};
pub use settings::{
    ElasticSettings, InstanceClass, MigrationSettings, NodeElastic, NodeRule, WatermarkRule,
};
