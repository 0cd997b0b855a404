//! When there is more wanted than there is room: who gets it.

use berth_engine::Amounts;
use serde_json::{Value, json};

use crate::world::World;

const TENANTS: [&str; 3] = ["a", "b", "c"];

/// A node with room for so many members.
async fn room_for(world: &World, id: &str, members: u32) {
    let capacity = Amounts::new(1_000_000, members * (1024 + 64)).with_disk(1 << 24);
    world.node_with(id, |facts| facts.capacity = Some(capacity)).await;
}

async fn want(world: &World, tenant: &str, replicas: u32) {
    let resources = json!({ "cpu_milli": 100, "memory_mib": 1024 });
    let body = json!({ "replicas": replicas, "template": { "resources": resources } });
    world.put(&format!("/v1/workloads/{tenant}/web"), &body).await;
}

async fn status(world: &World, tenant: &str) -> Value {
    let path = format!("/v1/workloads/{tenant}/web");
    world.servers[0].get(&world.token, &path).await.expect(200).json()["status"].clone()
}

async fn placed(world: &World) -> Vec<u64> {
    let mut placed = Vec::new();
    for tenant in TENANTS {
        placed.push(status(world, tenant).await["placed"].as_u64().unwrap());
    }
    placed
}

/// Waits until so many members are there altogether.
async fn altogether(world: &World, members: u64) -> Vec<u64> {
    world
        .until(&format!("{members} are placed"), |world| async move {
            placed(world).await.iter().sum::<u64>() == members
        })
        .await;
    placed(world).await
}

async fn waits(world: &World, tenant: &str) {
    world
        .until("it waits", |world| async move {
            status(world, tenant).await["reason"]["code"].is_string()
        })
        .await;
}

fn is_even(counts: &[u64]) -> bool {
    counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_that_want_far_more_than_there_is_get_half_each_and_a_third_its_share() {
    let world = World::new().await;
    for tenant in TENANTS {
        want(&world, tenant, 0).await;
    }
    want(&world, "a", 40).await;
    want(&world, "b", 30).await;
    waits(&world, "a").await;
    waits(&world, "b").await;
    room_for(&world, "n1", 11).await;
    let first = altogether(&world, 11).await;
    assert!(is_even(&first[..2]), "{first:?}");
    // A third one comes when all is taken.
    want(&world, "c", 20).await;
    waits(&world, "c").await;
    assert_eq!(placed(&world).await, first);
    room_for(&world, "n2", 9).await;
    let second = altogether(&world, 20).await;
    let gained: Vec<u64> = second.iter().zip(&first).map(|(now, before)| now - before).collect();
    assert!(is_even(&gained), "{first:?} then {second:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn room_that_comes_one_at_a_time_goes_to_each_tenant_in_turn() {
    let world = World::new().await;
    room_for(&world, "n1", 9).await;
    let resources = json!({ "cpu_milli": 100, "memory_mib": 1024 });
    let filler =
        json!({ "tenant": "filler", "instances": [{ "resources": resources, "count": 9 }] });
    let filler = world.post("/v1/placements", &filler).await.expect(201).json();
    // Not the same number: the one that wants most must not get most.
    for (tenant, replicas) in TENANTS.into_iter().zip([30, 20, 10]) {
        want(&world, tenant, replicas).await;
        waits(&world, tenant).await;
    }
    for (at, instance) in (1..).zip(filler["instances"].as_array().unwrap()) {
        world.lose(&instance["instance"]).await;
        altogether(&world, at).await;
    }
    let found = placed(&world).await;
    assert!(is_even(&found), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_many_workloads_gets_no_more_than_one_with_a_single_workload() {
    let world = World::new().await;
    for tenant in TENANTS {
        want(&world, tenant, 0).await;
    }
    let resources = json!({ "cpu_milli": 100, "memory_mib": 1024 });
    let body = json!({ "replicas": 10, "template": { "resources": resources } });
    for number in 0..5 {
        world.put(&format!("/v1/workloads/a/more-{number}"), &body).await;
    }
    want(&world, "b", 10).await;
    waits(&world, "b").await;
    world
        .until("all of the first tenant wait", |world| async move {
            let reply = world.servers[0].get(&world.token, "/v1/workloads?tenant=a").await;
            let states = reply.each("status");
            states.iter().filter(|status| status["reason"]["code"].is_string()).count() == 5
        })
        .await;
    room_for(&world, "n1", 10).await;
    world
        .until("the room is taken", |world| async move {
            let claims = world.servers[0].get(&world.token, "/v1/claims?limit=100").await;
            claims.each("tenant").len() == 10
        })
        .await;
    let of_b = status(&world, "b").await["placed"].as_u64().unwrap();
    assert!((4..=6).contains(&of_b), "{of_b} of 10");
}
