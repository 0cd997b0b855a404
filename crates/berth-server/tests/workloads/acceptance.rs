//! The seven acceptance criteria of the first seed, each as a test named after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::time::Duration;

use berth_engine::Amounts;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{World, path};

async fn sized(world: &World, id: &str, memory_mib: u32) {
    let capacity = Amounts::new(16_000, memory_mib).with_disk(1 << 20);
    world.node_with(id, |facts| facts.capacity = Some(capacity)).await;
}

async fn claims(world: &World) -> Vec<Value> {
    let reply = world.servers[0].get(&world.token, "/v1/claims?limit=1000").await.expect(200);
    reply.json()["items"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn criterion_1_instances_are_placed_only_on_nodes_with_sufficient_memory() {
    let world = World::new().await;
    let sizes = [("small", 2048), ("middle", 4096), ("large", 8192)];
    for (id, memory) in sizes {
        sized(&world, id, memory).await;
    }
    let resources = json!({ "cpu_milli": 100, "memory_mib": 3072 });
    let fields = json!({ "replicas": 4, "template": { "resources": resources } });
    world.apply("web", fields).await.expect(201);
    // One fits next to the middle one, two on the large one, none on the small one.
    let found = world.degraded("web", "no_capacity_memory").await;
    assert_eq!(
        (&found["status"]["placed"], &found["status"]["reason"]["members"]),
        (&json!(3), &json!(1))
    );
    let mut used: BTreeMap<String, u64> = BTreeMap::new();
    for claim in claims(&world).await {
        let memory = claim["resources"]["memory_mib"].as_u64().unwrap();
        *used.entry(claim["node"].as_str().unwrap().to_owned()).or_default() += memory;
    }
    assert!(!used.contains_key("small"), "{used:?}");
    for (id, memory) in sizes {
        assert!(used.get(id).copied().unwrap_or(0) <= memory.into(), "{id}: {used:?}");
    }
    sized(&world, "more", 4096).await;
    world.ready("web").await;
    assert!(claims(&world).await.iter().any(|claim| claim["node"] == "more"));
}

#[tokio::test(flavor = "multi_thread")]
async fn criterion_2_instances_requiring_volumes_are_placed_only_on_the_volumes_home_node() {
    let world = World::new().await;
    for id in ["n1", "n2", "n3"] {
        sized(&world, id, 4096).await;
    }
    for (volume, home) in [("a", "n1"), ("b", "n2"), ("c", "n3"), ("d", "n2")] {
        world
            .put(&format!("/v1/volumes/{volume}"), &json!({ "tenant": "acme", "home": home }))
            .await;
        let resources = json!({ "cpu_milli": 100, "memory_mib": 2500 });
        let template = json!({ "volumes": [volume], "resources": resources });
        world.apply(volume, json!({ "replicas": 1, "template": template })).await.expect(201);
        if volume == "d" {
            continue;
        }
        world.ready(volume).await;
        assert_eq!(world.holder(volume, 0).await["node"], json!(home), "{volume}");
    }
    // Its home is full; that others have room does not help.
    sized(&world, "n4", 65_536).await;
    let found = world.degraded("d", "no_capacity_memory").await;
    assert_eq!(found["status"]["placed"], 0, "{found}");
    world.scale("b", 0).await.expect(200);
    world.ready("d").await;
    assert_eq!(world.holder("d", 0).await["node"], "n2");
}

#[tokio::test(flavor = "multi_thread")]
async fn criterion_3_process_types_with_volumes_enforce_max_1_replica() {
    let world = World::new().await;
    world.fleet(1, 0).await;
    world.put("/v1/volumes/data", &json!({ "tenant": "acme", "home": "o1" })).await;
    let of = |replicas: u32| json!({ "replicas": replicas, "template": { "volumes": ["data"] } });
    world.apply("db", of(2)).await.problem(409, "volume_single_writer");
    world.servers[0].get(&world.token, &path("db")).await.problem(404, "not_found");
    world.apply("db", of(1)).await.expect(201);
    world.ready("db").await;
    world.apply("db", of(2)).await.problem(409, "volume_single_writer");
    world.scale("db", 2).await.problem(409, "volume_single_writer");
    assert_eq!(world.ready("db").await["status"]["placed"], 1);
    // Nor may a workload of several get one.
    world.apply("web", json!({ "replicas": 2 })).await.expect(201);
    world.apply("web", of(2)).await.problem(409, "volume_single_writer");
    // Nor through a set of volumes.
    world.put("/v1/attachments/set?tenant=acme", &json!({ "volumes": ["data"] })).await;
    let set = json!({ "replicas": 2, "template": { "attachments": ["set"] } });
    world.apply("db", set).await.problem(409, "volume_single_writer");
}

#[tokio::test(flavor = "multi_thread")]
async fn criterion_4_ipam_allocates_unique_overlay_ipv6_per_instance() {
    let world = World::new().await;
    world.fleet(3, 0).await;
    world.put("/v1/pools/overlay", &json!({ "range": "fd00:7::/64" })).await;
    for name in ["web", "api"] {
        let fields = json!({ "replicas": 20, "pools": ["overlay"] });
        world.apply(name, fields).await.expect(201);
    }
    world.ready("web").await;
    world.ready("api").await;
    // Members that are replaced get addresses of their own, too.
    let restart = json!({ "action": "restart" });
    world.post(&format!("{}/rollout", path("web")), &restart).await.expect(200);
    world.ready("web").await;
    let mut seen = BTreeSet::new();
    for claim in claims(&world).await {
        let values = claim["values"].as_array().unwrap();
        assert_eq!(values.len(), 1, "{claim}");
        let address: Ipv6Addr = values[0]["value"].as_str().unwrap().parse().unwrap();
        assert_eq!(address.segments()[..4], [0xfd00, 7, 0, 0], "{claim}");
        assert!(seen.insert(address), "{address} was given twice");
    }
    assert_eq!(seen.len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn criterion_5_unschedulable_instances_surface_clear_reason_codes_in_env_status() {
    let world = World::new().await;
    sized(&world, "n1", 4096).await;
    let template = json!({ "env": "prod", "resources": { "cpu_milli": 100, "memory_mib": 1024 } });
    world.apply("web", json!({ "replicas": 1, "template": template })).await.expect(201);
    world.ready("web").await;
    let env = world.env("prod").await;
    assert_eq!((&env["state"], &env["workloads"][0]["state"]), (&json!("ready"), &json!("ready")));
    let big = json!({ "env": "prod", "resources": { "cpu_milli": 100, "memory_mib": 8192 } });
    let fields = json!({ "replicas": 2, "template": big, "process": "worker" });
    world.apply("big", fields).await.expect(201);
    world.degraded("big", "no_capacity_memory").await;
    let env = world.env("prod").await;
    assert_eq!(env["state"], "degraded");
    let of_big = &env["workloads"][0];
    assert_eq!((&of_big["name"], &of_big["process"]), (&json!("big"), &json!("worker")));
    let reason = &of_big["reason"];
    assert_eq!((&reason["code"], &reason["members"]), (&json!("no_capacity_memory"), &json!(2)));
    let message = reason["message"].as_str().unwrap();
    assert!(message.contains("needs 8 GiB plus 64 MiB overhead, has 2.93 GiB free"), "{message}");
    assert!(env["message"].as_str().unwrap().contains("no_capacity_memory"), "{env}");
    assert_eq!(env["workloads"][1]["state"], "ready");
    sized(&world, "n2", 32_768).await;
    world.ready("big").await;
    let env = world.env("prod").await;
    assert_eq!(env["state"], "ready", "{env}");
    assert!(env["workloads"][0].get("reason").is_none(), "{env}");
}

#[tokio::test(flavor = "multi_thread")]
async fn criterion_6_placement_is_deterministic_same_inputs_produce_same_outputs() {
    let mut seen: Vec<Vec<(Value, Value)>> = Vec::new();
    for _ in 0..3 {
        let world = World::new().await;
        for (id, memory) in [("n3", 8192), ("n1", 16_384), ("n4", 8192), ("n2", 16_384)] {
            sized(&world, id, memory).await;
        }
        let mut nodes = Vec::new();
        for (name, replicas, memory) in [("web", 5, 1024), ("api", 3, 2048), ("job", 7, 512)] {
            let resources = json!({ "cpu_milli": 500, "memory_mib": memory });
            let template = json!({ "resources": resources });
            let fields = json!({ "replicas": replicas, "template": template });
            world.apply(name, fields).await.expect(201);
            world.ready(name).await;
            let members = world.members(name).await;
            nodes.extend(members.iter().map(|it| (it["slot"].clone(), it["node"].clone())));
        }
        seen.push(nodes);
        // And every recorded decision comes out the same again.
        let server = &world.servers[0];
        let decisions = server.get(&world.token, "/v1/decisions?limit=100").await.expect(200);
        let ids = decisions.each("id");
        assert!(!ids.is_empty());
        for id in ids {
            let path = format!("/v1/decisions/{}/replay", id.as_str().unwrap());
            let replayed = server.get(&world.token, &path).await.expect(200).json();
            assert_eq!(replayed["outcome"], "identical", "{replayed}");
        }
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

/// A machine may be slow and busy, so the time is not compared with the clock but with that of a
/// request for one instance on the same machine: a hundred may take as long as `AT_MOST` of those, which is
/// below 100 ms wherever a placement takes less than 4 ms. `SPECIFICATION.md` promises far less, and the
/// benchmark measures that.
#[tokio::test(flavor = "multi_thread")]
async fn criterion_7_placement_algorithm_completes_within_100ms_for_100_instances() {
    const AT_MOST: u32 = 25;
    let world = World::new().await;
    world.fleet(10, 0).await;
    let resources = json!({ "cpu_milli": 10, "memory_mib": 16 });
    let (mut one, mut hundred) = (Duration::MAX, Duration::MAX);
    // The shortest of several, in turns: other work on the machine only adds to a time.
    for _ in 0..8 {
        for (count, shortest) in [(1, &mut one), (100, &mut hundred)] {
            let instances = json!([{ "resources": resources, "count": count }]);
            let request = json!({ "tenant": "acme", "instances": instances });
            let began = Instant::now();
            let placed = world.post("/v1/placements", &request).await.expect(201).json();
            *shortest = began.elapsed().min(*shortest);
            assert_eq!(placed["instances"].as_array().unwrap().len(), count);
        }
    }
    eprintln!("100 instances took {hundred:?}, one took {one:?}");
    assert!(
        hundred <= one * AT_MOST,
        "100 instances took {hundred:?}, one took {one:?}; at most {AT_MOST} times as long is accepted"
    );
    // As members of a workload they are placed by the same algorithm, and all of them.
    let fields = json!({ "replicas": 100, "template": { "resources": resources } });
    world.apply("web", fields).await.expect(201);
    world
        .until("all are placed", |world| async move {
            world.workload("web").await["status"]["placed"] == 100
        })
        .await;
    world.ready("web").await;
}
