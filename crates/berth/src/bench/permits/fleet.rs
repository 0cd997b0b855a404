//! The fleet of a run: nodes, a token for each agent, and instances that agents report.

use anyhow::bail;
use berth_api::{
    CreatedToken, FoundInstance, Heartbeat, NewToken, Role, RunState, RunningInstance,
};
use berth_client::Client;
use berth_engine::{Amounts, Elastic, InstanceId, NodeFacts, NodeId};
use futures_util::{StreamExt as _, TryStreamExt as _};
use uuid::Uuid;

use super::agent::{Agent, MAX_UNITS, MIN_UNITS, UNIT};
use crate::bench::server::Server;

/// Concurrent requests while the fleet is added.
const CONCURRENCY: usize = 64;

/// The initial size of an instance, in compute units.
const FOUND_UNITS: u32 = 8;

/// Compute units of a node per instance: somewhat less than instances of medium size need, so that some
/// growth is limited.
const UNITS_PER_INSTANCE: u32 = 16;

pub(super) struct Fleet {
    pub(super) agents: u32,
    pub(super) nodes: u32,
    pub(super) instances_per_agent: u32,
}

impl Fleet {
    /// Adds the fleet to a server; every agent reports its instances.
    pub(super) async fn register(&self, server: &Server) -> anyhow::Result<Vec<Agent>> {
        let instances = self.agents.div_ceil(self.nodes) * self.instances_per_agent;
        let facts: Vec<NodeFacts> = (0..self.nodes).map(|number| node(number, instances)).collect();
        server.add(&facts).await?;
        let client = server.client()?;
        let agents = futures_util::stream::iter(0..self.agents);
        let agents = agents.map(|number| self.agent(&client, &server.address, number));
        agents.buffer_unordered(CONCURRENCY).try_collect().await
    }

    async fn agent(&self, client: &Client, address: &str, number: u32) -> anyhow::Result<Agent> {
        let node = NodeId::new(&name(number % self.nodes));
        let new = NewToken {
            name: format!("agent {number}"),
            role: Role::Agent,
            tenants: Vec::new(),
            node: Some(node.clone()),
            expires_in_s: None,
        };
        let created: CreatedToken = client.post("/v1/tokens", &new).await?;
        let ids: Vec<InstanceId> =
            (0..self.instances_per_agent).map(|_| InstanceId(Uuid::now_v7())).collect();
        let running = ids.iter().map(|id| running(*id, number)).collect();
        let beat = Heartbeat { running: Some(running), ..Heartbeat::default() };
        let response = client.heartbeat(&node, &beat).await?;
        if let Some(refused) = response.reported.iter().find_map(|it| it.refused.as_ref()) {
            bail!("an instance on {node} was refused: {refused}");
        }
        Ok(Agent::new(number, address, &created.secret, &ids, FOUND_UNITS))
    }
}

fn name(number: u32) -> String {
    format!("node-{number:06}")
}

fn node(number: u32, instances: u32) -> NodeFacts {
    let capacity = amounts(instances * UNITS_PER_INSTANCE).with_disk(1_000_000);
    let mut facts = NodeFacts::new(&name(number), capacity);
    facts.zone = Some(format!("zone-{}", number / 40 % 3));
    facts.rack = Some(format!("rack-{:04}", number / 40));
    facts
}

fn running(instance: InstanceId, agent: u32) -> RunningInstance {
    let elastic = Elastic::new(amounts(MIN_UNITS), amounts(MAX_UNITS));
    let found = FoundInstance {
        tenant: format!("tenant-{}", agent % 16),
        resources: amounts(FOUND_UNITS),
        tags: std::collections::BTreeMap::new(),
        elastic: Some(elastic),
    };
    let (fence, reason, state) = (None, None, RunState::Running);
    RunningInstance { instance, fence, state, reason, cause: None, found: Some(found) }
}

fn amounts(units: u32) -> Amounts {
    Amounts::new(UNIT.0 * units, UNIT.1 * units)
}
