//! Explanations over HTTP: of every node of a refusal, of decisions of the past, of limits.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use berth_engine::Policy;
use berth_ledger::{Op, Retention};
use common::{Server, TENANT};
use serde_json::{Value, json};

fn request(memory_mib: u32, count: u32) -> Value {
    let resources = json!({ "cpu_milli": 500, "memory_mib": memory_mib, "disk_mib": 1024 });
    json!({ "tenant": TENANT, "instances": [{ "resources": resources, "count": count }] })
}

/// Three nodes, the first of them cordoned.
async fn three_nodes(server: &Server, operator: &str) {
    for node in ["n1", "n2", "n3"] {
        server.add_node(node).await;
    }
    server.post(operator, "/v1/nodes/n1/cordon", &json!({})).await.expect(200);
    server.control.wait_for_read_your_writes().await;
}

async fn hide_nodes_from_tenants(server: &Server) {
    let policy = Policy::from_toml("name = 'shy'\n[explain]\ntenants_see_nodes = false\n").unwrap();
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let op = Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None };
    server.control.submit(op).await.unwrap();
    server.control.wait_for_read_your_writes().await;
}

/// The rules that a node fails, in order.
fn rules(verdict: &Value) -> Vec<String> {
    let others = verdict["others"].as_array().unwrap();
    let others = others.iter().map(|other| other[0].as_str().unwrap().to_owned());
    std::iter::once(verdict["filter"].as_str().unwrap().to_owned()).chain(others).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_refusal_has_every_node_with_every_rule_that_it_fails() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    let mut wanted = request(999_999, 1);
    let plain = server.post(&operator, "/v1/placements", &wanted).await;
    let plain = plain.problem(409, "no_capacity_memory").json();
    assert_eq!(plain.get("explanation"), None, "only when it is asked for");

    wanted["explain"] = json!("full");
    wanted["instances"][0]["networks"] = json!([["storage"]]);
    let refused = server.post(&operator, "/v1/placements", &wanted).await;
    let refused = refused.problem(409, "network_no_node").json();
    let explanation = &refused["explanation"];
    assert_eq!(explanation["instance"], refused["refusals"][0]["instance"]);
    assert_eq!((&explanation["nodes"], &explanation["eligible"]), (&json!(3), &json!(0)));
    let items = explanation["items"].as_array().unwrap();
    assert_eq!(rules(&items[0]), ["node-active", "networks", "memory"]);
    assert_eq!(rules(&items[1]), ["networks", "memory"]);
    assert_eq!(
        explanation["counts"],
        json!([
            { "filter": "node-active", "removed": 1 },
            { "filter": "networks", "removed": 2 },
        ])
    );

    // Page by page comes the same, and a request that fits is explained by its terms.
    let (mut cursor, mut paged) = ("0".to_owned(), Vec::new());
    loop {
        let path = format!("/v1/placements/explain?limit=2&cursor={cursor}");
        let page = server.post(&operator, &path, &wanted).await.expect(200).json();
        paged.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        next.clone_into(&mut cursor);
    }
    assert_eq!(&paged, items);
    let fits = server.post(&operator, "/v1/placements/explain", &request(512, 1)).await.expect(200);
    let fits = fits.json();
    assert_eq!(fits["winner"]["node"], "n2");
    assert_eq!(fits["items"][2]["kind"], "scored");
    for query in ["limit=1001", "cursor=n1", "instance=00000000-0000-0000-0000-000000000001"] {
        let path = format!("/v1/placements/explain?{query}");
        server.post(&operator, &path, &request(512, 1)).await.problem(400, "invalid_request");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_pages_name_no_node_that_the_policy_hides() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    hide_nodes_from_tenants(&server).await;
    let tenant = server.token(Role::Tenant).await;
    let mut wanted = request(999_999, 1);
    wanted["explain"] = json!("full");
    let refused = server.post(&tenant, "/v1/placements", &wanted).await.expect(409);
    assert_eq!(refused.json()["explanation"]["items"][2]["node"], "#3");
    let path = "/v1/placements/explain?limit=2";
    let page = server.post(&tenant, path, &request(512, 1)).await.expect(200);
    assert_eq!(page.json()["winner"]["node"], "#2");
    assert_eq!(page.json()["next"], "2");
    let placed = server.post(&tenant, "/v1/placements", &request(512, 1)).await.expect(201).json();
    let instance = placed["instances"][0]["instance"].as_str().unwrap().to_owned();
    let path = format!("/v1/instances/{instance}/explain?limit=10");
    let why = server.get(&tenant, &path).await.expect(200);
    assert_eq!(why.json()["explanation"]["explanation"]["winner"]["node"], "#2");
    for reply in [&refused, &page, &why] {
        for name in ["\"n1\"", "\"n2\"", "\"n3\"", " n2"] {
            assert!(!reply.text.contains(name), "{name} in {}", reply.text);
        }
    }
    let other = server.tenant("other").await;
    server.get(&other, &path).await.problem(404, "not_found");
    let decision = placed["decision"].as_str().unwrap();
    let path = format!("/v1/decisions/{decision}/explain");
    server.get(&tenant, &path).await.expect(200);
    server.get(&other, &path).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_success_begins_with_the_first_nodes_and_is_read_on_page_by_page() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for number in 0..103 {
        server.add_node(&format!("n{number:03}")).await;
    }
    server.control.wait_for_read_your_writes().await;
    let node_of = |verdict: &Value| verdict["node"].as_str().unwrap().to_owned();
    for (level, listed, next) in [("summary", 0, json!(null)), ("full", 100, json!("100"))] {
        for dry_run in [true, false] {
            let mut wanted = request(512, 1);
            (wanted["explain"], wanted["dry_run"]) = (json!(level), json!(dry_run));
            let placed = server.post(&operator, "/v1/placements", &wanted).await;
            let placed = placed.expect(if dry_run { 200 } else { 201 }).json();
            let explanation = &placed["explanation"];
            assert_eq!((&explanation["nodes"], &explanation["next"]), (&json!(103), &next));
            assert!(explanation["winner"].is_object() && explanation["runner_up"].is_object());
            let mut nodes: Vec<String> =
                explanation["table"].as_array().unwrap().iter().map(node_of).collect();
            assert_eq!(nodes.len(), listed);
            let Some(cursor) = next.as_str() else { continue };
            let page = if dry_run {
                let path = format!("/v1/placements/explain?limit=2&cursor={cursor}");
                server.post(&operator, &path, &wanted).await.expect(200).json()
            } else {
                let decision = placed["decision"].as_str().unwrap();
                let path = format!("/v1/decisions/{decision}/explain?limit=2&cursor={cursor}");
                server.get(&operator, &path).await.expect(200).json()["explanation"].clone()
            };
            assert_eq!(page["winner"]["node"], explanation["winner"]["node"]);
            assert_eq!(page["next"], "102");
            nodes.extend(page["items"].as_array().unwrap().iter().map(node_of));
            let expected: Vec<String> = (0..102).map(|number| format!("n{number:03}")).collect();
            assert_eq!(nodes, expected);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_past_success_is_explained_on_the_fleet_that_it_was_decided_on() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    server.post(&operator, "/v1/placements", &request(8192, 1)).await.expect(201);
    let placed = server.post(&operator, "/v1/placements", &request(4096, 4)).await.expect(201);
    let placed = placed.json();
    let decision = placed["decision"].as_str().unwrap();
    // The fleet changes: the nodes that won and lost are full or gone from service.
    server.post(&operator, "/v1/placements", &request(30_000, 2)).await.expect(201);
    server.post(&operator, "/v1/nodes/n2/cordon", &json!({})).await.expect(200);
    hide_nodes_from_tenants(&server).await;

    let path = format!("/v1/decisions/{decision}");
    let record = server.get(&operator, &path).await.expect(200).json();
    for at in record["placed"].as_array().unwrap() {
        let instance = at["instance"].as_str().unwrap();
        let path = format!("/v1/decisions/{decision}/explain?instance={instance}&limit=10");
        let explained = server.get(&operator, &path).await.expect(200).json();
        assert_eq!(explained["outcome"], "identical", "{explained}");
        let explanation = &explained["explanation"];
        assert_eq!(explanation["instance"], at["instance"]);
        assert_eq!(explanation["winner"]["node"], at["node"], "{explained}");
        assert_eq!(explanation["winner"]["total"], at["score"], "{explained}");
        let terms = explanation["winner"]["terms"].as_array().unwrap();
        let sum: i64 = terms.iter().map(|term| term["points"].as_i64().unwrap()).sum();
        assert_eq!(json!(sum), at["score"]);
        assert_eq!(explanation["policy"], "balanced");
        assert_ne!(explanation["runner_up"]["node"], at["node"]);
        assert_eq!(explanation["counts"], json!([{ "filter": "node-active", "removed": 1 }]));
        assert!(explanation["filters"].as_array().unwrap().contains(&json!("memory")));
        assert_eq!(explanation["items"].as_array().unwrap().len(), 3);
    }

    let instance = placed["instances"][0]["instance"].as_str().unwrap();
    let why = server.get(&operator, &format!("/v1/instances/{instance}/explain")).await;
    let why = why.expect(200).json();
    assert_eq!(why["decision"]["id"], placed["decision"]);
    assert_eq!(why["explanation"]["outcome"], "identical");
    let node = placed["instances"][0]["node"].as_str().unwrap();
    assert_eq!(why["note"], format!("it was placed on {node}"));

    // What the log no longer tells is not made up.
    let few = Retention { events: 3, answers_s: -60, ..Retention::default() };
    server.control.read(move |ledger| ledger.forget(&few)).await.unwrap();
    let explained = server.get(&operator, &format!("/v1/decisions/{decision}/explain")).await;
    let explained = explained.expect(200).json();
    assert_eq!(explained["outcome"], "out_of_reach");
    assert_eq!(explained.get("explanation"), None);
    let note = explained["note"].as_str().unwrap();
    assert!(note.contains("retention.events") && note.contains("not the terms"), "{note}");
    let why = server.get(&operator, &format!("/v1/instances/{instance}/explain")).await;
    let why = why.expect(200).json();
    assert_eq!(why["decision"]["placed"], record["placed"], "{why}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_explained_after_the_answer_to_its_request_is_no_longer_kept() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    let mut placed = Vec::new();
    for memory in [1024, 2048] {
        let one = server.post(&operator, "/v1/placements", &request(memory, 1)).await;
        placed.push(one.expect(201).json());
    }
    let first = &placed[0]["instances"][0];
    let [instance, node] = ["instance", "node"].map(|field| first[field].as_str().unwrap());
    let other = if node == "n2" { "n3" } else { "n2" };
    // It moves, and the answers to both requests are forgotten.
    server.post(&operator, &format!("/v1/nodes/{node}/drain"), &json!({})).await.expect(200);
    let path = format!("/v1/instances/{instance}");
    common::wait_until("it has moved", async || {
        server.get(&operator, &path).await.expect(200).json()["node"] == other
    })
    .await;
    let answers = Retention { answers_s: -60, ..Retention::default() };
    server.control.read(move |ledger| ledger.forget(&answers)).await.unwrap();
    let why = server.get(&operator, &format!("{path}/explain")).await.expect(200).json();
    assert_eq!(why["decision"]["id"], placed[0]["decision"]);
    assert_eq!(why["explanation"]["explanation"]["winner"]["node"], node, "{why}");
    assert_eq!(why["note"], format!("it was placed on {node} and has been moved to {other} since"));
    let on_node = server.get(&operator, &format!("/v1/nodes/{other}/explain")).await.expect(200);
    let guests = on_node.json();
    let guests = guests["guests"].as_array().unwrap();
    assert!(guests.iter().any(|guest| guest["decision"] == placed[0]["decision"]), "{guests:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_past_refusal_is_explained_node_by_node() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    server.post(&operator, "/v1/placements", &request(999_999, 1)).await.expect(409);
    let refused = server.get(&operator, "/v1/decisions?outcome=refused").await.expect(200);
    let id = refused.each("id")[0].as_str().unwrap().to_owned();
    server.post(&operator, "/v1/nodes/n3/cordon", &json!({})).await.expect(200);
    let explained = server.get(&operator, &format!("/v1/decisions/{id}/explain?limit=10")).await;
    let explained = explained.expect(200).json();
    assert_eq!(explained["outcome"], "identical", "{explained}");
    let items = explained["explanation"]["items"].as_array().unwrap();
    assert_eq!(rules(&items[0]), ["node-active", "memory"]);
    assert_eq!(rules(&items[2]), ["memory"], "n3 was in service then");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistyped_names_are_hinted_at_and_a_tenant_gets_no_list() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let tenant = server.token(Role::Tenant).await;
    three_nodes(&server, &operator).await;
    let facts = json!({ "traits": { "fast-disk": true }, "labels": { "tier": "gold" },
        "zone": "north", "rack": "r1" });
    server.send(Some(&operator), "PATCH", "/v1/nodes/n1", Some(&facts), &[]).await.expect(200);
    server.control.wait_for_read_your_writes().await;
    let mut wanted = request(512, 1);
    wanted["instances"][0]["traits"] = json!({ "fsat-disk": true });
    wanted["instances"][0]["where"] = json!("zone = east and rack = r2 and label:tier = gild");
    let refused = async |token: &str| {
        server.post(token, "/v1/placements", &wanted).await.expect(409).json()["hints"].clone()
    };
    let trait_name = "no node has the trait fsat-disk; did you mean fast-disk?";
    let label = "no node has the label tier=gild; did you mean gold?";
    let zone = "no node is in a zone east";
    assert_eq!(refused(&tenant).await, json!([trait_name, label, zone]));
    let rack = "no node is in a rack r2; did you mean r1?";
    let zones = format!("{zone}; there are: north");
    assert_eq!(refused(&operator).await, json!([trait_name, label, zones, rack]));

    // What is true a moment later is said: names follow the nodes, or there is no hint.
    let facts = json!({ "traits": { "fsat-disk": true } });
    server.send(Some(&operator), "PATCH", "/v1/nodes/n1", Some(&facts), &[]).await.expect(200);
    server.control.wait_for_read_your_writes().await;
    assert!(!refused(&tenant).await.to_string().contains("fsat-disk"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_asks_for_in_vain_is_noted_with_its_answer() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    let policy = Policy::from_toml("name = 'plain'\n[scores]\nmemory-pack = 1\n").unwrap();
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let op = Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None };
    server.control.submit(op).await.unwrap();
    server.control.wait_for_read_your_writes().await;

    let mut wanted = request(512, 1);
    wanted["instances"][0]["prefer"] = json!(["zone = z1"]);
    let size = |cpu: u32, memory: u32| json!({ "cpu_milli": cpu, "memory_mib": memory });
    let mut elastic = request(512, 1);
    elastic["instances"][0]["elastic"] =
        json!({ "min": size(500, 512), "max": size(1_000_000, 512) });
    let ignored = json!({ "kind": "preference_ignored", "policy": "plain" });
    for dry_run in [true, false] {
        let status = if dry_run { 200 } else { 201 };
        for (wanted, kind) in [(&wanted, "preference_ignored"), (&elastic, "growth_limited")] {
            let mut wanted = wanted.clone();
            wanted["dry_run"] = json!(dry_run);
            let placed = server.post(&operator, "/v1/placements", &wanted).await.expect(status);
            let notices = placed.json()["notices"].clone();
            assert_eq!(notices[0]["kind"], kind, "{notices}");
            assert_eq!(notices.as_array().unwrap().len(), 1);
        }
    }
    // A refusal says it too, and a request without such a wish says nothing.
    wanted["instances"][0]["resources"]["memory_mib"] = json!(999_999);
    let refused = server.post(&operator, "/v1/placements", &wanted).await.expect(409).json();
    assert_eq!(refused["refusals"][0]["notices"], json!([ignored]));
    let plain = server.post(&operator, "/v1/placements", &request(512, 1)).await.expect(201);
    assert_eq!(plain.json().get("notices").map_or(0, |it| it.as_array().unwrap().len()), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_a_batch_exceeds_is_told_for_the_whole_batch() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    server.post(&operator, "/v1/placements", &request(1024, 2)).await.expect(201);
    let path = format!("/v1/quotas/{TENANT}");
    for (quota, said) in [
        (
            json!({ "instances": 5 }),
            "tenant acme asks for 4 instances and uses 2 of its quota of 5",
        ),
        (
            json!({ "memory_mib": 5120 }),
            "tenant acme asks for 4 GiB memory and uses 2 GiB of its quota of 5 GiB",
        ),
        (
            json!({ "cpu_milli": 2500 }),
            "tenant acme asks for 2 CPU and uses 1 CPU of its quota of 2.5 CPU",
        ),
    ] {
        server.put(&operator, &path, &quota).await;
        let refused = server.post(&operator, "/v1/placements", &request(1024, 4)).await;
        let refused = refused.problem(409, "quota_exceeded").json();
        assert_eq!(refused["detail"], said);
        let decisions = server.get(&operator, "/v1/decisions?code=quota_exceeded").await;
        assert_eq!(decisions.expect(200).each("reason")[0], said);
    }
    let id = server.get(&operator, "/v1/decisions?code=quota_exceeded").await.each("id")[0].clone();
    let replay = format!("/v1/decisions/{}/replay", id.as_str().unwrap());
    let replay = server.get(&operator, &replay).await.expect(200).json();
    assert_eq!(replay["outcome"], "out_of_reach", "{replay}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_pools_have_codes_of_their_own() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    three_nodes(&server, &operator).await;
    let mut wanted = request(1024, 3);
    wanted["pools"] = json!(["ports"]);
    let refused = server.post(&operator, "/v1/placements", &wanted).await;
    let refused = refused.problem(409, "unknown_pool").json();
    assert_eq!(refused["detail"], "there is no pool ports");
    let pool = json!({ "range": "1-2" });
    let stored = server.put(&operator, "/v1/pools/ports", &pool).await;
    assert!(stored.status.is_success(), "{stored:?}");
    let refused = server.post(&operator, "/v1/placements", &wanted).await;
    let refused = refused.problem(409, "pool_exhausted").json();
    let few = "pool ports has no free value for every instance: 2 of 2 are free";
    assert_eq!(refused["detail"], few);
    wanted["instances"][0]["count"] = json!(2);
    server.post(&operator, "/v1/placements", &wanted).await.expect(201);
    let refused = server.post(&operator, "/v1/placements", &wanted).await;
    let refused = refused.problem(409, "pool_exhausted").json();
    let none = "pool ports has no free value: 2 of 2 are in use or just released";
    assert_eq!(refused["detail"], none);
    server.stop().await;
}
