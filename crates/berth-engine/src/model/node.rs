//! What is known of a node, as an agent or an operator states it.
//!
//! Facts only: what is used, and by which instances, belongs to the fleet.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::amounts::{Amounts, Ratios};
#[cfg(feature = "schema")]
use super::ids::UnixSeconds;
use super::ids::{NodeId, Timestamp};
use super::layers::Override;
use super::load::MeasuredLoad;
use super::node_state::NodeState;

/// How a node is paid for, and so how surely it stays.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// Stays.
    #[default]
    OnDemand,
    /// May be reclaimed at short notice.
    Spot,
}

impl CapacityType {
    /// The type's name in serialized data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
        }
    }
}

/// Which instances a node takes by CPU cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CpuCapMode {
    /// Whatever the first one was: all capped or all uncapped.
    #[default]
    Uniform,
    /// Only capped instances.
    Capped,
    /// Only uncapped instances.
    Uncapped,
    /// Any mixture.
    Mixed,
}

/// A trait's value: a switch, a word or a list of words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum TraitValue {
    /// On or off.
    Bool(bool),
    /// One word.
    Text(String),
    /// Any of these words.
    List(Vec<String>),
}

impl TraitValue {
    /// Its words; `true` or `false` for a switch.
    #[must_use]
    pub fn words(&self) -> Vec<&str> {
        match self {
            Self::Bool(true) => vec!["true"],
            Self::Bool(false) => vec!["false"],
            Self::Text(word) => vec![word],
            Self::List(words) => words.iter().map(String::as_str).collect(),
        }
    }

    /// Whether a wanted value and a node's value agree: switches are equal, words share one.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Text(word), Self::List(list)) | (Self::List(list), Self::Text(word)) => {
                list.contains(word)
            }
            (Self::List(a), Self::List(b)) => a.iter().any(|word| b.contains(word)),
            (Self::Bool(_), _) | (_, Self::Bool(_)) => false,
        }
    }
}

impl fmt::Display for TraitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(switch) => write!(f, "{switch}"),
            Self::Text(word) => f.write_str(word),
            Self::List(words) => f.write_str(&words.join("|")),
        }
    }
}

/// Whether a network interface carries traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Carries traffic.
    Up,
    /// Does not.
    Down,
    /// Not reported.
    Unknown,
}

/// A network a node is plugged into.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The network's tag.
    pub tag: String,
    /// Its link.
    pub link: LinkState,
}

/// A platform version, `major.minor`. Compared as numbers, so 7.10 follows 7.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlatformVersion {
    /// Before the dot.
    pub major: u16,
    /// After the dot.
    pub minor: u16,
}

impl PlatformVersion {
    /// A version from its two numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for PlatformVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A platform version that is not `major.minor`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("platform version {found:?} is not of the form major.minor, such as 7.0")]
pub struct InvalidPlatformVersion {
    found: String,
}

impl FromStr for PlatformVersion {
    type Err = InvalidPlatformVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text
            .split_once('.')
            .and_then(|(major, minor)| Some(Self::new(major.parse().ok()?, minor.parse().ok()?)));
        parsed.ok_or_else(|| InvalidPlatformVersion { found: text.to_owned() })
    }
}

impl TryFrom<String> for PlatformVersion {
    type Error = InvalidPlatformVersion;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PlatformVersion> for String {
    fn from(version: PlatformVersion) -> Self {
        version.to_string()
    }
}

/// What a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Its version.
    pub version: PlatformVersion,
    /// When it was built.
    #[cfg_attr(feature = "schema", schema(value_type = UnixSeconds))]
    pub built_at: Timestamp,
}

/// How one boot on a node ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BootOutcome {
    /// When.
    #[cfg_attr(feature = "schema", schema(value_type = UnixSeconds))]
    pub at: Timestamp,
    /// Whether the instance failed to boot.
    pub failed: bool,
    /// For a failure that the instance may have caused itself: its tenant. Such failures make a node
    /// sick only if instances of three tenants failed. Absent: the node failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl BootOutcome {
    /// A boot that ended well, or failed because of the node.
    #[must_use]
    pub const fn new(at: Timestamp, failed: bool) -> Self {
        Self { at, failed, tenant: None }
    }

    /// A failed boot of an instance of this tenant, which may have caused it.
    #[must_use]
    pub fn failed_for(at: Timestamp, tenant: &str) -> Self {
        Self { at, failed: true, tenant: Some(tenant.to_owned()) }
    }
}

/// Usage by processes that were not placed by Berth, as raw sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct OtherUsage {
    /// Raw CPU sum, thousandths of a core.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub cpu_milli: u32,
    /// Raw memory sum, kibibytes.
    #[cfg_attr(feature = "schema", schema(maximum = 2199023255551_u64))]
    pub memory_kib: u64,
    /// CPU is charged in whole multiples of this many thousandths.
    pub cpu_unit_milli: u32,
    /// Memory is charged in whole multiples of this many mebibytes.
    pub memory_unit_mib: u32,
}

impl Default for OtherUsage {
    fn default() -> Self {
        Self { cpu_milli: 0, memory_kib: 0, cpu_unit_milli: 1, memory_unit_mib: 1 }
    }
}

/// Shares of a node above which instances should start to leave, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Watermarks {
    /// For CPU.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    pub cpu_permille: u16,
    /// For memory.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    pub memory_permille: u16,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { cpu_permille: 900, memory_permille: 900 }
    }
}

/// Everything stated of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NodeFacts {
    /// Its name.
    #[cfg_attr(feature = "schema", schema(min_length = 1, value_type = String))]
    pub id: NodeId,
    /// Its lifecycle state.
    #[serde(default)]
    pub state: NodeState,
    /// Why it is degraded, or was when it was lost, as its agent said: kept by Berth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// The time of the last heartbeat.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = UnixSeconds))]
    pub heartbeat_at: Timestamp,
    /// What it has. Unknown capacity means not schedulable.
    #[serde(default)]
    pub capacity: Option<Amounts>,
    /// Further integer classes it has, such as `gpu`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, super::schema::Amount>))]
    pub extra: BTreeMap<String, u32>,
    /// What the host keeps for itself.
    #[serde(default)]
    pub system_reserve: Amounts,
    /// What the policy in force has the host keep, in place of `system_reserve`: set by Berth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_reserve: Option<Amounts>,
    /// How often each resource may be promised.
    #[serde(default)]
    pub ratios: Ratios,
    /// Memory the hypervisor takes for each instance.
    #[serde(default = "default_overhead")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647, default = default_overhead))]
    pub vmm_overhead_mib: u32,
    /// Most instances it may hold.
    #[serde(default = "default_instance_limit")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647, default = default_instance_limit))]
    pub instance_limit: u32,
    /// Usage outside our control.
    #[serde(default)]
    pub other: OtherUsage,
    /// Free-form labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Traits that requests must match.
    #[serde(default)]
    pub traits: BTreeMap<String, TraitValue>,
    /// Its zone, if known.
    #[serde(default)]
    pub zone: Option<String>,
    /// Its rack within the zone, if known.
    #[serde(default)]
    pub rack: Option<String>,
    /// On-demand or spot.
    #[serde(default)]
    pub capacity_type: CapacityType,
    /// What it runs, if known.
    #[serde(default)]
    pub platform: Option<Platform>,
    /// When it last booted, if known.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<UnixSeconds>))]
    pub last_boot: Option<Timestamp>,
    /// When it is to reboot, if planned.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<UnixSeconds>))]
    pub next_reboot: Option<Timestamp>,
    /// Hardware class priority; higher is better.
    #[serde(default)]
    pub hardware_class: i32,
    /// Whether the kernel offers KVM.
    #[serde(default = "yes")]
    #[cfg_attr(feature = "schema", schema(default = yes))]
    pub kvm: bool,
    /// Scratch disk that is free for booting, MiB.
    #[serde(default = "plenty_of_scratch")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647, default = plenty_of_scratch))]
    pub scratch_mib: u32,
    /// Packets lost on the overlay network, parts per million.
    #[serde(default)]
    pub overlay_loss_ppm: u32,
    /// Networks it is plugged into.
    #[serde(default)]
    pub networks: Vec<Network>,
    /// Held back by the operator.
    #[serde(default)]
    pub reserved: bool,
    /// Runs the control plane.
    #[serde(default)]
    pub headnode: bool,
    /// Is itself a virtual machine.
    #[serde(default)]
    pub is_virtual: bool,
    /// Kept for when nothing else is left (Triton's reservoir).
    #[serde(default)]
    pub reservoir: bool,
    /// Which instances it takes by CPU cap.
    #[serde(default)]
    pub cpu_cap_mode: CpuCapMode,
    /// Images it already holds.
    #[serde(default)]
    pub cached_images: Vec<String>,
    /// Recent boots, newest last. Failures since the last success make the node sick: two that it
    /// caused itself, or those of instances of three tenants.
    #[serde(default)]
    pub boots: Vec<BootOutcome>,
    /// Where pressure begins.
    #[serde(default)]
    pub watermarks: Watermarks,
    /// How busy it is, in steps of 5 %: kept by Berth while the policy in force scores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<MeasuredLoad>,
    /// Fields that are not as reported, by path such as `labels.hall`: kept by Berth.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overridden: BTreeMap<String, Override>,
}

const fn default_overhead() -> u32 {
    64
}

const fn default_instance_limit() -> u32 {
    224
}

const fn yes() -> bool {
    true
}

const fn plenty_of_scratch() -> u32 {
    Amounts::MAX
}

impl NodeFacts {
    /// An active node with this capacity and defaults for the rest.
    #[must_use]
    pub fn new(id: &str, capacity: Amounts) -> Self {
        Self {
            id: NodeId::new(id),
            state: NodeState::Active,
            state_reason: None,
            heartbeat_at: Timestamp(0),
            capacity: Some(capacity),
            extra: BTreeMap::new(),
            system_reserve: Amounts::default(),
            policy_reserve: None,
            ratios: Ratios::default(),
            vmm_overhead_mib: default_overhead(),
            instance_limit: default_instance_limit(),
            other: OtherUsage::default(),
            labels: BTreeMap::new(),
            traits: BTreeMap::new(),
            zone: None,
            rack: None,
            capacity_type: CapacityType::OnDemand,
            platform: None,
            last_boot: None,
            next_reboot: None,
            hardware_class: 0,
            kvm: true,
            scratch_mib: plenty_of_scratch(),
            overlay_loss_ppm: 0,
            networks: Vec::new(),
            reserved: false,
            headnode: false,
            is_virtual: false,
            reservoir: false,
            cpu_cap_mode: CpuCapMode::Uniform,
            cached_images: Vec::new(),
            boots: Vec::new(),
            watermarks: Watermarks::default(),
            load: None,
            overridden: BTreeMap::new(),
        }
    }

    /// A node of which nothing is known but its name.
    #[must_use]
    pub fn unknown(id: &str) -> Self {
        Self { capacity: None, ..Self::new(id, Amounts::default()) }
    }

    /// What the host keeps for itself: by the policy, else by its own word.
    #[must_use]
    pub fn kept_by_host(&self) -> Amounts {
        self.policy_reserve.unwrap_or(self.system_reserve)
    }

    /// Refuses facts that could not be stored or would mean nothing.
    ///
    /// Facts that are merely wrong for placement (a reserve above the capacity, say) are stored
    /// and the node is filtered out as invalid, so that the operator can see it.
    ///
    /// # Errors
    /// Names the field, the value and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidNode> {
        if self.id.as_str().is_empty() {
            return Err(InvalidNode::NoId);
        }
        let out_of_range = |field: &str, value: u64| InvalidNode::OutOfRange {
            node: self.id.clone(),
            field: field.to_owned(),
            value,
            max: u64::from(Amounts::MAX),
        };
        let capacity = self.capacity.unwrap_or_default();
        let reserve = self.system_reserve.named().into_iter().chain(self.kept_by_host().named());
        for (name, value, _) in capacity.named().into_iter().chain(reserve) {
            if value > Amounts::MAX {
                return Err(out_of_range(name, u64::from(value)));
            }
        }
        for (name, value) in &self.extra {
            if *value > Amounts::MAX {
                return Err(out_of_range(name, u64::from(*value)));
            }
        }
        let shares = self.load.map(|load| [Some(load.cpu_permille), load.memory_permille]);
        for share in shares.into_iter().flatten().flatten() {
            if share > MeasuredLoad::FULL {
                return Err(InvalidNode::OutOfRange {
                    node: self.id.clone(),
                    field: "load".to_owned(),
                    value: share.into(),
                    max: MeasuredLoad::FULL.into(),
                });
            }
        }
        let further = [
            ("vmm_overhead_mib", u64::from(self.vmm_overhead_mib)),
            ("instance_limit", u64::from(self.instance_limit)),
            ("other.memory_kib", self.other.memory_kib >> 10),
            ("other.cpu_milli", u64::from(self.other.cpu_milli)),
        ];
        match further.into_iter().find(|(_, value)| *value > u64::from(Amounts::MAX)) {
            Some((field, value)) => Err(out_of_range(field, value)),
            None => Ok(()),
        }
    }
}

/// Facts that cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidNode {
    /// A node needs a name.
    #[error("a node's id is empty; give it a name of at least one character")]
    NoId,
    /// A number is too large for the columns.
    #[error("node {node}: {field} is {value}; accepted is 0 to {max}")]
    OutOfRange {
        /// The node.
        node: NodeId,
        /// The field.
        field: String,
        /// What was given.
        value: u64,
        /// The largest accepted value.
        max: u64,
    },
    /// A value is not one of its field, or there is no such field.
    #[error("node {node}: {error}")]
    Unreadable {
        /// The node.
        node: NodeId,
        /// Which, and what is accepted.
        error: String,
    },
    /// A field that is not changed like a fact.
    #[error("node {node}: {field} is not a fact to set; it follows from other calls")]
    Fixed {
        /// The node.
        node: NodeId,
        /// The field.
        field: String,
    },
}
