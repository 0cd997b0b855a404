//! Workloads: their specification and status, and the environments they belong to.

use berth_engine::workload::{CapacityRule, Rolling};
use berth_engine::{CapacityType, InstanceId, NodeId, Refusal};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::claim::ClaimState;
use crate::place::InstanceSpec;

/// Stores a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorkload {
    /// How many should run. Absent: the caller creates the members by placing instances that name the
    /// workload, and Berth assigns their slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 100_000)]
    pub replicas: Option<u32>,
    /// The process type, such as `web`; the workload's name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub process: Option<String>,
    /// The request of each member. A change of it, of `pools` or of `release` is a new revision.
    pub template: InstanceSpec,
    /// Pools that each member takes a value from, such as its address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// The release that members run, for the record and for agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// How members are shared between on-demand and spot nodes; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityRule>,
    /// How changes are made.
    #[serde(default)]
    pub rolling: Rolling,
    /// Whether roll-outs are paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// A workload: its specification and status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workload {
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Increases with every change; also its ETag.
    pub version: i64,
    /// Increases with every change of template, pools or release.
    pub revision: i64,
    /// The environment, if its template names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// Its specification.
    pub spec: NewWorkload,
    /// Whether it is being removed: its members are released first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// Its state.
    pub status: WorkloadStatus,
}

/// The state of a workload.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadState {
    /// Everything runs as it should.
    Ready,
    /// A change is under way.
    Progressing,
    /// A roll-out was paused by a caller.
    Paused,
    /// Something prevents progress; see the reason.
    Degraded,
    /// Being removed.
    Deleting,
}

/// Why a workload is degraded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Degraded {
    /// The stable reason code, such as `no_capacity_memory`.
    pub code: String,
    /// In one sentence, with the numbers.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
    /// How many members it prevents from being placed.
    pub members: u32,
    /// The engine's whole explanation, where a placement was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Box<Refusal>>,
}

/// The status of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutStatus {
    /// The revision that should run.
    pub revision: i64,
    /// Members of it.
    pub updated: u32,
    /// Members of it that run.
    pub updated_active: u32,
    /// Members of older revisions that are left.
    pub old: u32,
    /// Whether it is complete: all wanted members are of the revision and run, and no other is left.
    pub complete: bool,
    /// In one sentence.
    pub message: String,
}

/// The status of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkloadStatus {
    /// In one word.
    pub state: WorkloadState,
    /// In one sentence.
    pub message: String,
    /// Members that are placed, except those being stopped.
    pub placed: u32,
    /// Members that run.
    pub active: u32,
    /// Members being stopped that are not gone yet.
    pub leaving: u32,
    /// Of those placed, on on-demand nodes.
    pub on_demand: u32,
    /// Of those placed, on spot nodes.
    pub spot: u32,
    /// The status of the roll-out.
    pub rollout: RolloutStatus,
    /// Why it is degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Degraded>,
    /// When members in a crash loop are restarted next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backs_off_until: Option<Timestamp>,
}

/// A member of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Which.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The revision it runs.
    pub revision: i64,
    /// Its slot.
    pub slot: u32,
    /// The slot's identity: members that replace each other have the same one, in every revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot_id: Option<uuid::Uuid>,
    /// The kind of capacity that its slot requires; absent without a capacity rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wants: Option<CapacityType>,
    /// The kind of node it is on.
    pub on: CapacityType,
    /// The cost of releasing it: the lowest is released first.
    pub deletion_cost: u32,
    /// Its claim's state.
    pub state: ClaimState,
    /// The node; hidden from tenants if the policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// When it was placed.
    pub since: Timestamp,
    /// Whether another member holds its slot, so that it is released when that one runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub handed_over: bool,
}

/// Changes how many should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScaleWorkload {
    /// How many.
    #[schema(maximum = 100_000)]
    pub replicas: u32,
}

/// What to do with a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutAction {
    /// Go back to an earlier revision.
    Undo,
    /// Pause the roll-out.
    Pause,
    /// Resume the roll-out.
    Resume,
    /// Replace all members by new ones of the same kind.
    Restart,
}

/// Changes a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRollout {
    /// What to do.
    pub action: RolloutAction,
    /// With `undo`: which revision; the one before when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_revision: Option<i64>,
}

/// An earlier revision of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastRevision {
    /// Its number.
    pub revision: i64,
    /// The request of its members.
    pub template: InstanceSpec,
    /// Pools that its members took values from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// The release that its members ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
}

/// One workload of an environment, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvWorkload {
    /// Its name.
    pub name: String,
    /// Its process type.
    pub process: String,
    /// Its state.
    pub state: WorkloadState,
    /// In one sentence.
    pub message: String,
    /// How many should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// How many run.
    pub active: u32,
    /// Why it is degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Degraded>,
}

/// An environment: a tenant's workloads that share secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Env {
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The worst of its workloads' states.
    pub state: WorkloadState,
    /// In one sentence.
    pub message: String,
    /// The current version of its secrets; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_version: Option<String>,
    /// Its workloads.
    pub workloads: Vec<EnvWorkload>,
}
