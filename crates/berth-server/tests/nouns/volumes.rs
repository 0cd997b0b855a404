use berth_api::Role;
use serde_json::{Value, json};

use crate::common::Server;

async fn with_volumes() -> (Server, String) {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    server.add_node("n2").await;
    for (id, tenant, home) in [
        ("a1", Some("acme"), "n1"),
        ("a2", Some("acme"), "n1"),
        ("b1", Some("acme"), "n2"),
        ("o1", Some("other"), "n1"),
        ("any", None, "n1"),
    ] {
        let body = json!({"tenant": tenant, "home": home});
        server.put(&operator, &format!("/v1/volumes/{id}"), &body).await.expect(201);
    }
    (server, operator)
}

fn place(volumes: &[&str], attachments: &[&str]) -> Value {
    let resources = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128});
    json!({"instances": [
        {"resources": resources, "volumes": volumes, "attachments": attachments}
    ]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_reads_its_volumes_and_operators_move_them() {
    let (server, operator) = with_volumes().await;
    let acme = server.tenant("acme").await;
    let seen = server.get(&acme, "/v1/volumes").await.expect(200);
    assert_eq!(seen.each("id"), ["a1", "a2", "any", "b1"]);
    assert_eq!(seen.each("home"), ["n1", "n1", "n1", "n2"]);
    server.get(&acme, "/v1/volumes/o1").await.problem(404, "not_found");
    let lost = json!({"home": "n9"});
    let reply = server.put(&operator, "/v1/volumes/x", &lost).await.problem(400, "invalid_request");
    assert_eq!(reply.json()["fields"][0]["field"], "home");

    let placed = server.post(&acme, "/v1/placements", &place(&["any"], &[])).await.expect(201);
    let instance = placed.json()["instances"][0]["instance"].clone();
    let used = server.get(&acme, "/v1/volumes/any").await.expect(200).json();
    assert_eq!(used["attached_to"], instance);
    // Who uses what is open to anyone is nobody else's business.
    let other = server.tenant("other").await;
    let used = server.get(&other, "/v1/volumes/any").await.expect(200).json();
    assert!(used.get("attached_to").is_none(), "{used}");
    let moved = json!({"home": "n2"});
    server.put(&operator, "/v1/volumes/any", &moved).await.problem(409, "impossible");
    server.delete(&operator, "/v1/volumes/any").await.problem(409, "impossible");
    let moved = json!({"tenant": "acme", "home": "n2"});
    server.put(&operator, "/v1/volumes/a2", &moved).await.expect(200);
    server.delete(&operator, "/v1/volumes/a2").await.expect(204);
    server.delete(&operator, "/v1/volumes/a2").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attachment_lives_on_one_node() {
    let (server, operator) = with_volumes().await;
    let acme = server.tenant("acme").await;
    let split = json!({"volumes": ["a1", "b1"]});
    let reply = server.put(&acme, "/v1/attachments/s", &split).await;
    let reply = reply.problem(409, "attachment_split");
    for name in ["a1", "b1", "n1", "n2"] {
        assert!(reply.text.contains(name), "{}", reply.text);
    }
    for unknown in ["o1", "nothing"] {
        let body = json!({"volumes": ["a1", unknown]});
        let reply = server.put(&acme, "/v1/attachments/s", &body).await;
        let reply = reply.problem(409, "unknown_volume");
        assert!(reply.text.contains(unknown), "{}", reply.text);
    }
    for wrong in [json!({"volumes": []}), json!({"volumes": ["a1", "a1"]})] {
        server.put(&acme, "/v1/attachments/s", &wrong).await.problem(400, "invalid_request");
    }
    let both = json!({"volumes": ["a1", "a2"]});
    server.put(&acme, "/v1/attachments/a%2Fb", &both).await.problem(400, "invalid_request");
    assert!(server.get(&acme, "/v1/attachments").await.expect(200).each("id").is_empty());

    let made = server.put(&acme, "/v1/attachments/s", &both).await.expect(201).json();
    assert_eq!((&made["tenant"], &made["home"]), (&json!("acme"), &json!("n1")));
    server.put(&acme, "/v1/attachments/s", &both).await.expect(200);
    // It is its tenant's alone, and an operator says whose it means.
    let other = server.tenant("other").await;
    server.get(&other, "/v1/attachments/s").await.problem(404, "not_found");
    server.get(&other, "/v1/attachments/s?tenant=acme").await.problem(404, "not_found");
    server.delete(&other, "/v1/attachments/s?tenant=acme").await.problem(404, "not_found");
    assert!(server.get(&other, "/v1/attachments").await.expect(200).each("id").is_empty());
    server.get(&operator, "/v1/attachments/s").await.problem(400, "invalid_request");
    server.get(&operator, "/v1/attachments/s?tenant=acme").await.expect(200);
    server.delete(&operator, "/v1/attachments/s?tenant=acme").await.expect(204);
    server.delete(&acme, "/v1/attachments/s").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_goes_where_its_attachment_lives() {
    let (server, operator) = with_volumes().await;
    let acme = server.tenant("acme").await;
    let body = json!({"volumes": ["b1"]});
    server.put(&acme, "/v1/attachments/data", &body).await.expect(201);
    let both = json!({"volumes": ["a1", "a2"]});
    server.put(&acme, "/v1/attachments/pair", &both).await.expect(201);

    let placed = server.post(&acme, "/v1/placements", &place(&[], &["data"])).await.expect(201);
    assert_eq!(placed.json()["instances"][0]["node"], "n2");
    // A volume that a set names and the instance too is one volume.
    let placed = server.post(&acme, "/v1/placements", &place(&["a2"], &["pair"])).await.expect(201);
    let instance = placed.json()["instances"][0]["instance"].as_str().unwrap().to_owned();
    assert_eq!(placed.json()["instances"][0]["node"], "n1");

    let nothing = server.post(&acme, "/v1/placements", &place(&[], &["nothing"])).await;
    nothing.problem(409, "unknown_attachment");
    let other = server.tenant("other").await;
    let hidden = server.post(&other, "/v1/placements", &place(&[], &["data"])).await;
    hidden.problem(409, "unknown_attachment");

    // Volumes move when nothing uses them; then the set is no more one.
    let release = format!("/v1/claims/{instance}/release");
    server.post(&operator, &release, &json!({"confirmed": true})).await.expect(200);
    let moved = json!({"tenant": "acme", "home": "n2"});
    server.put(&operator, "/v1/volumes/a2", &moved).await.expect(200);
    let split = server.post(&acme, "/v1/placements", &place(&[], &["pair"])).await;
    split.problem(409, "attachment_split");
    let seen = server.get(&acme, "/v1/attachments/pair").await.expect(200).json();
    assert!(seen.get("home").is_none(), "{seen}");
    let given = json!({"tenant": "other", "home": "n1"});
    server.put(&operator, "/v1/volumes/a2", &given).await.expect(200);
    let gone = server.post(&acme, "/v1/placements", &place(&[], &["pair"])).await;
    gone.problem(409, "unknown_volume");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attachments_of_many_tenants_are_read_in_parts() {
    let (server, operator) = with_volumes().await;
    let body = json!({"volumes": ["any"]});
    // Names that sort around the slash between tenant and name.
    for (tenant, id) in [("a", "x"), ("a", "y"), ("a-b", "x"), ("a/b", "x"), ("b", "x")] {
        let tenant = berth_client::escape(tenant);
        let path = format!("/v1/attachments/{id}?tenant={tenant}");
        server.put(&operator, &path, &body).await.expect(201);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/attachments?limit=2".to_owned();
    loop {
        let page = server.get(&operator, &path).await.expect(200);
        let pairs = page.each("tenant").into_iter().zip(page.each("id"));
        seen.extend(pairs.map(|(tenant, id)| format!("{} {}", tenant, id).replace('"', "")));
        let Some(next) = page.json()["next"].as_str().map(berth_client::escape) else { break };
        path = format!("/v1/attachments?limit=2&cursor={next}");
    }
    assert_eq!(seen, ["a-b x", "a/b x", "a x", "a y", "b x"]);
    let tenant = server.tenant("a").await;
    let own = server.get(&tenant, "/v1/attachments").await.expect(200);
    assert_eq!(
        (own.each("tenant"), own.each("id")),
        (vec![json!("a"); 2], vec![json!("x"), json!("y")])
    );
    server.get(&tenant, "/v1/attachments/b%2Fx").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_volumes_live_is_hidden_from_tenants_if_the_policy_says_so() {
    let (server, operator) = with_volumes().await;
    let discreet = "name = \"discreet\"\n[scores]\nmemory-pack = 1\n[explain]\n\
                    tenants_see_nodes = false\n";
    server.post(&operator, "/v1/policies", &json!({"toml": discreet})).await.expect(201);
    server.post(&operator, "/v1/policies/discreet/activate", &json!({})).await.expect(200);
    let acme = server.tenant("acme").await;
    let both = json!({"volumes": ["a1", "a2"]});
    let made = server.put(&acme, "/v1/attachments/s", &both).await.expect(201);
    let split = json!({"volumes": ["a1", "b1"]});
    let split = server.put(&acme, "/v1/attachments/t", &split).await;
    let split = split.problem(409, "attachment_split");
    let moved = json!({"tenant": "acme", "home": "n2"});
    server.put(&operator, "/v1/volumes/a2", &moved).await.expect(200);
    let late = server.post(&acme, "/v1/placements", &place(&[], &["s"])).await;
    let late = late.problem(409, "attachment_split");
    let mut replies = vec![made, split, late];
    for path in ["volumes", "volumes/a1", "attachments", "attachments/s", "events"] {
        replies.push(server.get(&acme, &format!("/v1/{path}")).await.expect(200));
    }
    for reply in replies {
        let shown = ["n1", "n2"].into_iter().find(|node| reply.text.contains(node));
        assert!(shown.is_none(), "{}", reply.text);
    }
    let seen = server.get(&operator, "/v1/attachments?tenant=acme").await.expect(200);
    assert_eq!(seen.each("id"), ["s"]);
    server.stop().await;
}
