//! A slot has an identity of its own: every instance that has the slot is known by it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Store, World, creation, path};

/// The ids of slots by number, of those that run and stay.
async fn slot_ids(world: &World, name: &str) -> BTreeMap<u64, String> {
    let members = world.members(name).await;
    let stays = |it: &&Value| it["state"] != "releasing" && it["handed_over"] != true;
    let ids = members.iter().filter(stays);
    ids.map(|it| (it["slot"].as_u64().unwrap(), it["slot_id"].as_str().unwrap().to_owned()))
        .collect()
}

async fn instances(world: &World, name: &str) -> BTreeSet<String> {
    let members = world.members(name).await;
    members.iter().map(|it| it["instance"].as_str().unwrap().to_owned()).collect()
}

fn distinct(ids: &BTreeMap<u64, String>) -> usize {
    ids.values().collect::<BTreeSet<_>>().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn replacements_drains_and_roll_outs_keep_the_ids_of_slots() {
    let world = World::new().await;
    world.fleet(3, 0).await;
    world.apply("web", json!({ "replicas": 3 })).await.expect(201);
    world.ready("web").await;
    let (ids, first) = (slot_ids(&world, "web").await, instances(&world, "web").await);
    assert_eq!((ids.len(), distinct(&ids)), (3, 3));

    // Lost.
    let lost = world.holder("web", 1).await;
    world.lose(&lost["instance"]).await;
    world
        .until("slot 1 has another member", |world| {
            let lost = &lost;
            async move {
                let members = world.members("web").await;
                let held = members.iter().find(|it| it["slot"] == 1);
                held.is_some_and(|it| it["instance"] != lost["instance"])
            }
        })
        .await;
    world.ready("web").await;
    assert_eq!(slot_ids(&world, "web").await, ids);

    // Drained.
    let drained = world.holder("web", 0).await;
    let node = drained["node"].as_str().unwrap();
    world.post(&format!("/v1/nodes/{node}/drain"), &json!({})).await.expect(200);
    world
        .until("slot 0 is elsewhere", |world| async move {
            let held = world.holder("web", 0).await;
            held["node"] != node && held["state"] == "active"
        })
        .await;
    world.ready("web").await;
    assert_eq!(slot_ids(&world, "web").await, ids);
    world.post(&format!("/v1/nodes/{node}/drain/cancel"), &json!({})).await.expect(200);
    world.post(&format!("/v1/nodes/{node}/uncordon"), &json!({})).await;

    // Rolled out: all members are new, and of another revision.
    let before = instances(&world, "web").await;
    let restart = json!({ "action": "restart" });
    world.post(&format!("{}/rollout", path("web")), &restart).await.expect(200);
    world
        .until("all members are new", |world| {
            let before = &before;
            async move {
                let now = instances(world, "web").await;
                now.len() == 3 && now.is_disjoint(before)
            }
        })
        .await;
    world.ready("web").await;
    assert_eq!(slot_ids(&world, "web").await, ids);
    assert!(instances(&world, "web").await.is_disjoint(&first), "an instance id is never reused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_wanted_again_is_the_same_slot() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    world.apply("web", json!({ "replicas": 3 })).await.expect(201);
    world.ready("web").await;
    let (ids, first) = (slot_ids(&world, "web").await, instances(&world, "web").await);
    for replicas in [1, 3] {
        world.scale("web", replicas).await.expect(200);
        world.ready("web").await;
    }
    assert_eq!(slot_ids(&world, "web").await, ids);
    assert_ne!(instances(&world, "web").await, first);
    // Slots of another workload are others.
    world.apply("other", json!({ "replicas": 3 })).await.expect(201);
    world.ready("other").await;
    let others = slot_ids(&world, "other").await;
    assert!(others.values().all(|id| !ids.values().any(|known| known == id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_slot_is_told_by_placements_instances_agents_and_events() {
    let world = World::new().await;
    world.fleet(1, 0).await;
    world.apply("own", json!({ "replicas": null })).await.expect(201);
    let placed = world.create("own").await;
    let id = placed["slot"]["id"].clone();
    assert!(id.as_str().is_some_and(|id| id.len() == 36), "{placed}");
    let instance = placed["instance"].as_str().unwrap();
    let server = &world.servers[0];
    let path = format!("/v1/instances/{instance}");
    let shown = server.get(&world.token, &path).await.expect(200).json();
    let expected = json!({ "id": id, "slot": 0, "revision": placed["slot"]["revision"] });
    assert_eq!(shown["slot"], expected);
    let path = format!("/v1/nodes/{}/assignments", placed["node"].as_str().unwrap());
    let orders = server.get(&world.token, &path).await.expect(200).json();
    let orders = orders["assignments"].as_array().unwrap().clone();
    let order = orders.iter().find(|it| it["instance"] == placed["instance"]).unwrap();
    assert_eq!(order["slot"], expected);
    let events = world.events("instance.allocated").await;
    let event = events.iter().find(|it| it["body"]["instance_id"] == placed["instance"]);
    assert_eq!(event.unwrap()["body"]["slot"], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_never_give_one_slot_id_to_two_instances() {
    let world = World::with(Store::Postgres, 2, |options| {
        options.settings.evacuation_every = Duration::ZERO;
    })
    .await;
    world.fleet(3, 0).await;
    world.apply("own", json!({ "replicas": null })).await.expect(201);
    let body = creation("own", &json!({}));
    let placing = (0..20).map(|number| {
        let (server, token, body) = (&world.servers[number % 2], &world.token, &body);
        async move {
            let reply = server.post(token, "/v1/placements", body).await.expect(201).json();
            reply["instances"][0]["slot"]["id"].as_str().unwrap().to_owned()
        }
    });
    let ids = futures_util::future::join_all(placing).await;
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 20, "{ids:?}");
}
