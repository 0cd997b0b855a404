//! How metrics of the scheduler and of the webhook are registered. It has no metric of its own.

use berth_control::invariant_metrics::InvariantCollector;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

/// How something ended, from a closed set.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    pub(crate) result: &'static str,
}

/// Registers a metric and returns a handle to it.
pub(crate) fn add<M: Metric + Clone + Default>(
    registry: &mut Registry,
    name: &str,
    help: &str,
) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers what the process knows of violated invariants: `berth_invariant_violations_total`.
pub(crate) fn add_invariants(registry: &mut Registry) {
    let registry = registry.sub_registry_with_prefix("berth");
    registry.register_collector(Box::new(InvariantCollector));
}

/// Registers a histogram of durations.
pub(crate) fn add_seconds(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: impl IntoIterator<Item = f64>,
) -> Histogram {
    let metric = Histogram::new(buckets);
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}
