//! The document: its parts and their names. Schema version 1.
//!
//! A part that is added later is optional when it is read; a part that changes its meaning raises
//! the version.

use std::collections::BTreeMap;

use berth_api::TicketState;
use berth_engine::elastic::{Account, Permit, Size, WatermarkRule};
use berth_engine::{Amounts, Group, InstanceId, NodeFacts, NodeId, Room, Used, Volume};
use berth_ledger::{ClaimHoldings, ClaimKey, ClaimState, Micros, Quota, Role, SlotKey};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::moves::drain::DrainRecord;
use crate::moves::migration::MigrationRecord;
use crate::moves::volume::VolumeMoveRecord;

/// The version of the document that this Berth writes and reads.
pub const SCHEMA: u32 = 1;

/// Everything inside a server that a decision rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// The version of this document.
    pub berth_dump: u32,
    /// The Berth that wrote it.
    pub berth_version: String,
    /// When: what fades, fades up to here.
    pub at: Timestamp,
    /// How far the ledger and the planner's copy of it had come.
    pub cursors: Cursors,
    /// What was under way.
    pub in_flight: InFlight,
    /// The policy in force.
    pub policy: Option<PolicyDump>,
    /// Nodes, in order of id.
    pub nodes: Vec<NodeDump>,
    /// Claims in all roles, in order of instance and role.
    pub claims: Vec<ClaimDump>,
    /// Migrations, also those that ended lately.
    pub migrations: Vec<StoredRecord<MigrationRecord>>,
    /// Nodes that are being emptied; the id is the node.
    pub drains: Vec<StoredRecord<DrainRecord>>,
    /// Volumes that move; the id is the volume.
    pub volume_moves: Vec<StoredRecord<VolumeMoveRecord>>,
    /// What should run.
    pub workloads: Vec<WorkloadDump>,
    /// Groups, with their counters.
    pub groups: Vec<GroupDump>,
    /// Volumes.
    pub volumes: Vec<Volume>,
    /// Volumes that are copied for the last time before they move, and where to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volume_marks: BTreeMap<String, NodeId>,
    /// Tenants with limits, and what is counted of their use.
    pub quotas: Vec<QuotaDump>,
    /// Slots of workloads and who has them; absent in dumps of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<Vec<SlotDump>>,
    /// Values of pools that are in use; absent in dumps of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_values: Option<Vec<PoolValueDump>>,
    /// Queued requests without what they ask for; absent in dumps of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tickets: Option<Vec<TicketDump>>,
    /// The current version of the secrets of environments without a tenant; never the secrets.
    pub environments: BTreeMap<String, String>,
    /// The same of environments of tenants: by tenant, then by environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant_environments: BTreeMap<String, BTreeMap<String, String>>,
}

/// How far copies had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursors {
    /// The last event that is in the rows.
    pub ledger: i64,
    /// The last event that the planner had taken in when nodes were looked at for the second time.
    #[serde(alias = "mirror")]
    pub replica: i64,
}

/// What was under way, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InFlight {
    /// Claims of the planner's own plans that the ledger had not granted yet.
    pub planned: usize,
    /// Claims whose fence the planner remembers, also of those that went lately.
    pub remembered: usize,
    /// Requests that wait for room.
    pub waiting: usize,
    /// Migrations under way.
    pub migrations: usize,
    /// Nodes that are being emptied.
    pub drains: usize,
    /// Workloads whose members cannot be placed.
    pub degraded: usize,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDump {
    /// Its name.
    pub name: String,
    /// The hash of its content.
    pub hash: String,
    /// Its content.
    pub body: Value,
}

/// A node: its row in the ledger, and what copies make of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDump {
    /// What is stated of it.
    pub facts: NodeFacts,
    /// The generation of its facts.
    pub generation: i64,
    /// How often hard rules about it changed.
    pub rules_gen: i64,
    /// The highest fence on it.
    pub fence: i64,
    /// Its limits and counters.
    pub room: Room,
    /// Further classes, such as `gpu`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, ClassDump>,
    /// What the copies in memory say.
    pub copies: Copies,
    /// What grants on it are multiples of.
    pub compute_unit: Size,
    /// Where pressure begins on it.
    pub watermark: WatermarkRule,
    /// Its account, as the readers' copy has it; absent: they do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

/// A counter of a further class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassDump {
    /// How many there are.
    pub limit: i64,
    /// How many are taken.
    pub used: i64,
}

/// What the copies in memory say of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Copies {
    /// Nothing of it changed from before the rows were read until after, so all copies must agree.
    pub steady: bool,
    /// The readers'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<CatalogueNode>,
    /// The planner's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "mirror")]
    pub replica: Option<Used>,
}

/// What the readers' copy says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogueNode {
    /// The generation of its facts.
    pub generation: i64,
    /// Its counters.
    pub used: Used,
    /// The sum of its claims.
    pub claims: Used,
}

/// A claim as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimDump {
    /// The instance.
    pub instance: InstanceId,
    /// Which of its claims.
    pub role: Role,
    /// The node.
    pub node: NodeId,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// The workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Where it stands.
    pub state: ClaimState,
    /// What its node is charged.
    pub charged: Amounts,
    /// Whether its CPU is capped.
    pub capped: bool,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Micros>,
    /// Its fence.
    pub fence: i64,
    /// The request that made it.
    pub request_id: String,
    /// The batch it came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Uuid>,
    /// The instance's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it asked for, without id and name.
    pub spec: Value,
    /// What it holds in addition to amounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ties: Option<ClaimHoldings>,
    /// The release that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_id: Option<String>,
    /// The version of the secrets that it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_version: Option<String>,
    /// When it was granted.
    pub created_at: Micros,
    /// How large it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Permit>,
}

/// A document of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRecord<T> {
    /// Its id.
    pub id: String,
    /// Its revision.
    pub revision: i64,
    /// Its content.
    pub record: T,
}

/// A workload as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadDump {
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its revision.
    pub revision: i64,
    /// How many are wanted.
    pub replicas: i64,
    /// Its content.
    pub body: Value,
}

/// A row that says which claim has a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDump {
    /// The slot.
    pub slot: SlotKey,
    /// The claim that has it.
    pub holder: ClaimKey,
}

/// A value of a pool that is in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolValueDump {
    /// The pool.
    pub pool: String,
    /// The value as a number: 32 digits, in base 16.
    pub value: String,
    /// The claim that has it.
    pub holder: ClaimKey,
}

/// A queued request: what became of it, not what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketDump {
    /// Where it is stored.
    pub document: String,
    /// Its id.
    pub id: String,
    /// Its state.
    pub state: TicketState,
    /// How many instances were placed for it, once it was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<usize>,
}

/// A group and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDump {
    /// The group.
    pub group: Group,
    /// Where it must be, once it has members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Members by domain, as counted.
    pub members: BTreeMap<String, i64>,
}

/// A tenant's limits and use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaDump {
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its limits.
    pub limits: Quota,
    /// What is counted of its use.
    pub used: TenantUseDump,
}

/// What a tenant uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TenantUseDump {
    /// Milli-CPU.
    pub cpu_milli: i64,
    /// MiB of memory.
    pub memory_mib: i64,
    /// MiB of disk.
    pub disk_mib: i64,
    /// Instances.
    pub instances: i64,
}
