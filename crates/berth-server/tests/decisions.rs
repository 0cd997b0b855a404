//! Decisions over HTTP: listed newest first, filtered, discreet towards tenants, replayed.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use berth_engine::Policy;
use berth_ledger::Op;
use common::{Server, TENANT};
use serde_json::{Value, json};

fn request(memory_mib: u32, tenant: &str) -> Value {
    json!({
        "tenant": tenant,
        "instances": [{ "resources": { "cpu_milli": 100, "memory_mib": memory_mib } }],
    })
}

/// Three grants and two refusals of a tenant, and one of each of another.
async fn history(server: &Server, operator: &str) {
    for node in ["n1", "n2"] {
        server.add_node(node).await;
    }
    for memory in [512, 1024, 2048] {
        server.post(operator, "/v1/placements", &request(memory, TENANT)).await.expect(201);
    }
    for _ in 0..2 {
        server.post(operator, "/v1/placements", &request(999_999, TENANT)).await.expect(409);
    }
    server.post(operator, "/v1/placements", &request(512, "other")).await.expect(201);
    server.post(operator, "/v1/placements", &request(999_999, "other")).await.expect(409);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_listed_newest_first_and_filtered() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    history(&server, &operator).await;
    let all = server.get(&operator, "/v1/decisions").await.expect(200);
    let tenants = all.each("tenant");
    assert_eq!(tenants.len(), 7);
    assert_eq!(tenants[..2], [json!("other"), json!("other")]);
    let refused = "/v1/decisions?outcome=refused&code=no_capacity_memory";
    assert_eq!(server.get(&operator, refused).await.each("tenant").len(), 3);
    let of_one = "/v1/decisions?tenant=acme&outcome=granted";
    assert_eq!(server.get(&operator, of_one).await.each("outcome"), vec![json!("granted"); 3]);
    server.get(&operator, "/v1/decisions?cursor=x").await.problem(400, "invalid_request");

    // Part by part comes the same as at once.
    let (mut path, mut ids) = ("/v1/decisions?limit=2".to_owned(), Vec::new());
    loop {
        let part = server.get(&operator, &path).await.expect(200);
        ids.extend(part.each("id"));
        let Some(next) = part.json()["next"].as_str().map(str::to_owned) else { break };
        path = format!("/v1/decisions?limit=2&cursor={next}");
    }
    assert_eq!(ids, all.each("id"));

    let one = server.get(&operator, &format!("/v1/decisions/{}", ids[0].as_str().unwrap())).await;
    let one = one.expect(200).json();
    assert_eq!(one["requests"][0]["resources"]["memory_mib"], 999_999);
    assert_eq!(one["code"], "no_capacity_memory");
    assert_eq!(one["refusals"][0]["nodes"], 2);
    server.get(&operator, "/v1/decisions/no.such.thing").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_sees_its_own_and_no_more_than_the_policy_allows() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    history(&server, &operator).await;
    let tenant = server.token(Role::Tenant).await;
    let mine = server.get(&tenant, "/v1/decisions").await.expect(200);
    assert_eq!(mine.each("tenant"), vec![json!(TENANT); 5]);
    let all = server.get(&operator, "/v1/decisions?tenant=other").await;
    let other = all.each("id")[0].as_str().unwrap().to_owned();
    server.get(&tenant, &format!("/v1/decisions/{other}")).await.problem(404, "not_found");

    // Fixes that only an operator can apply, and names of nodes if the policy says so, are hidden.
    let policy = Policy::from_toml("name = 'shy'\n[explain]\ntenants_see_nodes = false\n").unwrap();
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let op = Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None };
    server.control.submit(op).await.unwrap();
    server.control.wait_for_read_your_writes().await;
    let mine = server.get(&tenant, "/v1/decisions").await.expect(200);
    assert!(!mine.text.contains("\"n1\"") && !mine.text.contains("\"n2\""), "{}", mine.text);
    assert!(!mine.text.contains("add_node"), "{}", mine.text);
    let seen = server.get(&operator, "/v1/decisions").await.expect(200);
    assert!(seen.text.contains("\"n1\"") && seen.text.contains("add_node"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_refusal_does_not_tell_a_tenant_who_uses_a_volume() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let volume = json!({ "home": "n1" });
    server.put(&operator, "/v1/volumes/v1", &volume).await.expect(201);
    let mut asks = request(512, TENANT);
    asks["instances"][0]["volumes"] = json!(["v1"]);
    let first = server.post(&operator, "/v1/placements", &asks).await.expect(201).json();
    let holder = first["instances"][0]["instance"].as_str().unwrap().to_owned();
    server.post(&operator, "/v1/placements", &asks).await.expect(409);
    let tenant = server.token(Role::Tenant).await;
    let path = "/v1/decisions?outcome=refused";
    let seen = server.get(&operator, path).await.expect(200);
    assert!(seen.text.contains(&holder), "{}", seen.text);
    let hidden = server.get(&tenant, path).await.expect(200);
    assert_eq!(hidden.each("code"), [json!("volume_in_use")]);
    assert!(!hidden.text.contains(&holder), "{}", hidden.text);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_is_replayed_for_those_who_run_the_fleet() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    history(&server, &operator).await;
    for node in ["n1", "n2"] {
        let path = format!("/v1/nodes/{node}/cordon");
        server.post(&operator, &path, &json!({})).await.expect(200);
    }
    let ids = server.get(&operator, "/v1/decisions").await.each("id");
    for id in &ids {
        let path = format!("/v1/decisions/{}/replay", id.as_str().unwrap());
        let replay = server.get(&operator, &path).await.expect(200).json();
        assert_eq!(replay["outcome"], "identical", "{replay:#}");
        assert_eq!(replay["recorded"], replay["derived"]);
    }
    let tenant = server.token(Role::Tenant).await;
    let path = format!("/v1/decisions/{}/replay", ids[0].as_str().unwrap());
    server.get(&tenant, &path).await.problem(403, "not_allowed");
    server.stop().await;
}
