//! What the control plane counts, for Prometheus.
//!
//! Labels come from closed sets (codes, states, loops), so that no caller can make the set of series
//! grow. What the ledger, the catalogue and the queue know is read when it is asked for, by
//! `exposition`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use rustc_hash::FxHashMap;

use berth_ledger::PermitAnswer;

use crate::clock::now;

/// Seconds, from a tenth of a millisecond to half a minute.
const BUCKETS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LoopFailureLabels {
    r#loop: &'static str,
    cause: LoopFailure,
}

/// How a pass of a loop failed.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum LoopFailure {
    /// It returned an error.
    Error,
    /// It panicked.
    Panic,
}

impl EncodeLabelValue for LoopFailure {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        let name = match self {
            Self::Error => "error",
            Self::Panic => "panic",
        };
        EncodeLabelValue::encode(&name, encoder)
    }
}

/// Background loops, as metrics name them.
pub const LOOPS: [&str; 15] = [
    "heartbeats",
    "liveness",
    "queue",
    "workloads",
    "drains",
    "volume_moves",
    "migrations",
    "relief",
    "reserves",
    "evacuation",
    "maintenance",
    "tenant_removals",
    "lists",
    "planner",
    "follower",
];

/// What the server counts.
pub struct Metrics {
    registry: Registry,
    placements: Family<OutcomeLabel, Counter>,
    instances: Counter,
    refusals: Family<CodeLabel, Counter>,
    conflicts: Family<CodeLabel, Counter>,
    permits: Family<OutcomeLabel, Counter>,
    migrations: Family<OutcomeLabel, Counter>,
    stages: Family<StageLabel, Histogram>,
    loop_failures: Family<LoopFailureLabels, Counter>,
    limited: Family<LimitLabel, Counter>,
    abandoned: Counter,
    limit_trials: Counter,
    limit_search_failures: Counter,
    /// When each loop last completed a pass, in whole seconds.
    rounds: FxHashMap<&'static str, AtomicU64>,
}

/// A histogram of durations, from a tenth of a millisecond to half a minute.
#[must_use]
pub fn seconds_histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("berth");
        let placements = Family::<OutcomeLabel, Counter>::default();
        registry.register("placements", "Placement requests by how they ended", placements.clone());
        let instances = Counter::default();
        registry.register(
            "instances_placed",
            "Instances that were given a node",
            instances.clone(),
        );
        let refusals = Family::<CodeLabel, Counter>::default();
        registry.register("refusals", "Refused placements by reason code", refusals.clone());
        let conflicts = Family::<CodeLabel, Counter>::default();
        let help = "Plans that others made void, by reason code";
        registry.register("conflicts", help, conflicts.clone());
        let permits = Family::<OutcomeLabel, Counter>::default();
        let help = "Requests for permits by how they ended: granted, held_back, repeated";
        registry.register("permits", help, permits.clone());
        let migrations = Family::<OutcomeLabel, Counter>::default();
        let help = "Migrations by the states that this server took them to";
        registry.register("migrations", help, migrations.clone());
        let stages = Family::<StageLabel, Histogram>::new_with_constructor(seconds_histogram);
        registry.register_with_unit(
            "decision",
            "How long decisions took, by stage: queued, planned, explained, committed, whole",
            Unit::Seconds,
            stages.clone(),
        );
        let loop_failures = Family::<LoopFailureLabels, Counter>::default();
        let help = "Passes of background loops that failed, by loop and cause: error, panic";
        registry.register("loop_failures", help, loop_failures.clone());
        let limited = Family::<LimitLabel, Counter>::default();
        let help = "Requests of tenants that were turned away, by limit: placements, dry_runs, tickets, \
                    refusals, explanations, events_per_day, planner, explainer, queue_delay, in_flight";
        registry.register("limited_requests", help, limited.clone());
        let abandoned = Counter::default();
        let help = "Placement requests that were dropped before they were decided, since their callers were gone";
        registry.register("abandoned_requests", help, abandoned.clone());
        let limit_trials = Counter::default();
        let help = "Dry runs to find what would help requests that a quota or a pool refused";
        registry.register("limit_trials", help, limit_trials.clone());
        let limit_search_failures = Counter::default();
        let help = "Searches for what would help such requests that the database failed";
        registry.register("limit_search_failures", help, limit_search_failures.clone());
        let rounds = LOOPS.into_iter().map(|name| (name, AtomicU64::new(0))).collect();
        Self {
            registry,
            placements,
            instances,
            refusals,
            conflicts,
            permits,
            migrations,
            stages,
            loop_failures,
            limited,
            abandoned,
            limit_trials,
            limit_search_failures,
            rounds,
        }
    }

    /// Counts a request for a permit.
    pub fn permit(&self, answer: &PermitAnswer) {
        let permit = &answer.permit;
        let outcome = match () {
            () if answer.repeated => "repeated",
            () if permit.granted == permit.wanted => "granted",
            () if permit.limited_by.is_some() => "held_back",
            () => "granted",
        };
        self.permits.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a step of a migration.
    pub fn migration(&self, outcome: &'static str) {
        self.migrations.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Records that a loop completed a pass.
    pub fn loop_ran(&self, name: &'static str) {
        let at = u64::try_from(now().as_second()).unwrap_or(0);
        if let Some(round) = self.rounds.get(name) {
            round.store(at, Ordering::Relaxed);
        }
    }

    /// Counts a request of a tenant that was turned away by a limit.
    pub fn limited(&self, limit: &'static str) {
        self.limited.get_or_create(&LimitLabel { limit }).inc();
    }

    /// Counts a request whose caller was gone before it was decided.
    pub fn abandoned(&self) {
        self.abandoned.inc();
    }

    /// Counts dry runs to find what would help a request that a limit refused, and whether the database failed them.
    pub fn limit_trials(&self, trials: usize, has_failed: bool) {
        self.limit_trials.inc_by(u64::try_from(trials).unwrap_or(u64::MAX));
        self.limit_search_failures.inc_by(u64::from(has_failed));
    }

    /// Counts a pass that failed.
    pub fn loop_failed(&self, name: &'static str, cause: LoopFailure) {
        self.loop_failures.get_or_create(&LoopFailureLabels { r#loop: name, cause }).inc();
    }

    /// Counts a placement that was decided: how it ended, the code it was refused with, and how many
    /// instances were placed.
    pub fn count_placement(
        &self,
        outcome: &'static str,
        code: Option<&str>,
        instances: usize,
        took: Duration,
    ) {
        self.instances.inc_by(u64::try_from(instances).unwrap_or(0));
        self.placements.get_or_create(&OutcomeLabel { outcome }).inc();
        if let Some(code) = code {
            self.refusals.get_or_create(&CodeLabel { code: code.to_owned() }).inc();
        }
        self.stage("whole", took);
    }

    /// Others made a plan void.
    pub fn conflict(&self, code: &'static str) {
        self.conflicts.get_or_create(&CodeLabel { code: code.to_owned() }).inc();
    }

    /// Part of a decision took so long.
    pub fn stage(&self, stage: &'static str, took: Duration) {
        self.stages.get_or_create(&StageLabel { stage }).observe(took.as_secs_f64());
    }

    /// When each loop last completed a pass, in whole seconds; zero before the first.
    #[must_use]
    pub fn rounds(&self) -> BTreeMap<&'static str, u64> {
        self.rounds.iter().map(|(name, at)| (*name, at.load(Ordering::Relaxed))).collect()
    }

    /// What was counted, in Prometheus' text format, without the line that ends it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        text
    }
}
