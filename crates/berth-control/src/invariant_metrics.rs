//! The metric of violated invariants, which every process of Berth has. It counts nothing itself.

use std::fmt;

use berth_ledger::invariants::violated;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Writes how often each invariant was violated in this process, when metrics are asked for.
#[derive(Clone, Copy, Debug)]
pub struct InvariantCollector;

impl Collector for InvariantCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Things that cannot happen and did, by invariant: each is a bug.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("invariant_violations", help, None, kind)?;
        for violation in violated() {
            let labels = [("invariant", violation.name)];
            ConstCounter::new(violation.count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use berth_ledger::invariant;
    use berth_ledger::invariants::expect_violations;
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::registry::Registry;

    use super::*;

    fn text() -> String {
        let mut registry = Registry::with_prefix("berth");
        registry.register_collector(Box::new(InvariantCollector));
        let mut text = String::new();
        encode_registry(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_violation_is_a_series_and_the_metric_is_there_before_the_first() {
        assert!(text().contains("# TYPE berth_invariant_violations counter"), "{}", text());
        let series = "berth_invariant_violations_total{invariant=\"test_is_shown\"}";
        assert!(!text().contains(series), "{}", text());
        let _expected = expect_violations("test_is_shown");
        for _ in 0..2 {
            invariant!(false, "test_is_shown");
        }
        assert!(text().contains(&format!("{series} 2")), "{}", text());
    }
}
