//! Answers of the ledger: granted, conflict or refused. An unknown outcome is an error.

use berth_engine::elastic::InvalidPermitRequest;
use berth_engine::{Amounts, InstanceId, Lack, NodeId, NodeState, Room};
use serde::{Deserialize, Serialize};

use super::claim::{ClaimKey, ClaimState, HeldValue, Micros, Role, Slot, SlotKey, Text};
use super::elastic::PermitAnswer;
use super::op::Drift;

/// One claim that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedClaim {
    /// The instance.
    pub instance: InstanceId,
    /// Which of its claims.
    #[serde(default, skip_serializing_if = "is_primary")]
    pub role: Role,
    /// The node.
    pub node: NodeId,
    /// To be presented with every step of the claim.
    pub fence: i64,
    /// When it ends unless it is bound or renewed.
    pub lease_until: Option<Micros>,
    /// Values taken from pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<HeldValue>,
    /// Its slot in its workload; `seat` is its name in what is stored.
    #[serde(rename = "seat", default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
}

fn is_primary(role: &Role) -> bool {
    *role == Role::Primary
}

/// A plan that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its claims, in the order of the plan.
    pub claims: Vec<GrantedClaim>,
    /// The receipt it is in: chain, number and place.
    pub decision: String,
}

/// A node's row as it stood when a guard failed, for the planner to take in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSnapshot {
    /// The node.
    pub node: NodeId,
    /// Its state.
    pub state: NodeState,
    /// Generation of its facts.
    pub constraint_gen: i64,
    /// Generation of the hard rules there.
    pub rules_gen: i64,
    /// Its counters and limits.
    pub room: Room,
}

/// Which guard failed, on which row, with the numbers it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The node is not there.
    UnknownNode(NodeId),
    /// The node's facts or state changed since the plan was made.
    Changed {
        /// As it is now.
        now: Box<NodeSnapshot>,
        /// The generation the plan was made on.
        planned_gen: i64,
    },
    /// A claim with a hard rule about others was granted there since.
    RulesChanged {
        /// As it is now.
        now: Box<NodeSnapshot>,
        /// The generation the plan was made on.
        planned_gen: i64,
    },
    /// The node takes no instances: its capacity is unknown, or its state forbids it.
    NotSchedulable(Box<NodeSnapshot>),
    /// Too little is left.
    Room {
        /// As it is now.
        now: Box<NodeSnapshot>,
        /// What is missing.
        lack: Lack,
    },
    /// Too little is left of a further class.
    Class {
        /// The node.
        node: NodeId,
        /// What is missing.
        lack: Lack,
    },
    /// The group is not there.
    UnknownGroup(Text),
    /// The group has its home elsewhere, or its domain is full.
    Group {
        /// The group.
        group: Text,
        /// The domain that was planned.
        domain: Option<Text>,
        /// Members there now.
        members: i64,
        /// Most members there.
        limit: i64,
        /// Where a group that stays together is.
        home: Option<Text>,
    },
    /// The volume is not there.
    UnknownVolume(Text),
    /// The volume lives elsewhere.
    VolumeHome {
        /// The volume.
        volume: Text,
        /// Where it lives.
        home: NodeId,
    },
    /// Another instance uses the volume.
    VolumeInUse {
        /// The volume.
        volume: Text,
        /// The instance that uses it.
        by: InstanceId,
    },
    /// The instance already has a claim in this role.
    AlreadyPlaced {
        /// The claim.
        key: ClaimKey,
        /// Where it is.
        node: NodeId,
    },
    /// Another instance has that slot.
    SlotTaken {
        /// The slot.
        slot: SlotKey,
        /// Which instance has it.
        by: InstanceId,
    },
    /// Another policy is in force than the one that the plan was made by.
    PolicyChanged {
        /// The one in force, by hash.
        now: Option<Text>,
    },
    /// The secrets of the environment have another version than the plan names, or are gone.
    SecretsChanged {
        /// The environment.
        env: Text,
        /// Their version now.
        now: Option<Text>,
    },
    /// The workload was stored again or removed since the plan was made.
    WorkloadChanged {
        /// The workload.
        workload: Text,
        /// Its version now.
        now: Option<i64>,
    },
    /// Too few members of a workload run for another one to be stopped.
    TooFewRunning {
        /// The workload.
        workload: Text,
        /// In how many slots one runs.
        running: usize,
        /// In how many one must.
        at_least: usize,
    },
    /// An instance that was to make room is gone, elsewhere, moving or leaving already.
    VictimChanged {
        /// The instance.
        instance: InstanceId,
    },
}

impl Guard {
    /// The stable reason code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownNode(_) => "unknown_node",
            Self::Changed { .. } => "node_changed",
            Self::RulesChanged { .. } => "rules_changed",
            Self::NotSchedulable(_) => "no_nodes_active",
            Self::Room { lack, .. } | Self::Class { lack, .. } => lack.code,
            Self::UnknownGroup(_) => "unknown_group",
            Self::Group { .. } => "group_no_node",
            Self::UnknownVolume(_) => "unknown_volume",
            Self::VolumeHome { .. } => "volume_locality_no_node",
            Self::VolumeInUse { .. } => "volume_in_use",
            Self::AlreadyPlaced { .. } => "already_placed",
            Self::SlotTaken { .. } => "slot_taken",
            Self::PolicyChanged { .. } => "policy_changed",
            Self::SecretsChanged { .. } => "secrets_changed",
            Self::WorkloadChanged { .. } => "workload_changed",
            Self::TooFewRunning { .. } => "too_few_running",
            Self::VictimChanged { .. } => "victim_changed",
        }
    }
}

/// A plan that no longer holds: plan again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Which claim of the plan.
    pub instance: InstanceId,
    /// The node it was planned for.
    pub node: NodeId,
    /// Why.
    pub guard: Guard,
}

/// Why planning again would not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The tenant's quota.
    Quota {
        /// The tenant.
        tenant: Text,
        /// Of what.
        resource: &'static str,
        /// In use.
        used: i64,
        /// Asked for.
        wanted: i64,
        /// The limit.
        limit: i64,
    },
    /// A pool has no free value.
    PoolExhausted {
        /// The pool.
        pool: Text,
        /// Whether it holds addresses.
        addresses: bool,
        /// How many values were free.
        free: usize,
        /// How many it has in all.
        size: u128,
    },
    /// The pool is not there.
    UnknownPool(Text),
    /// The tenant is being removed.
    TenantRemoving(Text),
    /// The volume is copied for the last time before it moves: nobody may begin to use it.
    VolumeMoving {
        /// The volume.
        volume: Text,
        /// Where to.
        to: NodeId,
    },
    /// The request id was used for something else.
    RequestIdReused {
        /// The id.
        request_id: Text,
    },
    /// The plan has no claims, or names an instance twice.
    Malformed(String),
}

impl RefusalReason {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Quota { .. } => "quota_exceeded",
            Self::PoolExhausted { addresses: true, .. } => "ipam_exhausted",
            Self::PoolExhausted { addresses: false, .. } => "pool_exhausted",
            Self::UnknownPool(_) => "unknown_pool",
            Self::TenantRemoving(_) => "tenant_removing",
            Self::VolumeMoving { .. } => "volume_moving",
            Self::RequestIdReused { .. } => "request_id_reused",
            Self::Malformed(_) => "malformed_plan",
        }
    }
}

/// What became of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it is claimed.
    Granted(Grant),
    /// Nothing is claimed: a guard failed, plan again.
    Conflict(Box<Conflict>),
    /// Nothing is claimed, and planning again would not help.
    Refused(RefusalReason),
}

/// A claim as it stands after a step of its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimStatus {
    /// The instance.
    pub instance: InstanceId,
    /// Which of its claims.
    pub role: Role,
    /// The node.
    pub node: NodeId,
    /// Its state; absent when it is gone.
    pub state: Option<ClaimState>,
    /// Its fence.
    pub fence: i64,
    /// Its lease, while held.
    pub lease_until: Option<Micros>,
    /// What it is charged.
    pub amounts: Amounts,
}

/// Why a step of a claim's life was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRejection {
    /// There is no such claim.
    NoClaim(ClaimKey),
    /// Another tenant's.
    NotOwner {
        /// The claim.
        key: ClaimKey,
        /// The caller's tenant.
        asked: Text,
    },
    /// A later holder has it.
    StaleFence {
        /// The claim.
        key: ClaimKey,
        /// What was presented.
        presented: i64,
        /// What it is now.
        current: i64,
    },
    /// Its lease has ended.
    LeaseExpired {
        /// The claim.
        key: ClaimKey,
        /// When.
        expired_at: Micros,
        /// The database's clock.
        now: Micros,
    },
    /// It is in another state than this step needs.
    WrongState {
        /// The claim.
        key: ClaimKey,
        /// The state it is in.
        found: ClaimState,
        /// The states that would do.
        wanted: &'static str,
    },
    /// It stays as large as it is.
    NotElastic(ClaimKey),
    /// It is being moved, and must not change its size meanwhile.
    Moving(ClaimKey),
    /// It asked for a size that means nothing.
    Wish(InvalidPermitRequest),
    /// A guard failed.
    Guard(Box<Guard>),
    /// A limit that planning again would not help with.
    Refused(RefusalReason),
}

impl ClaimRejection {
    /// The stable reason code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoClaim(_) => "no_claim",
            Self::NotOwner { .. } => "not_owner",
            Self::StaleFence { .. } => "stale_fence",
            Self::LeaseExpired { .. } => "lease_expired",
            Self::WrongState { .. } => "wrong_state",
            Self::NotElastic(_) => "not_elastic",
            Self::Moving(_) => "migrating",
            Self::Wish(_) => "invalid_size",
            Self::Guard(guard) => guard.code(),
            Self::Refused(by) => by.code(),
        }
    }
}

/// What became of an administrative operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was so already.
    Unchanged,
    /// It cannot be done; why, and what would help.
    Impossible(String),
    /// It would make something for this tenant, which is being removed.
    TenantRemoving(Text),
    /// What is stored is not what was expected: read it again. Nothing has changed.
    Stale {
        /// The revision or generation that is stored; absent when there is none, and for policies,
        /// which have none.
        current: Option<i64>,
    },
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a plan.
    Plan(Verdict),
    /// Of a plan that was granted before: the first answer. Its claims may be gone by now.
    Repeated(Grant),
    /// Of a step in a claim's life.
    Claim(Result<ClaimStatus, ClaimRejection>),
    /// Of a request for a permit.
    Permit(Box<Result<PermitAnswer, ClaimRejection>>),
    /// Instances whose lease had ended.
    Reaped(Vec<InstanceId>),
    /// Counters that differed from their claims.
    Drifts(Vec<Drift>),
    /// Of an administrative operation.
    Outcome(Outcome),
}
