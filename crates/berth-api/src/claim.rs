//! Claims and the instances that hold them.

use std::collections::BTreeMap;

use berth_engine::{Amounts, InstanceId, NodeId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::elastic::Permit;
use crate::place::HeldValue;

/// The state of a claim.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    /// Leased: it expires unless it is bound or renewed.
    Held,
    /// An agent has accepted it.
    Binding,
    /// The instance runs.
    Active,
    /// To be stopped; its resources are freed when the agent confirms that it is gone.
    Releasing,
}

/// Whether a claim is where an instance runs or where it is being moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimRole {
    /// Where it runs.
    #[default]
    Primary,
    /// Where it is being moved to.
    MigrationTarget,
    /// Where it was moved from: it is charged there until the agent confirms that it is gone.
    MigrationSource,
}

/// One instance's hold on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Claim {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Which of its claims.
    pub role: ClaimRole,
    /// The node; hidden from tenants if the policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// The instance's name, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The workload, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Its state.
    pub state: ClaimState,
    /// What it is charged.
    pub resources: Amounts,
    /// When it expires; only while held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Timestamp>,
    /// Increases with every new holder; requests with a lower one are refused.
    pub fence: i64,
    /// When it was granted.
    pub created_at: Timestamp,
    /// Values held from pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<HeldValue>,
}

/// A request to extend a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewClaim {
    /// The fence it was granted with.
    pub fence: i64,
    /// How many seconds from now; 120 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub lease_s: Option<u32>,
}

/// A request that is guarded by the fence alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FenceOnly)]
pub struct FencedRequest {
    /// The fence it was granted with.
    pub fence: i64,
}

/// A request to release a claim.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseClaim {
    /// A retry with the same id gets the first response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The fence it was granted with; optional for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// Confirms that the instance is gone; for agents and operators. Without it, a bound claim becomes
    /// `releasing` and is charged until its agent confirms.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// Why, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A claim's state after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Standing)]
pub struct ClaimStatus {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Which of its claims.
    pub role: ClaimRole,
    /// Its state; absent when it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ClaimState>,
    /// Its fence.
    pub fence: i64,
    /// Its lease, while held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Timestamp>,
}

/// Opaque values that are equal for instances that share a host, a rack or a zone.
///
/// They are only comparable within one tenant: another tenant gets other values for the same places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LocalityIndex {
    /// The host.
    pub host: String,
    /// The rack, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// The zone, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// A slot of a workload that an instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceSlot {
    /// The slot's identity: instances that replace each other have the same one, in every revision.
    pub id: uuid::Uuid,
    /// The slot's number.
    pub slot: i64,
    /// The workload's revision.
    pub revision: i64,
}

/// An instance: its claim, and parts of its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Its claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Groups it is a member of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Its slot, if it is a member of a workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<InstanceSlot>,
    /// What it shares with other instances of the same tenant.
    pub locality: LocalityIndex,
    /// Its rack; never shown to tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Its zone; shown to tenants as an opaque value only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// How large it may be, if it is elastic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Permit>,
}
