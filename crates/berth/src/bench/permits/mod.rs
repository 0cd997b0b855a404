//! `berth bench permits`: durable permits per second over HTTP, with server and agents on one machine.
//!
//! Each agent has its own node, token and connection, and one request at a time. Agents report instances
//! that Berth did not place, as on a fleet that it takes over. Every answer is checked.

mod agent;
mod fleet;
mod load;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::server::Server;
use fleet::Fleet;
use report::Report;

/// Options of `berth bench permits`.
#[derive(Args)]
pub(crate) struct PermitsBench {
    /// Number of agents, each with one request at a time.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    agents: u32,
    /// Number of nodes, shared by the agents; one for each agent by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: Option<u32>,
    /// Elastic instances per agent.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    instances_per_agent: u32,
    /// Duration of the measurement, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Duration of the warm-up, in seconds.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=20))]
    warmup: u32,
    /// Kill the server halfway, restart it on the same database, and measure the outage.
    #[arg(long)]
    restart: bool,
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

impl PermitsBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut server = Server::start(self.database_url.as_deref(), self.data_dir.as_deref())?;
        // One thread: the agents must leave the other core to the server.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let measured = runtime.block_on(async {
            server.wait_until_ready().await?;
            let fleet = Fleet {
                agents: self.agents,
                nodes: self.nodes.unwrap_or(self.agents),
                instances_per_agent: self.instances_per_agent,
            };
            let agents = fleet.register(&server).await.context("failed to add the fleet")?;
            let load = load::Load {
                warmup: Duration::from_secs(self.warmup.into()),
                measure: Duration::from_secs(self.seconds.into()),
                restart: self.restart,
            };
            load.run(&mut server, agents).await
        })?;
        let report = Report::new(&self, &measured);
        super::print_report(self.json, &report)
    }
}
