//! `berth bench http`: placements end to end, over HTTP, durable, with server and load on one
//! machine.
//!
//! The server is a process of its own, as users run it: signed in, on its own data directory or on
//! the database given, with the settings it has by default.

mod load;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::delay_proxy::DelayProxy;
use super::server::Server;
use crate::cmdutil::args;
use report::Report;

/// Options of `berth bench http`.
#[derive(Args)]
pub(crate) struct HttpBench {
    /// Number of clients, each with its own connection and one request at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// Instances per request, placed all or none.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// Number of nodes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Duration of the measurement, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Duration of the warm-up, in seconds.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=20))]
    warmup: u32,
    /// Database of the server, which should be empty; an embedded one in a temporary directory by
    /// default.
    #[arg(long, conflicts_with = "url")]
    database_url: Option<String>,
    /// How long everything is under way between server and database, in each direction: as if the database
    /// was far away. For PostgreSQL.
    #[arg(long, value_name = "TIME", requires = "database_url", value_parser = args::precise_duration)]
    database_delay: Option<Duration>,
    /// Measure a running server; nothing is started and no nodes are added.
    #[arg(long, requires = "token")]
    url: Option<String>,
    /// Token for that server; it must be allowed to place instances.
    #[arg(long, env = "BERTH_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Directory of the embedded database, to choose its disk.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl HttpBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        super::raise_file_limit(self.clients.into())?;
        let proxy = match (&self.database_url, self.database_delay) {
            (Some(url), Some(_)) => Some(DelayProxy::start(url)?),
            _ => None,
        };
        let database_url = proxy.as_ref().map(|proxy| &proxy.url).or(self.database_url.as_ref());
        let server = match (&self.url, &self.token) {
            (Some(url), Some(token)) => Server::existing(url, token)?,
            _ => Server::start(database_url.map(String::as_str), self.data_dir.as_deref())?,
        };
        // One thread: the load must leave the other core to the server.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let measured = runtime.block_on(async {
            if server.is_own() {
                server.wait_until_ready().await?;
                server.add_nodes(self.nodes).await.context("failed to add the fleet")?;
            }
            if let (Some(proxy), Some(delay)) = (&proxy, self.database_delay) {
                proxy.delay(delay);
            }
            let load = load::Load {
                address: server.address.clone(),
                token: server.token.clone(),
                clients: self.clients.into(),
                batch: self.batch.into(),
                warmup: Duration::from_secs(self.warmup.into()),
                measure: Duration::from_secs(self.seconds.into()),
            };
            load.run().await
        })?;
        let report = Report::new(&self, &measured);
        super::print_report(self.json, &report)
    }
}
