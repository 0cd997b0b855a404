//! Gates: what must be there before anything is placed, and what is said until it is.

use serde_json::{Value, json};

use crate::common::TENANT;
use crate::world::{World, creation, path};

async fn secrets(world: &World, version: Option<&str>) {
    let path = format!("/v1/environments/prod/secrets?tenant={TENANT}");
    world.put(&path, &json!({ "version": version })).await;
}

/// Workloads and codes of all events of a kind.
async fn told(world: &World, kind: &str) -> Vec<(Value, Value)> {
    let events = world.events(kind).await;
    events.iter().map(|it| (it["body"]["workload"].clone(), it["body"]["code"].clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_secrets_nothing_is_placed_and_it_is_told_once() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    let template = json!({ "env": "prod", "needs_secrets": true });
    world.apply("web", json!({ "replicas": 3, "template": template })).await.expect(201);
    let found = world.degraded("web", "secrets_missing").await;
    assert_eq!(
        (&found["status"]["placed"], &found["status"]["state"]),
        (&json!(0), &json!("degraded"))
    );
    assert_eq!(found["status"]["reason"]["members"], 3);
    let env = world.env("prod").await;
    assert_eq!(env["state"], "degraded");
    assert_eq!(env["workloads"][0]["reason"]["code"], "secrets_missing");
    assert!(env.get("secrets_version").is_none(), "{env}");
    // A further workload of the environment is told of on its own, one without secrets runs.
    let template = json!({ "env": "prod" });
    world.apply("plain", json!({ "replicas": 1, "template": template })).await.expect(201);
    world.ready("plain").await;
    secrets(&world, Some("7")).await;
    let found = world.ready("web").await;
    assert!(found["status"].get("reason").is_none(), "{found}");
    let env = world.env("prod").await;
    assert_eq!((&env["state"], &env["secrets_version"]), (&json!("ready"), &json!("7")));
    let once = [(json!("web"), json!("secrets_missing"))];
    assert_eq!(told(&world, "env.scheduling_failed").await, once);
    assert_eq!(told(&world, "env.scheduling_recovered").await, once);
    let failed = world.events("env.scheduling_failed").await;
    assert_eq!(
        (&failed[0]["body"]["tenant"], &failed[0]["body"]["env"]),
        (&json!("acme"), &json!("prod"))
    );

    // Secrets that go disturb nobody who runs; who comes later waits.
    secrets(&world, None).await;
    world.scale("web", 4).await.expect(200);
    let found = world.degraded("web", "secrets_missing").await;
    assert_eq!(
        (&found["status"]["active"], &found["status"]["reason"]["members"]),
        (&json!(3), &json!(1))
    );
    // What is no longer wanted is no longer missed.
    world.scale("web", 3).await.expect(200);
    world.ready("web").await;
    assert_eq!(told(&world, "env.scheduling_failed").await.len(), 2);
    assert_eq!(told(&world, "env.scheduling_recovered").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_use_is_waited_for() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.put("/v1/volumes/data", &json!({ "tenant": "acme", "home": "o1" })).await;
    let alone = creation("nobody", &json!({ "workload": null, "volumes": ["data"] }));
    let placed = world.post("/v1/placements", &alone).await.expect(201).json();
    let fields = json!({ "replicas": 1, "template": { "volumes": ["data"] } });
    world.apply("db", fields).await.expect(201);
    let found = world.degraded("db", "volume_in_use").await;
    assert_eq!(found["status"]["placed"], 0);
    world.lose(&placed["instances"][0]["instance"]).await;
    world.ready("db").await;
    assert_eq!(world.holder("db", 0).await["node"], "o1");
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_on_different_homes_are_refused_when_stored() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    for (id, home) in [("a", "o1"), ("b", "o2")] {
        world.put(&format!("/v1/volumes/{id}"), &json!({ "tenant": "acme", "home": home })).await;
    }
    let fields = json!({ "replicas": 1, "template": { "volumes": ["a", "b"] } });
    let reply = world.apply("db", fields).await.problem(409, "volume_homes_differ");
    assert!(reply.text.contains('a') && reply.text.contains('b'), "{}", reply.text);
    world.servers[0].get(&world.token, &path("db")).await.problem(404, "not_found");
    world.put("/v1/attachments/set?tenant=acme", &json!({ "volumes": ["a"] })).await;
    let mixed = json!({ "replicas": 1, "template": { "volumes": ["b"], "attachments": ["set"] } });
    world.apply("db", mixed).await.problem(409, "volume_homes_differ");
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_groups_and_pools_that_are_not_there_are_named_and_waited_for() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    let set = json!({ "replicas": 1, "template": { "attachments": ["nothing"] } });
    world.apply("set", set).await.problem(409, "unknown_attachment");
    for (name, fields, code) in [
        ("db", json!({ "template": { "volumes": ["nothing"] } }), "unknown_volume"),
        ("group", json!({ "template": { "groups": ["apart"] } }), "unknown_group"),
        ("pool", json!({ "pools": ["overlay"] }), "unknown_pool"),
    ] {
        let mut body = json!({ "replicas": 1 });
        crate::world::merge(&mut body, fields);
        world.apply(name, body).await.expect(201);
        let found = world.degraded(name, code).await;
        assert_eq!(found["status"]["placed"], 0, "{found}");
    }
    world.put("/v1/volumes/nothing", &json!({ "tenant": "acme", "home": "o1" })).await;
    let apart = json!({ "kind": "apart", "strength": "hard", "topology": "node" });
    world.put("/v1/groups/apart", &apart).await;
    world.put("/v1/pools/overlay", &json!({ "range": "fd00::/64" })).await;
    for name in ["db", "group", "pool"] {
        world.ready(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_back_what_is_beyond_it_and_says_so() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.put("/v1/quotas/acme", &json!({ "instances": 2 })).await;
    world.apply("web", json!({ "replicas": 4 })).await.expect(201);
    let found = world.degraded("web", "quota_exceeded").await;
    assert_eq!(
        (&found["status"]["placed"], &found["status"]["reason"]["members"]),
        (&json!(2), &json!(2))
    );
    let message = found["status"]["reason"]["message"].as_str().unwrap();
    assert!(message.contains("uses 2 of its quota of 2"), "{message}");
    // Another tenant is not held back.
    let other = json!({ "replicas": 1, "template": { "resources": { "memory_mib": 256 } } });
    world.put("/v1/workloads/other/web", &other).await;
    world.put("/v1/quotas/acme", &json!({ "instances": 3 })).await;
    world
        .until("a third is placed", |world| async move {
            world.workload("web").await["status"]["placed"] == 3
        })
        .await;
    world.degraded("web", "quota_exceeded").await;
    world.servers[0].delete(&world.token, "/v1/quotas/acme").await.expect(204);
    let found = world.ready("web").await;
    assert!(found["status"].get("reason").is_none(), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_empty_holds_back_what_needs_it() {
    let world = World::new().await;
    world.fleet(1, 0).await;
    let small = json!({ "range": "10.0.0.0/30", "quarantine_s": 0 });
    world.put("/v1/pools/ips", &small).await;
    world.apply("web", json!({ "replicas": 3, "pools": ["ips"] })).await.expect(201);
    let found = world.degraded("web", "ipam_exhausted").await;
    assert_eq!(found["status"]["placed"], 2, "{found}");
    world.scale("web", 2).await.expect(200);
    world.ready("web").await;
}
