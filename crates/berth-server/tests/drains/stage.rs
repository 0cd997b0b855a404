//! A fleet to be emptied: nodes, instances on them, agents that say what they should.

use std::time::Duration;

use berth_api::{Drain, Role};
use berth_control::ControlOptions;
use berth_ledger::Backend;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::common::{Server, TIMEOUT};

/// A server whose data outlives it, and an operator's token.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) operator: String,
    nodes: Vec<String>,
    folder: tempfile::TempDir,
}

impl Stage {
    pub(crate) async fn new(nodes: &[&str]) -> Self {
        Self::with(nodes, |_| ()).await
    }

    pub(crate) async fn with(nodes: &[&str], edit: fn(&mut ControlOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = open(&folder, edit).await;
        for node in nodes {
            server.add_node(node).await;
        }
        let operator = server.token(Role::Operator).await;
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        Self { server, operator, nodes, folder }
    }

    /// The same after the server was stopped and started again.
    pub(crate) async fn restarted(self) -> Self {
        let Self { server, operator, nodes, folder } = self;
        server.stop().await;
        Self { server: open(&folder, |_| ()).await, operator, nodes, folder }
    }

    /// Places instances on a node and has them run there. Returns their ids.
    pub(crate) async fn run_on(&self, node: &str, count: usize, memory_mib: u32) -> Vec<String> {
        let resources = json!({"cpu_milli": 100, "memory_mib": memory_mib, "disk_mib": 64});
        self.only(node, "cordon").await;
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.place(json!({"resources": resources})).await);
        }
        self.only(node, "uncordon").await;
        self.report(node, &ids, "running").await;
        ids
    }

    /// Cordons or uncordons all other nodes.
    pub(crate) async fn only(&self, node: &str, verb: &str) {
        for other in self.nodes.iter().filter(|other| *other != node) {
            let path = format!("/v1/nodes/{other}/{verb}");
            self.server.post(&self.operator, &path, &json!({})).await.expect(200);
        }
    }

    /// Places one instance.
    pub(crate) async fn place(&self, spec: Value) -> String {
        let body = json!({"tenant": "acme", "instances": [spec]});
        let placed = self.server.post(&self.operator, "/v1/placements", &body).await.expect(201);
        placed.json()["instances"][0]["instance"].as_str().unwrap().to_owned()
    }

    /// Has a node's agent say the same of instances that are there.
    pub(crate) async fn report(&self, node: &str, ids: &[String], state: &str) -> Value {
        let path = format!("/v1/nodes/{node}/assignments");
        let list = self.server.get(&self.operator, &path).await.expect(200).json();
        let listed = list["assignments"].as_array().unwrap().iter();
        let listed = listed.filter(|one| ids.iter().any(|id| one["instance"] == id.as_str()));
        let running: Vec<Value> = listed
            .map(|one| json!({"instance": one["instance"], "fence": one["fence"], "state": state}))
            .collect();
        let path = format!("/v1/nodes/{node}/heartbeat");
        let beat = json!({"running": running});
        self.server.post(&self.operator, &path, &beat).await.expect(200).json()
    }

    pub(crate) async fn begin(&self, node: &str, body: Value) -> Drain {
        let path = format!("/v1/nodes/{node}/drain");
        let reply = self.server.post(&self.operator, &path, &body).await.expect(200);
        serde_json::from_value(reply.json()).unwrap()
    }

    pub(crate) async fn drain(&self, node: &str) -> Drain {
        let path = format!("/v1/nodes/{node}/drain");
        let reply = self.server.get(&self.operator, &path).await.expect(200);
        serde_json::from_value(reply.json()).unwrap()
    }

    /// The drain once it is as wanted.
    pub(crate) async fn until(&self, node: &str, wanted: impl Fn(&Drain) -> bool) -> Drain {
        let began = Instant::now();
        loop {
            let drain = self.drain(node).await;
            if wanted(&drain) {
                return drain;
            }
            assert!(began.elapsed() < TIMEOUT, "{drain:#?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// The same, while the node's agent stops what it is told to stop.
    pub(crate) async fn until_with_agent(
        &self,
        node: &str,
        wanted: impl Fn(&Drain) -> bool,
    ) -> Drain {
        let began = Instant::now();
        loop {
            let told = self.assignments(node).await;
            let told = told.iter().filter(|one| one["state"] == "releasing");
            let ids: Vec<String> =
                told.map(|one| one["instance"].as_str().unwrap().to_owned()).collect();
            self.report(node, &ids, "stopped").await;
            let drain = self.drain(node).await;
            if wanted(&drain) {
                return drain;
            }
            assert!(began.elapsed() < TIMEOUT, "{drain:#?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// What a node's agent is told to have there.
    pub(crate) async fn assignments(&self, node: &str) -> Vec<Value> {
        let path = format!("/v1/nodes/{node}/assignments");
        let list = self.server.get(&self.operator, &path).await.expect(200).json();
        list["assignments"].as_array().unwrap().clone()
    }

    /// Whether a node's agent is told to start or stop an instance, or to have it run.
    pub(crate) async fn is_told(&self, node: &str, id: &str) -> bool {
        self.assignments(node).await.iter().any(|one| one["instance"] == id)
    }

    /// The claim of an instance.
    pub(crate) async fn claim(&self, id: &str) -> Value {
        let path = format!("/v1/claims/{id}");
        self.server.get(&self.operator, &path).await.expect(200).json()
    }

    /// Events of this kind, oldest first.
    pub(crate) async fn events(&self, kind: &str) -> Vec<Value> {
        let reply = self.server.get(&self.operator, "/v1/events?limit=1000").await.expect(200);
        let body = reply.json();
        let items = body["items"].as_array().unwrap().iter();
        items.filter(|event| event["kind"] == kind).cloned().collect()
    }
}

async fn open(folder: &tempfile::TempDir, edit: fn(&mut ControlOptions)) -> Server {
    let backend = Backend::Sqlite(folder.path().join("kept.db"));
    Server::start_with(move |options| {
        options.backend = backend;
        edit(options);
    })
    .await
}
