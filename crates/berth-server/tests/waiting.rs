//! Requests that wait for room: granted when there is some, in a fair order, also after a restart.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::time::Duration;

use berth_api::Role;
use berth_ledger::Backend;
use common::Server;
use serde_json::{Value, json};

/// All of a node's memory but what is taken per instance.
const WHOLE_NODE_MIB: u32 = 65_000;

fn wait_for(tenant: &str, memory_mib: u32, wait_s: u32) -> Value {
    json!({
        "tenant": tenant, "mode": "wait", "wait_s": wait_s, "lease_s": 3600,
        "instances": [{"resources": {"memory_mib": memory_mib}}],
    })
}

/// Takes all of the only node, and returns the claim that does.
async fn fill(server: &Server, token: &str) -> String {
    let full = json!({"tenant": "full", "lease_s": 3600,
        "instances": [{"resources": {"memory_mib": WHOLE_NODE_MIB}}]});
    let placed = server.post(token, "/v1/placements", &full).await.expect(201).json();
    placed["instances"][0]["instance"].as_str().unwrap().to_owned()
}

async fn free(server: &Server, token: &str, instance: &str) {
    let path = format!("/v1/claims/{instance}/release");
    server.post(token, &path, &json!({"confirmed": true})).await.expect(200);
}

/// Waits until a ticket is in this state.
async fn becomes(server: &Server, token: &str, id: &str, state: &str) -> Value {
    for _ in 0..60 {
        let ticket =
            server.get(token, &format!("/v1/queue/{id}?wait_s=1")).await.expect(200).json();
        if ticket["state"] == state {
            return ticket;
        }
    }
    panic!("{id} does not become {state}");
}

fn id(ticket: &Value) -> String {
    ticket["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_waiting_request_is_granted_when_room_appears_and_says_why_it_waits() {
    let server = Server::start().await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let full = fill(&server, &token).await;
    let mut request = wait_for("acme", 4096, 600);
    request["request_id"] = json!("waits-1");
    let ticket = server.post(&token, "/v1/placements", &request).await.expect(202).json();
    assert_eq!(ticket["position"], 1);
    assert_eq!(ticket["problem"]["code"], "no_capacity_memory");
    assert!(!ticket["problem"]["refusals"].as_array().unwrap().is_empty());
    // A retry gets the same ticket, not a second one.
    let again = server.post(&token, "/v1/placements", &request).await.expect(202).json();
    assert_eq!(again["id"], ticket["id"]);
    let metrics = server.get(&token, "/metrics").await.expect(200).text;
    assert!(metrics.contains("berth_queue_waiting 1\n"), "{metrics}");
    assert!(metrics.contains("berth_unmet_demand{resource=\"memory_mib\"} 4096\n"), "{metrics}");

    free(&server, &token, &full).await;
    let granted = becomes(&server, &token, &id(&ticket), "granted").await;
    let instance = &granted["placed"]["instances"][0];
    assert_eq!(instance["node"], "n1");
    let claim = format!("/v1/claims/{}", instance["instance"].as_str().unwrap());
    server.get(&token, &claim).await.expect(200);
    // The retry of a request that was granted meanwhile is that grant.
    let placed = server.post(&token, "/v1/placements", &request).await.expect(201).json();
    assert_eq!(placed["instances"][0]["instance"], instance["instance"]);
    server.stop().await;
}

#[tokio::test]
async fn tenants_take_turns_and_a_cancelled_or_late_request_gets_nothing() {
    let server = Server::start().await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let full = fill(&server, &token).await;
    let mut tickets = Vec::new();
    for tenant in ["greedy", "greedy", "greedy", "modest"] {
        let request = wait_for(tenant, WHOLE_NODE_MIB, 600);
        tickets.push(id(&server.post(&token, "/v1/placements", &request).await.expect(202).json()));
    }
    let tenants = server.get(&token, "/v1/queue").await.expect(200).each("tenant");
    assert_eq!(tenants, ["greedy", "modest", "greedy", "greedy"], "a turn each, then the rest");
    let positions = server.get(&token, "/v1/queue").await.expect(200).each("position");
    assert_eq!(positions, [1, 2, 3, 4]);
    // Each tenant sees its own, with its place among all.
    let modest = server.tenant("modest").await;
    let own = server.get(&modest, "/v1/queue").await.expect(200);
    assert_eq!((own.each("id"), own.each("position")), (vec![json!(tickets[3])], vec![json!(2)]));
    server.get(&modest, &format!("/v1/queue/{}", tickets[0])).await.expect(404);

    server.delete(&token, &format!("/v1/queue/{}", tickets[0])).await.expect(204);
    server.delete(&token, &format!("/v1/queue/{}", tickets[0])).await.problem(409, "not_waiting");
    let late = wait_for("late", WHOLE_NODE_MIB, 1);
    let late = id(&server.post(&token, "/v1/placements", &late).await.expect(202).json());
    becomes(&server, &token, &late, "expired").await;

    free(&server, &token, &full).await;
    // Of those left, the first of each tenant came before the second of one.
    let granted = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let list = server.get(&token, "/v1/queue").await.expect(200).json();
            let items = list["items"].as_array().unwrap().clone();
            if let Some(granted) = items.iter().find(|ticket| ticket["state"] == "granted") {
                return granted["id"].clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert_eq!(granted.await.unwrap(), json!(tickets[1]), "the older of the two firsts");
    server.stop().await;
}

#[tokio::test]
async fn waiting_survives_a_restart_and_a_dry_run_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let server =
        Server::start_with(|options| options.backend = Backend::Sqlite(path.clone())).await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let full = fill(&server, &token).await;
    let mut dry = wait_for("acme", 4096, 600);
    dry["dry_run"] = json!(true);
    server.post(&token, "/v1/placements", &dry).await.problem(409, "no_capacity_memory");
    let request = wait_for("acme", 4096, 600);
    let ticket = id(&server.post(&token, "/v1/placements", &request).await.expect(202).json());
    server.stop().await;

    let server =
        Server::start_with(|options| options.backend = Backend::Sqlite(path.clone())).await;
    assert_eq!(server.get(&token, "/v1/queue").await.expect(200).each("id"), [json!(ticket)]);
    free(&server, &token, &full).await;
    becomes(&server, &token, &ticket, "granted").await;
    let refused = server.get(&token, "/v1/decisions?outcome=refused").await.expect(200);
    assert_eq!(refused.each("tenant"), [json!("acme")], "the first try, and not the dry run");
    server.stop().await;
}
