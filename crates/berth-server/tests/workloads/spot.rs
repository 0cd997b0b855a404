//! Spot and on-demand: S1 to S12 of the research, on the real server. Where the table speaks of n
//! members the workload says how many; where it speaks of single creates the caller makes them.

use serde_json::{Value, json};

use crate::world::{Store, World, count, is_ready};

/// A workload of so many replicas, of which so many are on-demand, on three nodes of each kind.
async fn world_of(replicas: u32, max_on_demand: u32) -> World {
    settled(World::new().await, replicas, max_on_demand).await
}

async fn settled(world: World, replicas: u32, max_on_demand: u32) -> World {
    world.fleet(3, 3).await;
    apply(&world, replicas, max_on_demand, "rebuild").await;
    world.ready("web").await;
    world
}

async fn apply(world: &World, replicas: u32, max_on_demand: u32, on_change: &str) {
    let capacity = json!({ "max_on_demand": max_on_demand, "on_change": on_change });
    let reply = world.apply("web", json!({ "replicas": replicas, "capacity": capacity })).await;
    assert!(reply.status.is_success(), "{}", reply.text);
}

/// A workload whose caller creates the members, with five of them: O O O S S.
async fn five_created() -> (World, Vec<Value>) {
    let world = World::new().await;
    world.fleet(3, 3).await;
    world.apply("web", json!({ "capacity": { "max_on_demand": 3 } })).await.expect(201);
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(world.create("web").await["instance"].clone());
    }
    assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S");
    (world, made)
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_of_five_replicas_with_five_on_demand_none_is_spot() {
    let world = world_of(5, 5).await;
    assert_eq!(world.slots("web").await, "0O 1O 2O 3O 4O");
}

#[tokio::test(flavor = "multi_thread")]
async fn s2_of_five_replicas_with_three_on_demand_two_are_spot() {
    let world = world_of(5, 3).await;
    assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S");
    let status = world.workload("web").await["status"].clone();
    assert_eq!((&status["on_demand"], &status["spot"]), (&json!(3), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_of_five_replicas_with_none_on_demand_all_are_spot() {
    let world = world_of(5, 0).await;
    assert_eq!(world.slots("web").await, "0S 1S 2S 3S 4S");
}

#[tokio::test(flavor = "multi_thread")]
async fn s4_a_limit_above_the_replicas_makes_all_on_demand() {
    let world = world_of(5, 7).await;
    assert_eq!(world.slots("web").await, "0O 1O 2O 3O 4O");
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_the_only_replica_is_on_demand() {
    let world = world_of(1, 1).await;
    assert_eq!(world.slots("web").await, "0O");
}

#[tokio::test(flavor = "multi_thread")]
async fn s6_a_reclaimed_spot_member_is_refilled_in_its_own_slot() {
    let (world, made) = five_created().await;
    world.lose(&made[3]).await;
    assert_eq!(world.slots("web").await, "0O 1O 2O 4S");
    assert_eq!(world.next_slot("web").await, "3S");
}

#[tokio::test(flavor = "multi_thread")]
async fn s6_and_s7_where_berth_keeps_the_members_it_refills_the_slots_itself() {
    let world = world_of(5, 3).await;
    for (slot, kind) in [(3, "3S"), (1, "1O")] {
        let before = world.holder("web", slot).await["instance"].clone();
        world.lose(&before).await;
        world.ready("web").await;
        assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S", "after the loss of {kind}");
        assert_ne!(world.holder("web", slot).await["instance"], before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s7_a_lost_on_demand_member_is_refilled_in_its_own_slot() {
    let (world, made) = five_created().await;
    world.lose(&made[1]).await;
    assert_eq!(world.next_slot("web").await, "1O");
    assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S");
}

#[tokio::test(flavor = "multi_thread")]
async fn s8_of_several_lost_slots_the_lowest_is_filled_first() {
    let (world, made) = five_created().await;
    world.lose(&made[4]).await;
    world.lose(&made[0]).await;
    let mut given = Vec::new();
    for _ in 0..3 {
        given.push(world.next_slot("web").await);
    }
    assert_eq!(given, ["0O", "4S", "5S"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn s9_scaled_down_to_three_the_on_demand_members_are_left() {
    let world = world_of(5, 3).await;
    world.scale("web", 3).await.expect(200);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1O 2O");
}

#[tokio::test(flavor = "multi_thread")]
async fn scaling_down_step_by_step_takes_spot_first_and_the_highest_slot_first() {
    let world = world_of(6, 3).await;
    for (replicas, left) in [
        (5, "0O 1O 2O 3S 4S"),
        (4, "0O 1O 2O 3S"),
        (3, "0O 1O 2O"),
        (2, "0O 1O"),
        (1, "0O"),
        (0, ""),
    ] {
        let costs = world.members("web").await;
        let cheapest = costs.iter().map(|it| it["deletion_cost"].as_u64().unwrap()).min();
        let spot = count(&costs, |member| member["on"] == "spot");
        assert_eq!(cheapest, Some(if spot > 0 { 1 } else { 100 }));
        world.scale("web", replicas).await.expect(200);
        world.ready("web").await;
        assert_eq!(world.slots("web").await, left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_scaled_up_to_eight_the_new_slots_are_spot() {
    let world = world_of(5, 3).await;
    world.scale("web", 8).await.expect(200);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S 5S 6S 7S");
}

/// Instances of a workload by slot.
async fn by_slot(world: &World) -> Vec<Value> {
    world.members("web").await.iter().map(|member| member["instance"].clone()).collect()
}

/// Changes the limit, and watches that members are replaced one at a time, the new one first.
/// Returns which slots have another member than before.
async fn change_limit(world: &World, max_on_demand: u32, on_change: &str) -> Vec<usize> {
    let before = by_slot(world).await;
    let wanted = before.len();
    apply(world, wanted.try_into().unwrap(), max_on_demand, on_change).await;
    let look = |members: &[Value]| {
        let runs = count(members, |member| member["state"] == "active");
        assert!(runs >= wanted, "fewer than before run: {members:?}");
        // A member that hands its slot over comes right after the one that has it now. Once that one
        // runs the next may begin; that the old one is told to stop may be heard of later, when
        // another server said so.
        let handed = members.windows(2).filter(|two| {
            two[1]["handed_over"] == true
                && two[1]["state"] != "releasing"
                && two[0]["state"] != "active"
        });
        let handed = handed.count();
        assert!(handed <= 1, "two are replaced at once: {members:?}");
    };
    let is_settled = |found: &Value| {
        let members = found["status"]["on_demand"].as_u64().unwrap();
        let settled = on_change == "lazy" || members == u64::from(max_on_demand).min(wanted as u64);
        is_ready(found) && settled
    };
    world.watch("web", look, is_settled).await;
    let after = by_slot(world).await;
    assert_eq!(after.len(), wanted);
    (0..wanted).filter(|at| before[*at] != after[*at]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn s11_raising_the_limit_by_one_rebuilds_only_that_slot() {
    let world = world_of(5, 3).await;
    assert_eq!(change_limit(&world, 4, "rebuild").await, [3]);
    assert_eq!(world.slots("web").await, "0O 1O 2O 3O 4S");
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_lowering_the_limit_rebuilds_exactly_the_misplaced_members() {
    let world = world_of(5, 3).await;
    assert_eq!(change_limit(&world, 1, "rebuild").await, [1, 2]);
    assert_eq!(world.slots("web").await, "0O 1S 2S 3S 4S");
}

#[tokio::test(flavor = "multi_thread")]
async fn s11_and_s12_two_servers_rebuild_no_more_than_one_would() {
    let world = settled(World::with(Store::Postgres, 2, |_| {}).await, 5, 3).await;
    assert_eq!(change_limit(&world, 5, "rebuild").await, [3, 4]);
    assert_eq!(change_limit(&world, 1, "rebuild").await, [1, 2, 3, 4]);
    assert_eq!(world.slots("web").await, "0O 1S 2S 3S 4S");
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_with_the_lazy_policy_misplaced_members_stay_and_go_first() {
    let world = world_of(5, 3).await;
    assert!(change_limit(&world, 1, "lazy").await.is_empty());
    assert_eq!(world.slots("web").await, "0O 1O 2O 3S 4S");
    let members = world.members("web").await;
    let costs: Vec<&Value> = members.iter().map(|member| &member["deletion_cost"]).collect();
    assert_eq!(costs, [100, 0, 0, 1, 1]);
    // One that is refilled is of the new kind.
    world.lose(&world.holder("web", 2).await["instance"]).await;
    world.wait_for_slots("web", "0O 1O 2S 3S 4S").await;
    world.ready("web").await;
    // The misplaced one goes before the spot ones.
    world.scale("web", 4).await.expect(200);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 2S 3S 4S");
    world.scale("web", 3).await.expect(200);
    world.ready("web").await;
    assert_eq!(world.slots("web").await, "0O 2S 3S");
}

#[tokio::test(flavor = "multi_thread")]
async fn from_lazy_to_rebuild_what_is_misplaced_is_rebuilt() {
    let world = world_of(4, 3).await;
    assert!(change_limit(&world, 2, "lazy").await.is_empty());
    assert_eq!(change_limit(&world, 2, "rebuild").await, [2]);
    assert_eq!(world.slots("web").await, "0O 1O 2S 3S");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_may_go_up_and_down_again_and_again() {
    let world = world_of(6, 3).await;
    for (limit, changed) in [(6, vec![3, 4, 5]), (0, vec![0, 1, 2, 3, 4, 5]), (2, vec![0, 1])] {
        assert_eq!(change_limit(&world, limit, "rebuild").await, changed, "to {limit}");
    }
    assert_eq!(world.slots("web").await, "0O 1O 2S 3S 4S 5S");
}
