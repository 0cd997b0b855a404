//! `berth bench permits`: how many durable permits agents get in a second, over HTTP, with server
//! and agents on one machine.
//!
//! Each agent has a node, a token and a connection of its own, and waits for one answer before it
//! asks again. The instances are found by their agents, as on a fleet that Berth takes over. Every
//! answer is checked.

mod agent;
mod fleet;
mod load;
mod report;
mod wire;

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
    /// Agents that each ask for one permit at a time.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    agents: u32,
    /// Nodes; agents take turns in them. Default: one for each agent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: Option<u32>,
    /// Elastic instances of each agent.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    instances_per_agent: u32,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// How long to run before measuring, in seconds.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=20))]
    warmup: u32,
    /// Kill the server half way, start it anew on the same database, and measure the gap.
    #[arg(long)]
    restart: bool,
    /// The database of the server that is started; without it, an embedded one in a temporary
    /// folder. An empty one is best: what is there stays there.
    #[arg(long)]
    database_url: Option<String>,
    /// Where the embedded database is put, if it matters on which disk.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print one JSON object instead of lines for people.
    #[arg(long)]
    json: bool,
}

impl PermitsBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut server = Server::start(self.database_url.as_deref(), self.data_dir.as_deref())?;
        // One thread: the agents must leave the other core to the server.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let measured = runtime.block_on(async {
            server.ready().await?;
            let fleet = Fleet {
                agents: self.agents,
                nodes: self.nodes.unwrap_or(self.agents),
                instances_per_agent: self.instances_per_agent,
            };
            let agents = fleet.found(&server).await.context("the fleet could not be added")?;
            let load = load::Load {
                warmup: Duration::from_secs(self.warmup.into()),
                measure: Duration::from_secs(self.seconds.into()),
                restart: self.restart,
            };
            load.run(&mut server, agents).await
        })?;
        let report = Report::new(&self, &measured);
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            print!("{report}");
        }
        Ok(())
    }
}
