//! States that a node takes by itself: degraded and lost, and what brings it back.

use std::time::Duration;

use berth_api::Role;
use berth_engine::{Amounts, NodeFacts, NodeState};
use serde_json::{Value, json};

use crate::common::{NODE, Server, wait_until};

const HEARTBEAT: &str = "/v1/nodes/n1/heartbeat";

async fn node(server: &Server, token: &str) -> Value {
    server.get(token, "/v1/nodes/n1").await.expect(200).json()
}

fn small() -> Value {
    let resources = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128});
    json!({"instances": [{"resources": resources}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_degraded_while_its_agent_says_so() {
    let server = Server::start().await;
    let (operator, agent) = (server.token(Role::Operator).await, server.token(Role::Agent).await);
    let tenant = server.token(Role::Tenant).await;
    server.add_node(NODE).await;
    for reason in ["overlay loses 9 % of packets", "no space left on /var"] {
        let beat = json!({"running": [], "degraded": reason});
        let answer = server.post(&agent, HEARTBEAT, &beat).await.expect(200).json();
        assert_eq!(answer["state"], "degraded");
        let seen = node(&server, &operator).await;
        assert_eq!(seen["facts"]["state"], "degraded");
        assert!(seen["state_message"].as_str().unwrap().contains(reason), "{seen}");
    }
    let generation = node(&server, &operator).await["generation"].clone();
    let beat = json!({"degraded": "no space left on /var"});
    server.post(&agent, HEARTBEAT, &beat).await.expect(200);
    assert_eq!(
        node(&server, &operator).await["generation"],
        generation,
        "the same again is no news"
    );
    let refused = server.post(&tenant, "/v1/placements", &small()).await.expect(409);
    assert!(refused.text.contains("no_nodes_active"), "{}", refused.text);
    let explained = server.get(&operator, "/v1/nodes/n1/explain").await.expect(200);
    assert!(explained.text.contains("no space left on /var"), "{}", explained.text);
    // Facts say nothing of it.
    let facts = NodeFacts::new(NODE, Amounts::new(16_000, 65_536).with_disk(1 << 20));
    let beat = json!({"facts": facts, "degraded": "no space left on /var"});
    server.post(&agent, HEARTBEAT, &beat).await.expect(200);
    assert_eq!(node(&server, &operator).await["facts"]["state"], "degraded");

    let answer = server.post(&agent, HEARTBEAT, &json!({})).await.expect(200).json();
    assert_eq!(answer["state"], "active");
    let seen = node(&server, &operator).await;
    assert_eq!(seen.get("state_message"), None, "{seen}");
    server.post(&tenant, "/v1/placements", &small()).await.expect(201);
    let events = server.get(&operator, "/v1/events?limit=1000").await.expect(200);
    assert!(events.text.contains("overlay loses 9 % of packets"), "{}", events.text);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_admits_degraded_nodes_places_on_them() {
    let server = Server::start().await;
    let (operator, agent) = (server.token(Role::Admin).await, server.token(Role::Agent).await);
    server.add_node(NODE).await;
    server.post(&agent, HEARTBEAT, &json!({"degraded": "one fan"})).await.expect(200);
    let tenant = server.token(Role::Tenant).await;
    server.post(&tenant, "/v1/placements", &small()).await.expect(409);
    let policy =
        berth_engine::Policy::from_toml("name = 'lenient'\n[filters]\nadmit_degraded = true");
    let policy = policy.unwrap();
    let op = berth_ledger::Op::ActivatePolicy {
        name: policy.name().to_owned(),
        hash: policy.hash().to_string(),
        body: policy.to_json(),
        expect: None,
    };
    server.control.submit(op).await.unwrap();
    wait_until("the policy admits it", async || {
        server.post(&tenant, "/v1/placements", &small()).await.status == 201
    })
    .await;
    assert_eq!(node(&server, &operator).await["facts"]["state"], "degraded");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_operators_and_registrations_do_not_follow_health() {
    let server = Server::start().await;
    let (operator, agent) = (server.token(Role::Operator).await, server.token(Role::Agent).await);
    let mut facts = NodeFacts::new(NODE, Amounts::new(16_000, 65_536));
    facts.state = NodeState::Degraded;
    let body = serde_json::to_value(&facts).unwrap();
    server.put(&operator, "/v1/nodes/n1", &body).await.expect(201);
    for beat in [json!({}), json!({"degraded": "one fan"}), json!({})] {
        let answer = server.post(&agent, HEARTBEAT, &beat).await.expect(200).json();
        assert_eq!(answer["state"], "degraded", "as it was registered");
    }
    let seen = node(&server, &operator).await;
    assert!(seen["state_message"].as_str().unwrap().contains("berth nodes uncordon n1"), "{seen}");
    server.post(&operator, "/v1/nodes/n1/uncordon", &json!({})).await.expect(200);
    server.post(&operator, "/v1/nodes/n1/cordon", &json!({})).await.expect(200);
    let beat = json!({"degraded": "one fan"});
    let answer = server.post(&agent, HEARTBEAT, &beat).await.expect(200).json();
    assert_eq!(answer["state"], "cordoned");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_says_what_brings_it_back_and_is_degraded_if_it_was() {
    let server = Server::start_with(|options| {
        options.settings.heartbeat_every = Duration::from_secs(1);
        options.settings.lost_after = Duration::from_secs(2);
    })
    .await;
    let (operator, agent) = (server.token(Role::Operator).await, server.token(Role::Agent).await);
    server.add_node(NODE).await;
    let beat = json!({"degraded": "one fan"});
    server.post(&agent, HEARTBEAT, &beat).await.expect(200);
    let is_lost = async || node(&server, &operator).await["facts"]["state"] == "lost";
    wait_until("the node is lost", is_lost).await;
    let seen = node(&server, &operator).await;
    let message = seen["state_message"].as_str().unwrap();
    assert!(
        message.contains("no heartbeat since") && message.contains("next heartbeat"),
        "{message}"
    );
    let explained = server.get(&operator, "/v1/nodes/n1/explain").await.expect(200);
    assert!(explained.text.contains("the next heartbeat brings it back"), "{}", explained.text);
    let answer = server.post(&agent, HEARTBEAT, &beat).await.expect(200).json();
    assert_eq!(answer["state"], "degraded");
    wait_until("the node is lost once more", is_lost).await;
    let answer = server.post(&agent, HEARTBEAT, &json!({})).await.expect(200).json();
    assert_eq!(answer["state"], "active");
    server.stop().await;
}
