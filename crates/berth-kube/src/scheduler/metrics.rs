//! Prometheus metrics of the scheduler. All labels come from closed sets.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::queue::QueueLengths;
use crate::metrics::{ResultLabel, add, add_invariants, add_seconds};

/// Buckets for the scheduler's own logic: 10 µs to 100 ms.
const ALGORITHM_BUCKETS: [f64; 10] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.005, 0.025, 0.1];
/// Buckets for API requests: 1 ms to 1 min.
const REQUEST_BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0];

/// The result of a scheduling attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    Scheduled,
    Preempting,
    Unschedulable,
    NotPending,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueueLabel {
    queue: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DepartureLabels {
    way: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    verb: &'static str,
    code: String,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Metrics {
    attempts: Family<ResultLabel, Counter>,
    algorithm_duration: Histogram,
    scheduled: Counter,
    binding_duration: Histogram,
    bindings: Family<ResultLabel, Counter>,
    queue_entries: Family<QueueLabel, Gauge>,
    preemptions: Counter,
    victims: Counter,
    evictions: Family<ResultLabel, Counter>,
    permits: Family<ResultLabel, Counter>,
    departures: Family<DepartureLabels, Counter>,
    pressured_nodes: Gauge,
    without_target: Gauge,
    policies: Family<ResultLabel, Counter>,
    leader: Gauge,
    overfull_nodes: Gauge,
    overfull_node_reports: Counter,
    node_checks: Family<ResultLabel, Counter>,
    watch_restarts: Family<KindLabel, Counter>,
    api_errors: Family<CallLabels, Counter>,
}

impl Metrics {
    /// Registers all metrics under `berth_scheduler_…`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        add_invariants(registry);
        let registry = registry.sub_registry_with_prefix("berth_scheduler");
        Self {
            attempts: add(registry, "schedule_attempts", "Scheduling attempts, by result"),
            algorithm_duration: add_seconds(
                registry,
                "scheduling_algorithm_duration",
                "Duration of the scheduling logic of one attempt",
                ALGORITHM_BUCKETS,
            ),
            scheduled: add(registry, "pods_scheduled", "Pods bound"),
            binding_duration: add_seconds(
                registry,
                "binding_duration",
                "Duration from reservation to binding",
                REQUEST_BUCKETS,
            ),
            bindings: add(registry, "bindings", "Bindings, by result"),
            queue_entries: add(
                registry,
                "queue_entries",
                "Pods and gangs in each scheduling queue",
            ),
            preemptions: add(registry, "preemptions", "Preemptions"),
            victims: add(registry, "preemption_victims", "Pods deleted by preemption"),
            evictions: add(registry, "evictions", "Evictions from draining nodes, by result"),
            permits: add(registry, "permit_requests", "Requests for permits, by result"),
            departures: add(
                registry,
                "departures",
                "Pods that left nodes under pressure, by way and result",
            ),
            pressured_nodes: add(
                registry,
                "pressured_nodes",
                "Nodes that elastic pods should leave",
            ),
            without_target: add(
                registry,
                "pods_without_relief_target",
                "Elastic pods that should leave nodes under pressure and fit on no other node",
            ),
            policies: add(
                registry,
                "policy_updates",
                "Policies read from the ConfigMap, by result",
            ),
            leader: add(registry, "leader", "Whether this replica is the leader"),
            overfull_nodes: add(
                registry,
                "overfull_nodes",
                "Nodes whose pods request more than the node has",
            ),
            overfull_node_reports: add(
                registry,
                "overfull_node_reports",
                "How often a node became overfull",
            ),
            node_checks: add(
                registry,
                "node_checks",
                "Bindings that were checked against the API server's pods of their node, by result",
            ),
            watch_restarts: add(
                registry,
                "watch_restarts",
                "Watches restarted after an error, by kind",
            ),
            api_errors: add(registry, "api_errors", "Failed API requests, by verb and code"),
        }
    }

    pub(crate) fn record_attempt(&self, result: AttemptResult, duration: Duration) {
        let result = match result {
            AttemptResult::Scheduled => "scheduled",
            AttemptResult::Preempting => "preempting",
            AttemptResult::Unschedulable => "unschedulable",
            AttemptResult::NotPending => "not_pending",
        };
        self.attempts.get_or_create(&ResultLabel { result }).inc();
        self.algorithm_duration.observe(duration.as_secs_f64());
    }

    pub(crate) fn record_bound(&self, duration: Duration) {
        self.scheduled.inc();
        self.bindings.get_or_create(&ResultLabel { result: "bound" }).inc();
        self.binding_duration.observe(duration.as_secs_f64());
    }

    pub(crate) fn record_not_bound(&self, result: &'static str) {
        self.bindings.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn set_queue_lengths(&self, lengths: QueueLengths) {
        let queues = [
            ("active", lengths.active),
            ("backoff", lengths.backoff),
            ("unschedulable", lengths.unschedulable),
        ];
        for (queue, length) in queues {
            let length = i64::try_from(length).unwrap_or(i64::MAX);
            self.queue_entries.get_or_create(&QueueLabel { queue }).set(length);
        }
    }

    pub(crate) fn record_preemption(&self, victims: usize) {
        self.preemptions.inc();
        self.victims.inc_by(u64::try_from(victims).unwrap_or(u64::MAX));
    }

    pub(crate) fn record_eviction(&self, result: &'static str) {
        self.evictions.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn record_permit(&self, result: &'static str) {
        self.permits.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn record_departure(&self, way: &'static str, result: &'static str) {
        self.departures.get_or_create(&DepartureLabels { way, result }).inc();
    }

    pub(crate) fn set_pressure(&self, nodes: usize, without_target: usize) {
        self.pressured_nodes.set(i64::try_from(nodes).unwrap_or(i64::MAX));
        self.without_target.set(i64::try_from(without_target).unwrap_or(i64::MAX));
    }

    pub(crate) fn record_policy(&self, result: &'static str) {
        self.policies.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn set_leader(&self, is_leader: bool) {
        self.leader.set(i64::from(is_leader));
    }

    pub(crate) fn set_overfull_nodes(&self, count: usize) {
        self.overfull_nodes.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn record_overfull_node(&self) {
        self.overfull_node_reports.inc();
    }

    pub(crate) fn record_node_check(&self, result: &'static str) {
        self.node_checks.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn record_watch_restart(&self, kind: &'static str) {
        self.watch_restarts.get_or_create(&KindLabel { kind }).inc();
    }

    pub(crate) fn record_api_error(&self, verb: &'static str, code: &str) {
        self.api_errors.get_or_create(&CallLabels { verb, code: code.to_owned() }).inc();
    }
}
