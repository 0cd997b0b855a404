//! Requests that once stopped a server, or had everybody wait, are refused by their length alone.

use berth_api::Role;
use serde_json::{Value, json};

use crate::common::{Reply, Server};

fn place(instance: &Value) -> Value {
    let mut instance = instance.clone();
    instance["resources"] = json!({"memory_mib": 64});
    json!({"tenant": "acme", "dry_run": true, "instances": [instance]})
}

/// The field that a request was refused for, what was found and what is accepted.
#[track_caller]
fn refused(reply: Reply) -> (String, String, String) {
    let problem = reply.problem(400, "invalid_request").json();
    let text = |name: &str| problem["fields"][0][name].as_str().unwrap_or_default().to_owned();
    let found = (text("field"), text("value"), text("accepted"));
    assert!(problem["detail"].as_str().unwrap().contains(&found.0), "{problem}");
    found
}

#[track_caller]
fn assert_refused(reply: Reply, field: &str, value: &str, accepted: &str) {
    let expected = (field.to_owned(), value.to_owned(), accepted.to_owned());
    assert_eq!(refused(reply), expected);
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("g{number}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_texts_that_are_too_long_are_refused_by_name() {
    let server = Server::start().await;
    let tenant = server.tenant("acme").await;
    server.add_node("n1").await;
    let networks: Vec<Value> = (0..12_000).map(|number| json!([format!("n{number}")])).collect();
    let request = place(&json!({"networks": networks}));
    let reply = server.post(&tenant, "/v1/placements", &request).await;
    assert_refused(reply, "instances[0].networks", "12000 items", "at most 32 items");

    let request = place(&json!({"groups": names(60_000)}));
    let reply = server.post(&tenant, "/v1/placements", &request).await;
    assert_refused(reply, "instances[0].groups", "60000 items", "at most 32 items");

    let request = place(&json!({"count": 200, "tags": {"x": "y".repeat(1_900_000)}}));
    let reply = server.post(&tenant, "/v1/placements", &request).await;
    let (field, found) = ("instances[0].tags[\"x\"]", "1900000 characters");
    assert_refused(reply, field, found, "at most 256 characters");

    // The server is well.
    server.post(&tenant, "/v1/placements", &place(&json!({}))).await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_instances_take_up_together_is_limited() {
    let server = Server::start().await;
    let tenant = server.tenant("acme").await;
    server.add_node("n1").await;
    let tags = |count: usize| -> Value {
        let tags = (0..count).map(|number| (format!("t{number}"), json!("y".repeat(240))));
        Value::Object(tags.collect())
    };
    let request = place(&json!({"tags": tags(64)}));
    let (field, found, accepted) = refused(server.post(&tenant, "/v1/placements", &request).await);
    assert_eq!((field.as_str(), accepted.as_str()), ("instances[0]", "at most 16384 bytes"));
    assert!(found.contains("bytes"), "{found}");
    // Each is within its limit; a thousand of them are not.
    let request = place(&json!({"tags": tags(40)}));
    server.post(&tenant, "/v1/placements", &request).await.expect(200);
    let request = place(&json!({"tags": tags(40), "count": 1000}));
    let (field, _, accepted) = refused(server.post(&tenant, "/v1/placements", &request).await);
    assert_eq!((field.as_str(), accepted.as_str()), ("instances", "at most 4194304 bytes"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regular_expressions_are_counted_before_they_are_compiled() {
    let server = Server::start().await;
    let tenant = server.tenant("acme").await;
    server.add_node("n1").await;
    let rules = |count: usize, start: usize| -> Vec<String> {
        (start..start + count).map(|number| format!("role!=/x{{50}}{number}/")).collect()
    };
    let request = place(&json!({"affinity": rules(17, 0)}));
    let (field, _, accepted) = refused(server.post(&tenant, "/v1/placements", &request).await);
    assert_eq!(field, "instances[0].affinity");
    assert!(accepted.contains("at most 16 regular expressions"), "{accepted}");
    let plain: Vec<String> = names(65).iter().map(|name| format!("role!={name}")).collect();
    let request = place(&json!({"affinity": plain}));
    let (field, _, accepted) = refused(server.post(&tenant, "/v1/placements", &request).await);
    assert_eq!(field, "instances[0].affinity");
    assert!(accepted.contains("at most 64 items"), "{accepted}");
    let instances: Vec<Value> = (0..33)
        .map(|spec| json!({"resources": {"memory_mib": 1}, "affinity": rules(16, spec * 16)}))
        .collect();
    let request = json!({"tenant": "acme", "dry_run": true, "instances": instances});
    let (field, _, accepted) = refused(server.post(&tenant, "/v1/placements", &request).await);
    assert_eq!(field, "instances");
    assert!(accepted.contains("at most 512 regular expressions"), "{accepted}");
    let instances = vec![json!({"resources": {"memory_mib": 1}}); 1001];
    let request = json!({"tenant": "acme", "dry_run": true, "instances": instances});
    let (field, _, accepted) = refused(server.post(&tenant, "/v1/placements", &request).await);
    assert_eq!(field, "instances");
    assert!(accepted.contains("at most 1000 items"), "{accepted}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_beyond_a_limit_is_never_stored() {
    let server = Server::start().await;
    let tenant = server.tenant("acme").await;
    let networks: Vec<Value> = (0..20_000).map(|number| json!([format!("n{number}")])).collect();
    let template = json!({"resources": {"memory_mib": 64}, "networks": networks});
    let workload = json!({"replicas": 1, "template": template});
    for (method, path) in
        [("PUT", "/v1/workloads/acme/web"), ("POST", "/v1/workloads/acme/web/check")]
    {
        let reply = server.send(Some(&tenant), method, path, Some(&workload), &[]).await;
        assert_refused(reply, "template.networks", "20000 items", "at most 32 items");
    }
    server.get(&tenant, "/v1/workloads/acme/web").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_of_nodes_are_limited_in_every_way_in() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let labels: serde_json::Map<String, Value> =
        (0..129).map(|number| (format!("l{number}"), json!("x"))).collect();
    let facts = json!({"id": "n1", "labels": labels});
    let reply = server.put(&operator, "/v1/nodes/n1", &facts).await;
    assert_refused(reply, "labels", "129 items", "at most 128 items");
    let patch = json!({"labels": labels});
    let reply = server.send(Some(&operator), "PATCH", "/v1/nodes/n1", Some(&patch), &[]).await;
    assert_refused(reply, "labels", "129 items", "at most 128 items");
    let patch = json!({"zone": "a\u{1b}[2Jb"});
    let reply = server.send(Some(&operator), "PATCH", "/v1/nodes/n1", Some(&patch), &[]).await;
    let (found, accepted) = ("the control character U+001B", "text without control characters");
    assert_refused(reply, "zone", found, accepted);
    let reply = server.post(&operator, "/v1/nodes/import", &json!([facts])).await.expect(422);
    let error = reply.json()["errors"][0]["error"].as_str().unwrap().to_owned();
    assert_eq!(error, "labels has 129 items; accepted is at most 128 items");
    let agent = server.agent("n1").await;
    let beat = json!({"facts": facts});
    let reply = server.post(&agent, "/v1/nodes/n1/heartbeat", &beat).await;
    assert_refused(reply, "facts.labels", "129 items", "at most 128 items");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_nesting_is_refused_and_overflows_nothing() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let deep =
        |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    for body in [deep("[", "]"), deep("{\"a\":", "}"), format!("{{\"labels\":{}}}", deep("[", "]"))]
    {
        for (method, path) in [("POST", "/v1/placements"), ("PATCH", "/v1/nodes/n1")] {
            let reply = server.send_text(&operator, method, path, &body).await;
            reply.problem(400, "invalid_request");
        }
        server
            .send_text(&operator, "POST", "/v1/nodes/import", &body)
            .await
            .problem(400, "invalid_request");
    }
    // Selectors, in a query; affinity rules; policies.
    for selector in ["(".repeat(2000), "not ".repeat(1000)] {
        let path = format!("/v1/nodes?where={}", selector.replace(' ', "%20").replace('(', "%28"));
        server.get(&operator, &path).await.problem(400, "invalid_request");
    }
    let rule = format!("role==/{}a{}/", "(".repeat(500), ")".repeat(500));
    let request = place(&json!({"affinity": [rule]}));
    server.post(&operator, "/v1/placements", &request).await.problem(400, "invalid_request");
    let policy = json!({"toml": format!("name = {}", "[".repeat(60_000))});
    server.post(&operator, "/v1/policies/validate", &policy).await.problem(400, "invalid_request");
    server.get(&operator, "/v1/nodes/n1").await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_in_paths_and_values_in_queries_are_limited() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let path = format!("/v1/volumes/{}", "x".repeat(201));
    let reply = server.get(&operator, &path).await;
    assert_refused(reply, "id", "201 characters", "at most 200 characters");
    let reply = server.get(&operator, "/v1/volumes/a%1b%5b2J").await;
    let (found, accepted) = ("the control character U+001B", "text without control characters");
    assert_refused(reply, "id", found, accepted);
    for (path, field, most) in
        [("/v1/workloads?tenant=", "tenant", 512), ("/v1/nodes?where=", "where", 4096)]
    {
        let reply = server.get(&operator, &format!("{path}{}", "x".repeat(most + 1))).await;
        let (found, accepted) = (most + 1, most);
        let found = format!("{found} characters");
        assert_refused(reply, field, &found, &format!("at most {accepted} characters"));
    }
    server.get(&operator, "/v1/volumes/gr%C3%B6%C3%9Fe").await.problem(404, "not_found");
    server.stop().await;
}
