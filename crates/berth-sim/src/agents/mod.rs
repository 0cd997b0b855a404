//! A fleet that plays itself: simulated hosts with their agents, tenants that come and go, and
//! now and then an incident.
//!
//! Everything goes through the public API, as it would with real hosts, so a server sees no
//! difference. Nothing here ends because a server does: it is tried again until told to stop. With
//! the same seed, the same things are wanted in the same order; when they happen depends on answers.

mod crew;
mod host;
mod incidents;
mod moves;
mod pace;
mod shapes;
mod stretch;
mod tenants;
mod wanted;

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
use crew::{Crew, Order};
use pace::Pace;
use tenants::{Board, Tenant};

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// How many hosts.
    pub hosts: u64,
    /// What is wanted, and of whom, follows from it.
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

/// Plays until told to stop. The client's token must be an operator's.
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
        () = register(&client, &facts) => {}
    }
    let board = Arc::new(Board::new(&facts));
    let nodes: Arc<[NodeId]> = facts.iter().map(|facts| facts.id.clone()).collect();
    let (send, orders) = mpsc::channel(1024);
    let mut players = JoinSet::new();
    let crew = Crew::new(client.clone(), facts, options.seed, pace);
    players.spawn(crew.run(orders));
    players.spawn(listen(client.clone(), send.clone()));
    for (number, kind) in shapes::KINDS.iter().enumerate() {
        let seed = options.seed ^ (0x7e4a_0000 + number as u64);
        let tenant = Tenant::new(client.clone(), kind, Arc::clone(&board), seed, pace);
        players.spawn(tenant.run());
    }
    players.spawn(wanted::store(client.clone()));
    let seed = options.seed ^ 0x1c1d;
    players.spawn(incidents::run(client, nodes, send, seed, pace));
    stop.cancelled().await;
    players.shutdown().await;
}

/// Makes the hosts known, however long the server takes to come up.
async fn register(client: &Client, facts: &[NodeFacts]) {
    for chunk in facts.chunks(CHUNK) {
        let mut tries = 0;
        loop {
            let report: Result<ImportReport, ClientError> =
                client.post("/v1/nodes/import", chunk).await;
            match report {
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(%error, "simulated hosts could not be registered yet");
                    tries = (tries + 1).min(5);
                    sleep(Duration::from_millis(200 << tries)).await;
                }
            }
        }
    }
}

/// Wakes hosts that were given something or are to stop something, instead of a stream for each.
async fn listen(client: Client, orders: mpsc::Sender<Order>) {
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
                    && orders.send(Order::Wake(NodeId::new(node))).await.is_err()
                {
                    return;
                }
            }
        }
        sleep(Duration::from_secs(2)).await;
    }
}
