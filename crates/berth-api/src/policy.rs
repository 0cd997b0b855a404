//! Policies: stored by the hash of their content, one of them in force.

use berth_engine::elastic::Size;
use berth_engine::{InstanceId, NodeId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A policy as text. JSON bodies of this shape are accepted, and so is bare TOML with
/// `Content-Type: application/toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyText {
    /// The policy in TOML.
    pub toml: String,
}

/// A policy as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredPolicy {
    /// Its name.
    pub name: String,
    /// The hash of its content; its version and its ETag.
    pub hash: String,
    /// Whether it is in force.
    pub active: bool,
    /// When it was stored; absent for one that is not stored: built in, or only validated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_at: Option<Timestamp>,
    /// Its content.
    #[schema(value_type = Object)]
    pub body: serde_json::Value,
}

/// One key in which two policies differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyChange {
    /// The key: `weights.pack`.
    pub key: String,
    /// Its value in the first; absent: not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub from: Option<serde_json::Value>,
    /// Its value in the second; absent: not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub to: Option<serde_json::Value>,
}

/// How two policies differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyDiff {
    /// The first, by hash.
    pub from: String,
    /// The second, by hash.
    pub to: String,
    /// Key by key; empty when they are the same.
    pub changes: Vec<PolicyChange>,
    /// What would change on the fleet as it is now, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveDiff>,
}

/// A policy that is meant: by name, hash or `active`, or as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PolicyRef {
    /// A hash, the beginning of one, a name, or `active`.
    Named(String),
    /// One that need not be stored.
    Text(PolicyText),
}

/// Asks how two policies differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyDiffQuery {
    /// The first.
    pub from: PolicyRef,
    /// The second.
    pub to: PolicyRef,
    /// Say also what would change on the fleet as it is now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// With `live`: the most decisions, nodes and classes that are listed; 100 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// With `live`: look at instances after this one; the `next` of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub after: Option<InstanceId>,
}

/// What would change on the fleet as it is now if the second policy were in force and not the first.
/// Nothing that runs is moved by a policy: these are the decisions as they would be made now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveDiff {
    /// As of when.
    pub at: Timestamp,
    /// In one sentence.
    pub summary: String,
    /// Decisions in numbers.
    pub counts: LiveCounts,
    /// Decisions that would change, in order of instance, up to the limit.
    pub decisions: Vec<LiveDecision>,
    /// Nodes of which something would change, in order of id, up to the limit.
    pub nodes: Vec<LiveNode>,
    /// How many nodes those are in all.
    pub nodes_changed: usize,
    /// Classes of elastic instances whose terms would change, up to the limit.
    pub classes: Vec<LiveClass>,
    /// The last instance that was looked at, if there are more: ask again with it as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub next: Option<InstanceId>,
}

/// Decisions in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LiveCounts {
    /// Instances that were looked at: each was taken off its node in a copy of the fleet and placed
    /// again under both policies.
    pub looked_at: usize,
    /// Instances that were not looked at.
    pub not_looked_at: usize,
    /// The same node under both.
    pub same: usize,
    /// Another node under the second.
    pub other_node: usize,
    /// Refused under the first, placed under the second.
    pub only_to: usize,
    /// Placed under the first, refused under the second.
    pub only_from: usize,
    /// Refused under both.
    pub refused: usize,
}

/// A decision that would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveDecision {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Where it is.
    pub node: NodeId,
    /// Where it would go under the first; absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<NodeId>,
    /// Where it would go under the second; absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeId>,
    /// Why it would be refused under one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// How a node stands under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveStanding {
    /// What its host keeps for itself.
    pub system: Size,
    /// More is reserved than may be: nothing grows there until it holds.
    pub over_limit: bool,
    /// Where pressure begins.
    pub watermark_cpu: i64,
    /// Where pressure begins, in MiB.
    pub watermark_memory: i64,
    /// More is reserved than a watermark.
    pub above_watermark: bool,
    /// Instances would have to leave.
    pub must_shed: bool,
    /// What grants are multiples of.
    pub compute_unit: Size,
}

/// A node of which something would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveNode {
    /// Which.
    pub node: NodeId,
    /// Under the first.
    pub from: LiveStanding,
    /// Under the second.
    pub to: LiveStanding,
}

/// What a policy says of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveTerms {
    /// How many times what a node has may be given, in thousandths.
    pub overcommit_permille: u32,
    /// What grants are multiples of, if the class says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_unit: Option<Size>,
    /// What nodes would be charged for all of its instances together.
    pub charged_cpu_milli: i64,
    /// The same of memory, in MiB.
    pub charged_memory_mib: i64,
}

/// A class of elastic instances whose terms would change. Instances that are there keep what they
/// are charged; the next placement goes by the new terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveClass {
    /// Its name.
    pub class: String,
    /// How many instances are of it.
    pub instances: usize,
    /// The first few of them.
    #[schema(value_type = Vec<uuid::Uuid>)]
    pub examples: Vec<InstanceId>,
    /// Under the first; absent: it does not know the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<LiveTerms>,
    /// Under the second; absent: it would refuse such instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<LiveTerms>,
}
