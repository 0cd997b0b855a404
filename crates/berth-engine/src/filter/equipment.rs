//! Rules about a node's facts, independent of the request.

use super::{Filter, FilterTest, Verdict};
use crate::fleet::NodeRow;
use crate::model::{Amounts, Evidence, PPM, Timestamp, Unit};
use crate::policy::Policy;

pub(super) static FACTS_VALID: Filter = Filter {
    name: "facts-valid",
    rule: "its ratios are 1 to 1000000 ‰, watermarks 1 to 1000 ‰, overlay loss at most 1000000 ppm, and its reserve is within its capacity",
    means: "the last nodes have facts that cannot be right",
    settings: &[],
    example: |setup| setup.node("a", |facts| facts.ratios.cpu_permille = 0),
    code: "no_nodes_valid",
    remedy: "correct the field that is named, on the node or in its agent's configuration",
    transient: false,
    test: FilterTest::Node(facts_valid),
};

fn facts_valid(row: &NodeRow, _: &Policy, _: Timestamp) -> Verdict {
    let ratios = [
        ("ratios.cpu_permille", row.ratios.cpu_permille),
        ("ratios.memory_permille", row.ratios.memory_permille),
        ("ratios.disk_permille", row.ratios.disk_permille),
    ];
    for (field, found) in ratios {
        if !(1..=1_000_000).contains(&found) {
            return Err(Evidence::fact(field, found, "1 to 1000000"));
        }
    }
    let marks = [
        ("watermarks.cpu_permille", row.watermarks.cpu_permille),
        ("watermarks.memory_permille", row.watermarks.memory_permille),
    ];
    for (field, found) in marks {
        if !(1..=1000).contains(&found) {
            return Err(Evidence::fact(field, found, "1 to 1000"));
        }
    }
    if row.overlay_loss_ppm > PPM {
        return Err(Evidence::fact("overlay_loss_ppm", row.overlay_loss_ppm, "0 to 1000000"));
    }
    if row.capacity_known {
        return reserve_within(row.capacity, row.kept_by_host());
    }
    Ok(())
}

fn reserve_within(capacity: Amounts, reserve: Amounts) -> Verdict {
    for ((name, have, _), (_, keep, _)) in capacity.named().into_iter().zip(reserve.named()) {
        if keep > have {
            let field = format!("system_reserve.{name}");
            return Err(Evidence::fact(&field, keep, format!("at most {have}")));
        }
    }
    Ok(())
}

pub(super) static CAPACITY_KNOWN: Filter = Filter {
    name: "capacity-known",
    rule: "its capacity is reported, CPU and memory above zero",
    means: "the last nodes have not said how large they are",
    settings: &[],
    example: |setup| setup.node("a", |facts| facts.capacity = None),
    code: "no_nodes_sized",
    remedy: "start the agents, which report CPU and memory, or register the nodes with their size",
    transient: true,
    test: FilterTest::Node(capacity_known),
};

fn capacity_known(row: &NodeRow, _: &Policy, _: Timestamp) -> Verdict {
    if !row.capacity_known {
        return Err(Evidence::fact("capacity", "unknown", "reported"));
    }
    if row.capacity.cpu_milli == 0 || row.capacity.memory_mib == 0 {
        return Err(Evidence::fact("capacity", "zero CPU or memory", "more than zero"));
    }
    Ok(())
}

pub(super) static KVM: Filter = Filter {
    name: "kvm",
    rule: "it has KVM",
    means: "the last nodes have no KVM",
    settings: &[],
    example: |setup| setup.node("a", |facts| facts.kvm = false),
    code: "no_nodes_kvm",
    remedy: "enable KVM on the nodes",
    transient: false,
    test: FilterTest::Node(|row, _, _| flag("kvm", row.kvm, true)),
};

pub(super) static SCRATCH_DISK: Filter = Filter {
    name: "scratch-disk",
    rule: "its `scratch_mib` is at least `min_scratch_mib`",
    means: "the last nodes have too little scratch disk",
    settings: &["filters.min_scratch_mib"],
    example: |setup| {
        setup.settings = "[filters]\nmin_scratch_mib = 1024";
        setup.node("a", |facts| facts.scratch_mib = 512);
    },
    code: "no_nodes_scratch",
    remedy: "free scratch disk on the nodes, or lower min_scratch_mib",
    transient: true,
    test: FilterTest::Node(scratch_disk),
};

fn scratch_disk(row: &NodeRow, policy: &Policy, _: Timestamp) -> Verdict {
    let (wanted, free) = (policy.filters.min_scratch_mib, row.scratch_mib);
    if free >= wanted {
        return Ok(());
    }
    Err(Evidence::Short {
        resource: "scratch disk".to_owned(),
        wanted: i64::from(wanted),
        overhead: 0,
        free: i64::from(free),
        unit: Unit::Mib,
    })
}

pub(super) static OVERLAY_HEALTHY: Filter = Filter {
    name: "overlay-healthy",
    rule: "its overlay packet loss is at most `max_overlay_loss_ppm`",
    means: "the last nodes lose too many packets on the overlay",
    settings: &["filters.max_overlay_loss_ppm"],
    example: |setup| setup.node("a", |facts| facts.overlay_loss_ppm = 80_000),
    code: "no_nodes_overlay",
    remedy: "repair the overlay network, or raise max_overlay_loss_ppm",
    transient: true,
    test: FilterTest::Node(overlay_healthy),
};

fn overlay_healthy(row: &NodeRow, policy: &Policy, _: Timestamp) -> Verdict {
    let limit = policy.filters.max_overlay_loss_ppm;
    if row.overlay_loss_ppm <= limit {
        return Ok(());
    }
    let wanted = format!("at most {limit}");
    Err(Evidence::fact("overlay packet loss (ppm)", row.overlay_loss_ppm, wanted))
}

pub(super) static NOT_RESERVED: Filter = Filter {
    name: "not-reserved",
    rule: "the operator has not reserved it",
    means: "the last nodes are reserved by the operator",
    settings: &[],
    example: |setup| setup.node("a", |facts| facts.reserved = true),
    code: "no_nodes_unreserved",
    remedy: "end the reservation",
    transient: false,
    test: FilterTest::Node(|row, _, _| flag("reserved", row.reserved, false)),
};

pub(super) static NOT_HEADNODE: Filter = Filter {
    name: "not-headnode",
    rule: "it does not run the control plane",
    means: "the last nodes run the control plane",
    settings: &[],
    example: |setup| setup.node("a", |facts| facts.headnode = true),
    code: "no_nodes_beside_headnode",
    remedy: "add a node that does not run the control plane, or switch the filter not-headnode off",
    transient: false,
    test: FilterTest::Node(|row, _, _| flag("headnode", row.headnode, false)),
};

pub(super) fn flag(name: &str, found: bool, wanted: bool) -> Verdict {
    if found == wanted { Ok(()) } else { Err(Evidence::fact(name, found, wanted)) }
}
