//! The report, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::LedgerBench;
use super::clients::Measurements;
use crate::bench::percentile_ms;

#[derive(Serialize)]
pub(super) struct Report {
    backend: &'static str,
    nodes: u64,
    clients: u16,
    batch: u16,
    claims: u64,
    claims_per_s: u64,
    p50_ms: f64,
    p99_ms: f64,
    pub(super) floor_grouped_per_s: u64,
    pub(super) floor_single_per_s: u64,
    conflicts: u64,
    retries: u64,
    transactions: u64,
    /// Claims in a transaction, on average.
    pub(super) group_size: u64,
}

impl Report {
    pub(super) fn new(bench: &LedgerBench, measured: &Measurements) -> Self {
        let micros = measured.elapsed.as_micros().max(1);
        let per_s = u128::from(measured.claims) * 1_000_000 / micros;
        let writes = &measured.writes;
        // Plans beyond one per request are those that met a conflict.
        let requests = u64::try_from(measured.latencies_us.len()).unwrap_or(0);
        let retries = &writes.retries;
        Self {
            backend: match bench.backend {
                super::Kind::Sqlite => "sqlite",
                super::Kind::Postgres => "postgres",
            },
            nodes: bench.nodes,
            clients: bench.clients,
            batch: bench.batch,
            claims: measured.claims,
            claims_per_s: u64::try_from(per_s).unwrap_or(u64::MAX),
            p50_ms: percentile_ms(&measured.latencies_us, (1, 2)),
            p99_ms: percentile_ms(&measured.latencies_us, (99, 100)),
            floor_grouped_per_s: 0,
            floor_single_per_s: 0,
            conflicts: writes.operations.saturating_sub(requests),
            retries: retries.conflicts + retries.duplicates + retries.guards + retries.lost,
            transactions: writes.transactions,
            group_size: measured.claims / writes.transactions.max(1),
        }
    }
}

impl fmt::Display for Report {
    #[allow(clippy::float_arithmetic, clippy::cast_precision_loss, reason = "figures for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |floor: u64| self.claims_per_s as f64 * 100.0 / floor.max(1) as f64;
        writeln!(
            f,
            "{} clients on {} nodes, {} instances a request, {}",
            self.clients, self.nodes, self.batch, self.backend
        )?;
        writeln!(f, "  durable claims   {:>10} /s", self.claims_per_s)?;
        writeln!(f, "  latency          p50 {:.2} ms, p99 {:.2} ms", self.p50_ms, self.p99_ms)?;
        writeln!(
            f,
            "  transactions     {:>10}, {} claims each on average",
            self.transactions, self.group_size
        )?;
        writeln!(f, "  conflicts        {:>10}, retries {}", self.conflicts, self.retries)?;
        writeln!(f, "the database alone")?;
        writeln!(
            f,
            "  same grouping    {:>10} /s; Berth reaches {:.0} % of it",
            self.floor_grouped_per_s,
            share(self.floor_grouped_per_s)
        )?;
        writeln!(
            f,
            "  one at a time    {:>10} /s; Berth reaches {:.0} % of it",
            self.floor_single_per_s,
            share(self.floor_single_per_s)
        )
    }
}
