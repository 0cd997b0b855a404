//! Decisions: the record of each choice, and its replay.

use berth_engine::{ExplanationPage, Fix, InstanceId, NodeId, Refusal};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a decision placed an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacedAt {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Its name, while it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The node; hidden from tenants if the policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The node's total, in millionths of a point.
    pub score: i64,
}

/// The outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionOutcome {
    /// Claimed.
    Granted,
    /// Nothing was claimed.
    Refused,
}

/// The record of one choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// An explanation has decisions of its own: in the document, each needs a name.
#[schema(as = DecisionRecord)]
pub struct Decision {
    /// Its id.
    pub id: String,
    /// When.
    pub at: Timestamp,
    /// The request.
    pub request_id: String,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its outcome.
    pub outcome: DecisionOutcome,
    /// How many instances were requested.
    pub asked: u32,
    /// The policy that decided, by hash.
    pub policy: String,
    /// The last event that the deciding server had applied.
    pub fleet_version: i64,
    /// Where instances were placed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<PlacedAt>,
    /// Instances that were released to make room; a tenant sees its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<uuid::Uuid>)]
    pub preempted: Vec<InstanceId>,
    /// Why nothing was placed: the stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Which limit of the tenant or of a pool refused it, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What would have helped against that limit: each was tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fixes: Vec<Fix>,
    /// Why nothing was placed, in full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
    /// The request of each instance; only when a single decision is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub requests: Vec<serde_json::Value>,
}

/// Whether a decision could be derived again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayOutcome {
    /// Derived again with the same result: the same nodes and scores, or the same refusal.
    Identical,
    /// Derived again, with another result.
    Different,
    /// The log no longer contains the events that the decision was based on.
    OutOfReach,
}

/// A decision derived again from the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replay {
    /// The decision.
    pub decision: String,
    /// Whether the result is the same.
    pub outcome: ReplayOutcome,
    /// The event up to which the fleet was rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_version: Option<i64>,
    /// What was recorded.
    #[schema(value_type = Object)]
    pub recorded: serde_json::Value,
    /// What was derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub derived: Option<serde_json::Value>,
    /// In words.
    pub note: String,
}

/// The choice of a node for one instance, with a page of the nodes it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceExplanation {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Counts over all nodes, winner and runner-up, and the page.
    #[serde(flatten)]
    pub page: ExplanationPage,
}

/// Why a decision came out as it did, derived again from the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionExplanation {
    /// The decision.
    pub decision: String,
    /// Whether it could be derived again, and came out the same.
    pub outcome: ReplayOutcome,
    /// In words.
    pub note: String,
    /// The event up to which the fleet was rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_version: Option<i64>,
    /// The explanation of one instance, if the decision came out the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<InstanceExplanation>,
}

/// Why an instance is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacementReason {
    /// What is known, in words.
    pub note: String,
    /// The decision that placed it, while its record is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// Why that decision chose its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<DecisionExplanation>,
}
