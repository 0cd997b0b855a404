//! The report, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::PermitsBench;
use super::load::{Measurements, RestartTimes};
use crate::bench::percentile_ms;

#[derive(Serialize)]
pub(super) struct Report {
    agents: u32,
    nodes: u32,
    instances: u32,
    seconds: u32,
    permits_per_s: u64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Requests for growth that were granted in full.
    granted: u64,
    /// Requests for growth that were granted in part or not at all.
    held_back: u64,
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart: Option<Outage>,
}

/// The outage; a time is none if it did not happen before the run ended.
#[derive(Serialize)]
struct Outage {
    kill_to_listening_ms: Option<f64>,
    kill_to_permit_ms: Option<f64>,
    listening_to_permit_ms: Option<f64>,
    /// Answers that were neither a permit nor a lost connection.
    refused: u64,
}

#[allow(clippy::float_arithmetic, reason = "figures for people")]
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

impl Outage {
    fn of(restart: &RestartTimes) -> Self {
        Self {
            kill_to_listening_ms: restart.kill_to_listening().map(millis),
            kill_to_permit_ms: restart.kill_to_permit().map(millis),
            listening_to_permit_ms: restart.listening_to_permit().map(millis),
            refused: restart.refused,
        }
    }
}

impl Report {
    pub(super) fn new(bench: &PermitsBench, measured: &Measurements) -> Self {
        let answered = u64::try_from(measured.latencies_us.len()).unwrap_or(0);
        let latencies = &measured.latencies_us;
        Self {
            agents: bench.agents,
            nodes: bench.nodes.unwrap_or(bench.agents),
            instances: bench.agents * bench.instances_per_agent,
            seconds: bench.seconds,
            permits_per_s: answered / u64::from(bench.seconds.max(1)),
            p50_ms: percentile_ms(latencies, (1, 2)),
            p99_ms: percentile_ms(latencies, (99, 100)),
            max_ms: percentile_ms(latencies, (1, 1)),
            granted: measured.grown,
            held_back: measured.held_back,
            errors: measured.errors,
            first_error: measured.first_error.clone(),
            restart: measured.restart.as_ref().map(Outage::of),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agents, nodes, instances, .. } = self;
        writeln!(f, "{agents} agents on {nodes} nodes with {instances} elastic instances")?;
        writeln!(f, "  permits      {:>10} /s", self.permits_per_s)?;
        writeln!(
            f,
            "  latency      p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms",
            self.p50_ms, self.p99_ms, self.max_ms
        )?;
        writeln!(f, "  growth       {:>10} granted, {} held back", self.granted, self.held_back)?;
        writeln!(f, "  errors       {:>10}", self.errors)?;
        if let Some(error) = &self.first_error {
            writeln!(f, "  the first    {error}")?;
        }
        let Some(restart) = &self.restart else { return Ok(()) };
        let text = |time: Option<f64>| match time {
            Some(time) => format!("{time:>10.1} ms"),
            None => "not within the run".to_owned(),
        };
        writeln!(f, "restart, from kill -9 of the server")?;
        writeln!(f, "  to listening {}", text(restart.kill_to_listening_ms))?;
        writeln!(f, "  to a permit  {}", text(restart.kill_to_permit_ms))?;
        writeln!(f, "  between them {}", text(restart.listening_to_permit_ms))?;
        writeln!(f, "  refused      {:>10} answers", restart.refused)
    }
}
