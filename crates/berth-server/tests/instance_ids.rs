//! Ids of instances: derived ones are another tenant's guess no more than random ones, retries get
//! the first answer, and an id that is taken says nothing of who has it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_control::ControlOptions;
use berth_ledger::Backend;
use common::Server;
use serde_json::{Value, json};
use uuid::Uuid;

fn request(request_id: &str, count: u32) -> Value {
    let resources = json!({"cpu_milli": 100, "memory_mib": 64});
    json!({"request_id": request_id, "instances": [{"resources": resources, "count": count}]})
}

fn ids(placed: &Value) -> Vec<String> {
    let instances = placed["instances"].as_array().unwrap();
    instances.iter().map(|it| it["instance"].as_str().unwrap().to_owned()).collect()
}

/// The ids that releases before the key of the ledger derived, which anyone can compute.
fn guessed(tenant: &str, request_id: &str, count: u32) -> Vec<String> {
    let id = |number: u32| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(tenant.as_bytes()).update(&[0]).update(request_id.as_bytes()).update(&[0]);
        hasher.update(&0_u64.to_le_bytes()).update(&number.to_le_bytes());
        let bytes: [u8; 16] = hasher.finalize().as_bytes()[..16].try_into().unwrap();
        Uuid::new_v8(bytes).to_string()
    };
    (0..count).map(id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn derived_ids_differ_between_ledgers_and_agree_between_servers_of_one() {
    let one = Server::start().await;
    one.add_node("n1").await;
    let path = one.ledger_path();
    let same = Server::start_with(|options: &mut ControlOptions| {
        options.backend = Backend::Sqlite(path);
    })
    .await;
    let other = Server::start().await;
    other.add_node("n1").await;
    let acme = one.tenant("acme").await;
    let first = one.post(&acme, "/v1/placements", &request("r1", 2)).await.expect(201).json();
    let acme_there = same.tenant("acme").await;
    let retry =
        same.post(&acme_there, "/v1/placements", &request("r1", 2)).await.expect(201).json();
    assert_eq!(ids(&first), ids(&retry));
    let acme_elsewhere = other.tenant("acme").await;
    let placed = other.post(&acme_elsewhere, "/v1/placements", &request("r1", 2)).await;
    let placed = placed.expect(201).json();
    let all = [ids(&first), ids(&placed), guessed("acme", "r1", 2)].concat();
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), 6, "{all:?}");
    for server in [other, same, one] {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_cannot_take_the_ids_that_another_will_be_given() {
    let server = Server::start().await;
    server.add_node("n1").await;
    let (acme, rival) = (server.tenant("acme").await, server.tenant("rival").await);
    for id in guessed("acme", "deploy-1", 2) {
        let mut taking = request(&format!("take-{id}"), 1);
        taking["instances"][0]["id"] = json!(id);
        server.post(&rival, "/v1/placements", &taking).await.expect(201);
    }
    server.post(&acme, "/v1/placements", &request("deploy-1", 2)).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_what_an_earlier_release_answered_gets_the_first_answer() {
    let server = Server::start().await;
    server.add_node("n1").await;
    let acme = server.tenant("acme").await;
    for count in [1, 3] {
        // What the earlier release stored: the same body under the same ids.
        let request_id = format!("before-{count}");
        let resources = json!({"cpu_milli": 100, "memory_mib": 64});
        let specs = guessed("acme", &request_id, count);
        let specs = specs.iter().map(|id| json!({"id": id, "resources": resources}));
        let earlier = json!({"request_id": request_id, "instances": specs.collect::<Vec<_>>()});
        let first = server.post(&acme, "/v1/placements", &earlier).await.expect(201).json();
        let retry = server.post(&acme, "/v1/placements", &request(&request_id, count)).await;
        let retry = retry.expect(201).json();
        assert_eq!(ids(&retry), ids(&first));
        assert_eq!(retry["decision"], first["decision"]);
        // Another body under the same id is still refused.
        let other = server.post(&acme, "/v1/placements", &request(&request_id, count + 1)).await;
        other.problem(422, "request_id_reused");
    }
    assert_eq!(server.get(&acme, "/v1/instances").await.each("instance").len(), 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_another_tenant_has_is_unavailable_and_nothing_more() {
    let server = Server::start().await;
    server.add_node("node-of-acme").await;
    let (acme, rival) = (server.tenant("acme").await, server.tenant("rival").await);
    let placed = server.post(&acme, "/v1/placements", &request("r1", 1)).await.expect(201).json();
    let id = ids(&placed).remove(0);
    for dry_run in [false, true] {
        let mut again = request(&format!("r2-{dry_run}"), 1);
        again["instances"][0]["id"] = json!(id);
        again["dry_run"] = json!(dry_run);
        let own = server.post(&acme, "/v1/placements", &again).await;
        own.problem(409, "already_placed");
        let reply = server.post(&rival, "/v1/placements", &again).await;
        let reply = reply.problem(409, "instance_id_unavailable");
        for secret in ["acme", "placed", "node"] {
            assert!(!reply.text.contains(secret), "{}", reply.text);
        }
    }
    server.stop().await;
}
