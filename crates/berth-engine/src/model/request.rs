//! What a caller asks for: one instance, its groups, its volumes.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use super::amounts::{Amounts, Ratios};
#[cfg(feature = "schema")]
use super::ids::UnixSeconds;
use super::ids::{InstanceId, NodeId, Timestamp};
use super::limits::{LimitExceeded, check_counts};
use super::node::{CapacityType, PlatformVersion, TraitValue};
use super::size::{Overcommit, Size};
use crate::affinity::{Rule, Strength, Topology};
use crate::node_selector::NodeSelector;

/// How far an elastic instance may shrink and grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Elastic {
    /// The least it runs with.
    pub min: Amounts,
    /// The most it may grow to; 0: it does not grow in that.
    pub max: Amounts,
    /// Its class, which the policy knows; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What grants are multiples of; absent: what the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_unit: Option<Size>,
    /// Whether it opted out of being moved automatically.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// How it is charged; the policy says so by its class.
    #[serde(default, skip_serializing_if = "Overcommit::is_none")]
    pub overcommit_permille: Overcommit,
    /// What it uses, where that differs from what is charged. Not part of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub using: Option<Size>,
}

impl Elastic {
    /// Only these bounds, and defaults for the rest.
    #[must_use]
    pub const fn new(min: Amounts, max: Amounts) -> Self {
        Self {
            min,
            max,
            class: None,
            compute_unit: None,
            stays: false,
            overcommit_permille: Overcommit::NONE,
            using: None,
        }
    }

    /// These bounds widened to include another's, which also decides whether it may be moved.
    #[must_use]
    pub fn widened(mut self, other: &Self) -> Self {
        self.min = Size::of(&self.min).least(Size::of(&other.min)).within(self.min);
        self.max = Size::of(&self.max).most(Size::of(&other.max)).within(self.max);
        self.stays = other.stays;
        self
    }

    /// The least and the most CPU and memory of an instance that has this size now.
    #[must_use]
    pub fn bounds(&self, has: Size) -> (Size, Size) {
        let max = Size::of(&self.max).each(has, |max, has| if max == 0 { has } else { max });
        (Size::of(&self.min), max)
    }
}

/// Which platforms an instance runs on: for each listed version, the oldest or newest build.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PlatformBounds {
    /// At least these builds.
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<PlatformVersion, UnixSeconds>))]
    pub min: BTreeMap<PlatformVersion, Timestamp>,
    /// At most these builds.
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<PlatformVersion, UnixSeconds>))]
    pub max: BTreeMap<PlatformVersion, Timestamp>,
}

/// Which instances a locality hint means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// The one with this id.
    Instance(InstanceId),
    /// All of the tenant's with this tag and value.
    Tag(String, String),
}

/// Near to and far from instances of the same tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Locality {
    /// On a node with these: all of them when strict, any of them otherwise.
    pub near: Vec<Hint>,
    /// On a node with none of these.
    pub far: Vec<Hint>,
    /// Whether the hints must hold or are only preferred.
    pub strict: bool,
}

impl Locality {
    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far.is_empty()
    }
}

/// One instance to be placed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InstanceRequest {
    /// The id it will have.
    pub id: InstanceId,
    /// A name that affinity rules may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tenant it belongs to.
    #[cfg_attr(feature = "schema", schema(min_length = 1))]
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: String,
    /// The environment whose secrets it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The workload it is a replica of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// What it needs.
    #[serde(deserialize_with = "with_default_disk")]
    #[cfg_attr(feature = "schema", schema(value_type = RequestedAmounts))]
    pub resources: Amounts,
    /// Further integer classes it needs, such as `gpu`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, super::schema::Amount>))]
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub platform: PlatformBounds,
    /// Overprovision ratios its package was sold with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratios: Option<Ratios>,
    /// On-demand or spot, if it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// Which nodes it may go to, if not any.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub required_place: Option<NodeSelector>,
    /// Which nodes it should rather go to: the more of these a node fits, the better.
    #[serde(default, rename = "prefer", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 8))]
    pub preferred_places: Vec<NodeSelector>,
    /// Local volumes, whose home must be the instance's node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
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
    /// Disk that the image takes in addition to the instance's own disk.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub image_mib: u32,
    /// Groups it is a member of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Affinity rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinity: Vec<Rule>,
    /// Locality hints.
    #[serde(default, skip_serializing_if = "Locality::is_empty")]
    pub locality: Locality,
    /// Scheduling priority; a higher one may preempt a lower one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// Nodes that already denied this request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded_nodes: Vec<NodeId>,
}

/// What is as it is by default is left out, so that a stored request stays small.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Amounts as a request states them: disk that is not mentioned is the default.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct RequestedAmounts {
    /// Thousandths of a core.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    cpu_milli: u32,
    /// Mebibytes of memory.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 2147483647))]
    memory_mib: u32,
    /// Mebibytes of local disk; 4 GiB if absent.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    disk_mib: Option<u32>,
    /// Megabits per second.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    bandwidth_mbps: u32,
}

fn with_default_disk<'de, D: Deserializer<'de>>(input: D) -> Result<Amounts, D::Error> {
    let RequestedAmounts { cpu_milli, memory_mib, disk_mib, bandwidth_mbps } =
        RequestedAmounts::deserialize(input)?;
    let disk_mib = disk_mib.unwrap_or(InstanceRequest::DEFAULT_DISK_MIB);
    Ok(Amounts { cpu_milli, memory_mib, disk_mib, bandwidth_mbps })
}

impl InstanceRequest {
    /// Disk an instance gets when it asks for none: 4 GiB.
    pub const DEFAULT_DISK_MIB: u32 = 4096;

    /// A request with these resources, the default disk and nothing else.
    #[must_use]
    pub fn new(id: InstanceId, tenant: &str, resources: Amounts) -> Self {
        let mut resources = resources;
        if resources.disk_mib == 0 {
            resources.disk_mib = Self::DEFAULT_DISK_MIB;
        }
        Self {
            id,
            name: None,
            tenant: tenant.to_owned(),
            env: None,
            workload: None,
            resources,
            extra: BTreeMap::new(),
            elastic: None,
            tags: BTreeMap::new(),
            traits: BTreeMap::new(),
            networks: Vec::new(),
            platform: PlatformBounds::default(),
            ratios: None,
            capacity_type: None,
            required_place: None,
            preferred_places: Vec::new(),
            volumes: Vec::new(),
            needs_secrets: false,
            cpu_capped: false,
            exclude_virtual: false,
            image: None,
            image_mib: 0,
            groups: Vec::new(),
            affinity: Vec::new(),
            locality: Locality::default(),
            priority: 0,
            excluded_nodes: Vec::new(),
        }
    }

    /// The CPU that it sees: what it uses, where that differs from what it is charged.
    #[must_use]
    pub fn visible_cpu_milli(&self) -> u32 {
        let using = self.elastic.as_ref().and_then(|elastic| elastic.using);
        using.map_or(self.resources.cpu_milli, |using| using.cpu_milli)
    }

    /// Whether two requests differ at most in their ids and names, and so share a ranking.
    #[must_use]
    pub fn same_class(&self, other: &Self) -> bool {
        let Self { id: _, name: _, tenant, env, workload, resources, extra, elastic, .. } = self;
        // Listed in the order of how often they differ, so that most pairs part early.
        *resources == other.resources
            && *workload == other.workload
            && *tenant == other.tenant
            && self.tags == other.tags
            && self.image == other.image
            && *env == other.env
            && *extra == other.extra
            && *elastic == other.elastic
            && self.same_static_class(other)
            && self.preferred_places == other.preferred_places
            && self.volumes == other.volumes
            && self.needs_secrets == other.needs_secrets
            && self.cpu_capped == other.cpu_capped
            && self.image_mib == other.image_mib
            && self.groups == other.groups
            && self.affinity == other.affinity
            && self.locality == other.locality
            && self.priority == other.priority
            && self.excluded_nodes == other.excluded_nodes
    }

    /// Whether two requests ask the same of a node's facts, their size apart.
    #[must_use]
    pub fn same_static_class(&self, other: &Self) -> bool {
        self.traits == other.traits
            && self.networks == other.networks
            && self.platform == other.platform
            && self.ratios == other.ratios
            && self.capacity_type == other.capacity_type
            && self.required_place == other.required_place
            && self.exclude_virtual == other.exclude_virtual
    }

    /// Refuses a request that could mean nothing.
    ///
    /// # Errors
    /// Names the field, the value and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidRequest> {
        check_counts(self)?;
        for (field, value, _) in self.resources.named() {
            if value > Amounts::MAX {
                return Err(InvalidRequest::TooLarge { field: field.to_owned(), value });
            }
        }
        if let Some((field, value)) = self.extra.iter().find(|(_, value)| **value > Amounts::MAX) {
            return Err(InvalidRequest::TooLarge { field: field.clone(), value: *value });
        }
        let disk = self.resources.disk_mib.saturating_add(self.image_mib);
        if disk > Amounts::MAX {
            let field = "disk_mib and image_mib together".to_owned();
            return Err(InvalidRequest::TooLarge { field, value: disk });
        }
        if let Some(group) = repeated(&self.groups) {
            let value = format!("group {group:?} is named twice");
            return Err(InvalidRequest::Duplicate { value });
        }
        if self.resources.memory_mib == 0 {
            return Err(InvalidRequest::Zero { field: "memory_mib" });
        }
        if self.tenant.is_empty() {
            return Err(InvalidRequest::Empty { field: "tenant" });
        }
        if let Some(elastic) = &self.elastic {
            self.validate_elastic(elastic)?;
        }
        if self.networks.iter().any(Vec::is_empty) {
            return Err(InvalidRequest::Empty { field: "networks" });
        }
        // One rule contradicts nothing.
        let rules = if self.affinity.len() > 1 { &self.affinity[..] } else { &[] };
        let fatal = crate::affinity::lint(rules).into_iter().find(|f| f.is_fatal());
        match fatal {
            Some(finding) => Err(InvalidRequest::Impossible { finding: finding.to_string() }),
            None => Ok(()),
        }
    }

    fn validate_elastic(&self, elastic: &Elastic) -> Result<(), InvalidRequest> {
        // Of what it uses, not of what that is charged.
        let used = elastic.using.map_or(self.resources, |using| using.within(self.resources));
        let bounds = elastic.min.named().into_iter().zip(elastic.max.named());
        for ((field, value, _), ((_, min, _), (_, max, _))) in used.named().into_iter().zip(bounds)
        {
            if value < min || (max != 0 && value > max) {
                return Err(InvalidRequest::OutsideElastic { field, value, min, max });
            }
        }
        Ok(())
    }
}

/// The first text that is given a second time.
fn repeated(texts: &[String]) -> Option<&String> {
    if texts.len() < 2 {
        return None;
    }
    let mut known = FxHashSet::default();
    texts.iter().find(|text| !known.insert(text.as_str()))
}

/// A request that could mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidRequest {
    /// An amount that no node could have.
    #[error("{field} is {value}; accepted is 0 to {}", Amounts::MAX)]
    TooLarge {
        /// The field.
        field: String,
        /// What was given.
        value: u32,
    },
    /// An amount that must not be zero.
    #[error("{field} is 0; accepted is 1 to {}", Amounts::MAX)]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// A text or list that must not be empty.
    #[error("{field} is empty; give at least one")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// A list that is too long.
    #[error(transparent)]
    TooMany(#[from] LimitExceeded),
    /// The instance is outside its own bounds.
    #[error("{field} is {value}, outside its elastic bounds {min} to {max}")]
    OutsideElastic {
        /// The field.
        field: &'static str,
        /// What was given.
        value: u32,
        /// Its least.
        min: u32,
        /// Its most.
        max: u32,
    },
    /// Rules that can never hold together.
    #[error("affinity can never hold: {finding}")]
    Impossible {
        /// Which rules, and what to change.
        finding: String,
    },
    /// The instance id is already placed.
    #[error("instance {id} is already placed on node {node}; release it first or use a new id")]
    AlreadyPlaced {
        /// The instance.
        id: InstanceId,
        /// Where it is.
        node: NodeId,
    },
    /// The instance id belongs to another tenant, of which nothing is told.
    #[error("instance id {id} is not available; use a new id")]
    InstanceIdUnavailable {
        /// The instance.
        id: InstanceId,
    },
    /// Something that is named more than once: a group, or an instance in a batch.
    #[error("{value}; name it once")]
    Duplicate {
        /// Which.
        value: String,
    },
    /// A group that does not exist.
    #[error("group {group:?} does not exist for this tenant; create it first")]
    UnknownGroup {
        /// The group.
        group: String,
    },
    /// More different hard `!=` rules than a tenant's instances may have.
    #[error(
        "the instances of this tenant have {before} different {kind}hard != rules, and this request \
         adds {added}; accepted are {most} in all: select others by a workload or a tag that they \
         share, or release instances"
    )]
    TooManyRules {
        /// Which of them are too many; empty for all.
        kind: &'static str,
        /// How many there are.
        before: usize,
        /// How many the request adds.
        added: usize,
        /// How many there may be.
        most: usize,
    },
    /// A volume that does not exist.
    #[error("volume {volume:?} does not exist; create it first")]
    UnknownVolume {
        /// The volume.
        volume: String,
    },
}

/// Whether a group's members seek or avoid each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GroupKind {
    /// In one domain. The first member chooses it.
    Together,
    /// In different domains.
    Apart,
}

/// Instances that must or should be together or apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name.
    pub id: String,
    /// The only tenant whose instances may join; absent: anyone's.
    #[serde(default)]
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: Option<String>,
    /// Together or apart.
    pub kind: GroupKind,
    /// Whether it must hold or is only preferred.
    pub strength: Strength,
    /// Per node, rack or zone.
    pub topology: Topology,
    /// Most members in one domain; absent: one when apart, any number when together.
    #[serde(default)]
    pub max_per_domain: Option<u32>,
}

impl Group {
    /// Most members that one domain may hold under this group.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.max_per_domain.unwrap_or(match self.kind {
            GroupKind::Together => u32::MAX,
            GroupKind::Apart => 1,
        })
    }
}

/// A local volume and where it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Its name.
    pub id: String,
    /// The only tenant whose instances may use it; for others it is not there. Absent: anyone's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: Option<String>,
    /// The node that holds it.
    pub home: NodeId,
    /// The one instance that uses it.
    #[serde(default)]
    pub attached_to: Option<InstanceId>,
}

impl Volume {
    /// Whether this tenant's instances may use it.
    #[must_use]
    pub fn is_for(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|only| only == tenant)
    }
}
