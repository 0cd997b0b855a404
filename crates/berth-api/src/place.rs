//! Placing instances.

use std::collections::BTreeMap;

use berth_engine::affinity::Rule;
use berth_engine::{
    Amounts, CapacityType, Elastic, Explanation, InstanceId, Locality, NodeId, PlatformBounds,
    Ratios, Refusal, TraitValue,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many of the instances must be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All or none.
    #[default]
    AllOrNothing,
    /// At least as many as `at_least` says, or none.
    AtLeast,
    /// As many as fit.
    BestEffort,
    /// All or none, and if there is no room now, when there is.
    Wait,
}

/// How much of the reasons a granted placement comes with. A refusal always has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExplainLevel {
    /// None.
    #[default]
    None,
    /// The winner and the runner-up of the first instance.
    Summary,
    /// The same with every node.
    Full,
}

/// What one instance asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InstanceSpec {
    /// Its id; made by the server when absent. Not together with a `count` above 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub id: Option<InstanceId>,
    /// How many like this; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub count: Option<u32>,
    /// A name that affinity rules may use; with a `count`, `-1`, `-2`, … is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The environment whose secrets it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The workload it is a replica of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// What it needs. Disk that is not mentioned is 4 GiB.
    pub resources: Resources,
    /// Further integer classes it needs, such as `gpu`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, u32>,
    /// How far it may shrink and grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// Its tags, for rules of its own and of others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Traits its node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub traits: BTreeMap<String, TraitValue>,
    /// Networks: of each set, at least one must be up on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Vec<String>>,
    /// Platforms it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformBounds>,
    /// Overprovision ratios its package was sold with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratios: Option<Ratios>,
    /// On-demand or spot, if it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// Local volumes it must be beside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// Sets of volumes it must be beside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<String>,
    /// Whether its environment must have secrets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_secrets: bool,
    /// Whether its CPU is capped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cpu_capped: bool,
    /// Whether it refuses nodes that are virtual machines.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclude_virtual: bool,
    /// Its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What the image takes on disk beside the instance's own disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_mib: Option<u32>,
    /// Groups it is a member of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Affinity rules, such as `workload!=web@rack`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub affinity: Vec<Rule>,
    /// Locality hints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
    /// Higher may push out lower, by proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// What an instance needs of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Thousandths of a core.
    #[serde(default)]
    #[schema(maximum = 2_147_483_647)]
    pub cpu_milli: u32,
    /// Mebibytes of memory.
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub memory_mib: u32,
    /// Mebibytes of local disk; 4096 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2_147_483_647)]
    pub disk_mib: Option<u32>,
    /// Megabits per second.
    #[serde(default)]
    #[schema(maximum = 2_147_483_647)]
    pub bandwidth_mbps: u32,
}

impl Resources {
    /// The engine's amounts, with the default disk where none is asked for.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        Amounts {
            cpu_milli: self.cpu_milli,
            memory_mib: self.memory_mib,
            disk_mib: self.disk_mib.unwrap_or(berth_engine::InstanceRequest::DEFAULT_DISK_MIB),
            bandwidth_mbps: self.bandwidth_mbps,
        }
    }
}

impl InstanceSpec {
    /// An instance with these resources and nothing else.
    #[must_use]
    pub fn new(resources: Resources) -> Self {
        Self {
            id: None,
            count: None,
            name: None,
            env: None,
            workload: None,
            resources,
            extra: BTreeMap::new(),
            elastic: None,
            tags: BTreeMap::new(),
            traits: BTreeMap::new(),
            networks: Vec::new(),
            platform: None,
            ratios: None,
            capacity_type: None,
            volumes: Vec::new(),
            attachments: Vec::new(),
            needs_secrets: false,
            cpu_capped: false,
            exclude_virtual: false,
            image: None,
            image_mib: None,
            groups: Vec::new(),
            affinity: Vec::new(),
            locality: None,
            priority: None,
        }
    }
}

/// Instances to be placed together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceRequest {
    /// A retry under the same id gets the first answer. May be given as header `Idempotency-Key`
    /// instead; made by the server when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub request_id: Option<String>,
    /// The tenant it is for. May be left out by a token that is bound to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The instances.
    #[schema(min_items = 1, max_items = 1000)]
    pub instances: Vec<InstanceSpec>,
    /// How many must be placed.
    #[serde(default)]
    pub mode: Mode,
    /// With mode `at_least`: how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub at_least: Option<u32>,
    /// With mode `wait`: how many seconds it may wait; 600 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604_800)]
    pub wait_s: Option<u32>,
    /// How many seconds the claims may stay unbound; 120 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub lease_s: Option<u32>,
    /// Pools that each instance takes a value from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// Decide and claim nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// How much of the reasons to send.
    #[serde(default)]
    pub explain: ExplainLevel,
}

/// A value held from a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldValue {
    /// The pool.
    pub pool: String,
    /// The value: an address or a number.
    pub value: String,
}

/// An instance that has a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacedInstance {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The node; hidden from tenants if the policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// To be presented by whoever acts on the claim; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// When the claim ends unless it is bound or renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Timestamp>,
    /// Values taken from pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<HeldValue>,
    /// Its seat, when it names a workload that is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<PlacedSeat>,
}

/// A seat in a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacedSeat {
    /// The workload's revision.
    pub revision: i64,
    /// The seat's number.
    pub slot: i64,
    /// The kind of node it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<CapacityType>,
    /// What it costs to let it go: the lowest goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_cost: Option<u32>,
}

/// A placement that was granted, or in a dry run would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Placed {
    /// The id under which a retry gets this answer again.
    pub request_id: String,
    /// The tenant.
    pub owner: String,
    /// The record of the decision; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Whether nothing was claimed because nothing should be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Where the instances are, in the order asked for.
    pub instances: Vec<PlacedInstance>,
    /// With `at_least` and `best_effort`: why others were not placed, one for each class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
    /// Why, for the first instance, as far as asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Box<Explanation>>,
}
