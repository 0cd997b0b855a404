//! `berth bench`: benchmarks that are part of the product, so that performance claims can be checked on
//! any machine.

mod connection;
mod delay_proxy;
mod engine;
mod fairness;
mod http;
mod kube;
mod ledger;
mod memory;
mod packing;
mod permits;
mod reconcile;
mod server;

use std::fmt::Display;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde::Serialize;

/// The benchmarks.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Measure decisions in memory: full scans, repeated classes, batches, and memory usage.
    ///
    /// Example: berth bench engine --nodes 10000 --json
    Engine(engine::EngineBench),
    /// Measure what one tenant feels of another that asks for impossible things.
    ///
    /// Example: berth bench fairness --nodes 10000 --json
    Fairness(fairness::FairnessBench),
    /// Measure placements end to end over HTTP, with a server of its own.
    ///
    /// Example: berth bench http --clients 64 --nodes 1000 --json
    Http(http::HttpBench),
    /// Measure pods per second of the Kubernetes scheduler, without an API server.
    ///
    /// Example: berth bench kube --nodes 5000 --pods 20000 --json
    Kube(kube::KubeBench),
    /// Measure durable claims through engine and ledger, and the bare database for comparison.
    ///
    /// Example: berth bench ledger --backend postgres --clients 64 --nodes 10000 --json
    Ledger(ledger::LedgerBench),
    /// Measure what a server keeps in memory: of a node, an instance, an event and a stream, and the demo.
    ///
    /// Example: berth bench memory --demo-time 10m --json
    Memory(memory::MemoryBench),
    /// Measure how well policies pack traces of real arrivals, next to simple rules.
    ///
    /// Example: berth bench packing --traces traces --json
    Packing(packing::PackingBench),
    /// Measure durable permits end to end over HTTP: agents that grow and shrink instances.
    ///
    /// Example: berth bench permits --agents 1000 --json
    Permits(permits::PermitsBench),
    /// Measure the reconciler with many workloads: an idle pass, and the latency of a change.
    ///
    /// Example: berth bench reconcile --workloads 10000 --instances 100000 --json
    Reconcile(reconcile::ReconcileBench),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Engine(bench) => bench.run(),
            Self::Fairness(bench) => bench.run(),
            Self::Http(bench) => bench.run(),
            Self::Kube(bench) => bench.run(),
            Self::Ledger(bench) => bench.run(),
            Self::Memory(bench) => bench.run(),
            Self::Packing(bench) => bench.run(),
            Self::Permits(bench) => bench.run(),
            Self::Reconcile(bench) => bench.run(),
        }
    }
}

/// Prints a report for people, or as one JSON object.
fn print_report<R: Display + Serialize>(json: bool, report: &R) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}

/// Raises the limit of open files: every connection is one.
fn raise_file_limit(connections: u32) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let needed = u64::from(connections) + 100;
    if let Some(most) = maximum.filter(|most| *most < needed) {
        bail!(
            "{connections} connections need {needed} open files, and the limit is {most}: ulimit -Hn"
        );
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("failed to raise the limit of open files")
}

/// Resident memory of a process; zero if unknown. In KiB, whatever the size of a page.
fn resident_bytes(process: &str) -> u64 {
    memory_bytes(process, "VmRSS:")
}

/// The most that a process ever had resident; zero if unknown.
fn peak_resident_bytes(process: &str) -> u64 {
    memory_bytes(process, "VmHWM:")
}

fn memory_bytes(process: &str, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// A quantile of sorted latencies in microseconds, in milliseconds.
#[allow(clippy::float_arithmetic, reason = "figures for people")]
fn percentile_ms(sorted_us: &[u32], share: (usize, usize)) -> f64 {
    let index = sorted_us.len().saturating_sub(1) * share.0 / share.1;
    f64::from(sorted_us.get(index).copied().unwrap_or(0)) / 1000.0
}
