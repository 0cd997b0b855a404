//! Rules about the room on a node.
//!
//! The comparisons themselves are in `model::Room`, which the ledger's guards use too. Each compares a
//! column with a need, and [`Needs`] gives the same pairs to the scan. A need of zero passes
//! everywhere, over-full nodes included.

use super::{Filter, FilterTest, Verdict};
use crate::fleet::{Column, Columns, Fleet, NodeRow};
use crate::model::{Amounts, Demand, InstanceRequest, Unit, enough};
use crate::policy::{CpuRule, Policy};
use crate::prepared_request::PreparedRequest;

pub(super) static INSTANCE_COUNT: Filter = Filter {
    name: "instance-count",
    rule: "instances there are fewer than its `instance_limit`",
    means: "the last nodes hold as many instances as they may",
    settings: &[],
    example: |setup| {
        setup.node("a", |facts| facts.instance_limit = 1);
        setup.place("a", |_| {});
    },
    code: "no_capacity_instances",
    remedy: "release instances, raise the nodes' instance_limit, or add a node",
    transient: true,
    test: FilterTest::Load(instance_count),
};

fn instance_count(_: &PreparedRequest<'_>, row: &NodeRow) -> Verdict {
    row.room().admits_one_more()
}

pub(super) static CPU_CAP_MIXING: Filter = Filter {
    name: "cpu-cap-mixing",
    rule: "capped and uncapped instances mix there as its `cpu_cap_mode` says",
    means: "the last nodes hold instances of the other kind, capped or uncapped",
    settings: &[],
    example: |setup| {
        setup.place("a", |_| {});
        setup.request.cpu_capped = true;
    },
    code: "cpu_cap_no_node",
    remedy: "cap or uncap its CPU like the instances there, or set the nodes' cpu_cap_mode to mixed",
    transient: true,
    test: FilterTest::Load(cpu_cap_mixing),
};

fn cpu_cap_mixing(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Verdict {
    row.room().admits_cap(&demand(prepared))
}

pub(super) static MEMORY: Filter = Filter {
    name: "memory",
    rule: "the memory asked for plus its `vmm_overhead_mib` is free",
    means: "the last nodes have too little memory free",
    settings: &[],
    example: |setup| setup.place("a", |request| request.resources.memory_mib = 14_336),
    code: "no_capacity_memory",
    remedy: "ask for less memory, release instances, or add a node",
    transient: true,
    test: FilterTest::Load(memory),
};

fn memory(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Verdict {
    row.room().admits_memory(&demand(prepared))
}

pub(super) static CPU: Filter = Filter {
    name: "cpu",
    rule: "the CPU asked for is free, overcommit applied; only with `cpu = \"hard\"`, or below `cpu_ceiling_permille`",
    means: "the last nodes have too little CPU free",
    settings: &["filters.cpu", "filters.cpu_ceiling_permille"],
    example: |setup| {
        setup.settings = "[filters]\ncpu = \"hard\"";
        setup.place("a", |request| request.resources.cpu_milli = 31_500);
    },
    code: "no_capacity_cpu",
    remedy: "ask for less CPU, release instances, or add a node; cpu = \"soft\" in the policy lifts the limit",
    transient: true,
    test: FilterTest::Load(cpu),
};

fn cpu(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Verdict {
    row.room().admits_cpu(&demand(prepared))
}

pub(super) static DISK: Filter = Filter {
    name: "disk",
    rule: "the disk asked for plus `image_mib` plus `disk_headroom_mib` is free",
    means: "the last nodes have too little disk free",
    settings: &["filters.disk_headroom_mib"],
    example: |setup| {
        setup.settings = "[filters]\ndisk_headroom_mib = 10240";
        setup.place("a", |request| request.resources.disk_mib = 57_344);
    },
    code: "no_capacity_disk",
    remedy: "ask for less disk, release instances, or add a node",
    transient: true,
    test: FilterTest::Load(disk),
};

fn disk(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Verdict {
    row.room().admits_disk(&demand(prepared))
}

pub(super) static BANDWIDTH: Filter = Filter {
    name: "bandwidth",
    rule: "the bandwidth asked for is free",
    means: "the last nodes have too little bandwidth free",
    settings: &[],
    example: |setup| {
        setup.place("a", |request| request.resources.bandwidth_mbps = 600);
        setup.request.resources.bandwidth_mbps = 500;
    },
    code: "no_capacity_bandwidth",
    remedy: "ask for less bandwidth, release instances, or add a node",
    transient: true,
    test: FilterTest::Load(bandwidth),
};

fn bandwidth(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Verdict {
    row.room().admits_bandwidth(&demand(prepared))
}

pub(super) static EXTRA_CLASSES: Filter = Filter {
    name: "extra-classes",
    rule: "enough is free of every further class, such as `gpu`; one that it never stated is zero",
    means: "the last nodes have too little of a further class free, or none",
    settings: &[],
    example: |setup| {
        setup.node("a", |facts| facts.extra.extend([("gpu".to_owned(), 1)]));
        setup.request.extra.insert("gpu".to_owned(), 2);
    },
    code: "no_capacity_class",
    remedy: "ask for less of that class, release instances, or add a node that has it",
    transient: true,
    test: FilterTest::Load(extra_classes),
};

fn extra_classes(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Verdict {
    for (name, &wanted) in &prepared.request.extra {
        enough(name, wanted, class_room(prepared.fleet, row, name), Unit::Count)?;
    }
    Ok(())
}

/// What is left of a further class on a node; a class it never stated is nothing.
fn class_room(fleet: &Fleet, row: &NodeRow, name: &str) -> i64 {
    let class = row.extra.iter().find(|class| fleet.texts().text(class.name) == name);
    class.map_or(0, |class| i64::from(class.limit) - class.used)
}

impl Demand {
    /// What a request needs under a policy.
    #[must_use]
    pub fn new(request: &InstanceRequest, policy: &Policy) -> Self {
        let wanted = &request.resources;
        let ceiling = policy.filters.cpu_ceiling_permille;
        let cpu_room_milli = match policy.filters.cpu {
            CpuRule::Soft if ceiling.is_none() => 0,
            CpuRule::Soft | CpuRule::Hard => wanted.cpu_milli,
        };
        let disk = wanted.disk_mib.saturating_add(request.image_mib);
        // Never above what a lane can hold, so that scan and filter compare the same number.
        let disk_room_mib = disk.saturating_add(policy.filters.disk_headroom_mib).min(Amounts::MAX);
        Self {
            amounts: *wanted,
            cpu_room_milli,
            cpu_ceiling_permille: ceiling,
            disk_room_mib,
            capped: request.cpu_capped,
            minds_mixing: !policy.is_off(super::CPU_CAP_MIXING),
        }
    }
}

fn demand(prepared: &PreparedRequest<'_>) -> Demand {
    Demand::new(prepared.request, prepared.policy)
}

/// A column and what it must at least hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate<'a> {
    pub(crate) column: Option<&'a Column<i32>>,
    pub(crate) need: i32,
}

/// The same comparisons as the filters above, for scans and repairs.
#[derive(Clone, Debug)]
pub(crate) struct Needs<'a> {
    /// Of memory, disk, CPU and bandwidth; `i32::MIN` where nothing is needed.
    pub(crate) fixed: [i32; 4],
    /// The need of CPU where it is compared with a ceiling: no column has that, so it is compared
    /// node by node.
    pub(crate) below_ceiling: Option<Demand>,
    /// Of further classes. A class that no node ever stated has no column, and nothing passes.
    pub(crate) extra: Vec<Gate<'a>>,
}

impl<'a> Needs<'a> {
    pub(crate) fn new(fleet: &'a Fleet, request: &InstanceRequest, policy: &Policy) -> Self {
        let lane = |need: u32| match i32::try_from(need) {
            // Nothing needed passes everywhere, on over-full nodes too.
            Ok(0) => i32::MIN,
            Ok(need) => need,
            Err(_) => i32::MAX,
        };
        let classes = request.extra.iter().filter(|(_, need)| **need != 0);
        let demand = Demand::new(request, policy);
        let has_ceiling = demand.cpu_ceiling_permille.is_some() && demand.cpu_room_milli > 0;
        Self {
            below_ceiling: has_ceiling.then_some(demand),
            fixed: [
                lane(demand.amounts.memory_mib),
                lane(demand.disk_room_mib),
                lane(if has_ceiling { 0 } else { demand.cpu_room_milli }),
                lane(demand.amounts.bandwidth_mbps),
            ],
            extra: classes
                .map(|(name, &need)| Gate { column: fleet.extra_column(name), need: lane(need) })
                .collect(),
        }
    }

    /// Everything that is needed, as columns to compare.
    pub(crate) fn gates(&self, columns: &'a Columns) -> Vec<Gate<'a>> {
        let fixed = [&columns.memory, &columns.disk, &columns.cpu, &columns.bandwidth];
        let fixed = fixed.into_iter().zip(self.fixed).filter(|(_, need)| *need != i32::MIN);
        let fixed = fixed.map(|(column, need)| Gate { column: Some(column), need });
        fixed.chain(self.extra.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FILTERS;
    use crate::model::{CpuCapMode, NodeFacts, Room, class_lack};

    #[test]
    fn every_lack_has_the_code_of_a_filter() {
        let demand = |capped| Demand {
            amounts: Amounts::new(1, 1).with_disk(1).with_bandwidth(1),
            cpu_room_milli: 1,
            cpu_ceiling_permille: None,
            disk_room_mib: 1,
            capped,
            minds_mixing: true,
        };
        let mut room = Room::of(&NodeFacts::new("n", Amounts::default()));
        room.instance_limit = 0;
        let mut codes = Vec::new();
        let mut note = |room: &Room, capped| {
            codes.extend(room.first_lack(&demand(capped)).map(|lack| lack.code));
        };
        note(&room, false);
        room.instance_limit = 9;
        room.cpu_cap_mode = CpuCapMode::Uncapped;
        note(&room, true);
        note(&room, false);
        room.limits.memory = 1000;
        note(&room, false);
        room.limits.cpu = 1;
        note(&room, false);
        room.limits.disk = 1;
        note(&room, false);
        assert_eq!(
            codes,
            [
                "no_capacity_instances",
                "cpu_cap_no_node",
                "no_capacity_memory",
                "no_capacity_cpu",
                "no_capacity_disk",
                "no_capacity_bandwidth"
            ]
        );
        codes.extend(class_lack("gpu", 1, 0, 0).map(|lack| lack.code));
        assert!(codes.iter().all(|code| FILTERS.iter().any(|filter| filter.code == *code)));
    }
}
