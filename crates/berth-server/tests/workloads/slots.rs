//! Slots: S14, S15 and S18 to S22 of the research, on the real server.

use std::time::Duration;

use berth_control::ControlOptions;
use serde_json::{Value, json};

use crate::world::{Store, World, creation, in_short, merge};

/// Two nodes of each kind, and a workload whose caller creates the members.
async fn created_by_callers(max_on_demand: u32) -> World {
    let world = World::new().await;
    world.fleet(2, 2).await;
    let capacity = json!({ "max_on_demand": max_on_demand });
    world.apply("web", json!({ "capacity": capacity })).await.expect(201);
    world
}

/// Leases that ran out are ended soon.
fn reaping(options: &mut ControlOptions) {
    options.maintenance.reap_every = Duration::from_millis(200);
}

/// The agents of the fleet start nothing.
fn nobody_starts(world: &World) {
    world.agents(|manners| {
        manners.slow = ["o1", "o2", "s1", "s2"].map(str::to_owned).into();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn s14_a_slot_reserved_and_never_used_is_given_again_when_its_lease_ends() {
    for store in [Store::Sqlite, Store::Postgres] {
        let world = World::with(store, 1, reaping).await;
        world.fleet(2, 2).await;
        nobody_starts(&world);
        world.apply("web", json!({ "capacity": { "max_on_demand": 1 } })).await.expect(201);
        let mut short = creation("web", &json!({}));
        merge(&mut short, json!({ "lease_s": 1 }));
        let held = world.post("/v1/placements", &short).await.expect(201).json();
        assert_eq!(in_short(&held["instances"][0]["slot"]), "0O");
        assert_eq!(world.next_slot("web").await, "1S");
        world.wait_for_slots("web", "1S").await;
        assert_eq!(world.next_slot("web").await, "0O", "on {store:?}");
        assert_eq!(world.next_slot("web").await, "2S", "on {store:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s15_a_dry_run_tells_the_slot_and_reserves_nothing() {
    let world = created_by_callers(3).await;
    for expected in ["0O", "1O"] {
        assert_eq!(world.next_slot("web").await, expected);
    }
    let mut dry = creation("web", &json!({}));
    merge(&mut dry, json!({ "dry_run": true }));
    for _ in 0..3 {
        let told = world.post("/v1/placements", &dry).await.expect(200).json();
        assert_eq!(in_short(&told["instances"][0]["slot"]), "2O");
    }
    assert_eq!(world.slots("web").await, "0O 1O");
    assert_eq!(world.next_slot("web").await, "2O");
    assert_eq!(world.next_slot("web").await, "3S");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_several_tells_as_many_slots() {
    let world = created_by_callers(1).await;
    let mut dry = creation("web", &json!({ "count": 3 }));
    merge(&mut dry, json!({ "dry_run": true }));
    let told = world.post("/v1/placements", &dry).await.expect(200).json();
    let told: Vec<String> = told["instances"].as_array().unwrap().iter().map(slot).collect();
    assert_eq!(told, ["0O", "1S", "2S"]);
    let real = creation("web", &json!({ "count": 3 }));
    let made = world.post("/v1/placements", &real).await.expect(201).json();
    let made: Vec<String> = made["instances"].as_array().unwrap().iter().map(slot).collect();
    assert_eq!(made, told);
}

fn slot(instance: &Value) -> String {
    in_short(&instance["slot"])
}

/// A StatefulSet's ordinal decides the kind of its pod there; here nothing has an ordinal, the
/// slot's number decides. So whatever the order in which slots were emptied and filled, a number
/// below the limit is on-demand, and what is let go is chosen by slot, not by age.
#[tokio::test(flavor = "multi_thread")]
async fn s18_the_number_of_the_slot_decides_whatever_the_order_of_creation() {
    let world = created_by_callers(2).await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(world.create("web").await);
    }
    for order in [[0, 3, 1], [4, 1, 0], [2, 0, 4]] {
        for slot in order {
            world.lose(&world.holder("web", slot).await["instance"]).await;
        }
        for _ in order {
            let fresh = world.create("web").await;
            let slot = &fresh["slot"];
            let is_low = slot["slot"].as_i64().unwrap() < 2;
            let (kind, cost) = if is_low { ("on-demand", 100) } else { ("spot", 1) };
            assert_eq!((&slot["on"], &slot["deletion_cost"]), (&json!(kind), &json!(cost)));
        }
        assert_eq!(world.slots("web").await, "0O 1O 2S 3S 4S");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s18_what_is_let_go_is_chosen_by_slot_and_not_by_age() {
    let world = World::new().await;
    world.fleet(2, 2).await;
    world
        .apply("web", json!({ "replicas": 4, "capacity": { "max_on_demand": 2 } }))
        .await
        .expect(201);
    world.ready("web").await;
    // Now those of slots 0 and 2 are the youngest.
    for slot in [0, 2] {
        world.lose(&world.holder("web", slot).await["instance"]).await;
        world.ready("web").await;
    }
    let kept = world.holder("web", 2).await["instance"].clone();
    world.scale("web", 3).await.expect(200);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1O 2S");
    assert_eq!(world.holder("web", 2).await["instance"], kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn s19_a_create_without_id_and_name_gets_its_slot_and_a_retry_gets_the_same() {
    let world = created_by_callers(1).await;
    let mut request = creation("web", &json!({}));
    merge(&mut request, json!({ "request_id": "create-1" }));
    let first = world.post("/v1/placements", &request).await.expect(201).json();
    let again = world.post("/v1/placements", &request).await.expect(201).json();
    let (first, again) = (&first["instances"][0], &again["instances"][0]);
    assert!(first["instance"].is_string() && first.get("name").is_none(), "{first}");
    assert_eq!((&first["instance"], &first["slot"]), (&again["instance"], &again["slot"]));
    assert_eq!(in_short(&first["slot"]), "0O");
    // The retry took no second slot.
    assert_eq!(world.slots("web").await, "0O");
    assert_eq!(world.next_slot("web").await, "1S");
}

#[tokio::test(flavor = "multi_thread")]
async fn s20_an_instance_of_no_stored_workload_gets_no_slot_and_no_kind() {
    let world = World::new().await;
    // Only spot: one that was forced to on-demand would not be placed.
    world.fleet(0, 1).await;
    world.apply("web", json!({ "capacity": { "max_on_demand": 3 } })).await.expect(201);
    for fields in [json!({ "workload": null }), json!({ "workload": "elsewhere" })] {
        let request = creation("web", &fields);
        let made = world.post("/v1/placements", &request).await.expect(201).json();
        let made = &made["instances"][0];
        assert!(made.get("slot").is_none(), "{made}");
        assert_eq!(made["node"], "s1");
    }
    assert_eq!(world.slots("web").await, "");
    let refused = world.post("/v1/placements", &creation("web", &json!({}))).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn s21_after_a_restart_the_slots_are_what_they_were() {
    for store in [Store::Sqlite, Store::Postgres] {
        let mut world = World::with(store, 1, |_| {}).await;
        world.fleet(2, 2).await;
        world.apply("web", json!({ "capacity": { "max_on_demand": 3 } })).await.expect(201);
        let mut made = Vec::new();
        for _ in 0..4 {
            made.push(world.create("web").await["instance"].clone());
        }
        world.lose(&made[1]).await;
        assert_eq!(world.slots("web").await, "0O 2O 3S");
        world.restart().await;
        assert_eq!(world.slots("web").await, "0O 2O 3S", "on {store:?}");
        assert_eq!(world.next_slot("web").await, "1O", "on {store:?}");
        assert_eq!(world.next_slot("web").await, "4S", "on {store:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s21_a_restart_disturbs_no_member_that_berth_keeps() {
    let mut world = World::new().await;
    world.fleet(2, 2).await;
    let fields = json!({ "replicas": 5, "capacity": { "max_on_demand": 3 } });
    world.apply("web", fields).await.expect(201);
    world.ready("web").await;
    let before: Vec<Value> = ids(&world).await;
    world.restart().await;
    world.ready("web").await;
    world.scale("web", 6).await.expect(200);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S 5S");
    assert_eq!(ids(&world).await[..5], before[..]);
}

async fn ids(world: &World) -> Vec<Value> {
    world.members("web").await.iter().map(|member| member["instance"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn s22_without_the_rule_new_members_go_anywhere_and_the_others_stay() {
    let world = World::new().await;
    world.fleet(2, 0).await;
    let rule = |enabled: bool| json!({ "capacity": { "max_on_demand": 2, "enabled": enabled } });
    world.apply("web", rule(true)).await.expect(201);
    assert_eq!(world.next_slot("web").await, "0O");
    assert_eq!(world.next_slot("web").await, "1O");
    // The third would be spot, and there is none.
    let refused = world.post("/v1/placements", &creation("web", &json!({}))).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
    world.apply("web", rule(false)).await.expect(200);
    assert_eq!(world.next_slot("web").await, "2O");
    assert_eq!(world.slots("web").await, "0O 1O 2O");
}

#[tokio::test(flavor = "multi_thread")]
async fn s22_members_that_berth_keeps_are_left_alone_without_the_rule() {
    let world = World::new().await;
    world.fleet(2, 2).await;
    let with = |replicas: u32, limit: u32, enabled: bool| {
        let capacity = json!({ "max_on_demand": limit, "enabled": enabled });
        json!({ "replicas": replicas, "capacity": capacity })
    };
    world.apply("web", with(4, 2, true)).await.expect(201);
    world.ready("web").await;
    let before = ids(&world).await;
    // Another limit at the same time: nobody is misplaced by a rule that is not in force.
    world.apply("web", with(4, 0, false)).await.expect(200);
    world.ready("web").await;
    world.lose(&world.holder("web", 3).await["instance"]).await;
    world.ready("web").await;
    assert_eq!(ids(&world).await[..3], before[..3]);
    let wants = world.members("web").await;
    assert!(wants.iter().all(|member| member.get("wants").is_none()), "{wants:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_asks_for_a_kind_itself_gets_it_and_is_counted_there() {
    let world = created_by_callers(2).await;
    let ask = |kind: &str| creation("web", &json!({ "capacity_type": kind }));
    let made = world.post("/v1/placements", &ask("spot")).await.expect(201).json();
    assert_eq!(in_short(&made["instances"][0]["slot"]), "2S");
    assert_eq!(world.next_slot("web").await, "0O");
    assert_eq!(world.next_slot("web").await, "1O");
    assert_eq!(world.next_slot("web").await, "3S");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_callers_made_keep_their_slots_when_berth_takes_over() {
    let world = created_by_callers(2).await;
    for expected in ["0O", "1O", "2S"] {
        assert_eq!(world.next_slot("web").await, expected);
    }
    world.lose(&world.holder("web", 1).await["instance"]).await;
    let before = ids(&world).await;
    world.scale("web", 4).await.expect(200);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1O 2S 3S");
    let after = ids(&world).await;
    assert_eq!((&after[0], &after[2]), (&before[0], &before[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_revision_of_a_workload_that_callers_fill_has_slots_of_its_own() {
    let world = created_by_callers(1).await;
    assert_eq!(world.next_slot("web").await, "0O");
    assert_eq!(world.next_slot("web").await, "1S");
    let next = json!({ "capacity": { "max_on_demand": 1 }, "template": { "image": "web:2" } });
    world.apply("web", next).await.expect(200);
    for expected in ["0O", "1S"] {
        let made = world.create("web").await;
        assert_eq!(
            (in_short(&made["slot"]), &made["slot"]["revision"]),
            (expected.to_owned(), &json!(2))
        );
    }
    // The callers let the old ones go, too; nobody else does.
    assert_eq!(world.slots("web").await, "0O 1S 0O 1S");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_waits_for_room_gets_its_slot_when_there_is_some() {
    let world = World::new().await;
    world.fleet(1, 0).await;
    world.apply("web", json!({ "capacity": { "max_on_demand": 1 } })).await.expect(201);
    assert_eq!(world.next_slot("web").await, "0O");
    let mut request = creation("web", &json!({}));
    merge(&mut request, json!({ "mode": "wait", "wait_s": 300 }));
    let ticket = world.post("/v1/placements", &request).await.expect(202).json();
    let path = format!("/v1/queue/{}", ticket["id"].as_str().unwrap());
    assert_eq!(world.slots("web").await, "0O");
    world.node("s1", berth_engine::CapacityType::Spot).await;
    world
        .until("it is granted", |world| {
            let path = &path;
            async move {
                let ticket = world.servers[0].get(&world.token, path).await.expect(200).json();
                ticket["state"] == "granted"
            }
        })
        .await;
    let ticket = world.servers[0].get(&world.token, &path).await.expect(200).json();
    assert_eq!(in_short(&ticket["placed"]["instances"][0]["slot"]), "1S", "{ticket}");
    assert_eq!(world.slots("web").await, "0O 1S");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_asks_for_a_kind_itself_is_not_overruled() {
    let world = World::new().await;
    world.fleet(2, 2).await;
    let template = json!({ "capacity_type": "spot" });
    let fields = json!({ "replicas": 3, "capacity": { "max_on_demand": 2 }, "template": template });
    world.apply("web", fields).await.expect(201);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0S 1S 2S");
    let members = world.members("web").await;
    assert!(members.iter().all(|member| member.get("wants").is_none()), "{members:?}");
}
