//! What the scheduler counts, for Prometheus. Labels come from closed sets.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::queue::Lengths;

/// Seconds that own logic takes: from ten microseconds to a tenth of a second.
const THINKING: [f64; 10] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.005, 0.025, 0.1];
/// Seconds that the API server takes: from a millisecond to a minute.
const ASKING: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0];

/// How an attempt to place ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Placed,
    Preempting,
    Refused,
    NotPending,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Call {
    verb: &'static str,
    code: String,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Metrics {
    attempts: Family<Ended, Counter>,
    placing: Histogram,
    scheduled: Counter,
    binding: Histogram,
    binds: Family<Ended, Counter>,
    queue: Family<State, Gauge>,
    preemptions: Counter,
    victims: Counter,
    evictions: Family<Ended, Counter>,
    leader: Gauge,
    watch_restarts: Family<Kind, Counter>,
    api_errors: Family<Call, Counter>,
}

/// Registers a metric and keeps a handle of it.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn add_seconds(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: impl IntoIterator<Item = f64>,
) -> Histogram {
    let metric = Histogram::new(buckets);
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

impl Metrics {
    /// Nothing counted yet; the names are `berth_scheduler_…`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("berth_scheduler");
        Self {
            attempts: add(registry, "attempts", "Attempts to place, by result", Family::default()),
            placing: add_seconds(registry, "placing", "Own logic for one attempt", THINKING),
            scheduled: add(registry, "pods_scheduled", "Pods bound", Counter::default()),
            binding: add_seconds(registry, "binding", "From reserved to bound", ASKING),
            binds: add(registry, "binds", "Pods that had a place, by result", Family::default()),
            queue: add(registry, "queue", "Pods and gangs that wait, by state", Family::default()),
            preemptions: add(registry, "preemptions", "Pods that made room", Counter::default()),
            victims: add(registry, "victims", "Pods that had to go", Counter::default()),
            evictions: add(registry, "evictions", "Evictions, by result", Family::default()),
            leader: add(registry, "leader", "Whether this replica leads", Gauge::default()),
            watch_restarts: add(
                registry,
                "watch_restarts",
                "Watches that failed and began anew, by kind",
                Family::default(),
            ),
            api_errors: add(
                registry,
                "api_errors",
                "Failed requests to the API server",
                Family::default(),
            ),
        }
    }

    pub(crate) fn attempt(&self, attempt: Attempt, took: Duration) {
        let result = match attempt {
            Attempt::Placed => "placed",
            Attempt::Preempting => "preempting",
            Attempt::Refused => "refused",
            Attempt::NotPending => "not_pending",
        };
        self.attempts.get_or_create(&Ended { result }).inc();
        self.placing.observe(took.as_secs_f64());
    }

    pub(crate) fn bound(&self, took: Duration) {
        self.scheduled.inc();
        self.binds.get_or_create(&Ended { result: "bound" }).inc();
        self.binding.observe(took.as_secs_f64());
    }

    pub(crate) fn not_bound(&self, result: &'static str) {
        self.binds.get_or_create(&Ended { result }).inc();
    }

    pub(crate) fn queue(&self, lengths: Lengths) {
        let states = [
            ("ready", lengths.ready),
            ("backing_off", lengths.backing_off),
            ("parked", lengths.parked),
        ];
        for (state, length) in states {
            let length = i64::try_from(length).unwrap_or(i64::MAX);
            self.queue.get_or_create(&State { state }).set(length);
        }
    }

    pub(crate) fn preempted(&self, victims: usize) {
        self.preemptions.inc();
        self.victims.inc_by(u64::try_from(victims).unwrap_or(u64::MAX));
    }

    pub(crate) fn evicted(&self, result: &'static str) {
        self.evictions.get_or_create(&Ended { result }).inc();
    }

    pub(crate) fn leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    pub(crate) fn watch_restarted(&self, kind: &'static str) {
        self.watch_restarts.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn api_error(&self, verb: &'static str, code: &str) {
        self.api_errors.get_or_create(&Call { verb, code: code.to_owned() }).inc();
    }
}
