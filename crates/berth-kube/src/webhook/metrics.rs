//! What the webhook counts, for Prometheus. Labels come from closed sets.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 4.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Result {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Capacity {
    capacity: &'static str,
}

/// What became of an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    OnDemand,
    Spot,
    DryRun,
    Untouched,
    Invalid,
    Refused,
    Failed,
    BadRequest,
}

impl Admission {
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

/// What the webhook counts.
pub(super) struct Metrics {
    admissions: Family<Result, Counter>,
    seconds: Histogram,
    seats: Family<Capacity, Gauge>,
    evictions: Family<Result, Counter>,
    pub(super) adopted: Counter,
    pub(super) ledger_errors: Counter,
    pub(super) watch_errors: Counter,
    pub(super) refreshes: Counter,
    pub(super) misplaced: Gauge,
    pub(super) leads: Gauge,
    pub(super) certificate_ends: Gauge<i64, std::sync::atomic::AtomicI64>,
    pub(super) authority_ends: Gauge<i64, std::sync::atomic::AtomicI64>,
    pub(super) installs: Counter<u64, AtomicU64>,
}

impl Metrics {
    /// Nothing counted yet, in this registry.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("berth_webhook");
        let metrics = Self {
            admissions: Family::default(),
            seconds: Histogram::new(BUCKETS),
            seats: Family::default(),
            evictions: Family::default(),
            adopted: Counter::default(),
            ledger_errors: Counter::default(),
            watch_errors: Counter::default(),
            refreshes: Counter::default(),
            misplaced: Gauge::default(),
            leads: Gauge::default(),
            certificate_ends: Gauge::default(),
            authority_ends: Gauge::default(),
            installs: Counter::default(),
        };
        metrics.register(registry);
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("admissions", "Reviews answered, by result", self.admissions.clone());
        registry.register_with_unit(
            "admission",
            "How long reviews took",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register("seats", "Seats that are taken, by capacity", self.seats.clone());
        let help = "Evictions of misplaced pods, by result: evicted, budget, failed";
        registry.register("evictions", help, self.evictions.clone());
        let help = "Pods that were counted without having been admitted by us";
        registry.register("adopted", help, self.adopted.clone());
        let help = "Times that the ledger or the API server did not answer";
        registry.register("ledger_errors", help, self.ledger_errors.clone());
        registry.register("watch_errors", "Watches that broke", self.watch_errors.clone());
        let help = "Times that pods were listed anew because a seat looked lost";
        registry.register("refreshes", help, self.refreshes.clone());
        let help = "Pods on the kind of capacity that their slot is not";
        registry.register("misplaced", help, self.misplaced.clone());
        registry.register("leads", "Whether this replica evicts", self.leads.clone());
        let help = "When the serving certificate ends, in seconds since 1970";
        registry.register("certificate_ends", help, self.certificate_ends.clone());
        let help = "When the authority ends, in seconds since 1970";
        registry.register("authority_ends", help, self.authority_ends.clone());
        let help = "Times that the webhook configuration was written";
        registry.register("installs", help, self.installs.clone());
    }

    /// An admission was answered.
    pub(super) fn admitted(&self, result: Admission, took: Duration) {
        self.admissions.get_or_create(&Result { result: result.name() }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// An eviction was tried.
    pub(super) fn evicted(&self, result: &'static str) {
        self.evictions.get_or_create(&Result { result }).inc();
    }

    /// So many seats are taken.
    pub(super) fn seats(&self, on_demand: i64, spot: i64) {
        self.seats.get_or_create(&Capacity { capacity: "on-demand" }).set(on_demand);
        self.seats.get_or_create(&Capacity { capacity: "spot" }).set(spot);
    }
}
