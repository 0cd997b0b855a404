//! The scenarios of the spot rules: which slots are on-demand, what is refilled, what goes first.

use super::super::{BlockedMember, Blocker, Cause, HostState, MemberState, OnChange, Step};
use super::world::{World, created_slots, in_place_of, into_free_slot, limit, released};
use crate::model::CapacityType::{OnDemand, Spot};

/// The classes of so many replicas under a limit, once settled.
fn row(replicas: u32, max_on_demand: u32) -> String {
    World::settled(replicas, max_on_demand).row(1)
}

#[test]
fn s1_five_replicas_five_on_demand() {
    assert_eq!(row(5, 5), "OOOOO");
}

#[test]
fn s2_five_replicas_three_on_demand() {
    assert_eq!(row(5, 3), "OOOSS");
}

#[test]
fn s3_five_replicas_none_on_demand() {
    assert_eq!(row(5, 0), "SSSSS");
}

#[test]
fn s4_a_limit_above_the_replicas_makes_all_on_demand() {
    assert_eq!(row(5, 7), "OOOOO");
}

#[test]
fn s5_one_replica_one_on_demand() {
    assert_eq!(row(1, 1), "O");
}

#[test]
fn s6_a_reclaimed_spot_member_is_replaced_in_its_slot_at_once() {
    let mut world = World::settled(5, 3);
    world.at(3).host = HostState::Reclaimed;
    let old = *world.at(3);
    assert_eq!(world.round(), [in_place_of(&old, Spot, Cause::Reclaim)]);
    let steps = world.round();
    assert_eq!(steps, [Step::Release { instance: old.id, cause: Cause::Replaced }]);
    assert_eq!(world.row(1), "OOOSS");
    assert!(world.plan().is_settled());

    world.remove(3);
    assert_eq!(world.steps(), [into_free_slot(3, Spot)]);
}

#[test]
fn s7_a_lost_on_demand_member_comes_back_on_demand() {
    let mut world = World::settled(5, 3);
    world.remove(1);
    assert_eq!(world.steps(), [into_free_slot(1, OnDemand)]);

    let mut world = World::settled(5, 3);
    world.at(1).host = HostState::Lost;
    let lost = *world.at(1);
    let release = Step::Release { instance: lost.id, cause: Cause::NodeLost };
    assert_eq!(world.steps(), [release, in_place_of(&lost, OnDemand, Cause::NodeLost)]);
    world.settle();
    assert_eq!(world.row(1), "OOOSS");
}

#[test]
fn s8_the_lowest_free_slots_are_filled_first() {
    let mut world = World::settled(5, 3);
    world.remove(4);
    world.remove(0);
    world.replicas = 6;
    let expected = [into_free_slot(0, OnDemand), into_free_slot(4, Spot), into_free_slot(5, Spot)];
    assert_eq!(world.steps(), expected);
}

#[test]
fn s9_fewer_replicas_leave_the_on_demand_ones() {
    let mut world = World::settled(5, 3);
    let going = [(world.id(4), Cause::ScaleDown), (world.id(3), Cause::ScaleDown)];
    world.replicas = 3;
    assert_eq!(released(&world.round()), going);
    assert_eq!(world.row(1), "OOO");
}

#[test]
fn s9_a_member_that_only_starts_is_not_let_go_before_a_spot_one() {
    let mut world = World::settled(5, 3);
    world.at(0).state = MemberState::Starting;
    world.replicas = 3;
    let (third, fourth) = (world.id(3), world.id(4));
    let plan = world.plan();
    // Two on-demand ones run, so one of the spot ones has to stay until the third does.
    assert_eq!(released(&plan.steps), [(fourth, Cause::ScaleDown)]);
    let (cause, blocker) = (Cause::ScaleDown, Blocker::Replacement);
    assert_eq!(plan.blocked, [BlockedMember { instance: third, cause, blocker }]);
    world.settle();
    assert_eq!(world.row(1), "OOO");
}

#[test]
fn s10_more_replicas_are_spot() {
    let mut world = World::settled(5, 3);
    world.replicas = 8;
    let expected = [5, 6, 7].map(|slot| into_free_slot(slot, Spot));
    assert_eq!(world.steps(), expected);
}

#[test]
fn s11_a_higher_limit_rebuilds_only_the_slot_that_changed() {
    let mut world = World::settled(5, 3);
    world.rule = Some(limit(4));
    let old = *world.at(3);
    let steps = world.settle();
    let release = Step::Release { instance: old.id, cause: Cause::Replaced };
    assert_eq!(steps, [in_place_of(&old, OnDemand, Cause::Rebuild), release]);
    assert_eq!(world.row(1), "OOOOS");
}

#[test]
fn s12_a_lower_limit_rebuilds_one_at_a_time() {
    let mut world = World::settled(5, 3);
    world.rule = Some(limit(1));
    let (first, second) = (*world.at(1), world.id(2));
    let plan = world.plan();
    assert_eq!(plan.steps, [in_place_of(&first, Spot, Cause::Rebuild)]);
    let (cause, blocker) = (Cause::Rebuild, Blocker::OneAtATime);
    let waits = BlockedMember { instance: second, cause, blocker };
    assert_eq!(plan.blocked, [waits]);

    // While the first one's replacement starts, the second goes on waiting.
    world.apply(&plan.steps[0]);
    let plan = world.plan();
    assert_eq!(plan.steps, []);
    let handed = BlockedMember { instance: first.id, cause, blocker: Blocker::Replacement };
    assert_eq!(plan.blocked, [handed, waits]);
    world.settle();
    assert_eq!(world.row(1), "OSSSS");
}

#[test]
fn s12_a_lower_limit_may_only_make_members_the_first_to_go() {
    let mut world = World::settled(5, 3);
    let lazy = |limit| super::super::CapacityRule { on_change: OnChange::Lazy, ..limit };
    world.rule = Some(lazy(limit(1)));
    assert!(world.plan().is_settled());
    world.replicas = 3;
    let going = [(world.id(2), Cause::ScaleDown), (world.id(1), Cause::ScaleDown)];
    assert_eq!(released(&world.steps()), going);
    world.settle();
    assert_eq!(world.row(1), "O..SS");
}

#[test]
fn s21_the_next_after_two_on_demand_and_one_spot_is_on_demand() {
    let mut world = World::empty(4, Some(limit(3)));
    for (slot, class) in [(0, OnDemand), (1, OnDemand), (3, Spot)] {
        world.add(1, slot, class);
    }
    assert_eq!(world.steps(), [into_free_slot(2, OnDemand)]);
}

#[test]
fn s22_without_the_rule_new_members_go_anywhere_and_old_ones_stay() {
    let mut world = World::settled(5, 3);
    world.rule = Some(super::super::CapacityRule { enabled: false, ..limit(0) });
    assert!(world.plan().is_settled());
    world.replicas = 6;
    let create = Step::Create {
        revision: 1,
        slot: 5,
        class: None,
        in_place_of: None,
        cause: Cause::Missing,
    };
    assert_eq!(world.steps(), [create]);
    assert_eq!(world.row(1), "OOOSS");
}

#[test]
fn a_template_that_chooses_itself_leaves_the_rule_nothing_to_choose() {
    let mut world = World::settled(2, 2);
    world.pinned = Some(Spot);
    assert!(world.plan().is_settled());
    world.replicas = 3;
    assert!(matches!(world.steps()[..], [Step::Create { slot: 2, class: None, .. }]));
}

#[test]
fn an_empty_on_demand_slot_is_filled_before_a_spot_member_goes() {
    let mut world = World::empty(3, Some(limit(2)));
    for (slot, letter) in [(1, 'O'), (2, 'S'), (3, 'S')] {
        world.add(1, slot, super::world::class(letter));
    }
    world.start();
    let steps = world.steps();
    assert_eq!(created_slots(&steps), [0]);
    assert_eq!(released(&steps), []);
    world.apply(&steps[0]);

    // It starts: nobody who runs goes for it yet.
    let (cause, blocker) = (Cause::ScaleDown, Blocker::Replacement);
    let plan = world.plan();
    assert_eq!(plan.steps, []);
    assert_eq!(plan.blocked, [BlockedMember { instance: world.id(3), cause, blocker }]);
    world.start();
    assert_eq!(released(&world.steps()), [(world.id(3), Cause::ScaleDown)]);
    world.settle();
    assert_eq!(world.row(1), "OOS");
}

#[test]
fn a_slot_that_someone_still_leaves_is_taken_in_their_place() {
    let mut world = World::settled(5, 3);
    world.at(3).state = MemberState::Leaving;
    let leaving = *world.at(3);
    assert_eq!(world.steps(), [in_place_of(&leaving, Spot, Cause::Missing)]);
}

#[test]
fn no_replicas_means_nobody() {
    let mut world = World::settled(3, 1);
    world.replicas = 0;
    world.paused = true;
    assert_eq!(released(&world.steps()).len(), 3);
    world.settle();
    assert!(world.members.is_empty());
}
