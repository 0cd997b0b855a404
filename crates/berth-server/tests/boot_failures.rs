//! Boot failures: what an instance causes does not count against its node, and neither one
//! tenant nor two together can take a node away from the others.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use common::Server;
use serde_json::{Value, json};

/// A server with one node, its agent, and what tenants do there.
struct Fleet {
    server: Server,
    agent: String,
}

impl Fleet {
    async fn start() -> Self {
        let server = Server::start().await;
        server.add_node("n1").await;
        let agent = server.agent("n1").await;
        Self { server, agent }
    }

    async fn place(&self, tenant: &str) -> common::Reply {
        let token = self.server.tenant(tenant).await;
        let resources = json!({"cpu_milli": 100, "memory_mib": 64});
        let request = json!({"instances": [{"resources": resources}]});
        self.server.post(&token, "/v1/placements", &request).await
    }

    /// Places an instance of a tenant, whose agent then reports this of it.
    async fn report(&self, tenant: &str, mut report: Value) {
        let placed = self.place(tenant).await.expect(201).json();
        let instance = &placed["instances"][0];
        (report["instance"], report["fence"]) =
            (instance["instance"].clone(), instance["fence"].clone());
        let beat = json!({"running": [report]});
        let reply = self.server.post(&self.agent, "/v1/nodes/n1/heartbeat", &beat).await;
        let reply = reply.expect(200).json();
        assert_eq!(reply["reported"][0].get("refused"), None, "{reply}");
    }

    async fn boots(&self) -> Value {
        let operator = self.server.token(Role::Operator).await;
        self.server.get(&operator, "/v1/nodes/n1").await.expect(200).json()["facts"]["boots"]
            .clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_together_cannot_make_a_node_sick_for_others() {
    let fleet = Fleet::start().await;
    for _ in 0..10 {
        fleet.report("rival", json!({"state": "failed", "cause": "unknown"})).await;
        fleet.report("accomplice", json!({"state": "failed"})).await;
    }
    assert_eq!(fleet.boots().await.as_array().unwrap().len(), 2, "each counts once");
    fleet.place("third").await.expect(201);
    fleet.report("third", json!({"state": "failed"})).await;
    // A third tenant that fails there bears them out.
    fleet.place("fourth").await.problem(409, "no_nodes_healthy");
    fleet.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_starts_an_instance_disproves_the_failures_of_others() {
    let fleet = Fleet::start().await;
    for tenant in ["rival", "accomplice"] {
        fleet.report(tenant, json!({"state": "failed"})).await;
    }
    fleet.report("acme", json!({"state": "running"})).await;
    fleet.report("third", json!({"state": "failed"})).await;
    fleet.place("fourth").await.expect(201);
    fleet.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_the_instance_caused_does_not_count_against_its_node() {
    let fleet = Fleet::start().await;
    for tenant in ["rival", "acme", "third"] {
        fleet.report(tenant, json!({"state": "failed", "cause": "instance"})).await;
    }
    assert_eq!(fleet.boots().await, json!([]));
    fleet.place("third").await.expect(201);
    fleet.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_failures_of_the_node_make_it_sick_and_a_success_ends_the_row() {
    let fleet = Fleet::start().await;
    fleet.report("acme", json!({"state": "failed", "cause": "node"})).await;
    fleet.report("acme", json!({"state": "running"})).await;
    fleet.report("acme", json!({"state": "failed", "cause": "node"})).await;
    fleet.report("acme", json!({"state": "failed", "cause": "node"})).await;
    fleet.place("third").await.problem(409, "no_nodes_healthy");
    fleet.server.stop().await;
}
