//! Groups, volumes, pools and quotas, and lists of them.

use berth_engine::affinity::{Strength, Topology};
use berth_engine::{GroupKind, InstanceId, NodeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The `cursor` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Defines a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// The only tenant whose instances may join; absent: anyone's. A tenant's groups are its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "owner")]
    pub tenant: Option<String>,
    /// Together or apart.
    pub kind: GroupKind,
    /// Hard or soft.
    pub strength: Strength,
    /// Per node, rack or zone.
    pub topology: Topology,
    /// Most members in one domain; absent: one when apart, any number when together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_per_domain: Option<u32>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Its name.
    pub id: String,
    /// The only tenant whose instances may join; null: anyone's.
    #[serde(default, alias = "owner")]
    pub tenant: Option<String>,
    /// Together or apart.
    pub kind: GroupKind,
    /// Hard or soft.
    pub strength: Strength,
    /// Per node, rack or zone.
    pub topology: Topology,
    /// Most members in one domain; null: one when apart, any number when together.
    #[serde(default)]
    pub max_per_domain: Option<u32>,
}

impl From<&berth_engine::Group> for Group {
    fn from(stored: &berth_engine::Group) -> Self {
        let berth_engine::Group { id, tenant, kind, strength, topology, max_per_domain } =
            stored.clone();
        Self { id, tenant, kind, strength, topology, max_per_domain }
    }
}

/// Defines a local volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The only tenant that may use it; absent: anyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "owner")]
    pub tenant: Option<String>,
    /// The node that stores it.
    pub home: NodeId,
}

/// A local volume and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its name.
    pub id: String,
    /// The only tenant that may use it; absent: anyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "owner")]
    pub tenant: Option<String>,
    /// The node that stores it; hidden from tenants if the policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<NodeId>,
    /// The one instance that uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub attached_to: Option<InstanceId>,
}

/// Defines a set of volumes that instances use together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAttachment {
    /// The tenant. A token that is bound to one tenant may leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "owner")]
    pub tenant: Option<String>,
    /// The volumes; all must be on one node.
    #[schema(min_items = 1)]
    pub volumes: Vec<String>,
}

/// A set of volumes that instances use together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    /// Its name.
    pub id: String,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// The volumes.
    pub volumes: Vec<String>,
    /// Their node; absent when they are on different nodes or gone, and hidden from tenants if the
    /// policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<NodeId>,
}

/// Defines a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    /// A network (`fd00:7::/64`, `10.0.0.0/24`) or numbers (`1000-4999`).
    pub range: String,
    /// Seconds before a released value is given out again; 600 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_s: Option<u32>,
    /// The only tenant whose instances may take values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether instances of all tenants may take values. With neither `tenant` nor `open`, a pool
    /// that is there stays as it is, and a new one is open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// A pool of addresses or numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub id: String,
    /// `ipv6`, `ipv4` or `number`.
    pub kind: String,
    /// The first value.
    pub first: String,
    /// The last value.
    pub last: String,
    /// Seconds before a released value is given out again.
    pub quarantine_s: u32,
    /// How many values it has; as text, since a /64 has more than a number holds.
    pub size: String,
    /// How many are in use, without quarantined ones.
    pub used: i64,
    /// The only tenant whose instances may take values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether instances of all tenants may take values.
    #[serde(default)]
    pub open: bool,
}

/// Limits of a tenant; absent means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Milli-CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub cpu_milli: Option<i64>,
    /// MiB of memory, as requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub memory_mib: Option<i64>,
    /// MiB of disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub disk_mib: Option<i64>,
    /// Instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub instances: Option<i64>,
}

/// A tenant's limits and usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaUse {
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its limits.
    pub limits: Quota,
    /// What it uses.
    pub used: Quota,
}

/// The version of an environment's secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Secrets {
    /// The current version of the bundle; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub version: Option<String>,
}
