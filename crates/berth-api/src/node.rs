//! Nodes, and the contract between Berth and the agents that run on them.

use std::collections::BTreeMap;

use berth_engine::elastic::Account;
use berth_engine::{
    Amounts, Elastic, FactLayer, FactValues, InstanceId, MeasuredLoad, NodeFacts, NodeId, NodeState,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::claim::{Claim, ClaimState, InstanceSlot};
use crate::drain::{ReclaimNotice, VolumeMoveTask};
use crate::elastic::MigrationTask;
use crate::place::HeldValue;

/// A node: what is known of it, and what is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its facts in effect: what an operator set, else the policy's defaults, else what is reported.
    pub facts: NodeFacts,
    /// What an operator set, by field such as `reserved` or `labels.hall`; null: nothing, in place of
    /// what is reported.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub set: FactValues,
    /// The policy's defaults for the node, by field. They count where nothing is set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub policy_defaults: FactValues,
    /// What is reported, for each field where something else is in effect; null: nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub reported: FactValues,
    /// For a node that is lost, degraded or joining: why, and what makes it active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_message: Option<String>,
    /// Increases with every change of its facts or state; also its ETag.
    pub generation: i64,
    /// When its agent last sent a heartbeat; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Timestamp>,
    /// What instances may be given in all, after the host's own share and with its ratios.
    pub limits: Amounts,
    /// What instances are charged.
    pub used: Amounts,
    /// How many instances it holds.
    pub instances: u32,
    /// What of CPU and memory is reserved, uncertain and lacking, and where pressure begins. CPU is
    /// in thousandths of a core, memory in MiB.
    pub account: Account,
    /// Whether it alone could be evacuated, by the last check; absent: not checked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evacuation: Option<NodeEvacuation>,
}

/// Whether a node could be evacuated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeEvacuation {
    /// Whether all its instances would find a place elsewhere, under every rule.
    pub can_be_emptied: bool,
    /// Why, in one sentence.
    pub message: String,
    /// When it was checked.
    pub checked_at: Timestamp,
}

/// Changes a node's state.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeStateChange {
    /// Why, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Gives facts back that an operator set.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnsetFacts {
    /// Fields, such as `reserved` and `labels.hall`; `labels` means all labels.
    #[schema(min_items = 1)]
    pub fields: Vec<String>,
}

/// The state of an instance on a node, as reported by its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Being started.
    Starting,
    /// Runs.
    Running,
    /// Being stopped.
    Stopping,
    /// Is gone: its claim can be freed.
    Stopped,
    /// Failed to start, or exited unexpectedly.
    Failed,
}

/// What made an instance fail to start, as far as its agent can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureCause {
    /// The node: no instance would start there now.
    Node,
    /// The instance: it would start nowhere. Does not count against the node.
    Instance,
    /// Either. Counts against the node together with failures of other tenants.
    Unknown,
}

/// An instance that an agent finds on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunningInstance {
    /// Which.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The fence it was started with; absent when Berth did not place it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// What it does.
    pub state: RunState,
    /// For one that stopped or failed: why, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For one that failed to start: what made it fail; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureCause>,
    /// For an instance that Berth did not place: what it uses, so that it can be charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundInstance>,
}

/// What is known of an instance that an agent found and Berth did not place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Found)]
pub struct FoundInstance {
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// What it uses.
    pub resources: Amounts,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// How far it may shrink and grow, if it is elastic. Until it asks for a permit, it is charged
    /// its maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
}

/// A heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The node's facts, when they changed since the last heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Box<NodeFacts>>,
    /// All instances on the node; absent: not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Vec<RunningInstance>>,
    /// Why the node works only in part, such as a failed health check: it becomes `degraded`. Sent with
    /// every heartbeat while it holds; absent: it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
    /// How busy the host is, for policies with `measured-load`. Sent with every heartbeat; absent: not
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<MeasuredLoad>,
    /// Notice that the node will be reclaimed; may be sent with every heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<ReclaimNotice>,
}

/// The result for one reported instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Reported)]
pub struct ReportedInstance {
    /// Which.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Its claim's state now; absent when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ClaimState>,
    /// Why the report was refused: a code, such as `stale_fence`. The agent must stop what runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The response to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Heard)]
pub struct HeartbeatResponse {
    /// The server's time.
    pub at: Timestamp,
    /// The node's state.
    pub state: NodeState,
    /// The node's generation.
    pub generation: i64,
    /// Seconds after which the next heartbeat is expected.
    pub next_s: u32,
    /// The result for each reported instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reported: Vec<ReportedInstance>,
    /// Everything that should be on the node.
    pub assignments: Vec<Assignment>,
    /// What is to be done for volumes that move from or to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_moves: Vec<VolumeMoveTask>,
    /// What is to be done for instances that move from or to the node while they run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<MigrationTask>,
}

/// An instance that should be on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Assignment {
    /// Which.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// `held` and `binding`: start it. `active`: keep it. `releasing`: stop it.
    pub state: ClaimState,
    /// To be sent with every change. One that is lower than the last seen is invalid.
    pub fence: i64,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its name, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The workload, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Its slot, if it is a member of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<InstanceSlot>,
    /// Its image, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What it is charged.
    pub resources: Amounts,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Volumes it uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// Values held from pools, such as its address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<HeldValue>,
    /// How far it may shrink and grow, if it is elastic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
}

/// Everything that should be on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssignmentList {
    /// The node.
    pub node: NodeId,
    /// The node's state.
    pub state: NodeState,
    /// All of it, in order of instance id.
    pub assignments: Vec<Assignment>,
}

/// An invalid line of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportLine {
    /// Which: a line of the CSV, or a place in the JSON list, from 1.
    pub line: u64,
    /// The node, if it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What is wrong, and what would be accepted.
    pub error: String,
}

/// The result of an import, which is applied as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ImportReport {
    /// Nodes that were added.
    pub added: u64,
    /// Nodes that were changed.
    pub changed: u64,
    /// Nodes that were already as stated.
    pub unchanged: u64,
    /// The layer that it stated facts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<FactLayer>,
    /// The facts that it owns, by path, at most 256 of them: those that its columns or keys name. What a
    /// later import of the same columns leaves empty is taken away; other facts stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned: Vec<String>,
    /// Invalid lines; if there are any, nothing was imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ImportLine>,
}

/// An instance on a node, and why it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NodeGuest)]
pub struct NodeInstance {
    /// Its claim.
    pub claim: Claim,
    /// The decision that placed it there, if it is still stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Who requested it, when, under which policy and with which score.
    pub why: String,
}

/// What is on a node and why, and what prevents it from accepting more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeExplanation {
    /// The node.
    pub node: Node,
    /// What prevents it from accepting instances: one sentence each.
    pub obstacles: Vec<String>,
    /// What is left of each resource, in words.
    pub room: Vec<String>,
    /// What is there.
    pub guests: Vec<NodeInstance>,
}
