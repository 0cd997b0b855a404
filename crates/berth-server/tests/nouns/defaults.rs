//! Defaults of the policy for nodes and instances, and what overrides them.

use berth_api::Role;
use berth_engine::{Amounts, NodeFacts, Policy, Timestamp};
use berth_ledger::{Answer, Op, Outcome};
use serde_json::{Value, json};

use crate::common::{Server, wait_until};

const POLICY: &str = "
name = 'company'
[defaults]
cpu_ratio_permille = 2000
vmm_overhead_mib = 128
reserved_memory_mib = 1024
disk_mib = 8192
overlay_pool = 'overlay'
[[defaults.nodes]]
labels = { class = 'dense' }
cpu_ratio_permille = 8000
overlay_pool = 'dense'
[[defaults.nodes]]
labels = { class = 'bare' }
no_overlay_pool = true
[[defaults.instances]]
tags = { size = 'large' }
disk_mib = 65536
";

async fn activate(server: &Server, policy: &Policy) {
    let op = Op::ActivatePolicy {
        name: policy.name().to_owned(),
        hash: policy.hash().to_string(),
        body: policy.to_json(),
        expect: None,
    };
    assert_eq!(server.control.submit(op).await.unwrap(), Answer::Outcome(Outcome::Done));
}

async fn add_node(server: &Server, id: &str, class: &str) {
    let mut facts = NodeFacts::new(id, Amounts::new(16_000, 65_536).with_disk(1 << 20));
    facts.heartbeat_at = Timestamp(server.control.now().as_second());
    facts.labels.insert("class".to_owned(), class.to_owned());
    let answer = server.control.submit(Op::put_node(facts)).await.unwrap();
    assert_eq!(answer, Answer::Outcome(Outcome::Done));
}

async fn node(server: &Server, token: &str, id: &str) -> Value {
    server.get(token, &format!("/v1/nodes/{id}")).await.expect(200).json()
}

/// Waits until a node may give out so much CPU.
async fn wait_for_cpu(server: &Server, token: &str, id: &str, cpu_milli: u32) {
    wait_until(&format!("{id} has {cpu_milli} mCPU"), async || {
        node(server, token, id).await["limits"]["cpu_milli"] == cpu_milli
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_hold_for_all_nodes_but_those_of_a_class_or_set_by_an_operator() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for (id, class) in [("n1", "plain"), ("n2", "dense"), ("n3", "plain")] {
        add_node(&server, id, class).await;
    }
    let path = "/v1/nodes/n3";
    let own = json!({"ratios": {"cpu_permille": 1000}});
    server.send(Some(&operator), "PATCH", path, Some(&own), &[]).await.expect(200);
    let before = node(&server, &operator, "n1").await;
    activate(&server, &Policy::from_toml(POLICY).unwrap()).await;
    wait_for_cpu(&server, &operator, "n1", 32_000).await;
    wait_for_cpu(&server, &operator, "n2", 128_000).await;
    wait_until("the defaults of n3", async || {
        node(&server, &operator, "n3").await["facts"]["vmm_overhead_mib"] == 128
    })
    .await;
    let set = node(&server, &operator, "n3").await;
    assert_eq!(set["limits"]["cpu_milli"], 16_000, "the operator's word wins");
    assert_eq!(set["policy_defaults"]["ratios.cpu_permille"], 2000);
    let plain = node(&server, &operator, "n1").await;
    assert_eq!(plain["facts"]["system_reserve"]["memory_mib"], 1024);
    assert_eq!(plain["limits"]["memory_mib"], 65_536 - 1024);
    assert_eq!(plain["reported"]["vmm_overhead_mib"], 64);

    // Given back, the default is in effect; without defaults, what is reported.
    let unset = json!({"fields": ["ratios"]});
    server.post(&operator, "/v1/nodes/n3/unset", &unset).await.expect(200);
    wait_for_cpu(&server, &operator, "n3", 32_000).await;
    activate(&server, &Policy::builtin("balanced").unwrap()).await;
    for id in ["n1", "n2", "n3"] {
        wait_for_cpu(&server, &operator, id, 64_000).await;
    }
    let after = node(&server, &operator, "n1").await;
    for part in ["facts", "limits", "set", "reported", "policy_defaults"] {
        assert_eq!(after.get(part), before.get(part), "{part}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_instance_has_the_default_disk_and_an_address_or_is_not_placed() {
    let server = Server::start().await;
    let (operator, tenant) = (server.token(Role::Operator).await, server.token(Role::Tenant).await);
    add_node(&server, "n1", "plain").await;
    let policy = Policy::from_toml(POLICY).unwrap();
    activate(&server, &policy).await;
    wait_for_cpu(&server, &operator, "n1", 32_000).await;
    let body = |disk: Option<u32>| {
        let mut resources = json!({"cpu_milli": 100, "memory_mib": 128});
        if let Some(disk) = disk {
            resources["disk_mib"] = json!(disk);
        }
        json!({"instances": [{"resources": resources}]})
    };
    let refused = server.post(&tenant, "/v1/placements", &body(None)).await;
    assert!(refused.status.is_client_error(), "without the pool: {}", refused.text);
    let pool = json!({"range": "fd00::/64"});
    let stored = server.put(&operator, "/v1/pools/overlay", &pool).await;
    assert!(stored.status.is_success(), "{}", stored.text);
    let mut addresses = std::collections::BTreeSet::new();
    for disk in [None, Some(512)] {
        let placed = server.post(&tenant, "/v1/placements", &body(disk)).await.expect(201).json();
        let instance = &placed["instances"][0];
        let id = instance["instance"].as_str().unwrap();
        addresses.insert(instance["values"][0]["value"].as_str().unwrap().to_owned());
        assert_eq!(instance["values"][0]["pool"], "overlay", "{placed}");
        let seen = server.get(&tenant, &format!("/v1/instances/{id}")).await.expect(200).json();
        assert_eq!(seen["resources"]["disk_mib"], disk.unwrap_or(8192), "{seen}");
    }
    assert_eq!(addresses.len(), 2, "each has its own");
    // One that names the pool takes one address of it, not two.
    let mut named = body(None);
    named["pools"] = json!(["overlay"]);
    let placed = server.post(&tenant, "/v1/placements", &named).await.expect(201).json();
    assert_eq!(placed["instances"][0]["values"].as_array().map(Vec::len), Some(1), "{placed}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exempt_class_gives_no_address_and_disk_follows_the_tags() {
    let server = Server::start().await;
    let (operator, tenant) = (server.token(Role::Operator).await, server.token(Role::Tenant).await);
    add_node(&server, "n1", "bare").await;
    activate(&server, &Policy::from_toml(POLICY).unwrap()).await;
    wait_for_cpu(&server, &operator, "n1", 32_000).await;
    // There is no pool of either name: without the exemption nothing is placed.
    for (size, disk_mib) in [("large", 65_536), ("small", 8192)] {
        let resources = json!({"cpu_milli": 100, "memory_mib": 128});
        let body = json!({"instances": [{"resources": resources, "tags": {"size": size}}]});
        let placed = server.post(&tenant, "/v1/placements", &body).await.expect(201).json();
        let instance = &placed["instances"][0];
        assert_eq!(instance["values"].as_array().map_or(0, Vec::len), 0, "{placed}");
        let path = format!("/v1/instances/{}", instance["instance"].as_str().unwrap());
        let seen = server.get(&tenant, &path).await.expect(200).json();
        assert_eq!(seen["resources"]["disk_mib"], disk_mib, "{seen}");
    }
    server.stop().await;
}
