//! What is said of a workload that cannot be as it should, and of members that keep ending.

use berth_engine::Amounts;
use serde_json::{Value, json};

use crate::common::TENANT;
use crate::world::{Store, World, creation, is_ready, path};

async fn small_node(world: &World, id: &str) {
    let capacity = Amounts::new(16_000, 4096).with_disk(1 << 20);
    world.node_with(id, |facts| facts.capacity = Some(capacity)).await;
}

/// A workload of which one member fits on a small node.
fn large(replicas: u32) -> Value {
    let resources = json!({ "cpu_milli": 100, "memory_mib": 3000 });
    json!({ "replicas": replicas, "template": { "env": "prod", "resources": resources } })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_room_is_explained_with_numbers_and_recovers() {
    let world = World::new().await;
    small_node(&world, "n1").await;
    small_node(&world, "n2").await;
    world.apply("web", large(3)).await.expect(201);
    let found = world.degraded("web", "no_capacity_memory").await;
    let reason = &found["status"]["reason"];
    assert_eq!((&reason["members"], &found["status"]["placed"]), (&json!(1), &json!(2)));
    let refusal = &reason["refusal"];
    assert_eq!((&refusal["code"], &refusal["nodes"]), (&json!("no_capacity_memory"), &json!(2)));
    let evidence = &refusal["nearest"][0]["evidence"];
    let numbers = (&evidence["wanted"], &evidence["overhead"], &evidence["free"]);
    assert_eq!(numbers, (&json!(3000), &json!(64), &json!(1032)), "{refusal}");
    let message = found["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("1 member waits (no_capacity_memory): "), "{message}");
    assert_eq!(world.env("prod").await["state"], "degraded");
    small_node(&world, "n3").await;
    let found = world.ready("web").await;
    assert!(found["status"].get("reason").is_none(), "{found}");
    assert_eq!(world.env("prod").await["state"], "ready");
    assert_eq!(world.events("env.scheduling_failed").await.len(), 1);
    assert_eq!(world.events("env.scheduling_recovered").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_workload_waits_survives_a_restart() {
    let mut world = World::new().await;
    small_node(&world, "n1").await;
    world.apply("web", large(2)).await.expect(201);
    let before = world.degraded("web", "no_capacity_memory").await;
    world.restart().await;
    let after = world.workload("web").await;
    assert_eq!(after["status"]["reason"]["since"], before["status"]["reason"]["since"]);
    small_node(&world, "n2").await;
    world.ready("web").await;
    assert_eq!(world.events("env.scheduling_failed").await.len(), 1);
    assert_eq!(world.events("env.scheduling_recovered").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_out_that_finds_no_room_says_why_and_the_old_members_run_on() {
    let world = World::new().await;
    small_node(&world, "n1").await;
    world.apply("web", large(1)).await.expect(201);
    world.ready("web").await;
    let mut next = large(1);
    crate::world::merge(&mut next, json!({ "template": { "image": "web:2" } }));
    world.apply("web", next.clone()).await.expect(200);
    let found = world.degraded("web", "no_capacity_memory").await;
    let rollout = &found["status"]["rollout"];
    assert_eq!((&rollout["complete"], &rollout["old"]), (&json!(false), &json!(1)));
    assert_eq!(found["status"]["active"], 1);
    // With the old one first there is room.
    let rolling = json!({ "strategy": "rolling", "max_surge": 0, "max_unavailable": 1 });
    crate::world::merge(&mut next, json!({ "rolling": rolling }));
    world.apply("web", next).await.expect(200);
    let found = world.ready("web").await;
    assert_eq!(found["status"]["rollout"]["complete"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_reads_why_without_the_names_of_nodes_if_the_policy_says_so() {
    let world = World::new().await;
    small_node(&world, "hidden-1").await;
    let discreet = "name = \"discreet\"\n[scores]\nmemory-pack = 1\n[explain]\n\
                    tenants_see_nodes = false\n";
    world.post("/v1/policies", &json!({ "toml": discreet })).await.expect(201);
    world.post("/v1/policies/discreet/activate", &json!({})).await.expect(200);
    world.apply("web", large(2)).await.expect(201);
    world.degraded("web", "no_capacity_memory").await;
    let server = &world.servers[0];
    let tenant = server.tenant(TENANT).await;
    let paths = [
        path("web"),
        format!("{}/members", path("web")),
        "/v1/workloads".to_owned(),
        "/v1/environments".to_owned(),
        "/v1/environments/prod".to_owned(),
        "/v1/events?limit=1000".to_owned(),
    ];
    for path in paths {
        let reply = server.get(&tenant, &path).await.expect(200);
        assert!(!reply.text.contains("hidden-1"), "{path}: {}", reply.text);
    }
    let seen = server.get(&tenant, &path("web")).await.expect(200).json();
    let reason = &seen["status"]["reason"];
    assert_eq!(reason["code"], "no_capacity_memory");
    assert!(reason["message"].as_str().unwrap().contains("needs 2.92 GiB"), "{reason}");
    // Who runs the place sees it.
    let seen = world.workload("web").await;
    assert!(seen["status"]["reason"]["refusal"].to_string().contains("hidden-1"), "{seen}");
    assert!(world.members("web").await[0]["node"].is_string());
    // Another tenant sees nothing at all.
    let other = server.tenant("other").await;
    server.get(&other, &path("web")).await.problem(404, "not_found");
    server.get(&other, "/v1/environments/prod").await.problem(404, "not_found");
    assert!(!server.get(&other, "/v1/events?limit=1000").await.expect(200).text.contains("web"));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_keep_ending_are_tried_ever_more_rarely_until_something_changes() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.agents(|manners| manners.doomed_images.insert("web:bad".to_owned()));
    let of = |image: &str| json!({ "replicas": 2, "template": { "image": image } });
    world.apply("web", of("web:bad")).await.expect(201);
    world
        .until("it backs off", |world| async move {
            world.workload("web").await["status"]["backs_off_until"].is_string()
        })
        .await;
    let found = world.workload("web").await;
    assert_eq!(found["status"]["state"], "degraded", "{found}");
    let message = found["status"]["message"].as_str().unwrap();
    assert!(message.contains("ended in a row"), "{message}");
    // All that were placed before it backed off end; then nothing comes for a while.
    world
        .until(
            "nothing is left of it",
            |world| async move { world.members("web").await.is_empty() },
        )
        .await;
    let placed = world.events("instance.allocated").await.len();
    assert!(placed <= 6, "{placed} members were placed within moments");
    let others = json!({ "replicas": 1 });
    world.apply("other", others).await.expect(201);
    world.ready("other").await;
    // An image that works is a new revision, and is tried at once.
    world.apply("web", of("web:good")).await.expect(200);
    let found = world.ready("web").await;
    assert!(found["status"].get("backs_off_until").is_none(), "{found}");
}

/// How many members ended in a row, by the workload's status.
async fn ended_in_a_row(world: &World, server: usize) -> Option<u32> {
    let reply = world.servers[server].get(&world.token, &path("web")).await;
    // The second server may not know of it yet.
    let found = (reply.status == 200).then(|| reply.json())?;
    let message = found["status"]["reason"]["message"].as_str()?.to_owned();
    message.split_once(" members ended in a row")?.0.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_goes_on_where_it_was_after_a_restart() {
    let mut world = World::new().await;
    world.fleet(2, 0).await;
    world.agents(|manners| manners.doomed_images.insert("web:bad".to_owned()));
    let doomed = json!({ "replicas": 4, "template": { "image": "web:bad" } });
    world.apply("web", doomed).await.expect(201);
    world
        .until("all that were placed have ended", |world| async move {
            world.members("web").await.is_empty() && ended_in_a_row(world, 0).await >= Some(4)
        })
        .await;
    let before = ended_in_a_row(&world, 0).await;
    let until = world.workload("web").await["status"]["backs_off_until"].clone();
    let placed = world.events("instance.allocated").await.len();
    for _ in 0..2 {
        world.restart().await;
        assert_eq!(ended_in_a_row(&world, 0).await, before);
        let found = world.workload("web").await;
        assert_eq!(found["status"]["backs_off_until"], until, "{found}");
    }
    assert_eq!(world.events("instance.allocated").await.len(), placed, "it waits as before");
    // Nothing is left of it with the workload.
    world.servers[0].delete(&world.token, &path("web")).await;
    world
        .until("it is forgotten", |world| async move {
            let read = |ledger: &berth_ledger::Ledger| ledger.documents("crash_history", None, 10);
            world.servers[0].control.read(read).await.unwrap().is_empty()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_later_waits_as_long_as_the_others() {
    let mut world = World::with(Store::Postgres, 2, |_| {}).await;
    world.fleet(2, 0).await;
    world.agents(|manners| manners.doomed_images.insert("web:bad".to_owned()));
    let doomed = json!({ "replicas": 4, "template": { "image": "web:bad" } });
    world.apply("web", doomed).await.expect(201);
    world
        .until("all that were placed have ended", |world| async move {
            world.members("web").await.is_empty() && ended_in_a_row(world, 1).await >= Some(4)
        })
        .await;
    world.restart().await;
    world
        .until("both have counted the same", |world| async move {
            let counted = ended_in_a_row(world, 0).await;
            counted.is_some() && counted == ended_in_a_row(world, 1).await
        })
        .await;
}

/// A node's score for its failures, in a dry run.
async fn failure_score(world: &World, node: &str) -> f64 {
    let mut request = creation("nobody", &json!({ "workload": null }));
    crate::world::merge(&mut request, json!({ "dry_run": true, "explain": "full" }));
    let told = world.post("/v1/placements", &request).await.expect(200).json();
    let table = told["explanation"]["table"].as_array().unwrap();
    let row = table.iter().find(|row| row["node"] == node).unwrap();
    let found = find(row, "recent-failures").unwrap_or_else(|| panic!("no such score: {row}"));
    found["value"].as_f64().unwrap_or_else(|| panic!("no value: {found}"))
}

/// The object within another that names this scorer.
fn find<'a>(within: &'a Value, scorer: &str) -> Option<&'a Value> {
    match within {
        Value::Object(fields) if fields.values().any(|value| value == scorer) => Some(within),
        Value::Object(fields) => fields.values().find_map(|value| find(value, scorer)),
        Value::Array(items) => items.iter().find_map(|item| find(item, scorer)),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_on_which_nothing_boots_is_avoided_by_those_who_come_next() {
    let world = World::new().await;
    world.fleet(3, 0).await;
    // Of nodes that are alike, the first by name is taken: the one that is broken.
    let dry = creation("nobody", &json!({ "workload": null }));
    let mut asked = dry.clone();
    crate::world::merge(&mut asked, json!({ "dry_run": true }));
    let first = world.post("/v1/placements", &asked).await.expect(200).json();
    let broken = first["instances"][0]["node"].as_str().unwrap().to_owned();
    assert_eq!(failure_score(&world, &broken).await, failure_score(&world, "o3").await);
    world.agents(|manners| manners.broken.insert(broken.clone()));
    world.apply("web", json!({ "replicas": 1 })).await.expect(201);
    world.ready("web").await;
    assert_ne!(world.holder("web", 0).await["node"], json!(broken));
    assert!(failure_score(&world, &broken).await < failure_score(&world, "o3").await);
    for name in ["a", "b", "c"] {
        world.apply(name, json!({ "replicas": 1 })).await.expect(201);
        world.watch(name, |_| {}, is_ready).await;
        assert_ne!(world.holder(name, 0).await["node"], json!(broken), "{name}");
    }
    let deaths = world.events("instance.released").await;
    let failed = deaths.iter().filter(|event| event["body"]["reason"] == "failed").count();
    assert_eq!(failed, 1, "{deaths:?}");
}

/// The instances whose release a refusal proposes.
fn proposed_releases(problem: &Value) -> Vec<Value> {
    let of_refusals = problem["refusals"].as_array().into_iter().flatten();
    let of_nodes =
        of_refusals.flat_map(|refusal| refusal["fixes"].as_array().into_iter().flatten());
    let fixes = problem["fixes"].as_array().into_iter().flatten().chain(of_nodes);
    let frees = fixes.filter(|fix| fix["kind"] == "free");
    frees.flat_map(|fix| fix["instances"].as_array().cloned().unwrap_or_default()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_would_be_replaced_is_not_proposed_for_release() {
    let mut world = World::new().await;
    small_node(&world, "n1").await;
    world.apply("web", large(1)).await.expect(201);
    world.ready("web").await;
    let spec =
        json!({ "resources": { "cpu_milli": 100, "memory_mib": 3000 }, "workload": "batch" });
    let wanted = json!({ "tenant": TENANT, "instances": [spec] });
    let refused = async |world: &World, code: &str| {
        let mut dry = wanted.clone();
        dry["dry_run"] = json!(true);
        let problem = world.post("/v1/placements", &dry).await.problem(409, code).json();
        proposed_releases(&problem)
    };
    assert_eq!(refused(&world, "no_capacity_memory").await, Vec::<Value>::new());
    // One that only names a workload which is not stored is not replaced.
    small_node(&world, "n2").await;
    let placed = world.post("/v1/placements", &wanted).await.expect(201).json();
    let own = vec![placed["instances"][0]["instance"].clone()];
    assert_eq!(refused(&world, "no_capacity_memory").await, own);
    // The same is proposed against a quota, and after a restart.
    let quota = json!({ "instances": 2 });
    let path = format!("/v1/quotas/{TENANT}");
    world.servers[0].put(&world.token, &path, &quota).await.expect(201);
    small_node(&world, "n3").await;
    assert_eq!(refused(&world, "quota_exceeded").await, own);
    world.restart().await;
    assert_eq!(refused(&world, "quota_exceeded").await, own);
}
