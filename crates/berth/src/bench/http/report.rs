//! The report, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::HttpBench;
use super::load::Measurements;
use crate::bench::percentile_ms;

#[derive(Serialize)]
pub(super) struct Report {
    nodes: Option<u32>,
    clients: u16,
    batch: u16,
    seconds: u32,
    placements_per_s: u64,
    instances_per_s: u64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    errors: u64,
    /// How long everything was under way to the database, and back.
    #[serde(skip_serializing_if = "Option::is_none")]
    database_delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
}

impl Report {
    pub(super) fn new(bench: &HttpBench, measured: &Measurements) -> Self {
        let placed = u64::try_from(measured.latencies_us.len()).unwrap_or(0);
        let seconds = u64::from(bench.seconds.max(1));
        let latencies = &measured.latencies_us;
        Self {
            nodes: bench.url.is_none().then_some(bench.nodes),
            clients: bench.clients,
            batch: bench.batch,
            seconds: bench.seconds,
            placements_per_s: placed / seconds,
            instances_per_s: placed * u64::from(bench.batch) / seconds,
            p50_ms: percentile_ms(latencies, (1, 2)),
            p99_ms: percentile_ms(latencies, (99, 100)),
            max_ms: percentile_ms(latencies, (1, 1)),
            errors: measured.errors,
            database_delay_ms: bench
                .database_delay
                .map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
            first_error: measured.first_error.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.map_or(String::new(), |nodes| format!(" on {nodes} nodes"));
        writeln!(f, "{} clients{nodes}, {} instances a request", self.clients, self.batch)?;
        writeln!(f, "  placements   {:>10} /s", self.placements_per_s)?;
        writeln!(f, "  instances    {:>10} /s", self.instances_per_s)?;
        writeln!(
            f,
            "  latency      p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms",
            self.p50_ms, self.p99_ms, self.max_ms
        )?;
        if let Some(delay) = self.database_delay_ms {
            writeln!(f, "  database     {delay:>10} ms away, each way")?;
        }
        writeln!(f, "  errors       {:>10}", self.errors)?;
        match &self.first_error {
            Some(error) => writeln!(f, "  the first    {error}"),
            None => Ok(()),
        }
    }
}
