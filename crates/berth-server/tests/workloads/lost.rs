//! Nodes that fall silent: members without a volume are replaced in their own slots, those with one
//! are reported.

use std::time::Duration;

use berth_control::ControlOptions;
use berth_engine::CapacityType;
use serde_json::{Value, json};

use crate::world::{Store, World};

fn soon_lost(options: &mut ControlOptions) {
    options.settings.lost_after = Duration::from_secs(3);
    options.settings.lost_grace = Duration::from_secs(2);
}

async fn fragile() -> World {
    World::with(Store::Sqlite, 1, soon_lost).await
}

/// What an agent would be told of its node's instances, without it being heard of.
async fn told(world: &World, node: &str) -> Vec<Value> {
    let path = format!("/v1/nodes/{node}/assignments");
    let reply = world.servers[0].get(&world.token, &path).await.expect(200);
    reply.json()["assignments"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_a_lost_node_is_replaced_in_its_own_slot() {
    let world = fragile().await;
    world.fleet(2, 1).await;
    let fields = json!({ "replicas": 3, "capacity": { "max_on_demand": 2 } });
    world.apply("web", fields).await.expect(201);
    world.ready("web").await;
    let lost = world.holder("web", 1).await;
    let node = lost["node"].as_str().unwrap().to_owned();
    let other = world.holder("web", 0).await["instance"].clone();
    world.agents(|manners| manners.silent.insert(node.clone()));
    world
        .until("slot 1 has another member that runs", |world| {
            let lost = &lost;
            async move {
                let holder = world.holder("web", 1).await;
                holder["instance"] != lost["instance"] && holder["state"] == "active"
            }
        })
        .await;
    let fresh = world.holder("web", 1).await;
    assert_ne!(fresh["node"], json!(node));
    assert_eq!((&fresh["on"], &fresh["revision"]), (&json!("on-demand"), &lost["revision"]));
    assert_eq!(world.holder("web", 0).await["instance"], other);
    // The lost one keeps its place until its agent says that it is gone.
    let members = world.members("web").await;
    let left = members.iter().find(|it| it["instance"] == lost["instance"]).unwrap();
    assert_eq!(left["state"], "releasing", "{members:?}");
    let orders = told(&world, &node).await;
    let order = orders.iter().find(|it| it["instance"] == lost["instance"]).unwrap();
    assert_eq!(order["state"], "releasing");
    let released = world.events("instance.releasing").await;
    assert!(released.iter().all(|event| event["body"]["reason"] != "scale_down"), "{released:?}");

    world.agents(|manners| manners.silent.clear());
    world.ready("web").await;
    assert!(told(&world, &node).await.iter().all(|it| it["instance"] != lost["instance"]));
    assert_eq!(world.slots("web").await, "0O 1O 2S");
    assert_eq!(world.holder("web", 1).await["instance"], fresh["instance"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_a_volume_on_a_lost_node_is_reported_and_not_replaced() {
    let world = fragile().await;
    world.fleet(2, 0).await;
    world.put("/v1/volumes/data", &json!({ "tenant": "acme", "home": "o1" })).await;
    let template = json!({ "volumes": ["data"], "env": "prod" });
    world.apply("db", json!({ "replicas": 1, "template": template })).await.expect(201);
    world.ready("db").await;
    let before = world.holder("db", 0).await;
    world.agents(|manners| manners.silent.insert("o1".to_owned()));
    let found = world.degraded("db", "node_lost").await;
    let message = found["status"]["reason"]["message"].as_str().unwrap();
    assert!(message.contains(before["instance"].as_str().unwrap()), "{message}");
    assert_eq!(found["status"]["state"], "degraded");
    assert_eq!(world.env("prod").await["state"], "degraded");
    let members = world.members("db").await;
    assert_eq!(members.len(), 1, "{members:?}");
    assert_eq!(members[0]["instance"], before["instance"]);
    assert_eq!(members[0]["state"], "active");

    world.agents(|manners| manners.silent.clear());
    let found = world.ready("db").await;
    assert!(found["status"].get("reason").is_none(), "{found}");
    assert_eq!(world.holder("db", 0).await["instance"], before["instance"]);
    assert_eq!(world.events("env.scheduling_failed").await.len(), 1);
    assert_eq!(world.events("env.scheduling_recovered").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_nothing_else_has_room_a_lost_member_waits_and_takes_its_slot_later() {
    let world = fragile().await;
    world.fleet(1, 1).await;
    let fields = json!({ "replicas": 2, "capacity": { "max_on_demand": 1 } });
    world.apply("web", fields).await.expect(201);
    world.ready("web").await;
    world.agents(|manners| manners.silent.insert("s1".to_owned()));
    world
        .until("it is said that a member waits", |world| async move {
            world.workload("web").await["status"]["reason"]["members"] == 1
        })
        .await;
    world.node("s2", CapacityType::Spot).await;
    world
        .until("the member runs elsewhere", |world| async move {
            let holder = world.holder("web", 1).await;
            holder["node"] == "s2" && holder["state"] == "active"
        })
        .await;
    world.agents(|manners| manners.silent.clear());
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1S");
}
