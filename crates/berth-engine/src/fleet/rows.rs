//! One row per node and per instance: facts in a compact form, and what is used.
//!
//! A fleet of 100,000 nodes and millions of instances must fit in memory, so texts are symbols,
//! what many nodes share is shared, and what few instances have is boxed away.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Fleet;
use super::columns::NodeIndex;
use super::interner::Symbol;
use crate::affinity::Rule;
use crate::model::{
    Amounts, BootOutcome, CapacityType, CpuCapMode, InstanceId, Limits, MeasuredLoad, Network,
    NodeId, NodeState, OtherUsage, Platform, Ratios, Room, Timestamp, TraitValue, Used, Watermarks,
};
use crate::node_selector::PlaceFacts;

/// Failures of its own that make a node sick.
const SICK_BY_NODE: usize = 2;

/// Witnesses of failures that make a node sick: tenants, and failures of its own.
const SICK_WITNESSES: usize = 3;

/// A node's traits and networks; most nodes share theirs with many others.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Profile {
    pub(crate) traits: BTreeMap<String, TraitValue>,
    pub(crate) networks: Vec<Network>,
}

/// A further integer class on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtraClass {
    pub(crate) name: Symbol,
    pub(crate) limit: u32,
    pub(crate) used: i64,
    /// Whether the node's facts name it, or only an instance does.
    pub(crate) stated: bool,
}

/// A row with the names of its symbols, for selectors.
pub(crate) struct NodePlace<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) row: &'a NodeRow,
}

impl PlaceFacts for NodePlace<'_> {
    fn id(&self) -> &str {
        self.row.id.as_str()
    }

    fn zone(&self) -> Option<&str> {
        self.fleet.domains().zone_name(self.row.zone)
    }

    fn rack(&self) -> Option<&str> {
        self.fleet.domains().rack_name(self.row.rack)
    }

    fn capacity_type(&self) -> &str {
        self.row.capacity_type.name()
    }

    fn platform_version(&self) -> Option<(u16, u16)> {
        self.row.platform.map(|platform| (platform.version.major, platform.version.minor))
    }

    fn hardware_class(&self) -> i32 {
        self.row.hardware_class
    }

    fn is_virtual(&self) -> bool {
        self.row.is_virtual
    }

    fn label(&self, key: &str) -> Option<&str> {
        let texts = self.fleet.texts();
        let found = self.row.labels.iter().find(|(name, _)| texts.text(*name) == key);
        found.map(|(_, value)| texts.text(*value))
    }

    fn trait_words(&self, key: &str) -> Vec<&str> {
        self.row.profile.traits.get(key).map(TraitValue::words).unwrap_or_default()
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(crate) id: NodeId,
    pub(crate) state: NodeState,
    pub(crate) capacity_type: CapacityType,
    pub(crate) cpu_cap_mode: CpuCapMode,
    pub(crate) capacity_known: bool,
    pub(crate) kvm: bool,
    pub(crate) reserved: bool,
    pub(crate) headnode: bool,
    pub(crate) is_virtual: bool,
    pub(crate) reservoir: bool,
    pub(crate) heartbeat_at: Timestamp,
    pub(crate) capacity: Amounts,
    pub(crate) system_reserve: Amounts,
    pub(crate) policy_reserve: Option<Amounts>,
    pub(crate) ratios: Ratios,
    pub(crate) vmm_overhead_mib: u32,
    pub(crate) instance_limit: u32,
    pub(crate) other: OtherUsage,
    pub(crate) labels: Box<[(Symbol, Symbol)]>,
    pub(crate) profile: Arc<Profile>,
    pub(crate) zone: u32,
    pub(crate) rack: u32,
    pub(crate) platform: Option<Platform>,
    pub(crate) last_boot: Option<Timestamp>,
    pub(crate) next_reboot: Option<Timestamp>,
    pub(crate) hardware_class: i32,
    pub(crate) scratch_mib: u32,
    pub(crate) overlay_loss_ppm: u32,
    pub(crate) cached_images: Box<[Symbol]>,
    pub(crate) boots: Vec<BootOutcome>,
    pub(crate) watermarks: Watermarks,
    pub(crate) load: Option<MeasuredLoad>,
    pub(crate) extra: Vec<ExtraClass>,
    pub(crate) limits: Limits,
    pub(crate) used: Used,
    /// Rows of the instances that are here.
    pub(crate) instances: Vec<u32>,
    /// Rises when facts change, never when claims come or go.
    pub(crate) constraint_gen: u64,
}

impl NodeRow {
    /// What the host keeps for itself: as the policy says, or else as the node states.
    pub(crate) fn kept_by_host(&self) -> Amounts {
        self.policy_reserve.unwrap_or(self.system_reserve)
    }

    /// What may be promised, from the facts.
    pub(crate) fn compute_limits(&self) -> Limits {
        Limits::of(self.capacity, self.kept_by_host(), self.ratios, self.other)
    }

    /// What is used and what may be promised, as one value.
    pub(crate) const fn room(&self) -> Room {
        Room {
            limits: self.limits,
            used: self.used,
            overhead_mib: self.vmm_overhead_mib,
            instance_limit: self.instance_limit,
            cpu_cap_mode: self.cpu_cap_mode,
        }
    }

    /// Memory in use, the hypervisor's overhead included.
    pub(crate) fn memory_used(&self) -> i64 {
        self.room().memory_used()
    }

    /// Memory one more instance may have, its own overhead already taken off.
    pub(crate) fn memory_room(&self) -> i64 {
        self.room().memory_room()
    }

    /// Whether a capped, or an uncapped, instance may join those that are here.
    pub(crate) fn takes(&self, capped: bool) -> bool {
        self.room().takes(capped)
    }

    /// A planned reboot that still lies ahead of the last boot.
    pub(crate) fn pending_reboot(&self) -> Option<Timestamp> {
        self.next_reboot.filter(|&planned| self.last_boot.is_none_or(|booted| planned >= booted))
    }

    /// Until when the node counts as sick: so long as the boots since its last success include, within
    /// the window, two failures that the node caused, or failures of three witnesses. A tenant is one
    /// witness, however often its instances failed, and so is a failure that the node caused. So two
    /// tenants that work together cannot make a node sick, and whoever starts an instance there
    /// disproves them.
    pub(crate) fn sick_until(&self, window_s: i64) -> Option<Timestamp> {
        let mut by_node = 0;
        let mut tenants: Vec<&str> = Vec::new();
        for failure in self.boots.iter().rev().take_while(|boot| boot.failed) {
            match failure.tenant.as_deref() {
                None => by_node += 1,
                Some(tenant) if !tenants.contains(&tenant) => tenants.push(tenant),
                Some(_) => {}
            }
            if by_node >= SICK_BY_NODE || by_node + tenants.len() >= SICK_WITNESSES {
                return Some(failure.at.plus(window_s));
            }
        }
        None
    }
}

/// Attributes that few instances have.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct RareAttributes {
    pub(crate) name: Option<Symbol>,
    pub(crate) extra: Vec<(Symbol, u32)>,
    pub(crate) groups: Vec<Symbol>,
    pub(crate) apart_rules: Vec<Arc<Rule>>,
    pub(crate) volumes: Vec<Symbol>,
}

/// Where an instance is, whether its CPU is capped, and whether it would be replaced if it were released,
/// in one word: a row has 64 bytes, and there are millions of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host(u32);

impl Host {
    const CAPPED: u32 = 1 << 31;
    const REPLACED: u32 = 1 << 30;
    const FLAGS: u32 = Self::CAPPED | Self::REPLACED;

    pub(crate) const fn new(index: NodeIndex, cpu_capped: bool) -> Self {
        Self(if cpu_capped { index.0 | Self::CAPPED } else { index.0 })
    }

    /// The node.
    pub(crate) const fn index(self) -> NodeIndex {
        NodeIndex(self.0 & !Self::FLAGS)
    }

    pub(crate) const fn is_cpu_capped(self) -> bool {
        self.0 & Self::CAPPED != 0
    }

    /// Whether another instance would take its place at once if it were released.
    pub(crate) const fn is_replaced(self) -> bool {
        self.0 & Self::REPLACED != 0
    }

    pub(crate) const fn set_replaced(&mut self, replaced: bool) {
        self.0 = if replaced { self.0 | Self::REPLACED } else { self.0 & !Self::REPLACED };
    }

    /// Moves the instance to another node.
    pub(crate) const fn set_index(&mut self, index: NodeIndex) {
        self.0 = index.0 | (self.0 & Self::FLAGS);
    }
}

const _: () = assert!(size_of::<Option<InstanceRow>>() == 64);

/// One placed instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceRow {
    pub(crate) id: InstanceId,
    pub(crate) tenant: Symbol,
    pub(crate) workload: Option<Symbol>,
    pub(crate) image: Option<Symbol>,
    pub(crate) host: Host,
    pub(crate) priority: i32,
    pub(crate) resources: Amounts,
    /// A set of tags, see `TagSets`.
    pub(crate) tags: Symbol,
    pub(crate) rare: Option<Box<RareAttributes>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Fleet;
    use crate::model::NodeFacts;

    fn limits(change: impl FnOnce(&mut NodeFacts)) -> Limits {
        let mut facts = NodeFacts::new("n", Amounts::new(8000, 16_384).with_disk(1000));
        change(&mut facts);
        let mut fleet = Fleet::new();
        let index =
            fleet.put_node(&facts).map_or(super::super::columns::NodeIndex(0), |index| index);
        fleet.row(index).map(|row| row.limits).unwrap_or_default()
    }

    #[test]
    fn limits_take_off_the_reserve_then_apply_the_ratio() {
        let plain = limits(|_| {});
        assert_eq!((plain.cpu, plain.memory, plain.disk), (32_000, 16_384, 1000));
        let reserved = limits(|facts| facts.system_reserve = Amounts::new(500, 384));
        assert_eq!((reserved.cpu, reserved.memory), (30_000, 16_000));
        let over = limits(|facts| facts.system_reserve = Amounts::new(9000, 0));
        assert_eq!(over.cpu, -1000, "a deficit stays visible and is not multiplied");
    }

    #[test]
    fn other_usage_takes_real_capacity_before_the_ratio() {
        let used = limits(|facts| {
            facts.other = OtherUsage { cpu_milli: 1000, memory_kib: 1025, ..OtherUsage::default() };
        });
        assert_eq!((used.cpu, used.memory), (28_000, 16_382), "a started MiB is a whole MiB");
    }
}
