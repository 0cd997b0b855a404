//! `berth bench memory`: what a server keeps in memory of each node, instance, event and stream, and how
//! large the demo becomes.
//!
//! Servers are processes of their own, in temporary directories, and memory is what the kernel counts as
//! resident.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::server::Server;
use crate::cmdutil::args;

/// Instances of one request.
const BATCH: u32 = 100;

/// How long a server is left alone before its memory is read.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Options of `berth bench memory`.
#[derive(Args)]
pub(crate) struct MemoryBench {
    /// Number of nodes, of the demo too.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    nodes: u32,
    /// Instances placed before the first stream, and as many after it.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    instances: u32,
    /// Number of event streams.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=40_000))]
    streams: u32,
    /// How long the demo runs before it is measured; 0s leaves it out.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = args::duration)]
    demo_time: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Serialize)]
struct Report {
    nodes: u32,
    instances: u32,
    streams: u32,
    /// A server without anything.
    empty_rss_mib: u64,
    bytes_per_node: u64,
    bytes_per_instance: u64,
    /// Of an event that is kept for streams.
    bytes_per_event: u64,
    bytes_per_stream: u64,
    demo_seconds: u32,
    /// At the end; absent if the demo was left out.
    demo_rss_mib: Option<u64>,
    /// The most at any time until then.
    demo_rss_max_mib: Option<u64>,
    /// The same of the server with the streams.
    rss_max_mib: u64,
    demo_instances: Option<u64>,
}

impl MemoryBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        super::raise_file_limit(self.streams)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let report = runtime.block_on(self.measure())?;
        runtime.shutdown_background();
        super::print_report(self.json, &report)
    }

    async fn measure(&self) -> anyhow::Result<Report> {
        let mut report = self.measure_parts().await?;
        if self.demo_time > 0 {
            let demo = Server::start_demo(self.nodes)?;
            demo.wait_until_ready().await?;
            sleep(Duration::from_secs(self.demo_time.into())).await;
            report.demo_rss_mib = Some(demo.resident_bytes()? >> 20);
            report.demo_rss_max_mib = Some(demo.peak_resident_bytes()? >> 20);
            report.demo_instances = Some(count_instances(&demo).await?);
        }
        Ok(report)
    }

    async fn measure_parts(&self) -> anyhow::Result<Report> {
        let server = Server::start(None, None)?;
        server.wait_until_ready().await?;
        let empty = settled_bytes(&server).await?;
        server.add_nodes(self.nodes).await.context("failed to add the fleet")?;
        let with_nodes = settled_bytes(&server).await?;
        place(&server, self.instances).await?;
        let with_instances = settled_bytes(&server).await?;
        let mut streams = JoinSet::new();
        // Events are kept from the first stream on.
        open_streams(&server, 1, &mut streams).await?;
        place(&server, self.instances).await?;
        let with_events = settled_bytes(&server).await?;
        open_streams(&server, self.streams, &mut streams).await?;
        place(&server, BATCH).await?;
        let with_streams = settled_bytes(&server).await?;
        let each = |more: u64, less: u64, count: u32| more.saturating_sub(less) / u64::from(count);
        let bytes_per_instance = each(with_instances, with_nodes, self.instances);
        let per_placement = each(with_events, with_instances, self.instances);
        Ok(Report {
            nodes: self.nodes,
            instances: self.instances,
            streams: self.streams,
            empty_rss_mib: empty >> 20,
            bytes_per_node: each(with_nodes, empty, self.nodes),
            bytes_per_instance,
            bytes_per_event: per_placement.saturating_sub(bytes_per_instance),
            bytes_per_stream: each(with_streams, with_events, self.streams),
            demo_seconds: self.demo_time,
            demo_rss_mib: None,
            demo_rss_max_mib: None,
            rss_max_mib: server.peak_resident_bytes()? >> 20,
            demo_instances: None,
        })
    }
}

async fn settled_bytes(server: &Server) -> anyhow::Result<u64> {
    sleep(SETTLE_TIME).await;
    server.resident_bytes()
}

async fn place(server: &Server, instances: u32) -> anyhow::Result<()> {
    let client = server.client()?;
    for number in 0..instances.div_ceil(BATCH) {
        let resources = json!({ "cpu_milli": 1000, "memory_mib": 2048, "disk_mib": 8192 });
        let body = json!({
            "request_id": uuid::Uuid::now_v7(),
            "tenant": format!("tenant-{}", number % 16),
            "instances": [{ "count": BATCH, "resources": resources }],
        });
        let placed: Result<Value, _> = client.post("/v1/placements", &body).await;
        placed.context("failed to place instances")?;
    }
    Ok(())
}

/// Opens streams whose events are read as they come, and waits until each has been answered.
async fn open_streams(
    server: &Server,
    count: u32,
    streams: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let request = format!(
        "GET /v1/events/stream HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        server.address, server.token
    );
    for _ in 0..count {
        let mut stream = TcpStream::connect(&server.address).await.context("failed to connect")?;
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = vec![0; 4096];
        let length = stream.read(&mut buffer).await?;
        let answer = String::from_utf8_lossy(&buffer[..length]);
        if !answer.starts_with("HTTP/1.1 200") {
            bail!("a stream was refused: {}", answer.lines().next().unwrap_or_default());
        }
        streams.spawn(async move {
            while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
        });
    }
    Ok(())
}

async fn count_instances(server: &Server) -> anyhow::Result<u64> {
    let all: Vec<Value> = server.client()?.all("/v1/instances", &[]).await?;
    Ok(all.len() as u64)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a server with nothing  {:>9} MiB", self.empty_rss_mib)?;
        writeln!(f, "a node                 {:>9} bytes", self.bytes_per_node)?;
        writeln!(f, "an instance            {:>9} bytes", self.bytes_per_instance)?;
        writeln!(f, "an event that is kept  {:>9} bytes", self.bytes_per_event)?;
        writeln!(f, "a stream               {:>9} bytes", self.bytes_per_stream)?;
        let Self { nodes, streams, demo_seconds, .. } = self;
        writeln!(f, "the most with {streams} streams {:>9} MiB", self.rss_max_mib)?;
        if let (Some(mib), Some(most), Some(instances)) =
            (self.demo_rss_mib, self.demo_rss_max_mib, self.demo_instances)
        {
            writeln!(
                f,
                "the demo               {mib:>9} MiB after {demo_seconds} s, {most} at most, {nodes} nodes, {instances} instances"
            )?;
        }
        Ok(())
    }
}
