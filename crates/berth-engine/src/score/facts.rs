//! Scores by a node's facts: its platform, calendar, hardware, reliability and price.

use super::scale::{Scale, between, counted_reboot};
use super::{Scorer, ScorerKind};
use crate::example::ExampleSetup;
use crate::fleet::NodeRow;
use crate::model::{
    BootOutcome, CapacityType, MeasuredLoad, PPM, Platform, PlatformVersion, Timestamp,
};
use crate::policy::Policy;

/// Failures fade in steps of this many seconds, so that a node's score changes at known times.
const FADE_STEP_S: i64 = 60;

/// A failure is forgotten after this many half-lives: a thousandth of it is left.
const FORGOTTEN_HALF_LIVES: i64 = 10;

pub(super) static RECENT_FAILURES: Scorer = Scorer {
    name: "recent-failures",
    about: "avoids nodes where boots failed lately",
    notes: "fades in steps of 60 seconds and in straight lines between two halvings, forgets a failure after ten half-lives, and sees the eight newest boots",
    settings: &["options.failure_half_life_s"],
    example: |setup| {
        for (node, ago) in [("a", 0), ("b", 3600), ("c", 36_000)] {
            let at = ExampleSetup::NOW.plus(-ago);
            setup.node(node, |facts| facts.boots = vec![BootOutcome::new(at, true)]);
        }
    },
    formula: "1 / (1 + failed boots), each fading by half every failure_half_life_s",
    kind: ScorerKind::Facts(recent_failures),
};

fn recent_failures(row: &NodeRow, _: &Scale, policy: &Policy, now: Timestamp) -> u32 {
    let failed = row.boots.iter().filter(|boot| boot.failed);
    let faded = failed.map(|boot| faded_milli(boot.at, policy, now)).sum::<u64>();
    u32::try_from(u64::from(PPM) * 1000 / (1000 + faded)).unwrap_or(PPM)
}

/// What is left of a failure, in thousandths.
fn faded_milli(at: Timestamp, policy: &Policy, now: Timestamp) -> u64 {
    let half_life = i64::from(policy.options.failure_half_life_s.max(1));
    let tick = now.0.div_euclid(FADE_STEP_S).saturating_mul(FADE_STEP_S);
    let age = tick.saturating_sub(at.0).max(0);
    let halvings = age / half_life;
    if halvings >= FORGOTTEN_HALF_LIVES {
        return 0;
    }
    let whole = 1000u64 >> halvings;
    // Straight lines between the halvings keep this in integers.
    whole - whole * (age % half_life).unsigned_abs() / (2 * half_life.unsigned_abs())
}

/// When a node's failures next fade by a step, if any are left.
pub(crate) fn next_failure_step(
    row: &NodeRow,
    policy: &Policy,
    now: Timestamp,
) -> Option<Timestamp> {
    let mut failed = row.boots.iter().filter(|boot| boot.failed);
    let any_left = failed.any(|boot| faded_milli(boot.at, policy, now) > 0);
    let step = now.0.div_euclid(FADE_STEP_S).saturating_add(1);
    any_left.then(|| Timestamp(step.saturating_mul(FADE_STEP_S)))
}

pub(super) static NEWEST_PLATFORM: Scorer = Scorer {
    name: "newest-platform",
    about: "favours nodes with a newer platform",
    notes: "1 if all nodes are alike, or none has a platform",
    settings: &[],
    example: |setup| {
        let version = PlatformVersion::new(7, 0);
        for (node, days) in [("a", 100), ("b", 25), ("c", 0)] {
            let built_at = ExampleSetup::NOW.plus(-days * Timestamp::DAY);
            setup.node(node, |facts| facts.platform = Some(Platform { version, built_at }));
        }
    },
    formula: "(built - oldest) / (newest - oldest) over the fleet; unknown platform: 0",
    kind: ScorerKind::Facts(newest_platform),
};

fn newest_platform(row: &NodeRow, scale: &Scale, _: &Policy, _: Timestamp) -> u32 {
    match (row.platform, scale.platforms) {
        (Some(platform), Some((oldest, newest))) => between(platform.built_at.0, oldest, newest),
        (None, Some(_)) => 0,
        (_, None) => PPM,
    }
}

pub(super) static NEXT_REBOOT: Scorer = Scorer {
    name: "next-reboot",
    about: "favours nodes that will not reboot soon",
    notes: "a date before the last boot is ignored: that reboot has happened",
    settings: &["options.missed_reboot"],
    example: |setup| {
        for (node, days) in [("b", 20), ("c", 3)] {
            let at = ExampleSetup::NOW.plus(days * Timestamp::DAY);
            setup.node(node, |facts| facts.next_reboot = Some(at));
        }
    },
    formula: "linear over 7-day buckets of planned reboots: none or past first, soonest last",
    kind: ScorerKind::Facts(next_reboot),
};

fn next_reboot(row: &NodeRow, scale: &Scale, policy: &Policy, now: Timestamp) -> u32 {
    scale.reboot_value(counted_reboot(row.pending_reboot(), policy, now))
}

pub(super) static HARDWARE_CLASS: Scorer = Scorer {
    name: "hardware-class",
    about: "favours better hardware",
    notes: "1 if all nodes are alike",
    settings: &[],
    example: |setup| {
        for (node, class) in [("a", 0), ("b", 1), ("c", 4)] {
            setup.node(node, |facts| facts.hardware_class = class);
        }
    },
    formula: "(class - lowest) / (highest - lowest) over the fleet",
    kind: ScorerKind::Facts(hardware_class),
};

fn hardware_class(row: &NodeRow, scale: &Scale, _: &Policy, _: Timestamp) -> u32 {
    let (lowest, highest) = scale.hardware.unwrap_or_default();
    between(i64::from(row.hardware_class), i64::from(lowest), i64::from(highest))
}

pub(super) static CAPACITY_PREFERENCE: Scorer = Scorer {
    name: "capacity-preference",
    about: "favours on-demand or spot nodes",
    notes: "",
    settings: &["options.prefer_capacity"],
    example: |setup| setup.node("a", |facts| facts.capacity_type = CapacityType::Spot),
    formula: "1 on the capacity type that prefer_capacity names, else 0",
    kind: ScorerKind::Facts(|row, _, policy, _| {
        if row.capacity_type == policy.options.prefer_capacity { PPM } else { 0 }
    }),
};

pub(super) static RESERVOIR: Scorer = Scorer {
    name: "reservoir",
    about: "keeps some nodes for when nothing else is left",
    notes: "",
    settings: &[],
    example: |setup| setup.node("a", |facts| facts.reservoir = true),
    formula: "0 on nodes kept for when nothing else is left, else 1",
    kind: ScorerKind::Facts(|row, _, _, _| if row.reservoir { 0 } else { PPM }),
};

pub(super) static MEASURED_LOAD: Scorer = Scorer {
    name: "measured-load",
    about: "favours hosts that are less busy, as their agents measure it",
    notes: "in no built-in policy; a node whose load is not known, or whose last heartbeat is older than load_max_age_s, counts as half busy; loads are kept in steps of 5 %, and only while the policy in force weighs this scorer",
    settings: &["options.load_max_age_s"],
    example: |setup| {
        for (node, cpu_permille, memory_permille) in [("a", 200, None), ("b", 200, Some(800))] {
            let load = MeasuredLoad { cpu_permille, memory_permille };
            setup.node(node, |facts| facts.load = Some(load));
        }
    },
    formula: "1 - the busy share of CPU, or the mean of the shares of CPU and memory where both are measured",
    kind: ScorerKind::Facts(measured_load),
};

fn measured_load(row: &NodeRow, _: &Scale, policy: &Policy, now: Timestamp) -> u32 {
    let is_fresh = load_expires_at(row, policy).is_none_or(|expires| now < expires);
    let Some(load) = row.load.filter(|_| is_fresh) else { return PPM / 2 };
    let cpu = u32::from(load.cpu_permille);
    let busy = match load.memory_permille {
        // Twice as many parts as a permille has, so that a half is whole.
        Some(memory) => cpu + u32::from(memory),
        None => 2 * cpu,
    };
    PPM - (busy * (PPM / 2000)).min(PPM)
}

/// When a node's load is too old to count, if its agent is not heard until then.
pub(crate) fn load_expires_at(row: &NodeRow, policy: &Policy) -> Option<Timestamp> {
    let age = i64::from(policy.options.load_max_age_s) + 1;
    row.load.map(|_| row.heartbeat_at.plus(age))
}
