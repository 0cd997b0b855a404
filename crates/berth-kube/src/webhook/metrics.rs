//! Prometheus metrics of the webhook. All labels come from closed sets.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::{ResultLabel, add, add_invariants, add_seconds};

const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 4.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CapacityLabel {
    capacity: &'static str,
}

/// The result of an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionResult {
    OnDemand,
    Spot,
    DryRun,
    Untouched,
    Invalid,
    Refused,
    Failed,
    BadRequest,
}

impl AdmissionResult {
    const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
            Self::DryRun => "dry_run",
            Self::Untouched => "untouched",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::BadRequest => "bad_request",
        }
    }
}

/// What is counted by capacity type.
struct CapacityMetrics {
    slots: Family<CapacityLabel, Gauge>,
    nodes: Family<CapacityLabel, Gauge>,
    pods_without_nodes: Family<CapacityLabel, Gauge>,
}

impl CapacityMetrics {
    fn new(registry: &mut Registry) -> Self {
        Self {
            slots: add(registry, "slots", "Assigned slots, by capacity type"),
            nodes: add(registry, "nodes", "Nodes, by capacity type"),
            pods_without_nodes: add(
                registry,
                "pods_without_nodes",
                "Pods that wait for a node of a capacity type that no node has",
            ),
        }
    }
}

/// See the module.
pub(super) struct Metrics {
    admissions: Family<ResultLabel, Counter>,
    seconds: Histogram,
    by_capacity: CapacityMetrics,
    evictions: Family<ResultLabel, Counter>,
    pub(super) adopted: Counter,
    pub(super) ledger_errors: Counter,
    pub(super) database_up: Gauge,
    pub(super) watch_errors: Counter,
    pub(super) relists: Counter,
    pub(super) silent_watches: Counter,
    pub(super) misplaced: Gauge,
    pub(super) leader: Gauge,
    pub(super) certificate_expiry: Gauge,
    pub(super) ca_expiry: Gauge,
    pub(super) configuration_writes: Counter,
}

impl Metrics {
    /// Registers all metrics under `berth_webhook_…`.
    pub(super) fn new(registry: &mut Registry) -> Self {
        add_invariants(registry);
        let registry = registry.sub_registry_with_prefix("berth_webhook");
        Self {
            admissions: add(registry, "admissions", "Admission reviews, by result"),
            seconds: add_seconds(
                registry,
                "admission_duration",
                "Duration of admission reviews",
                BUCKETS,
            ),
            by_capacity: CapacityMetrics::new(registry),
            evictions: add(
                registry,
                "evictions",
                "Evictions of misplaced pods, by result: evicted, budget, failed",
            ),
            adopted: add(
                registry,
                "adopted_pods",
                "Pods that got a slot without an admission by this webhook",
            ),
            ledger_errors: add(
                registry,
                "ledger_errors",
                "Failed requests to the ledger or the API server",
            ),
            database_up: add(
                registry,
                "database_up",
                "Whether the slot database answers; while it does not, no slot is assigned",
            ),
            watch_errors: add(registry, "watch_errors", "Watches restarted after an error"),
            relists: add(
                registry,
                "pod_relists",
                "Lists of pods because a slot seemed to be orphaned",
            ),
            silent_watches: add(
                registry,
                "silent_watches",
                "Watches of pods that were started again because they did not report existing pods",
            ),
            misplaced: add(
                registry,
                "misplaced_pods",
                "Pods on another capacity type than their slot",
            ),
            leader: add(
                registry,
                "leader",
                "Whether this replica is the leader, which evicts misplaced pods",
            ),
            certificate_expiry: add(
                registry,
                "certificate_expiration_timestamp_seconds",
                "Expiry of the serving certificate, in seconds since 1970",
            ),
            ca_expiry: add(
                registry,
                "ca_expiration_timestamp_seconds",
                "Expiry of the CA certificate, in seconds since 1970",
            ),
            configuration_writes: add(
                registry,
                "configuration_writes",
                "Writes of the webhook configuration",
            ),
        }
    }

    /// Counts an admission.
    pub(super) fn record_admission(&self, result: AdmissionResult, took: Duration) {
        self.admissions.get_or_create(&ResultLabel { result: result.name() }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts an eviction.
    pub(super) fn record_eviction(&self, result: &'static str) {
        self.evictions.get_or_create(&ResultLabel { result }).inc();
    }

    /// Sets the number of assigned slots.
    pub(super) fn set_slots(&self, on_demand: i64, spot: i64) {
        set_by_capacity(&self.by_capacity.slots, on_demand, spot);
    }

    /// Sets the number of nodes.
    pub(super) fn set_nodes(&self, on_demand: i64, spot: i64) {
        set_by_capacity(&self.by_capacity.nodes, on_demand, spot);
    }

    /// Sets the number of pods whose capacity type no node has.
    pub(super) fn set_pods_without_nodes(&self, on_demand: i64, spot: i64) {
        set_by_capacity(&self.by_capacity.pods_without_nodes, on_demand, spot);
    }
}

fn set_by_capacity(gauges: &Family<CapacityLabel, Gauge>, on_demand: i64, spot: i64) {
    gauges.get_or_create(&CapacityLabel { capacity: "on-demand" }).set(on_demand);
    gauges.get_or_create(&CapacityLabel { capacity: "spot" }).set(spot);
}
