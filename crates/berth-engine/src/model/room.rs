//! The arithmetic of one node: what is used, what may be promised, and what one more instance would
//! need. The filters and the ledger's guards both use it, so they cannot disagree.
//!
//! Only capacity is compared here; no other rule is known.

use serde::{Deserialize, Serialize};

use super::amounts::{Amounts, Ratios, Unit, charge_for_other};
use super::evidence::Evidence;
use super::node::{CpuCapMode, NodeFacts, OtherUsage};

/// What is used on a node. Sums of claims, so that removing a claim restores them exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Used {
    /// Thousandths of a core.
    pub cpu: i64,
    /// Mebibytes, without the hypervisor's overhead, which follows from the count.
    pub memory: i64,
    /// Mebibytes of disk.
    pub disk: i64,
    /// Megabits per second.
    pub bandwidth: i64,
    /// Instances.
    pub instances: u32,
    /// Instances whose CPU is capped.
    pub capped: u32,
}

impl Used {
    /// Adds (`sign` 1) or takes off (`sign` -1) one instance.
    pub fn charge(&mut self, amounts: &Amounts, capped: bool, sign: i64) {
        self.cpu += sign * i64::from(amounts.cpu_milli);
        self.memory += sign * i64::from(amounts.memory_mib);
        self.disk += sign * i64::from(amounts.disk_mib);
        self.bandwidth += sign * i64::from(amounts.bandwidth_mbps);
        let one_more = |count: u32| {
            if sign > 0 { count + 1 } else { count.saturating_sub(1) }
        };
        self.instances = one_more(self.instances);
        if capped {
            self.capped = one_more(self.capped);
        }
    }
}

/// What may be promised on a node, ratios and reserves applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Limits {
    /// Thousandths of a core.
    pub cpu: i64,
    /// Mebibytes of memory.
    pub memory: i64,
    /// Mebibytes of disk.
    pub disk: i64,
    /// Megabits per second.
    pub bandwidth: i64,
}

impl Limits {
    /// What may be promised, from the facts. Capacity rounds down at every step.
    #[must_use]
    pub fn of(have: Amounts, keep: Amounts, ratios: Ratios, other: OtherUsage) -> Self {
        let cpu = after_other(
            have.cpu_milli.into(),
            keep.cpu_milli.into(),
            other.cpu_milli.into(),
            other.cpu_unit_milli.into(),
        );
        let memory_kib = after_other(
            u64::from(have.memory_mib) << 10,
            u64::from(keep.memory_mib) << 10,
            other.memory_kib,
            u64::from(other.memory_unit_mib) << 10,
        );
        Self {
            cpu: overcommitted(cpu, ratios.cpu_permille),
            memory: overcommitted(memory_kib >> 10, ratios.memory_permille),
            disk: overcommitted(
                i64::from(have.disk_mib) - i64::from(keep.disk_mib),
                ratios.disk_permille,
            ),
            bandwidth: i64::from(have.bandwidth_mbps) - i64::from(keep.bandwidth_mbps),
        }
    }
}

/// Whole units left after the system's reserve and what others are charged; negative when over.
fn after_other(total: u64, system: u64, raw: u64, unit: u64) -> i64 {
    let unit = unit.max(1);
    let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    if system > total {
        return signed(total) - signed(system);
    }
    let reservable = (total - system) / unit * unit;
    let charged = charge_for_other(total, system, raw, unit).saturating_mul(unit);
    signed(reservable).saturating_sub(signed(charged))
}

fn overcommitted(amount: i64, permille: u32) -> i64 {
    // A deficit is not multiplied by the ratio.
    if amount < 0 { amount } else { amount.saturating_mul(i64::from(permille)) / 1000 }
}

/// What one more instance needs on a node, under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Demand {
    /// What it will be charged.
    pub amounts: Amounts,
    /// CPU that must be free; 0 where the policy treats CPU as soft.
    pub cpu_room_milli: u32,
    /// What CPU is free of, in thousandths of what the node's ratio allows; absent: exactly that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ceiling_permille: Option<u32>,
    /// Disk that must be free: its own, its image's and the policy's headroom.
    pub disk_room_mib: u32,
    /// Whether its CPU is capped.
    pub capped: bool,
    /// Whether it matters if capped and uncapped instances mix.
    pub minds_mixing: bool,
}

/// A lack of capacity: the code of the rule, and the numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Lack {
    /// The reason code of the rule.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub code: &'static str,
    /// What was wanted and what was found.
    pub evidence: Evidence,
}

/// What is used on a node and its limits: all that a guard on its counters may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Room {
    /// What may be promised.
    pub limits: Limits,
    /// What is used.
    pub used: Used,
    /// Memory the hypervisor takes for each instance.
    pub overhead_mib: u32,
    /// Most instances it may hold.
    pub instance_limit: u32,
    /// Which instances it takes by CPU cap.
    pub cpu_cap_mode: CpuCapMode,
}

impl Room {
    /// An empty node with these facts; without a known capacity it has no room at all.
    #[must_use]
    pub fn of(facts: &NodeFacts) -> Self {
        let capacity = facts.capacity.unwrap_or_default();
        Self {
            limits: Limits::of(capacity, facts.kept_by_host(), facts.ratios, facts.other),
            used: Used::default(),
            overhead_mib: facts.vmm_overhead_mib,
            instance_limit: facts.instance_limit,
            cpu_cap_mode: facts.cpu_cap_mode,
        }
    }

    /// Memory in use, the hypervisor's overhead included.
    #[must_use]
    pub fn memory_used(&self) -> i64 {
        self.used.memory + i64::from(self.used.instances) * i64::from(self.overhead_mib)
    }

    /// Memory one more instance may have, its own overhead already taken off.
    #[must_use]
    pub fn memory_room(&self) -> i64 {
        self.limits.memory - self.memory_used() - i64::from(self.overhead_mib)
    }

    /// Whether a capped, or an uncapped, instance may join those that are here.
    #[must_use]
    pub const fn takes(&self, capped: bool) -> bool {
        match (self.cpu_cap_mode, capped) {
            (CpuCapMode::Mixed, _) | (CpuCapMode::Capped, true) | (CpuCapMode::Uncapped, false) => {
                true
            }
            (CpuCapMode::Capped, false) | (CpuCapMode::Uncapped, true) => false,
            (CpuCapMode::Uniform, true) => self.used.instances == self.used.capped,
            (CpuCapMode::Uniform, false) => self.used.capped == 0,
        }
    }

    /// The first thing that is missing for one more instance, in the order of the filters.
    #[must_use]
    pub fn first_lack(&self, demand: &Demand) -> Option<Lack> {
        let rules: [(&'static str, Result<(), Evidence>); 6] = [
            ("no_capacity_instances", self.admits_one_more()),
            ("cpu_cap_no_node", self.admits_cap(demand)),
            ("no_capacity_memory", self.admits_memory(demand)),
            ("no_capacity_cpu", self.admits_cpu(demand)),
            ("no_capacity_disk", self.admits_disk(demand)),
            ("no_capacity_bandwidth", self.admits_bandwidth(demand)),
        ];
        let failed = |(code, verdict): (&'static str, Result<(), Evidence>)| {
            verdict.err().map(|evidence| Lack { code, evidence })
        };
        rules.into_iter().find_map(failed)
    }

    /// The first thing that is missing for an instance here to grow. What does not grow needs no
    /// room, so an over-full node may always shrink.
    #[must_use]
    pub fn lack_of_growth(&self, old: &Amounts, new: &Amounts, cpu_hard: bool) -> Option<Lack> {
        let (limits, used) = (&self.limits, &self.used);
        let cpu = if cpu_hard { new.cpu_milli } else { 0 };
        let memory_free = limits.memory - self.memory_used();
        let (disk_free, cpu_free) = (limits.disk - used.disk, limits.cpu - used.cpu);
        let bandwidth_free = limits.bandwidth - used.bandwidth;
        let rules = [
            (
                "no_capacity_memory",
                "memory",
                old.memory_mib,
                new.memory_mib,
                memory_free,
                Unit::Mib,
            ),
            ("no_capacity_cpu", "CPU", old.cpu_milli, cpu, cpu_free, Unit::MilliCpu),
            ("no_capacity_disk", "disk", old.disk_mib, new.disk_mib, disk_free, Unit::Mib),
            (
                "no_capacity_bandwidth",
                "bandwidth",
                old.bandwidth_mbps,
                new.bandwidth_mbps,
                bandwidth_free,
                Unit::Mbps,
            ),
        ];
        rules.into_iter().find_map(|(code, resource, old, new, free, unit)| {
            let lacks = enough(resource, new.saturating_sub(old), free, unit).err();
            lacks.map(|evidence| Lack { code, evidence })
        })
    }

    /// Whether a node can take one more instance at all.
    pub(crate) fn admits_one_more(&self) -> Result<(), Evidence> {
        if self.used.instances < self.instance_limit {
            return Ok(());
        }
        let free = i64::from(self.instance_limit) - i64::from(self.used.instances);
        Err(short("instance slots", 1, 0, free, Unit::Count))
    }

    pub(crate) fn admits_cap(&self, demand: &Demand) -> Result<(), Evidence> {
        if !demand.minds_mixing || self.takes(demand.capped) {
            return Ok(());
        }
        let kind = |capped: bool| if capped { "capped" } else { "uncapped" };
        // What the operator decided about the node says nothing of what others run.
        match self.cpu_cap_mode {
            CpuCapMode::Capped | CpuCapMode::Uncapped => {
                let found = kind(self.cpu_cap_mode == CpuCapMode::Capped);
                return Err(Evidence::fact("cpu_cap_mode", found, kind(demand.capped)));
            }
            CpuCapMode::Uniform | CpuCapMode::Mixed => {}
        }
        let uncapped = self.used.instances - self.used.capped;
        let found = format!("{} capped and {uncapped} uncapped", self.used.capped);
        let wanted = if demand.capped { "only capped" } else { "only uncapped" };
        Err(Evidence::about_others("instances here by CPU cap", found, wanted))
    }

    pub(crate) fn admits_memory(&self, demand: &Demand) -> Result<(), Evidence> {
        let wanted = i64::from(demand.amounts.memory_mib);
        if self.memory_room() >= wanted {
            return Ok(());
        }
        let free = self.limits.memory - self.memory_used();
        Err(short("memory", wanted, self.overhead_mib.into(), free, Unit::Mib))
    }

    pub(crate) fn admits_cpu(&self, demand: &Demand) -> Result<(), Evidence> {
        let limit = demand
            .cpu_ceiling_permille
            .map_or(self.limits.cpu, |ceiling| overcommitted(self.limits.cpu, ceiling));
        enough("CPU", demand.cpu_room_milli, limit - self.used.cpu, Unit::MilliCpu)
    }

    pub(crate) fn admits_disk(&self, demand: &Demand) -> Result<(), Evidence> {
        enough("disk", demand.disk_room_mib, self.limits.disk - self.used.disk, Unit::Mib)
    }

    pub(crate) fn admits_bandwidth(&self, demand: &Demand) -> Result<(), Evidence> {
        let free = self.limits.bandwidth - self.used.bandwidth;
        enough("bandwidth", demand.amounts.bandwidth_mbps, free, Unit::Mbps)
    }
}

/// One instance never has more CPU than its host, whatever is free there.
#[must_use]
pub fn exceeds_host(wanted_cpu_milli: u32, host_cpu_milli: u32) -> Option<Lack> {
    let evidence = Evidence::Exceeds {
        resource: "CPU".to_owned(),
        wanted: i64::from(wanted_cpu_milli),
        most: i64::from(host_cpu_milli),
        unit: Unit::MilliCpu,
    };
    let exceeds = wanted_cpu_milli > host_cpu_milli;
    exceeds.then_some(Lack { code: "cpu_exceeds_host", evidence })
}

/// What is missing of a further class, such as `gpu`, of which `used` of `limit` are taken.
#[must_use]
pub fn class_lack(class: &str, wanted: u32, used: i64, limit: i64) -> Option<Lack> {
    let code = "no_capacity_class";
    enough(class, wanted, limit - used, Unit::Count).err().map(|evidence| Lack { code, evidence })
}

/// Nothing wanted passes everywhere, over-full nodes included.
pub(crate) fn enough(resource: &str, wanted: u32, free: i64, unit: Unit) -> Result<(), Evidence> {
    let wanted = i64::from(wanted);
    if wanted == 0 || free >= wanted {
        return Ok(());
    }
    Err(short(resource, wanted, 0, free, unit))
}

fn short(resource: &str, wanted: i64, overhead: i64, free: i64, unit: Unit) -> Evidence {
    Evidence::Short { resource: resource.to_owned(), wanted, overhead, free, unit }
}
