//! Preemption: a request that is placed in the room of instances of lower priority.

use berth_engine::{Amounts, InstanceId, NodeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::claim::ClaimState;
use crate::place::{PlaceRequest, Placed};

/// An instance in whose room a request would be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreemptedInstance {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tenant.
    pub tenant: String,
    /// The workload it is a member of, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Its priority.
    pub priority: i32,
    /// `held`: it is gone at once. `binding` or `active`: its agent stops it first.
    pub state: ClaimState,
    /// The fence of its claim, to be sent with the request to preempt it.
    pub fence: i64,
    /// What it hands over.
    pub resources: Amounts,
    /// Why it may be preempted, in words.
    pub why: String,
}

/// Who would make room for a request. Nothing is claimed or changed by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preemption {
    /// The tenant of the request.
    pub tenant: String,
    /// The node; hidden from tenants if the policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Instances to be released, the least important first; empty when the request fits already.
    pub victims: Vec<PreemptedInstance>,
    /// In one sentence.
    pub message: String,
}

/// An instance that is to be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreemptionVictim {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The fence of its claim.
    pub fence: i64,
}

/// A request to place an instance, in the room of others if need be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyPreemption {
    /// What to place: one instance.
    pub request: PlaceRequest,
    /// Who may be released for it, as proposed; all on one node. The server chooses when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victims: Option<Vec<PreemptionVictim>>,
}

/// A request that was placed, and who made room for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreemptionApplied {
    /// What was placed.
    pub placed: Placed,
    /// Instances that were released for it; empty when it fitted without.
    #[schema(value_type = Vec<uuid::Uuid>)]
    pub preempted: Vec<InstanceId>,
    /// In one sentence.
    pub message: String,
}
