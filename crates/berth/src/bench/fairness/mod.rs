//! `berth bench fairness`: what one tenant feels of another that asks for impossible things.
//!
//! One tenant places single instances. First it is alone; then clients of another tenant ask for
//! instances that no node can take, one at a time; then for batches that a rule about racks makes
//! impossible; then thousands of clients come, of one tenant and of many. What counts is the ratio of the first
//! tenant's latencies, within one run. Every tenant has a token of its own, so that it has a line of its own.
//! The server runs first without rate limits, so that all requests reach the planner, and then with those
//! that it has by default.

mod crowd;
mod load;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use berth_engine::{Amounts, NodeFacts};
use clap::Args;

use super::server::{Server, Settings};
use crowd::{Crowd, CrowdMeasurements};
use load::{Flood, Load, Tokens};
use report::{Phase, Report, Round};

/// Options of `berth bench fairness`.
#[derive(Args)]
pub(crate) struct FairnessBench {
    /// Number of nodes.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(40..=100_000))]
    nodes: u32,
    /// Clients of the tenant whose latency is measured.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Clients of the tenant that asks for impossible things.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    flooders: u16,
    /// Clients of the crowd, whose requests are mostly refused; 0: no crowd.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u16).range(0..=20_000))]
    crowd: u16,
    /// Whether the crowd comes again at once when it is turned away, instead of as it was asked to.
    #[arg(long)]
    impatient: bool,
    /// Duration of each phase, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Database of the server, which should be empty; an embedded one in a temporary directory by
    /// default.
    #[arg(long)]
    database_url: Option<String>,
    /// Directory of the embedded database, to choose its disk.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Nodes of a rack.
const RACK: u32 = 40;

/// No rate limits.
const UNLIMITED: Settings = &[
    ("BERTH_LIMITS_PLACEMENTS", "0"),
    ("BERTH_LIMITS_REFUSALS", "0"),
    ("BERTH_LIMITS_EVENTS_PER_DAY", "0"),
];

/// Instances for each node before the measurement begins, so that a refusal has something to explain.
const INSTANCES_PER_NODE: u32 = 2;

impl FairnessBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (url, folder) = (self.database_url.as_deref(), self.data_dir.as_deref());
        let tenants = Tokens::tenants(self.crowd);
        let (server, tokens) = Server::start_for_tenants(url, folder, &tenants, UNLIMITED)?;
        let tokens = Tokens::new(&server.token, tokens)?;
        // One thread: the load must leave the other core to the server.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(self.measure(server, tokens))?;
        super::print_report(self.json, &report)
    }

    async fn measure(&self, mut server: Server, tokens: Tokens) -> anyhow::Result<Report> {
        server.wait_until_ready().await?;
        let facts: Vec<NodeFacts> = (0..self.nodes).map(node).collect();
        server.add(&facts).await.context("failed to add the fleet")?;
        let seconds = Duration::from_secs(self.seconds.into());
        let load = Load { address: server.address.clone(), tokens, seconds };
        load.fill(self.nodes * INSTANCES_PER_NODE).await.context("failed to fill the fleet")?;
        let unlimited = self.measure_round(&load).await?;
        let crowds = self.measure_crowds(&load)?;
        server.restart_with(&[])?;
        server.wait_until_ready().await?;
        let limited = self.measure_round(&load).await?;
        Ok(Report::new(self, &unlimited, &limited, &crowds))
    }

    /// Alone, and next to each kind of flood.
    async fn measure_round(&self, load: &Load) -> anyhow::Result<Round> {
        // More than there are racks, so that no search can place them all.
        let racks = self.nodes.div_ceil(RACK);
        let batch = Flood::Batches { count: (racks + 1).clamp(2, 1000) };
        // Warms connections, caches and the database up.
        load.run(self.clients, 0, Flood::Singles).await?;
        let quiet = load.run(self.clients, 0, Flood::Singles).await?;
        let alone = load.run(0, 1, Flood::Singles).await?;
        let singles = load.run(self.clients, self.flooders, Flood::Singles).await?;
        let batches = load.run(self.clients, self.flooders, batch).await?;
        let phases = [(Phase::ImpossibleSingles, singles), (Phase::ImpossibleBatches, batches)];
        Ok(Round { quiet, alone, phases })
    }

    /// A crowd of one tenant, and one in which everybody is a tenant.
    fn measure_crowds(&self, load: &Load) -> anyhow::Result<Vec<(Crowd, CrowdMeasurements)>> {
        if self.crowd == 0 {
            return Ok(Vec::new());
        }
        super::raise_file_limit(self.crowd.into())?;
        let crowds = [1, self.crowd].map(|tenants| Crowd {
            clients: self.crowd,
            tenants,
            is_impatient: self.impatient,
        });
        let measured = crowds.into_iter().map(|crowd| Ok((crowd, crowd.run(load, self.clients)?)));
        measured.collect()
    }
}

/// A node of ordinary size.
fn node(number: u32) -> NodeFacts {
    let capacity = Amounts::new(64_000, 524_288).with_disk(4_194_304).with_bandwidth(25_000);
    let mut facts = NodeFacts::new(&format!("node-{number:06}"), capacity);
    facts.zone = Some(format!("zone-{}", number / RACK % 3));
    facts.rack = Some(format!("rack-{:04}", number / RACK));
    facts
}
