//! S13: ten creates at once, over two servers, and exactly three are on-demand, every time.

use std::sync::Arc;

use berth_engine::{Amounts, CapacityType};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::world::{Store, World, creation};

/// How many clients create at once.
const CLIENTS: usize = 10;

/// How many of them are on-demand.
const ON_DEMAND: usize = 3;

/// Says what is wrong with ten members that were created at once, if anything is.
fn check(members: &[Value]) -> Result<(), String> {
    let on_demand = members.iter().filter(|member| member["on"] == "on-demand").count();
    if members.len() != CLIENTS || on_demand != ON_DEMAND {
        return Err(format!("{} members, {on_demand} on-demand", members.len()));
    }
    let mut slots: Vec<u64> = members.iter().filter_map(|it| it["slot"].as_u64()).collect();
    slots.sort_unstable();
    let expected: Vec<u64> = (0..10).collect();
    if slots == expected { Ok(()) } else { Err(format!("the slots are {slots:?}")) }
}

/// A world with two nodes that have room for all rounds, whose agents start nothing.
async fn roomy(store: Store, servers: usize) -> World {
    let world = World::with(store, servers, |_| {}).await;
    for (id, kind) in [("o1", CapacityType::OnDemand), ("s1", CapacityType::Spot)] {
        let big = Amounts::new(4_000_000, 1 << 22).with_disk(1 << 26);
        world.agents(|manners| manners.slow.insert(id.to_owned()));
        world
            .node_with(id, |facts| {
                facts.capacity_type = kind;
                facts.capacity = Some(big);
                facts.instance_limit = 10_000;
            })
            .await;
    }
    world
}

async fn ten_at_once(world: &World, rounds: usize) {
    for round in 0..rounds {
        let name = format!("web-{round}");
        let rule = json!({ "capacity": { "max_on_demand": ON_DEMAND } });
        world.apply(&name, rule).await.expect(201);
        world
            .until("every server knows the workload", |world| {
                let path = crate::world::path(&format!("web-{round}"));
                async move {
                    let asked = world.servers.iter().map(|it| it.get(&world.token, &path));
                    join_all(asked).await.iter().all(|reply| reply.status == 200)
                }
            })
            .await;
        let body = creation(&name, &json!({}));
        let creates = (0..CLIENTS).map(|client| {
            let server = &world.servers[client % world.servers.len()];
            server.post(&world.token, "/v1/placements", &body)
        });
        let answers: Vec<Value> = join_all(creates)
            .await
            .into_iter()
            .map(|reply| reply.expect(201).json()["instances"][0]["slot"].clone())
            .collect();
        assert_eq!(check(&answers), Ok(()), "round {round}: {answers:?}");
        // And what was answered is what there is, as every server sees it.
        for at in 0..world.servers.len() {
            world
                .until("the server knows all ten", |world| {
                    let path = format!("{}/members", crate::world::path(&name));
                    async move {
                        let found = world.servers[at].get(&world.token, &path).await.expect(200);
                        let found = found.json()["items"].as_array().unwrap().clone();
                        found.len() >= CLIENTS && check(&found) == Ok(())
                    }
                })
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s13_ten_simultaneous_creates_over_two_servers_make_exactly_three_on_demand() {
    let world = roomy(Store::Postgres, 2).await;
    ten_at_once(&world, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s13_ten_simultaneous_creates_on_an_embedded_ledger_make_exactly_three_on_demand() {
    let world = roomy(Store::Sqlite, 1).await;
    ten_at_once(&world, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s13_ten_replicas_kept_by_two_servers_at_once_are_ten_and_three_are_on_demand() {
    let world = roomy(Store::Postgres, 2).await;
    world.agents(|manners| manners.slow.clear());
    for round in 0..10 {
        let name = format!("web-{round}");
        let fields = json!({ "replicas": CLIENTS, "capacity": { "max_on_demand": ON_DEMAND } });
        world.apply(&name, fields).await.expect(201);
        let look = |members: &[Value]| {
            assert!(members.len() <= CLIENTS, "round {round}: {members:?}");
        };
        world.watch(&name, look, crate::world::is_ready).await;
        let members = world.members(&name).await;
        assert_eq!(check(&members), Ok(()), "round {round}: {members:?}");
    }
}

/// The negative control: a server that counts first and places then, as the rule was kept elsewhere, ends
/// with another number, and the check above says so.
#[tokio::test(flavor = "multi_thread")]
async fn s13_clients_that_count_instead_of_claiming_are_caught_by_the_check() {
    let world = Arc::new(roomy(Store::Sqlite, 1).await);
    for round in 0..20 {
        let name = format!("counted-{round}");
        let creates = (0..CLIENTS).map(|_| count_then_place(&world, &name));
        let members = join_all(creates).await;
        if let Err(wrong) = check(&members) {
            assert!(wrong.contains("on-demand"), "{wrong}");
            return;
        }
    }
    panic!("ten clients that count and then place were right twenty times");
}

/// What a client does that has no slots: it counts, chooses and places, in three steps.
async fn count_then_place(world: &World, name: &str) -> Value {
    let server = &world.servers[0];
    let path = format!("/v1/claims?tenant=acme&workload={name}");
    let there = server.get(&world.token, &path).await.expect(200).each("instance").len();
    let kind = if there < ON_DEMAND { "on-demand" } else { "spot" };
    let body = creation(name, &json!({ "capacity_type": kind }));
    server.post(&world.token, "/v1/placements", &body).await.expect(201);
    json!({ "on": kind, "slot": there })
}
