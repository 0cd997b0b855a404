//! Roll-outs: S16 and S17 of the research, and how a new revision takes over.

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::world::{Store, World, count, is_ready, path};

fn is_live(member: &Value) -> bool {
    member["state"] != "releasing"
}

fn is_active(member: &Value) -> bool {
    member["state"] == "active"
}

/// A revision of a workload: its image says which.
fn revision(number: u32, fields: Value) -> Value {
    let mut body = json!({ "template": { "image": format!("web:{number}") } });
    crate::world::merge(&mut body, fields);
    body
}

async fn roll(world: &World, action: &str) -> Value {
    let body = json!({ "action": action });
    world.post(&format!("{}/rollout", path("web")), &body).await.expect(200).json()
}

/// Rolls five members with three on-demand slots over, and returns the most on-demand members seen.
async fn peak_on_demand(surge: u32) -> usize {
    let world = World::new().await;
    world.fleet(4, 4).await;
    let rolling = json!({ "strategy": "rolling", "max_surge": surge, "max_unavailable": 0 });
    let fields = json!({ "replicas": 5, "capacity": { "max_on_demand": 3 }, "rolling": rolling });
    world.apply("web", revision(1, fields.clone())).await.expect(201);
    world.ready("web").await;
    // First nothing new starts, so that the most of what may be there at once is seen.
    let all = ["o1", "o2", "o3", "o4", "s1", "s2", "s3", "s4"];
    world.agents(|manners| manners.slow = all.map(str::to_owned).into());
    world.apply("web", revision(2, fields)).await.expect(200);
    let mut peak = 0;
    let mut look = |members: &[Value]| {
        let on_demand = |member: &Value| is_live(member) && member["on"] == "on-demand";
        peak = peak.max(count(members, on_demand));
        // Each revision has slots of its own, and of the old one on-demand members go first.
        let old = |member: &Value| member["revision"] == 1 && is_live(member);
        let old_on_demand = count(members, |it| old(it) && it["on"] == "on-demand");
        let old_spot = count(members, |it| old(it) && it["on"] == "spot");
        assert!(old_spot == 2 || old_on_demand == 0, "spot goes first: {members:?}");
        for member in members.iter().filter(|it| it["revision"] == 2) {
            let low = member["slot"].as_u64().unwrap() < 3;
            assert_eq!(member["on"], if low { "on-demand" } else { "spot" });
        }
    };
    let placed = |found: &Value| found["status"]["rollout"]["updated"] == surge;
    world.watch("web", &mut look, placed).await;
    world.agents(|manners| manners.slow.clear());
    let done = |found: &Value| is_ready(found) && found["revision"] == 2;
    world.watch("web", look, done).await;
    assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S");
    peak
}

#[tokio::test(flavor = "multi_thread")]
async fn s16_with_surge_one_at_most_four_are_on_demand_at_any_time() {
    assert_eq!(peak_on_demand(1).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_with_surge_five_each_revision_has_its_own_on_demand_members() {
    assert_eq!(peak_on_demand(5).await, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_all_old_members_stay_until_all_new_ones_run() {
    let world = World::new().await;
    world.fleet(3, 0).await;
    world.apply("web", revision(1, json!({ "replicas": 4 }))).await.expect(201);
    world.ready("web").await;
    // One node's agent starts nothing, so some of the new ones do not run.
    world.agents(|manners| manners.slow.insert("o1".to_owned()));
    world.apply("web", revision(2, json!({ "replicas": 4 }))).await.expect(200);
    let look = |members: &[Value]| {
        let old = count(members, |it| it["revision"] == 1 && is_active(it));
        let new = count(members, |it| it["revision"] == 2 && is_active(it));
        assert!(old == 4 || new == 4, "{old} old ones and {new} new ones run: {members:?}");
    };
    let all_placed = |found: &Value| {
        let rollout = &found["status"]["rollout"];
        rollout["updated"] == 4 && rollout["updated_active"].as_u64() >= Some(1)
    };
    world.watch("web", look, all_placed).await;
    let members = world.members("web").await;
    assert_eq!(count(&members, |it| it["revision"] == 1 && is_active(it)), 4, "{members:?}");
    world.agents(|manners| manners.slow.clear());
    world.watch("web", look, is_ready).await;
    let members = world.members("web").await;
    assert_eq!(count(&members, |it| it["revision"] == 2), 4);
    assert_eq!(members.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_change_stays_within_surge_and_unavailable_at_every_moment() {
    stays_within_its_limits(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_change_that_two_servers_make_stays_within_the_same_limits() {
    stays_within_its_limits(&World::with(Store::Postgres, 2, |_| {}).await).await;
}

async fn stays_within_its_limits(world: &World) {
    world.fleet(3, 0).await;
    let replicas = 6;
    let mut number = 1;
    for (surge, unavailable) in
        [(json!(1), json!(0)), (json!(0), json!(1)), (json!(2), json!(1)), (json!("50%"), json!(0))]
    {
        let rolling =
            json!({ "strategy": "rolling", "max_surge": surge, "max_unavailable": unavailable });
        let fields = json!({ "replicas": replicas, "rolling": rolling });
        let reply = world.apply("web", revision(number, fields.clone())).await;
        assert!(reply.status.is_success(), "{}", reply.text);
        world.ready("web").await;
        number += 1;
        // First nothing new starts, so that both revisions are surely seen together.
        world.agents(|manners| manners.slow = ["o1", "o2", "o3"].map(str::to_owned).into());
        world.apply("web", revision(number, fields)).await.expect(200);
        let most = replicas + surge.as_u64().unwrap_or(3);
        let least = replicas - unavailable.as_u64().unwrap();
        let look = |members: &[Value]| {
            let live = count(members, is_live) as u64;
            assert!(live <= most, "{live} of at most {most}: {members:?}");
            let runs = count(members, is_active) as u64;
            assert!(runs >= least, "{runs} of at least {least} run: {members:?}");
        };
        let begun = |found: &Value| found["status"]["rollout"]["updated"].as_u64() >= Some(1);
        world.watch("web", look, begun).await;
        world.agents(|manners| manners.slow.clear());
        let done = |found: &Value| is_ready(found) && found["revision"] == number;
        world.watch("web", look, done).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_by_which_nothing_could_change_is_refused() {
    let world = World::new().await;
    let rolling = json!({ "strategy": "rolling", "max_surge": 0, "max_unavailable": "0%" });
    let reply = world.apply("web", json!({ "replicas": 1, "rolling": rolling })).await;
    let reply = reply.problem(400, "invalid_request");
    assert!(reply.text.contains("max_surge"), "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_out_that_is_paused_stands_still_and_goes_on_when_told() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.apply("web", revision(1, json!({ "replicas": 3 }))).await.expect(201);
    world.ready("web").await;
    let paused = revision(2, json!({ "replicas": 3, "paused": true }));
    world.apply("web", paused).await.expect(200);
    world
        .until("it is paused", |world| async move {
            world.workload("web").await["status"]["state"] == "paused"
        })
        .await;
    // A member that is lost meanwhile comes back as what it was.
    world.lose(&world.holder("web", 1).await["instance"]).await;
    world
        .until("three run again", |world| async move {
            world.workload("web").await["status"]["active"] == 3
        })
        .await;
    let members = world.members("web").await;
    assert!(members.iter().all(|member| member["revision"] == 1), "{members:?}");
    let found = roll(&world, "resume").await;
    assert_eq!(found["spec"].get("paused"), None, "{found}");
    world.ready("web").await;
    let members = world.members("web").await;
    assert!(members.iter().all(|member| member["revision"] == 2), "{members:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_out_is_paused_halfway_and_every_revision_keeps_what_it_has() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    let rolling = json!({ "strategy": "rolling", "max_surge": 1, "max_unavailable": 0 });
    let fields = json!({ "replicas": 4, "rolling": rolling });
    world.apply("web", revision(1, fields.clone())).await.expect(201);
    world.ready("web").await;
    world.agents(|manners| manners.slow = ["o1".to_owned(), "o2".to_owned()].into());
    world.apply("web", revision(2, fields)).await.expect(200);
    world
        .until("the first new one is placed", |world| async move {
            world.workload("web").await["status"]["rollout"]["updated"] == 1
        })
        .await;
    roll(&world, "pause").await;
    world.agents(|manners| manners.slow.clear());
    world
        .until(
            "five run",
            |world| async move { world.workload("web").await["status"]["active"] == 5 },
        )
        .await;
    let found = world.workload("web").await;
    assert_eq!(found["status"]["state"], "paused", "{found}");
    assert_eq!(found["status"]["rollout"]["old"], 4);
    roll(&world, "resume").await;
    world.ready("web").await;
    assert_eq!(world.workload("web").await["status"]["rollout"]["old"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_goes_back_to_what_was_as_a_new_revision() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.apply("web", revision(1, json!({ "replicas": 2 }))).await.expect(201);
    world.ready("web").await;
    let undo = |body: Value| {
        let world = &world;
        async move { world.post(&format!("{}/rollout", path("web")), &body).await }
    };
    undo(json!({ "action": "undo" })).await.problem(409, "no_earlier_revision");
    for number in [2, 3] {
        world.apply("web", revision(number, json!({ "replicas": 2 }))).await.expect(200);
        world.ready("web").await;
    }
    let back = undo(json!({ "action": "undo" })).await.expect(200).json();
    assert_eq!(back["spec"]["template"]["image"], "web:2");
    assert_eq!(back["revision"], 4);
    world.ready("web").await;
    let first = undo(json!({ "action": "undo", "to_revision": 1 })).await.expect(200).json();
    assert_eq!(first["spec"]["template"]["image"], "web:1");
    world.ready("web").await;
    let members = world.members("web").await;
    assert!(members.iter().all(|member| member["revision"] == 5), "{members:?}");
    undo(json!({ "action": "undo", "to_revision": 77 })).await.problem(400, "invalid_request");
    let kept = world.servers[0].get(&world.token, &format!("{}/revisions", path("web"))).await;
    assert_eq!(kept.each("revision"), [4, 3, 2, 1]);
}

async fn ids(world: &World, name: &str) -> BTreeSet<String> {
    let members = world.members(name).await;
    members.iter().map(|it| it["instance"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_replaces_all_members_by_new_ones_of_the_same_kind() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.apply("web", revision(1, json!({ "replicas": 3 }))).await.expect(201);
    world.ready("web").await;
    let before = ids(&world, "web").await;
    let found = roll(&world, "restart").await;
    assert_eq!(
        (&found["revision"], &found["spec"]["template"]["image"]),
        (&json!(2), &json!("web:1"))
    );
    world.ready("web").await;
    let after = ids(&world, "web").await;
    assert_eq!(after.len(), 3);
    assert!(before.is_disjoint(&after), "{before:?} and {after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_with_a_volume_never_has_two_members_at_once() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.put("/v1/volumes/data", &json!({ "tenant": "acme", "home": "o2" })).await;
    let fields = json!({ "replicas": 1, "template": { "volumes": ["data"] } });
    world.apply("db", revision(1, fields.clone())).await.expect(201);
    let seen = Cell::new(0);
    let look = |members: &[Value]| {
        seen.set(seen.get() + 1);
        assert!(members.len() <= 1, "{members:?}");
        assert!(members.iter().all(|it| it["node"] == "o2"), "{members:?}");
    };
    world.watch("db", look, is_ready).await;
    for number in 2..5 {
        world.apply("db", revision(number, fields.clone())).await.expect(200);
        world.watch("db", look, |found| is_ready(found) && found["revision"] == number).await;
    }
    assert!(seen.get() > 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_removed_is_gone_when_its_members_are() {
    let world = World::new().await;
    world.fleet(1, 0).await;
    world.apply("web", json!({ "replicas": 2 })).await.expect(201);
    world.ready("web").await;
    // The agent does not say that they stopped.
    world.agents(|manners| manners.stuck.insert("o1".to_owned()));
    let reply = world.servers[0].delete(&world.token, &path("web")).await.expect(202);
    assert_eq!(reply.json()["deleting"], true);
    world
        .until("both are told to stop", |world| async move {
            let members = world.members("web").await;
            members.len() == 2 && !members.iter().any(is_live)
        })
        .await;
    assert_eq!(world.workload("web").await["status"]["state"], "deleting");
    world.apply("web", json!({ "replicas": 2 })).await.problem(409, "deleting");
    world.agents(|manners| manners.stuck.clear());
    world
        .until("it is gone", |world| async move {
            world.servers[0].get(&world.token, &path("web")).await.status == 404
        })
        .await;
    let claims = world.servers[0].get(&world.token, "/v1/claims?workload=web").await.expect(200);
    assert!(claims.each("instance").is_empty(), "{}", claims.text);
    // The name may be used again, and slots start from the first.
    world.apply("web", json!({ "replicas": 1 })).await.expect(201);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O");
    world.scale("web", 0).await.expect(200);
    world.ready("web").await;
    world.servers[0].delete(&world.token, &path("web")).await.expect(204);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_again_unchanged_changes_nothing() {
    let world = World::new().await;
    world.fleet(1, 0).await;
    let body = revision(1, json!({ "replicas": 2 }));
    world.apply("web", body.clone()).await.expect(201);
    let before = world.ready("web").await;
    let members = ids(&world, "web").await;
    let same = world.apply("web", body).await.expect(200).json();
    assert_eq!((&same["version"], &same["revision"]), (&before["version"], &before["revision"]));
    // Another count is another version, and no other revision.
    let scaled = world.scale("web", 3).await.expect(200).json();
    assert_eq!((&scaled["version"], &scaled["revision"]), (&json!(2), &json!(1)));
    world.ready("web").await;
    assert!(ids(&world, "web").await.is_superset(&members));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_old_member_is_replaced_while_the_new_revision_keeps_ending() {
    let world = World::new().await;
    world.fleet(4, 0).await;
    world.agents(|manners| manners.doomed_images.insert("web:2".to_owned()));
    let rolling = json!({ "strategy": "rolling", "max_surge": 1, "max_unavailable": 0 });
    let fields = json!({ "replicas": 3, "rolling": rolling });
    world.apply("web", revision(1, fields.clone())).await.expect(201);
    world.ready("web").await;
    world.apply("web", revision(2, fields.clone())).await.expect(200);
    world
        .until("the new revision backs off", |world| async move {
            world.workload("web").await["status"]["backs_off_until"].is_string()
        })
        .await;
    let is_old = |member: &Value| member["revision"] == 1 && is_active(member);
    for _ in 0..2 {
        let members = world.members("web").await;
        let lost = &members.iter().find(|member| is_old(member)).unwrap()["instance"];
        world.lose(lost).await;
        world
            .until("three old ones run", |world| async move {
                let members = world.members("web").await;
                let is_gone = members.iter().all(|member| member["instance"] != *lost);
                is_gone && count(&members, is_old) == 3
            })
            .await;
    }
    // What keeps ending is replaced by a revision that does not.
    world.apply("web", revision(3, fields)).await.expect(200);
    let found = world.ready("web").await;
    assert_eq!(found["status"]["rollout"]["updated_active"], 3, "{found}");
}
