//! Elastic instances on a few nodes, through the real server.

use std::time::Duration;

use berth_api::Role;
use berth_control::debug::Dump;
use berth_engine::{Amounts, InstanceId, NodeFacts, Ratios, Timestamp};
use berth_ledger::{Answer, Op, Outcome};
use serde_json::{Value, json};

use crate::common::{Server, TIMEOUT};

/// How long anything may take: debug builds on a busy machine are slow.
const PATIENCE: Duration = TIMEOUT;

/// A server, an operator's token and an admin's.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) operator: String,
    pub(crate) admin: String,
}

impl Stage {
    pub(crate) async fn new(nodes: &[&str]) -> Self {
        Self::on(Server::start().await, nodes).await
    }

    pub(crate) async fn on(server: Server, nodes: &[&str]) -> Self {
        let operator = server.token(Role::Operator).await;
        let admin = server.token(Role::Admin).await;
        let stage = Self { server, operator, admin };
        for node in nodes {
            stage.add_node(node).await;
        }
        stage
    }

    /// Registers a node with 16 cores and 64 GiB, each given once.
    pub(crate) async fn add_node(&self, id: &str) {
        let mut facts = NodeFacts::new(id, Amounts::new(16_000, 65_536).with_disk(1 << 20));
        facts.heartbeat_at = Timestamp(self.server.control.now().as_second());
        facts.ratios = Ratios { cpu_permille: 1000, memory_permille: 1000, disk_permille: 1000 };
        let answer = self.server.control.submit(Op::put_node(facts)).await.unwrap();
        assert_eq!(answer, Answer::Outcome(Outcome::Done));
        self.server.control.wait_for_read_your_writes().await;
    }

    /// Places an instance and has it run. Returns its id and its node.
    pub(crate) async fn run(&self, instance: Value) -> (String, String) {
        let request = json!({"tenant": "acme", "instances": [instance]});
        let placed = self.server.post(&self.operator, "/v1/placements", &request).await;
        let placed = placed.expect(201).json()["instances"][0].clone();
        let id = placed["instance"].as_str().unwrap().to_owned();
        for step in ["bind", "activate"] {
            let path = format!("/v1/claims/{id}/{step}");
            let fence = json!({"fence": placed["fence"]});
            self.server.post(&self.operator, &path, &fence).await.expect(200);
        }
        (id, placed["node"].as_str().unwrap().to_owned())
    }

    /// Has the agent of a node find an elastic instance that nobody placed.
    pub(crate) async fn find(&self, node: &str, using: (u32, u32), max: (u32, u32)) {
        let size = |(cpu, memory)| json!({"cpu_milli": cpu, "memory_mib": memory});
        let elastic = json!({"min": size((250, 512)), "max": size(max)});
        let found = json!({"tenant": "acme", "resources": size(using), "elastic": elastic});
        let id = InstanceId::from_u128(0xf0).to_string();
        let body = json!({"running": [{"instance": id, "state": "running", "found": found}]});
        let path = format!("/v1/nodes/{node}/heartbeat");
        let answer = self.server.post(&self.operator, &path, &body).await.expect(200).json();
        assert_eq!(answer["reported"][0]["state"], "active", "{answer}");
        self.server.control.wait_for_read_your_writes().await;
    }

    /// What is inside the server.
    pub(crate) async fn dump(&self) -> Dump {
        let reply = self.server.get(&self.admin, "/v1/debug/state").await.expect(200);
        Dump::read(&reply.text).unwrap()
    }

    /// Where an instance like this would go.
    pub(crate) async fn would_go(&self, instance: &Value) -> String {
        let request = json!({"tenant": "acme", "dry_run": true, "instances": [instance]});
        let reply = self.server.post(&self.operator, "/v1/placements", &request).await;
        let reply = reply.expect(200).json();
        reply["instances"][0]["node"].as_str().unwrap().to_owned()
    }

    /// Asks for a permit.
    pub(crate) async fn ask(&self, id: &str, cpu: u32, memory: u32) -> Value {
        self.ask_with(id, json!({"resources": {"cpu_milli": cpu, "memory_mib": memory}})).await
    }

    pub(crate) async fn ask_with(&self, id: &str, body: Value) -> Value {
        let path = format!("/v1/instances/{id}/permit");
        self.server.post(&self.operator, &path, &body).await.expect(200).json()
    }

    /// Puts a policy in force. Returns its hash.
    pub(crate) async fn activate(&self, toml: &str) -> String {
        let stored = self.server.post(&self.operator, "/v1/policies", &json!({"toml": toml})).await;
        let hash =
            stored.json()["hash"].as_str().unwrap_or_else(|| panic!("{stored:?}")).to_owned();
        let path = format!("/v1/policies/{hash}/activate");
        self.server.post(&self.operator, &path, &json!({})).await.expect(200);
        hash
    }

    pub(crate) async fn roll_back(&self) {
        self.server.post(&self.operator, "/v1/policies/rollback", &json!({})).await.expect(200);
    }

    /// A node's account.
    pub(crate) async fn account(&self, node: &str) -> Value {
        let path = format!("/v1/nodes/{node}");
        self.server.get(&self.operator, &path).await.expect(200).json()["account"].clone()
    }

    /// Waits until a node's account is as wanted.
    pub(crate) async fn account_is(&self, node: &str, wanted: impl Fn(&Value) -> bool) {
        let began = tokio::time::Instant::now();
        loop {
            let account = self.account(node).await;
            if wanted(&account) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{account}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// An elastic instance of this size that may grow to that.
pub(crate) fn elastic(size: (u32, u32), max: (u32, u32)) -> Value {
    json!({
        "resources": {"cpu_milli": size.0, "memory_mib": size.1, "disk_mib": 64},
        "elastic": {
            "min": {"cpu_milli": 250, "memory_mib": 512},
            "max": {"cpu_milli": max.0, "memory_mib": max.1},
        },
    })
}

/// CPU and memory of a size.
pub(crate) fn size(value: &Value) -> (u64, u64) {
    (value["cpu_milli"].as_u64().unwrap(), value["memory_mib"].as_u64().unwrap())
}
