//! Prometheus metrics of the webhook. All labels come from closed sets.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 4.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

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

/// See the module.
pub(super) struct Metrics {
    admissions: Family<ResultLabel, Counter>,
    seconds: Histogram,
    slots: Family<CapacityLabel, Gauge>,
    evictions: Family<ResultLabel, Counter>,
    pub(super) adopted: Counter,
    pub(super) ledger_errors: Counter,
    pub(super) watch_errors: Counter,
    pub(super) relists: Counter,
    pub(super) misplaced: Gauge,
    pub(super) leader: Gauge,
    pub(super) certificate_expiry: Gauge,
    pub(super) ca_expiry: Gauge,
    pub(super) configuration_writes: Counter,
}

impl Metrics {
    /// Registers all metrics under `berth_webhook_…`.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("berth_webhook");
        let metrics = Self {
            admissions: Family::default(),
            seconds: Histogram::new(BUCKETS),
            slots: Family::default(),
            evictions: Family::default(),
            adopted: Counter::default(),
            ledger_errors: Counter::default(),
            watch_errors: Counter::default(),
            relists: Counter::default(),
            misplaced: Gauge::default(),
            leader: Gauge::default(),
            certificate_expiry: Gauge::default(),
            ca_expiry: Gauge::default(),
            configuration_writes: Counter::default(),
        };
        metrics.register(registry);
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("admissions", "Admission reviews, by result", self.admissions.clone());
        registry.register_with_unit(
            "admission_duration",
            "Duration of admission reviews",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register("slots", "Assigned slots, by capacity type", self.slots.clone());
        let help = "Evictions of misplaced pods, by result: evicted, budget, failed";
        registry.register("evictions", help, self.evictions.clone());
        let help = "Pods that got a slot without an admission by this webhook";
        registry.register("adopted_pods", help, self.adopted.clone());
        let help = "Failed requests to the ledger or the API server";
        registry.register("ledger_errors", help, self.ledger_errors.clone());
        registry.register(
            "watch_errors",
            "Watches restarted after an error",
            self.watch_errors.clone(),
        );
        let help = "Lists of pods because a slot seemed to be orphaned";
        registry.register("pod_relists", help, self.relists.clone());
        let help = "Pods on another capacity type than their slot";
        registry.register("misplaced_pods", help, self.misplaced.clone());
        let help = "Whether this replica is the leader, which evicts misplaced pods";
        registry.register("leader", help, self.leader.clone());
        let help = "Expiry of the serving certificate, in seconds since 1970";
        registry.register(
            "certificate_expiration_timestamp_seconds",
            help,
            self.certificate_expiry.clone(),
        );
        let help = "Expiry of the CA certificate, in seconds since 1970";
        registry.register("ca_expiration_timestamp_seconds", help, self.ca_expiry.clone());
        let help = "Writes of the webhook configuration";
        registry.register("configuration_writes", help, self.configuration_writes.clone());
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
        self.slots.get_or_create(&CapacityLabel { capacity: "on-demand" }).set(on_demand);
        self.slots.get_or_create(&CapacityLabel { capacity: "spot" }).set(spot);
    }
}
