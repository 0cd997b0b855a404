//! Instances that agents find and Berth did not place: recorded under the operator's rule, and never
//! under an id of another node.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use berth_control::{Adoption, ControlOptions};
use common::{Reply, Server};
use serde_json::{Value, json};

const ID: &str = "01920000-0000-7000-8000-000000000009";

async fn start(adopt: Adoption) -> Server {
    let server = Server::start_with(|options: &mut ControlOptions| {
        options.settings.adopt = adopt;
    })
    .await;
    server.add_node("n1").await;
    server.add_node("n2").await;
    server
}

fn found(id: &str, tenant: &str) -> Value {
    let resources = json!({"cpu_milli": 500, "memory_mib": 512});
    let found = json!({"tenant": tenant, "resources": resources});
    json!({"running": [{"instance": id, "state": "running", "found": found}]})
}

async fn report(server: &Server, token: &str, node: &str, body: &Value) -> Value {
    let path = format!("/v1/nodes/{node}/heartbeat");
    server.post(token, &path, body).await.expect(200).json()["reported"][0].clone()
}

/// The tenants of all instances.
async fn tenants(server: &Server) -> Vec<Value> {
    let operator = server.token(Role::Operator).await;
    server.get(&operator, "/v1/instances").await.expect(200).each("tenant")
}

/// The codes of refused reports.
async fn refusals(server: &Server) -> Vec<Value> {
    let operator = server.token(Role::Operator).await;
    let reply: Reply = server.get(&operator, "/v1/events?kinds=node.report_refused").await;
    let reply = reply.expect(200).json();
    let items = reply["items"].as_array().unwrap().iter();
    items.map(|event| event["body"]["code"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_an_agent_cannot_invent_an_instance_of_a_tenant() {
    let server = start(Adoption::default()).await;
    let agent = server.agent("n1").await;
    let reported = report(&server, &agent, "n1", &found(ID, "acme")).await;
    assert_eq!(reported["state"], "active");
    assert_eq!(tenants(&server).await, ["unmanaged"]);
    let acme = server.tenant("acme").await;
    assert!(server.get(&acme, "/v1/instances").await.each("instance").is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_says_for_which_tenants_instances_are_recorded() {
    let listed = || Adoption::Listed(vec!["acme".to_owned()]);
    for (adopt, tenant, refused) in [
        (Adoption::Off, "acme", Some("adoption_off")),
        (listed(), "acme", None),
        (listed(), "rival", Some("tenant_not_listed")),
        (Adoption::Any, "rival", None),
    ] {
        let what = format!("{adopt:?} {tenant}");
        let server = start(adopt).await;
        let agent = server.agent("n1").await;
        for _ in 0..3 {
            let reported = report(&server, &agent, "n1", &found(ID, tenant)).await;
            assert_eq!(reported.get("refused").and_then(Value::as_str), refused, "{what}");
        }
        let expected: Vec<&str> = if refused.is_some() { vec![] } else { vec![tenant] };
        assert_eq!(tenants(&server).await, expected, "{what}");
        let codes: Vec<&str> = refused.into_iter().collect();
        assert_eq!(refusals(&server).await, codes, "{what}: an event, and only one");
        // An operator knows whose instances they are.
        let operator = server.token(Role::Operator).await;
        let other = "01920000-0000-7000-8000-00000000000a";
        report(&server, &operator, "n1", &found(other, "globex")).await;
        assert!(tenants(&server).await.contains(&json!("globex")), "{what}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_cannot_claim_the_id_of_an_instance_on_another_node() {
    let server = start(Adoption::Any).await;
    let operator = server.token(Role::Operator).await;
    server.post(&operator, "/v1/nodes/n2/cordon", &json!({})).await.expect(200);
    let acme = server.tenant("acme").await;
    let resources = json!({"cpu_milli": 100, "memory_mib": 64});
    let request = json!({"instances": [{"resources": resources}]});
    let placed = server.post(&acme, "/v1/placements", &request).await.expect(201).json();
    let id = placed["instances"][0]["instance"].as_str().unwrap().to_owned();
    for (token, tenant) in [(server.agent("n2").await, "acme"), (operator, "rival")] {
        let reported = report(&server, &token, "n2", &found(&id, tenant)).await;
        assert_eq!(reported["refused"], "instance_elsewhere");
    }
    assert_eq!(refusals(&server).await, ["instance_elsewhere"]);
    let claims = server.get(&server.token(Role::Operator).await, "/v1/claims").await.expect(200);
    assert_eq!(claims.each("node"), ["n1"]);
    server.stop().await;
}
