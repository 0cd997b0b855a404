//! A policy: filters, weights and limits as data, versioned by the hash of its content.
//!
//! A policy is read from TOML or JSON, checked key by key, and never changed afterwards.

mod defaults;
#[cfg(feature = "schema")]
mod schema;
mod weights;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use defaults::{Defaults, InstanceDefaults, NodeDefaults};
pub use weights::WeightStep;
pub(crate) use weights::{Weight, WrittenWeight, weights_at};

use crate::elastic::ElasticSettings;
use crate::fleet::UsualShape;
use crate::model::{Amounts, CapacityType};

/// The filters that a policy may switch off, in the order of the filters.
pub const OPTIONAL_FILTERS: [&str; 12] = [
    "heartbeat-fresh",
    "kvm",
    "scratch-disk",
    "overlay-healthy",
    "not-reserved",
    "not-headnode",
    "not-sick",
    "no-reboot-soon",
    "not-virtual",
    "traits",
    "overprovision-ratios",
    "cpu-cap-mixing",
];

/// A filter's position in the order of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId(pub(crate) u8);

impl FilterId {
    pub(crate) fn bit(self) -> u64 {
        1 << self.0
    }
}

/// A scorer's position in the list of scorers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScorerId(pub(crate) u8);

/// How a node's terms become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// Weighted terms add up.
    #[default]
    Sum,
    /// Values multiply; a weight says how far a zero pulls down.
    Product,
}

/// Whether a lack of CPU removes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CpuRule {
    /// No, it only lowers the score.
    #[default]
    Soft,
    /// Yes.
    Hard,
}

/// How requested traits and a node's traits must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TraitRule {
    /// The same set of names: special nodes are reserved for requests that name their traits.
    #[default]
    Exact,
    /// The node has at least the requested traits.
    Subset,
}

/// How a planned reboot that was missed counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissedReboot {
    /// It is ignored.
    #[default]
    Ignore,
    /// It counts as the soonest of all.
    Soonest,
}

/// Settings of the filters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct FilterSettings {
    /// Whether a lack of CPU removes a node.
    pub cpu: CpuRule,
    /// With soft CPU, the most CPU that may be promised on a node, in thousandths of what its ratio
    /// allows; absent: any amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1000, maximum = 1000000))]
    pub cpu_ceiling_permille: Option<u32>,
    /// Whether an instance may have no more CPU than its host. Always on in a policy that is
    /// written; a policy that was stored before there was this rule goes without it, so that its
    /// decisions can be replayed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "schema", schema(default = true))]
    pub cpu_within_host: bool,
    /// Whether degraded nodes take instances.
    pub admit_degraded: bool,
    /// How old a heartbeat may be.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31536000))]
    pub heartbeat_grace_s: u32,
    /// Scratch disk a node must have free.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub min_scratch_mib: u32,
    /// Packet loss on the overlay that is still healthy.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1000000))]
    pub max_overlay_loss_ppm: u32,
    /// Disk that must stay free in addition to what a request asks for.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1073741824))]
    pub disk_headroom_mib: u32,
    /// How long failed boots keep a node out.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31536000))]
    pub sick_window_s: u32,
    /// Keep off nodes that reboot within this many days.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 3650))]
    pub no_reboot_within_days: Option<u32>,
    /// How traits must agree.
    pub traits: TraitRule,
    /// Optional filters that are switched off, by name.
    #[cfg_attr(feature = "schema", schema(schema_with = schema::filters_off))]
    pub off: Vec<String>,
}

impl Default for FilterSettings {
    fn default() -> Self {
        Self {
            cpu: CpuRule::Soft,
            cpu_ceiling_permille: None,
            cpu_within_host: true,
            admit_degraded: false,
            heartbeat_grace_s: 90,
            min_scratch_mib: 0,
            max_overlay_loss_ppm: 50_000,
            disk_headroom_mib: 0,
            sick_window_s: 86_400,
            no_reboot_within_days: None,
            traits: TraitRule::Exact,
            off: Vec::new(),
        }
    }
}

/// The tent curve: its height when idle, at its peak, and when full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Tent {
    /// Height of an idle node, parts per million.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1000000))]
    pub idle_ppm: u32,
    /// Height of a full node, parts per million.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1000000))]
    pub full_ppm: u32,
    /// Use at which the height is greatest, parts per million.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 999999))]
    pub peak_ppm: u32,
}

impl Default for Tent {
    fn default() -> Self {
        Self { idle_ppm: 500_000, full_ppm: 0, peak_ppm: 800_000 }
    }
}

/// Settings of the scorers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ScoreOptions {
    /// The capacity type that `capacity-preference` favours.
    pub prefer_capacity: CapacityType,
    /// What `next-reboot` makes of a missed date.
    pub missed_reboot: MissedReboot,
    /// Without hints, `locality` keeps a tenant's instances apart.
    pub owner_spread: bool,
    /// How fast `recent-failures` fades.
    #[cfg_attr(feature = "schema", schema(minimum = 60, maximum = 31536000))]
    pub failure_half_life_s: u32,
    /// How old the last heartbeat may be, in seconds, before `measured-load` ignores a node's load.
    #[serde(skip_serializing_if = "is_usual_load_age")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31536000))]
    pub load_max_age_s: u32,
    /// The curve of `tent`.
    pub tent: Tent,
    /// The shapes that recur, for `fragmentation`.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 32))]
    pub shapes: Vec<Amounts>,
}

/// How old a load may be by default.
const LOAD_MAX_AGE_S: u32 = 120;

/// Left out of what is hashed: policies that were stored before there was the setting keep their hash.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_usual_load_age(seconds: &u32) -> bool {
    *seconds == LOAD_MAX_AGE_S
}

impl Default for ScoreOptions {
    fn default() -> Self {
        let shapes = [(1000, 2048), (2000, 4096), (4000, 8192), (8000, 16_384), (16_000, 65_536)];
        Self {
            prefer_capacity: CapacityType::OnDemand,
            missed_reboot: MissedReboot::Ignore,
            owner_spread: false,
            failure_half_life_s: 3600,
            load_max_age_s: LOAD_MAX_AGE_S,
            tent: Tent::default(),
            shapes: shapes.map(|(cpu, memory)| Amounts::new(cpu, memory)).to_vec(),
        }
    }
}

/// What an explanation may show to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ExplainSettings {
    /// Whether tenants may see node names.
    pub tenants_see_nodes: bool,
}

impl Default for ExplainSettings {
    fn default() -> Self {
        Self { tenants_see_nodes: true }
    }
}

/// A policy's version: the hash of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyHash(pub [u8; 32]);

impl fmt::Display for PolicyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Filters, weights and limits.
#[derive(Clone)]
pub struct Policy {
    /// Its name.
    pub(crate) name: String,
    /// How terms become one number.
    pub(crate) combine: Combine,
    /// Settings of the filters.
    pub(crate) filters: FilterSettings,
    /// Settings of the scorers.
    pub(crate) options: ScoreOptions,
    /// What an explanation may show.
    pub(crate) explain: ExplainSettings,
    /// Units, watermarks, classes and migration.
    pub(crate) elastic: ElasticSettings,
    /// What holds for nodes and instances that do not say otherwise.
    pub(crate) defaults: Defaults,
    /// The hash of all of this.
    pub(crate) hash: PolicyHash,
    /// Weights above zero in thousandths, at the load that the policy was last weighed at.
    pub(crate) weights: Vec<(ScorerId, u32)>,
    /// Every weight with its steps.
    pub(crate) all_weights: Vec<Weight>,
    /// The usual shapes; none: what the fleet has learned.
    pub(crate) shapes: Vec<UsualShape>,
    /// One bit for each filter that is switched off.
    pub(crate) off: u64,
}

impl Policy {
    /// The largest weight.
    pub const MAX_WEIGHT: u32 = 1000;
    /// With this limit on the sum a total always fits a lane of 32 bits.
    pub const MAX_WEIGHT_SUM: u32 = 2000;

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This policy with a hard limit on CPU, for comparisons in which no policy may promise more than
    /// another. It is not the same version: its hash is that of the policy as it was written.
    #[must_use]
    pub fn with_hard_cpu(mut self) -> Self {
        self.filters.cpu = CpuRule::Hard;
        self.filters.cpu_ceiling_permille = None;
        self
    }

    /// Its version: the hash of its content.
    #[must_use]
    pub const fn hash(&self) -> PolicyHash {
        self.hash
    }

    /// How terms become one number.
    #[must_use]
    pub const fn combine(&self) -> Combine {
        self.combine
    }

    /// What holds for nodes and instances that do not say otherwise.
    #[must_use]
    pub const fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// Settings of the filters.
    #[must_use]
    pub const fn filters(&self) -> &FilterSettings {
        &self.filters
    }

    /// Settings of the scorers.
    #[must_use]
    pub const fn options(&self) -> &ScoreOptions {
        &self.options
    }

    /// What an explanation may show.
    #[must_use]
    pub const fn explain(&self) -> ExplainSettings {
        self.explain
    }

    /// Units, watermarks, classes and migration of elastic instances.
    #[must_use]
    pub const fn elastic(&self) -> &ElasticSettings {
        &self.elastic
    }

    /// The usual shapes that `slot-loss` keeps room for; none: those that the fleet has learned.
    #[must_use]
    pub fn shapes(&self) -> &[UsualShape] {
        &self.shapes
    }

    /// Scorers with a weight above zero, and the weight in thousandths. Where weights depend on the load
    /// of the fleet: at the load of the engine's last decision, in a policy by itself at load 0.
    pub fn weights(&self) -> impl Iterator<Item = (ScorerId, u32)> + '_ {
        self.weights.iter().copied()
    }

    /// Whether a filter is switched off.
    #[must_use]
    pub fn is_off(&self, id: FilterId) -> bool {
        self.off & id.bit() != 0
    }
}

// The hash identifies the content.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("name", &self.name).field("hash", &self.hash).finish()
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Policy {}
