//! The report, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::FairnessBench;
use super::crowd::{Crowd, CrowdMeasurements};
use super::load::Measurements;
use crate::bench::percentile_ms;

/// What the second tenant did.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    ImpossibleSingles,
    ImpossibleBatches,
}

/// What was measured on a server with the same settings throughout.
pub(super) struct Round {
    /// The first tenant alone.
    pub(super) quiet: Measurements,
    /// One client of the second alone.
    pub(super) alone: Measurements,
    pub(super) phases: [(Phase, Measurements); 2],
}

#[derive(Serialize)]
pub(super) struct Report {
    nodes: u32,
    clients: u16,
    flooders: u16,
    seconds: u32,
    /// All requests reach the planner.
    without_rate_limits: RoundReport,
    /// The second tenant sends more than it may.
    with_rate_limits: RoundReport,
    /// Without rate limits.
    crowds: Vec<CrowdReport>,
}

#[derive(Serialize)]
struct RoundReport {
    quiet_per_s: usize,
    quiet_p50_ms: f64,
    quiet_p99_ms: f64,
    /// Of one client that asks for the impossible while nothing else happens.
    refusal_p50_ms: f64,
    refusal_p99_ms: f64,
    phases: Vec<PhaseReport>,
}

/// What the first tenant felt of a crowd, and what the crowd was answered.
#[derive(Serialize)]
struct CrowdReport {
    clients: u16,
    tenants: u16,
    impatient: bool,
    p50_ms: f64,
    p99_ms: f64,
    p99_ratio: f64,
    placements_per_s: usize,
    granted: u64,
    refused: u64,
    tenant_busy: u64,
    overloaded: u64,
}

#[derive(Serialize)]
struct PhaseReport {
    phase: Phase,
    p50_ms: f64,
    p99_ms: f64,
    p99_ratio: f64,
    placements_per_s: usize,
    refusals_per_s: usize,
    refusal_p50_ms: f64,
    limited: u64,
}

impl RoundReport {
    fn new(round: &Round, seconds: usize) -> Self {
        let quiet_p99_ms = percentile_ms(&round.quiet.placed_us, (99, 100));
        let phases = round.phases.iter().map(|(phase, measured)| {
            let p99_ms = percentile_ms(&measured.placed_us, (99, 100));
            PhaseReport {
                phase: *phase,
                p50_ms: percentile_ms(&measured.placed_us, (1, 2)),
                p99_ms,
                p99_ratio: ratio(p99_ms, quiet_p99_ms),
                placements_per_s: measured.placed_us.len() / seconds,
                refusals_per_s: measured.refused_us.len() / seconds,
                refusal_p50_ms: percentile_ms(&measured.refused_us, (1, 2)),
                limited: measured.limited,
            }
        });
        Self {
            quiet_per_s: round.quiet.placed_us.len() / seconds,
            quiet_p50_ms: percentile_ms(&round.quiet.placed_us, (1, 2)),
            quiet_p99_ms,
            refusal_p50_ms: percentile_ms(&round.alone.refused_us, (1, 2)),
            refusal_p99_ms: percentile_ms(&round.alone.refused_us, (99, 100)),
            phases: phases.collect(),
        }
    }
}

impl Report {
    pub(super) fn new(
        bench: &FairnessBench,
        unlimited: &Round,
        limited: &Round,
        crowds: &[(Crowd, CrowdMeasurements)],
    ) -> Self {
        let seconds = usize::try_from(bench.seconds.max(1)).unwrap_or(1);
        let without_rate_limits = RoundReport::new(unlimited, seconds);
        let quiet_p99_ms = without_rate_limits.quiet_p99_ms;
        let crowds = crowds.iter().map(|(crowd, measured)| {
            let p99_ms = percentile_ms(&measured.placed_us, (99, 100));
            CrowdReport {
                clients: crowd.clients,
                tenants: crowd.tenants,
                impatient: crowd.is_impatient,
                p50_ms: percentile_ms(&measured.placed_us, (1, 2)),
                p99_ms,
                p99_ratio: ratio(p99_ms, quiet_p99_ms),
                placements_per_s: measured.placed_us.len() / seconds,
                granted: measured.answers.granted,
                refused: measured.answers.refused,
                tenant_busy: measured.answers.limited,
                overloaded: measured.answers.overloaded,
            }
        });
        Self {
            nodes: bench.nodes,
            clients: bench.clients,
            flooders: bench.flooders,
            seconds: bench.seconds,
            with_rate_limits: RoundReport::new(limited, seconds),
            without_rate_limits,
            crowds: crowds.collect(),
        }
    }
}

#[allow(clippy::float_arithmetic, reason = "figures for people")]
fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { (of / to * 100.0).round() / 100.0 } else { 0.0 }
}

impl fmt::Display for RoundReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  alone                p50 {:.2} ms, p99 {:.2} ms, {} /s",
            self.quiet_p50_ms, self.quiet_p99_ms, self.quiet_per_s
        )?;
        for phase in &self.phases {
            let name = match phase.phase {
                Phase::ImpossibleSingles => "impossible singles",
                Phase::ImpossibleBatches => "impossible batches",
            };
            writeln!(
                f,
                "  {name:<20} p50 {:.2} ms, p99 {:.2} ms, {} /s: p99 × {:.2}",
                phase.p50_ms, phase.p99_ms, phase.placements_per_s, phase.p99_ratio
            )?;
            writeln!(
                f,
                "    {} others' refusals /s, p50 {:.2} ms; {} turned away",
                phase.refusals_per_s, phase.refusal_p50_ms, phase.limited
            )?;
        }
        writeln!(
            f,
            "  a refusal alone      p50 {:.2} ms, p99 {:.2} ms",
            self.refusal_p50_ms, self.refusal_p99_ms
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (clients, nodes) = (self.clients, self.nodes);
        writeln!(f, "{clients} clients of one tenant on {nodes} nodes, without rate limits")?;
        write!(f, "{}", self.without_rate_limits)?;
        for crowd in &self.crowds {
            let tenants = match crowd.tenants {
                1 => "1 tenant".to_owned(),
                tenants => format!("{tenants} tenants"),
            };
            writeln!(f, "  a crowd of {} clients, {tenants}", crowd.clients)?;
            writeln!(
                f,
                "    p50 {:.2} ms, p99 {:.2} ms, {} /s: p99 × {:.2}",
                crowd.p50_ms, crowd.p99_ms, crowd.placements_per_s, crowd.p99_ratio
            )?;
            writeln!(
                f,
                "    the crowd: {} granted, {} refused, {} × 429, {} × 503",
                crowd.granted, crowd.refused, crowd.tenant_busy, crowd.overloaded
            )?;
        }
        writeln!(f, "with the default rate limits")?;
        write!(f, "{}", self.with_rate_limits)
    }
}
