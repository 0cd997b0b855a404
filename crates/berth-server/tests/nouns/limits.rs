//! Pools, quotas and secrets.

use berth_api::Role;
use serde_json::{Value, json};

use crate::common::Server;

fn place() -> Value {
    let resources = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128});
    json!({"tenant": "acme", "instances": [{"resources": resources}], "pools": ["ips"]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_gives_out_values_and_stays_while_one_is_held() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let bad = json!({"range": "10.0.0.0/40"});
    let reply = server.put(&operator, "/v1/pools/ips", &bad).await.problem(400, "invalid_request");
    assert!(reply.text.contains("10.0.0.0/40"), "{}", reply.text);
    let range = json!({"range": "10.0.0.0/29", "quarantine_s": 5});
    let made = server.put(&operator, "/v1/pools/ips", &range).await.expect(201).json();
    assert_eq!((&made["kind"], &made["size"]), (&json!("ipv4"), &json!("6")));
    server.put(&operator, "/v1/pools/ports", &json!({"range": "1000-1999"})).await.expect(201);
    let wide = json!({"range": "fd00::/64"});
    let wide = server.put(&operator, "/v1/pools/six", &wide).await.expect(201).json();
    assert_eq!(
        (&wide["size"], &wide["quarantine_s"]),
        (&json!("18446744073709551615"), &json!(600))
    );

    let placed = server.post(&operator, "/v1/placements", &place()).await.expect(201).json();
    assert_eq!(placed["instances"][0]["values"][0]["pool"], "ips");
    let used = server.get(&operator, "/v1/pools/ips").await.expect(200).json();
    assert_eq!(used["used"], 1);
    server.delete(&operator, "/v1/pools/ips").await.problem(409, "impossible");
    let first = server.get(&operator, "/v1/pools?limit=2").await.expect(200);
    assert_eq!(first.each("id"), ["ips", "ports"]);
    let rest = server.get(&operator, "/v1/pools?cursor=ports").await.expect(200);
    assert_eq!(rest.each("id"), ["six"]);
    server.delete(&operator, "/v1/pools/ports").await.expect(204);
    server.delete(&operator, "/v1/pools/ports").await.problem(404, "not_found");
    server.get(&operator, "/v1/pools/ports").await.problem(404, "not_found");
    server.get(&operator, "/v1/pools?limit=0").await.problem(400, "invalid_request");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_takes_values_only_from_its_own_and_open_pools() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let path = "/v1/pools/ips";
    let own = json!({"range": "10.0.0.0/29", "tenant": "acme"});
    let made = server.put(&operator, path, &own).await.expect(201).json();
    assert_eq!((&made["tenant"], &made["open"]), (&json!("acme"), &json!(false)));
    let (acme, rival) = (server.tenant("acme").await, server.tenant("rival").await);
    let taking = async |token: &str, tenant: &str| {
        let mut request = place();
        request["tenant"] = json!(tenant);
        server.post(token, "/v1/placements", &request).await
    };
    taking(&acme, "acme").await.expect(201);
    // As if it were not there, also for an operator who acts for the tenant.
    for token in [&rival, &operator] {
        let reply = taking(token, "rival").await.problem(409, "unknown_pool");
        assert!(!reply.text.contains("acme"), "{}", reply.text);
    }
    // A new range keeps the owner; only who says so opens a pool.
    let wider = json!({"range": "10.0.0.0/28"});
    let kept = server.put(&operator, path, &wider).await.expect(200).json();
    assert_eq!(kept["tenant"], "acme");
    taking(&rival, "rival").await.problem(409, "unknown_pool");
    let both = json!({"range": "10.0.0.0/28", "tenant": "acme", "open": true});
    server.put(&operator, path, &both).await.problem(400, "invalid_request");
    let open = json!({"range": "10.0.0.0/28", "open": true});
    let opened = server.put(&operator, path, &open).await.expect(200).json();
    assert_eq!((opened.get("tenant"), &opened["open"]), (None, &json!(true)));
    taking(&rival, "rival").await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_limits_and_its_tenant_sees_it() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let negative = json!({"instances": -1});
    let reply = server.put(&operator, "/v1/quotas/acme", &negative).await;
    assert_eq!(reply.problem(400, "invalid_request").json()["fields"][0]["field"], "instances");
    let one = json!({"instances": 1});
    server.put(&operator, "/v1/quotas/acme", &one).await.expect(201);
    server.put(&operator, "/v1/quotas/other", &one).await.expect(201);
    let acme = server.tenant("acme").await;
    let mut request = place();
    request.as_object_mut().unwrap().remove("pools");
    server.post(&acme, "/v1/placements", &request).await.expect(201);
    server.post(&acme, "/v1/placements", &request).await.expect(409);
    let seen = server.get(&acme, "/v1/quotas/acme").await.expect(200).json();
    assert_eq!((&seen["limits"]["instances"], &seen["used"]["instances"]), (&json!(1), &json!(1)));
    assert!(seen["limits"].get("cpu_milli").is_none());
    assert_eq!(server.get(&acme, "/v1/quotas").await.expect(200).each("tenant"), ["acme"]);
    server.get(&acme, "/v1/quotas/other").await.problem(404, "not_found");
    server.put(&operator, "/v1/quotas/acme", &json!({"instances": 2})).await.expect(200);
    server.post(&acme, "/v1/placements", &request).await.expect(201);
    server.delete(&operator, "/v1/quotas/acme").await.expect(204);
    server.delete(&operator, "/v1/quotas/acme").await.problem(404, "not_found");
    server.get(&acme, "/v1/quotas/acme").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_need_secrets_wait_for_them() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let resources = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128});
    let request = json!({"tenant": "acme", "instances": [
        {"resources": resources, "env": "prod", "needs_secrets": true}
    ]});
    server.post(&operator, "/v1/placements", &request).await.expect(409);
    let version = json!({"version": "7"});
    // Whose environment it is must be said.
    let nobodys = server.put(&operator, "/v1/environments/prod/secrets", &version).await;
    assert_eq!(nobodys.problem(400, "invalid_request").json()["fields"][0]["field"], "tenant");
    let path = "/v1/environments/prod/secrets?tenant=acme";
    let stated = server.put(&operator, path, &version).await.expect(200).json();
    assert_eq!(stated, version);
    server.post(&operator, "/v1/placements", &request).await.expect(201);
    // An environment of the same name of another tenant has none.
    let mut others = request.clone();
    others["tenant"] = json!("rival");
    let refused = server.post(&operator, "/v1/placements", &others).await;
    refused.problem(409, "secrets_missing");
    let rivals = "/v1/environments/prod/secrets?tenant=rival";
    server.put(&operator, rivals, &json!({"version": "1"})).await.expect(200);
    let placed = server.post(&operator, "/v1/placements", &others).await.expect(201).json();
    let events = server.get(&operator, "/v1/events?kinds=instance.allocated").await.expect(200);
    let versions: Vec<Value> =
        events.each("body").iter().map(|it| it["secrets_version_id"].clone()).collect();
    assert_eq!(versions, ["7", "1"], "{placed}");
    server.put(&operator, path, &json!({"version": ""})).await.problem(400, "invalid_request");
    server.put(&operator, path, &json!({})).await.expect(200);
    server.post(&operator, "/v1/placements", &request).await.expect(409);
    let audit = server.get(&operator, "/v1/audit?action=secrets.put").await.expect(200);
    assert_eq!(audit.each("subject"), ["prod of acme", "prod of rival", "prod of acme"]);
    server.stop().await;
}
