//! Whether nodes can be emptied: asked over HTTP, kept current, counted.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::time::Duration;

use berth_api::Role;
use common::{Server, TIMEOUT};
use serde_json::{Value, json};

/// A server with an operator's token.
struct Stage {
    server: Server,
    token: String,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start_with(|options| {
            options.settings.evacuation_every = Duration::from_millis(100);
        })
        .await;
        let token = server.token(Role::Operator).await;
        Self { server, token }
    }

    async fn node(&self, id: &str, rack: &str, zone: &str, memory_mib: u32) {
        let body = json!({"id": id, "rack": rack, "zone": zone, "vmm_overhead_mib": 0,
            "capacity": {"cpu_milli": 16000, "memory_mib": memory_mib, "disk_mib": 1_000_000,
                "bandwidth_mbps": 0}});
        self.server.put(&self.token, &format!("/v1/nodes/{id}"), &body).await.expect(201);
    }

    /// Places an instance on a node, with the others cordoned meanwhile.
    async fn place(&self, node: &str, others: &[&str], instance: Value) -> String {
        for other in others {
            let path = format!("/v1/nodes/{other}/cordon");
            self.server.post(&self.token, &path, &json!({})).await.expect(200);
        }
        let body = json!({"tenant": "acme", "lease_s": 3600, "instances": [instance]});
        let placed = self.server.post(&self.token, "/v1/placements", &body).await.expect(201);
        let placed = placed.json()["instances"][0].clone();
        assert_eq!(placed["node"], node);
        for other in others {
            let path = format!("/v1/nodes/{other}/uncordon");
            self.server.post(&self.token, &path, &json!({})).await.expect(200);
        }
        placed["instance"].as_str().unwrap().to_owned()
    }

    async fn check(&self, asked: Value) -> Vec<Value> {
        let reply = self.server.post(&self.token, "/v1/evacuations/check", &asked).await;
        reply.expect(200).json()["items"].as_array().unwrap().clone()
    }

    async fn check_one(&self, asked: Value) -> Value {
        let mut found = self.check(asked).await;
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    /// Waits until the loop has said this of a node.
    async fn becomes(&self, node: &str, can_be_emptied: bool) -> Value {
        let began = tokio::time::Instant::now();
        loop {
            let seen = self.server.get(&self.token, &format!("/v1/nodes/{node}")).await.json();
            if seen["evacuation"]["can_be_emptied"] == can_be_emptied {
                return seen["evacuation"].clone();
            }
            assert!(began.elapsed() < TIMEOUT, "{node}: {seen}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn memory(mib: u32) -> Value {
    json!({"resources": {"memory_mib": mib}})
}

#[tokio::test]
async fn a_node_whose_instances_have_a_place_elsewhere_can_be_emptied() {
    let stage = Stage::new().await;
    stage.node("a", "r1", "z1", 8192).await;
    stage.node("b", "r1", "z1", 8192).await;
    let empty = stage.check_one(json!({"nodes": ["a"]})).await;
    assert_eq!(
        (&empty["can_be_emptied"], &empty["message"]),
        (&json!(true), &json!("it is empty"))
    );
    let one = stage.place("a", &["b"], memory(4096)).await;
    let found = stage.check_one(json!({"nodes": ["a"]})).await;
    assert_eq!(found["can_be_emptied"], true, "{found}");
    assert_eq!(found["moves"][0]["instance"], one);
    assert_eq!(found["moves"][0]["to"], "b");
    assert_eq!(found["moves"][0]["state"], "planned");
    // Nothing was claimed and nothing changed.
    let node = stage.server.get(&stage.token, "/v1/nodes/a").await.json();
    assert_eq!((&node["facts"]["state"], &node["instances"]), (&json!("active"), &json!(1)));
    let node = stage.server.get(&stage.token, "/v1/nodes/b").await.json();
    assert_eq!(node["instances"], 0);
    stage.server.stop().await;
}

#[tokio::test]
async fn a_node_that_cannot_be_emptied_says_which_rule_and_by_how_much() {
    let stage = Stage::new().await;
    stage.node("a", "r1", "z1", 8192).await;
    stage.node("b", "r1", "z1", 2048).await;
    let one = stage.place("a", &[], memory(4096)).await;
    let found = stage.check_one(json!({"nodes": ["a"]})).await;
    assert_eq!(found["can_be_emptied"], false);
    let message = found["message"].as_str().unwrap();
    for part in ["no_capacity_memory", "4 GiB", "2 GiB", "acme", &one, "1 of 1 instance"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let refused = &found["moves"][0];
    assert_eq!(
        (&refused["state"], &refused["code"]),
        (&json!("blocked"), &json!("no_capacity_memory"))
    );
    assert!(!refused["unblock"].as_array().unwrap().is_empty(), "{refused}");
    assert!(!refused["unblock"].to_string().contains("repair a"), "{refused}");
    stage.server.stop().await;
}

#[tokio::test]
async fn a_rack_may_be_too_much_where_each_of_its_nodes_is_not() {
    let stage = Stage::new().await;
    for (node, rack) in [("a", "r1"), ("b", "r1"), ("c", "r2")] {
        stage.node(node, rack, "z1", 4096).await;
    }
    stage.place("a", &["b", "c"], memory(3000)).await;
    stage.place("b", &["a", "c"], memory(3000)).await;
    for node in ["a", "b"] {
        let alone = stage.check_one(json!({"nodes": [node]})).await;
        assert_eq!(alone["can_be_emptied"], true, "{alone}");
    }
    let rack = stage.check_one(json!({"rack": "r1"})).await;
    assert_eq!(rack["nodes"], json!(["a", "b"]));
    assert_eq!((&rack["can_be_emptied"], &rack["instances"]), (&json!(false), &json!(2)));
    assert!(rack["message"].as_str().unwrap().contains("1 of 2 instances"), "{rack}");
    let all = stage.check(json!({"all": true})).await;
    let verdicts: Vec<&Value> = all.iter().map(|one| &one["can_be_emptied"]).collect();
    assert_eq!(verdicts, [true, true, true]);
    stage.server.stop().await;
}

#[tokio::test]
async fn a_volume_holds_its_instance_and_the_answer_is_a_command() {
    let stage = Stage::new().await;
    stage.node("a", "r1", "z1", 8192).await;
    stage.node("b", "r1", "z1", 8192).await;
    let volume = json!({"home": "a"});
    stage.server.put(&stage.token, "/v1/volumes/data", &volume).await.expect(201);
    let mut instance = memory(1024);
    instance["volumes"] = json!(["data"]);
    stage.place("a", &[], instance).await;
    let found = stage.check_one(json!({"nodes": ["a"]})).await;
    assert_eq!(found["moves"][0]["code"], "volume_needs_move");
    assert_eq!(found["moves"][0]["unblock"], json!(["berth volumes move data --to b"]));
    assert!(found["message"].as_str().unwrap().starts_with("1 of 1 instance has"), "{found}");
    stage.server.stop().await;
}

#[tokio::test]
async fn every_node_is_checked_from_time_to_time_and_counted() {
    let stage = Stage::new().await;
    stage.node("a", "r1", "z1", 8192).await;
    stage.node("b", "r1", "z1", 2048).await;
    stage.place("a", &[], memory(4096)).await;
    let found = stage.becomes("a", false).await;
    assert!(found["message"].as_str().unwrap().contains("no_capacity_memory"), "{found}");
    assert_eq!(stage.becomes("b", true).await["message"], "it is empty");
    let listed = stage.server.get(&stage.token, "/v1/nodes").await.each("evacuation");
    assert_eq!(listed[0]["can_be_emptied"], false);
    let metrics = stage.server.get(&stage.token, "/metrics").await.text;
    for line in ["berth_nodes_evacuable 1\n", "berth_nodes_not_evacuable 1\n"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(metrics.contains("berth_evacuation_check_age_seconds "), "{metrics}");
    // A node that is being drained is checked like any other.
    stage.server.post(&stage.token, "/v1/nodes/a/drain", &json!({})).await.expect(200);
    stage.node("c", "r2", "z1", 8192).await;
    // By then its instance may be on its way already.
    stage.becomes("a", true).await;
    stage.server.stop().await;
}

#[tokio::test]
async fn what_is_asked_must_be_one_thing_that_exists() {
    let stage = Stage::new().await;
    stage.node("a", "r1", "z1", 8192).await;
    stage.node("b", "r1", "z2", 8192).await;
    for (asked, field, word) in [
        (json!({}), "nodes", "one of"),
        (json!({"nodes": ["a"], "all": true}), "nodes", "given with all"),
        (json!({"rack": "r1", "all": true}), "rack", "given with all"),
        (json!({"nodes": ["nobody"]}), "nodes", "nobody"),
        (json!({"rack": "r9"}), "rack", "r9"),
        (json!({"rack": "r1"}), "zone", "z1, z2"),
        (json!({"rack": "r1", "zone": "z9"}), "zone", "z9"),
        (json!({"nodes": ["a"], "zone": "z1"}), "zone", "rack"),
    ] {
        let reply = stage.server.post(&stage.token, "/v1/evacuations/check", &asked).await;
        let problem = reply.problem(400, "invalid_request").json();
        assert_eq!(problem["fields"][0]["field"], field, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{problem}");
    }
    let rack = stage.check_one(json!({"rack": "r1", "zone": "z2"})).await;
    assert_eq!(rack["nodes"], json!(["b"]));
    let tenant = stage.server.token(Role::Tenant).await;
    let asked = json!({"all": true});
    stage.server.post(&tenant, "/v1/evacuations/check", &asked).await.expect(403);
    stage.server.stop().await;
}
