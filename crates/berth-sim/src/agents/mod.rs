//! A demo fleet: simulated hosts with their agents, tenants that place and release instances, and an
//! occasional incident.
//!
//! Everything goes through the public API, as with real hosts, so a server sees no difference. Failed
//! requests are retried until the demo is stopped. With the same seed the same requests are made in the
//! same order; their timing depends on the server.

mod elastic_load;
mod host;
mod host_scheduler;
mod incidents;
mod migrations;
mod pace;
mod tenant_kinds;
mod tenants;
mod workloads;

use std::sync::Arc;
use std::time::Duration;

use berth_api::ImportReport;
use berth_client::{Client, ClientError};
use berth_engine::{NodeFacts, NodeId, Timestamp, Watermarks};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::fleet::nodes_at;
use host_scheduler::{HostCommand, HostScheduler};
use pace::Pace;
use tenants::{FleetFill, Tenant};

/// Options of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// How many hosts.
    pub hosts: u64,
    /// The seed of all requests and incidents.
    pub seed: u64,
    /// How fast, in percent of what a person can follow.
    pub pace: u32,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self { hosts: 1000, seed: 7, pace: 100 }
    }
}

/// Nodes that are registered with one request.
const CHUNK: usize = 250;

/// Runs the demo until it is stopped. The client's token must be an operator's.
pub async fn run(client: Client, options: DemoOptions, stop: CancellationToken) {
    let pace = Pace::new(options.pace);
    let now = Timestamp(jiff::Timestamp::now().as_second());
    let mut facts = nodes_at(options.hosts, options.seed, now);
    for facts in &mut facts {
        // The demo's policy packs memory: a node is under pressure only where it is all but full.
        facts.watermarks = Watermarks { cpu_permille: 950, memory_permille: 985 };
    }
    tokio::select! {
        () = stop.cancelled() => return,
        () = register_hosts(&client, &facts) => {}
    }
    let fill = Arc::new(FleetFill::new(&facts));
    let nodes: Arc<[NodeId]> = facts.iter().map(|facts| facts.id.clone()).collect();
    let (send, commands) = mpsc::channel(1024);
    let mut tasks = JoinSet::new();
    let scheduler = HostScheduler::new(client.clone(), facts, options.seed, pace);
    tasks.spawn(scheduler.run(commands));
    tasks.spawn(wake_hosts(client.clone(), send.clone()));
    for (number, kind) in tenant_kinds::KINDS.iter().enumerate() {
        let seed = options.seed ^ (0x7e4a_0000 + number as u64);
        let tenant = Tenant::new(client.clone(), kind, Arc::clone(&fill), seed, pace);
        tasks.spawn(tenant.run());
    }
    tasks.spawn(workloads::store_workloads(client.clone()));
    let seed = options.seed ^ 0x1c1d;
    tasks.spawn(incidents::run(client, nodes, send, seed, pace));
    stop.cancelled().await;
    tasks.shutdown().await;
}

/// Registers the hosts, retrying until the server is up.
async fn register_hosts(client: &Client, facts: &[NodeFacts]) {
    for chunk in facts.chunks(CHUNK) {
        let mut tries = 0;
        loop {
            let report: Result<ImportReport, ClientError> =
                client.post("/v1/nodes/import", chunk).await;
            match report {
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(%error, "failed to register simulated hosts; retrying");
                    tries = (tries + 1).min(5);
                    sleep(Duration::from_millis(200 << tries)).await;
                }
            }
        }
    }
}

/// Follows the event stream and wakes hosts with new assignments, instead of a stream for each.
async fn wake_hosts(client: Client, commands: mpsc::Sender<HostCommand>) {
    let kinds = [("kinds", "instance.allocated,instance.state")];
    loop {
        if let Ok(mut events) = client.events("/v1/events/stream", &kinds, None).await {
            while let Ok(Some(event)) = events.next().await {
                let Ok(event) = serde_json::from_str::<berth_api::Event>(&event.data) else {
                    continue;
                };
                let word = |key: &str| event.body.get(key).and_then(|value| value.as_str());
                let news = event.kind == "instance.allocated" || word("state") == Some("releasing");
                if let (true, Some(node)) = (news, word("node_id"))
                    && commands.send(HostCommand::Wake(NodeId::new(node))).await.is_err()
                {
                    return;
                }
            }
        }
        sleep(Duration::from_secs(2)).await;
    }
}
