//! What a member does when its own kind of capacity is short, and rules in addition to the limit.

use berth_engine::CapacityType;
use serde_json::{Value, json};

use crate::world::World;

/// A workload with one on-demand slot in a world without spot nodes.
async fn without_spot(mode: Value) -> World {
    let world = World::new().await;
    world.fleet(1, 0).await;
    let capacity = json!({ "max_on_demand": 1, "mode": mode });
    world.apply("web", json!({ "replicas": 3, "capacity": capacity })).await.expect(201);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_members_wait_for_their_own_kind() {
    let world = without_spot(json!("strict")).await;
    let found = world.degraded("web", "capacity_type_no_node").await;
    assert_eq!(found["status"]["state"], "degraded");
    assert_eq!(found["status"]["reason"]["members"], 2, "{found}");
    assert_eq!(world.slots("web").await, "0O");
    world.node("s1", CapacityType::Spot).await;
    let found = world.ready("web").await;
    assert!(found["status"].get("reason").is_none(), "{found}");
    assert_eq!(world.slots("web").await, "0O 1S 2S");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_only_prefer_a_kind_take_the_other_and_return() {
    let world = without_spot(json!("prefer")).await;
    world.wait_for_slots("web", "0O 1O 2O").await;
    let found = world.ready("web").await;
    assert!(found["status"].get("reason").is_none(), "{found}");
    assert!(world.events("env.scheduling_failed").await.is_empty());
    world.node("s1", CapacityType::Spot).await;
    world.wait_for_slots("web", "0O 1S 2S").await;
    world.ready("web").await;
    assert!(world.events("env.scheduling_failed").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn members_fall_back_after_the_time_and_return() {
    let world = without_spot(json!({ "fallback-after": 2 })).await;
    world.degraded("web", "capacity_type_no_node").await;
    assert_eq!(world.slots("web").await, "0O");
    world.wait_for_slots("web", "0O 1O 2O").await;
    let found = world.ready("web").await;
    assert!(found["status"].get("reason").is_none(), "{found}");
    world.node("s1", CapacityType::Spot).await;
    world.wait_for_slots("web", "0O 1S 2S").await;
    world.ready("web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fall_back_after_no_time_is_refused() {
    let world = World::new().await;
    let capacity = json!({ "max_on_demand": 1, "mode": { "fallback-after": 0 } });
    let reply = world.apply("web", json!({ "replicas": 3, "capacity": capacity })).await;
    reply.problem(400, "invalid_request");
    let negative = json!({ "replicas": 3, "capacity": { "max_on_demand": -1 } });
    world.apply("web", negative).await.problem(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_least_one_of_each_kind_whatever_the_limit() {
    let world = World::new().await;
    world.fleet(2, 2).await;
    for (name, replicas, limit, slots) in [
        ("none", 3, 0, "0O 1S 2S"),
        ("many", 3, 7, "0O 1O 2S"),
        ("two", 2, 2, "0O 1S"),
        ("one", 1, 0, "0O"),
    ] {
        let capacity = json!({ "max_on_demand": limit, "at_least_one_of_each": true });
        let fields = json!({ "replicas": replicas, "capacity": capacity });
        world.apply(name, fields).await.expect(201);
        world.ready(name).await;
        assert_eq!(world.slots(name).await, slots, "{name}");
    }
    // The last on-demand slot of three becomes the spot one of two, and back.
    world.scale("many", 2).await.expect(200);
    world.ready("many").await;
    world.wait_for_slots("many", "0O 1S").await;
    world.scale("many", 4).await.expect(200);
    world.wait_for_slots("many", "0O 1O 2O 3S").await;
    world.ready("many").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_without_a_limit_makes_all_on_demand() {
    let world = World::new().await;
    world.fleet(1, 1).await;
    world.apply("web", json!({ "replicas": 2, "capacity": {} })).await.expect(201);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1O");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_waits_for_room_and_the_old_member_runs_on() {
    let world = World::new().await;
    world.fleet(1, 0).await;
    let rule = |limit: u32| json!({ "replicas": 2, "capacity": { "max_on_demand": limit } });
    world.apply("web", rule(2)).await.expect(201);
    world.ready("web").await;
    let before = world.members("web").await;
    world.apply("web", rule(1)).await.expect(200);
    let found = world.degraded("web", "capacity_type_no_node").await;
    assert_eq!((&found["status"]["active"], &found["status"]["placed"]), (&json!(2), &json!(2)));
    let after = world.members("web").await;
    assert_eq!(after[1]["instance"], before[1]["instance"]);
    assert_eq!((&after[1]["wants"], &after[1]["on"]), (&json!("spot"), &json!("on-demand")));
    world.node("s1", CapacityType::Spot).await;
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1S");
    let after = world.members("web").await;
    assert_eq!(after[0]["instance"], before[0]["instance"]);
}
