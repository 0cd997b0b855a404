//! `berth bench`: measurements that are part of the product, so that a claim of speed can be
//! checked on any machine.

mod engine;
mod http;
mod kube;
mod ledger;
mod permits;
mod reconcile;
mod server;

use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Decisions in memory: full scans, repeated classes, batches, and what they cost in memory.
    ///
    /// Example: berth bench engine --nodes 10000 --json
    Engine(engine::EngineBench),
    /// Placements end to end over HTTP, with a server of its own.
    ///
    /// Example: berth bench http --clients 64 --nodes 1000 --json
    Http(http::HttpBench),
    /// Pods a second through the scheduler for Kubernetes, the API server aside.
    ///
    /// Example: berth bench kube --nodes 5000 --pods 20000 --json
    Kube(kube::KubeBench),
    /// Durable claims through engine and ledger, and the bare database beside them.
    ///
    /// Example: berth bench ledger --backend postgres --clients 64 --nodes 10000 --json
    Ledger(ledger::LedgerBench),
    /// Permits end to end over HTTP: agents that grow and shrink instances, durable.
    ///
    /// Example: berth bench permits --agents 1000 --json
    Permits(permits::PermitsBench),
    /// Keeping many workloads running: a pass with nothing to do, and how soon a change is acted on.
    ///
    /// Example: berth bench reconcile --workloads 10000 --instances 100000 --json
    Reconcile(reconcile::ReconcileBench),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Engine(bench) => bench.run(),
            Self::Http(bench) => bench.run(),
            Self::Kube(bench) => bench.run(),
            Self::Ledger(bench) => bench.run(),
            Self::Permits(bench) => bench.run(),
            Self::Reconcile(bench) => bench.run(),
        }
    }
}
