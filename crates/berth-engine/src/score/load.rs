//! Scores by what is used on a node before the instance is placed.

use super::scale::Scale;
use super::{Scorer, ScorerKind};
use crate::fleet::NodeRow;
use crate::model::{Amounts, PPM, share_ppm};
use crate::policy::Policy;
use crate::prepared_request::PreparedRequest;

pub(super) static CPU_PRESSURE: Scorer = Scorer {
    name: "cpu-pressure",
    about: "favours nodes with CPU to spare",
    notes: "",
    settings: &[],
    example: |setup| setup.place("a", |request| request.resources.cpu_milli = 8000),
    formula: "1 - min(1, used / allocatable), allocatable with overcommit",
    kind: ScorerKind::Load(|row, _, _| PPM - cpu_share(row)),
};

pub(super) static CPU_PACK: Scorer = Scorer {
    name: "cpu-pack",
    about: "fills nodes by CPU, so that others stay empty",
    notes: "",
    settings: &[],
    example: |setup| setup.place("a", |request| request.resources.cpu_milli = 8000),
    formula: "min(1, used / allocatable), allocatable with overcommit",
    kind: ScorerKind::Load(|row, _, _| cpu_share(row)),
};

pub(super) static MEMORY_PACK: Scorer = Scorer {
    name: "memory-pack",
    about: "fills nodes by memory, so that others stay empty",
    notes: "the hypervisor's overhead counts as used",
    settings: &[],
    example: |setup| setup.place("a", |request| request.resources.memory_mib = 4032),
    formula: "used / allocatable memory: fuller nodes first",
    kind: ScorerKind::Load(|row, _, _| memory_share(row)),
};

pub(super) static MEMORY_SPREAD: Scorer = Scorer {
    name: "memory-spread",
    about: "evens out memory over nodes",
    notes: "the hypervisor's overhead counts as used",
    settings: &[],
    example: |setup| setup.place("a", |request| request.resources.memory_mib = 4032),
    formula: "1 - used / allocatable memory: emptier nodes first",
    kind: ScorerKind::Load(|row, _, _| PPM - memory_share(row)),
};

pub(super) static DISK_PACK: Scorer = Scorer {
    name: "disk-pack",
    about: "fills nodes by disk, so that others stay empty",
    notes: "",
    settings: &[],
    example: |setup| setup.place("a", |request| request.resources.disk_mib = 16_384),
    formula: "used / allocatable disk: fuller nodes first",
    kind: ScorerKind::Load(|row, _, _| disk_share(row)),
};

pub(super) static DISK_SPREAD: Scorer = Scorer {
    name: "disk-spread",
    about: "evens out disk over nodes",
    notes: "",
    settings: &[],
    example: |setup| setup.place("a", |request| request.resources.disk_mib = 16_384),
    formula: "1 - used / allocatable disk: emptier nodes first",
    kind: ScorerKind::Load(|row, _, _| PPM - disk_share(row)),
};

fn cpu_share(row: &NodeRow) -> u32 {
    share_ppm(row.used.cpu, row.limits.cpu)
}

fn memory_share(row: &NodeRow) -> u32 {
    share_ppm(row.memory_used(), row.limits.memory)
}

fn disk_share(row: &NodeRow) -> u32 {
    share_ppm(row.used.disk, row.limits.disk)
}

pub(super) static TENT: Scorer = Scorer {
    name: "tent",
    about: "fills nodes up to a point and not beyond, the larger ones first",
    notes: "",
    settings: &["options.tent.idle_ppm", "options.tent.full_ppm", "options.tent.peak_ppm"],
    example: |setup| {
        setup.place("a", |request| {
            request.resources = Amounts::new(25_600, 13_044).with_disk(1);
        });
        setup.node("c", |facts| {
            facts.capacity = Some(Amounts::new(4000, 8192).with_disk(65_536).with_bandwidth(1000));
        });
    },
    formula: "least of CPU and memory: rises from tent.idle to 1 at tent.peak of use, falls to \
              tent.full; times size / largest node",
    kind: ScorerKind::Load(tent),
};

fn tent(row: &NodeRow, scale: &Scale, policy: &Policy) -> u32 {
    let (largest_cpu, largest_memory) = scale.largest;
    let cpu = tent_of(cpu_share(row), row.capacity.cpu_milli, largest_cpu, policy);
    let memory = tent_of(memory_share(row), row.capacity.memory_mib, largest_memory, policy);
    cpu.min(memory)
}

fn tent_of(used: u32, size: u32, largest: u32, policy: &Policy) -> u32 {
    let tent = &policy.options.tent;
    let (full, used, peak) = (u64::from(PPM), u64::from(used), u64::from(tent.peak_ppm));
    let (idle, end) = (u64::from(tent.idle_ppm), u64::from(tent.full_ppm));
    let height = if used <= peak {
        idle + (full - idle) * used / peak.max(1)
    } else {
        end + (full - end) * (full - used) / (full - peak).max(1)
    };
    let size_share = u64::from(share_ppm(i64::from(size), i64::from(largest)));
    u32::try_from(height.min(full) * size_share / full).unwrap_or(PPM)
}

pub(super) static FRAGMENTATION: Scorer = Scorer {
    name: "fragmentation",
    about: "avoids leaving scraps that no usual instance fits",
    notes: "the request is part of the formula, so a scan adds it node by node",
    settings: &["options.shapes"],
    example: |setup| setup.place("a", |request| request.resources.memory_mib = 12_000),
    formula: "(1 + stranded before - stranded after) / 2, stranded: mean over recurring shapes of \
              the free share of nodes that they do not fit",
    kind: ScorerKind::Dense(fragmentation),
};

fn fragmentation(prepared: &PreparedRequest<'_>, row: &NodeRow) -> u32 {
    let cpu = row.limits.cpu - row.used.cpu;
    let memory = row.memory_room();
    let wanted = prepared.request.resources;
    let overhead = i64::from(row.vmm_overhead_mib);
    let cpu_after = cpu - i64::from(wanted.cpu_milli);
    let memory_after = memory - i64::from(wanted.memory_mib) - overhead;
    let shapes = &prepared.policy.options.shapes;
    let before = stranded(row, shapes, cpu, memory);
    let after = stranded(row, shapes, cpu_after, memory_after);
    (PPM + before - after.min(PPM)) / 2
}

/// The free share of a node that recurring shapes cannot use, averaged over the shapes.
fn stranded(row: &NodeRow, shapes: &[Amounts], cpu: i64, memory: i64) -> u32 {
    let free = (share_ppm(cpu, row.limits.cpu) + share_ppm(memory, row.limits.memory)) / 2;
    let misfit =
        |shape: &&Amounts| i64::from(shape.cpu_milli) > cpu || i64::from(shape.memory_mib) > memory;
    let misfits = shapes.iter().filter(misfit).count() as u64;
    let mean = u64::from(free) * misfits / (shapes.len() as u64).max(1);
    u32::try_from(mean).unwrap_or(PPM)
}
