use berth_api::Role;
use serde_json::{Value, json};

use crate::common::Server;

fn workload(replicas: u32, memory: u32) -> Value {
    let resources = json!({"cpu_milli": 100, "memory_mib": memory, "disk_mib": 128});
    json!({"replicas": replicas, "template": {"resources": resources}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_is_changed_by_whoever_read_it_last() {
    let server = Server::start().await;
    let acme = server.tenant("acme").await;
    let path = "/v1/workloads/acme/web";
    let made = server.put(&acme, path, &workload(2, 256)).await.expect(201);
    assert_eq!(made.etag(), Some("\"1\""));
    let same = server.put(&acme, path, &workload(2, 256)).await.expect(200);
    assert_eq!(same.etag(), Some("\"1\""));
    let body = workload(3, 256);
    let put = |etag: &'static str| {
        let (server, acme, body) = (&server, &acme, &body);
        async move { server.send(Some(acme), "PUT", path, Some(body), &[("if-match", etag)]).await }
    };
    let changed = put("\"1\"").await.expect(200);
    assert_eq!((changed.etag(), &changed.json()["spec"]["replicas"]), (Some("\"2\""), &json!(3)));
    put("\"1\"").await.problem(412, "stale");
    put("1").await.problem(400, "invalid_request");
    let new = "/v1/workloads/acme/new";
    let stale = server.send(Some(&acme), "PUT", new, Some(&body), &[("if-match", "\"1\"")]).await;
    stale.problem(412, "stale");
    server.get(&acme, new).await.problem(404, "not_found");
    server.delete(&acme, path).await.expect(204);
    server.delete(&acme, path).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_that_could_never_run_is_refused() {
    let server = Server::start().await;
    let acme = server.tenant("acme").await;
    let path = "/v1/workloads/acme/web";
    let with = |field: &str, value: Value| {
        let mut body = workload(1, 256);
        body["template"][field] = value;
        body
    };
    for (body, named) in [
        (workload(100_001, 256), "replicas"),
        (workload(1, 0), "memory_mib"),
        (with("count", json!(2)), "template.count"),
        (with("id", json!("0190b7a0-0000-7000-8000-000000000000")), "template.id"),
        (with("workload", json!("other")), "template.workload"),
        (with("networks", json!([[]])), "networks"),
        (with("colour", json!("red")), "colour"),
    ] {
        let reply = server.put(&acme, path, &body).await.problem(400, "invalid_request");
        assert!(reply.text.contains(named), "{named}: {}", reply.text);
    }
    server.get(&acme, path).await.problem(404, "not_found");
    server.put(&acme, path, &with("workload", json!("web"))).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_counts_the_instances_that_name_it() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let (acme, other) = (server.tenant("acme").await, server.tenant("other").await);
    server.add_node("n1").await;
    for (token, tenant, name) in
        [(&acme, "acme", "db"), (&acme, "acme", "web"), (&other, "other", "web")]
    {
        let path = format!("/v1/workloads/{tenant}/{name}");
        // Who makes the members itself says nothing of how many there should be.
        let mut body = workload(0, 256);
        body.as_object_mut().unwrap().remove("replicas");
        server.put(token, &path, &body).await.expect(201);
    }
    let resources = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128});
    let request = json!({"instances": [{"resources": resources, "workload": "web", "count": 2}]});
    let placed = server.post(&acme, "/v1/placements", &request).await.expect(201).json();
    let first = &placed["instances"][0];
    let claim = format!("/v1/claims/{}", first["instance"].as_str().unwrap());
    for step in ["bind", "activate"] {
        let fence = json!({"fence": first["fence"]});
        server.post(&operator, &format!("{claim}/{step}"), &fence).await.expect(200);
    }
    let seen = server.get(&acme, "/v1/workloads/acme/web").await.expect(200).json();
    let status = &seen["status"];
    assert_eq!((&status["active"], &status["placed"]), (&json!(1), &json!(2)));
    let placed = |reply: &crate::common::Reply| -> Vec<Value> {
        reply.each("status").iter().map(|status| status["placed"].clone()).collect()
    };
    let own = server.get(&acme, "/v1/workloads").await.expect(200);
    assert_eq!(
        (own.each("name"), placed(&own)),
        (vec!["db".into(), "web".into()], vec![0.into(), 2.into()])
    );
    let first = server.get(&operator, "/v1/workloads?limit=2").await.expect(200);
    assert_eq!(first.each("tenant"), ["acme", "acme"]);
    let next = berth_client::escape(first.json()["next"].as_str().unwrap());
    let rest = server.get(&operator, &format!("/v1/workloads?cursor={next}")).await.expect(200);
    assert_eq!((rest.each("tenant"), placed(&rest)), (vec!["other".into()], vec![0.into()]));
    let of_acme = server.get(&operator, "/v1/workloads?tenant=acme").await.expect(200);
    assert_eq!(of_acme.each("name"), ["db", "web"]);
    for (method, path) in
        [("GET", "other/web"), ("PUT", "other/web"), ("DELETE", "other/web"), ("PUT", "other/new")]
    {
        let (path, body) = (format!("/v1/workloads/{path}"), workload(9, 1));
        let body = (method == "PUT").then_some(&body);
        server.send(Some(&acme), method, &path, body, &[]).await.problem(404, "not_found");
    }
    server.get(&operator, "/v1/workloads?cursor=x").await.problem(400, "invalid_request");
    server.stop().await;
}
