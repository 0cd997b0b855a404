//! `berth bench`: measurements that are part of the product, so that a claim of speed can be
//! checked on any machine.

mod engine;

use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Decisions in memory: full scans, repeated classes, batches, and what they cost in memory.
    ///
    /// Example: berth bench engine --nodes 10000 --json
    Engine(engine::EngineBench),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Engine(bench) => bench.run(),
        }
    }
}
