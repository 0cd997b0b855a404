//! Nodes that are emptied, taken away or lost, and what a volume forbids.

use super::super::{BlockedMember, Blocker, Cause, HostState, MemberState, Share, Step};
use super::world::{World, created_slots, in_place_of, limit, released};
use crate::model::CapacityType::{OnDemand, Spot};

#[test]
fn a_drained_member_stays_until_its_replacement_runs() {
    let mut world = World::settled(3, 1);
    world.at(0).host = HostState::Draining;
    let old = *world.at(0);
    let steps = world.steps();
    assert_eq!(steps, [in_place_of(&old, OnDemand, Cause::Drain)]);
    world.apply(&steps[0]);

    let plan = world.plan();
    assert_eq!(plan.steps, []);
    let (cause, blocker) = (Cause::Drain, Blocker::Replacement);
    assert_eq!(plan.blocked, [BlockedMember { instance: old.id, cause, blocker }]);
    world.start();
    assert_eq!(released(&world.steps()), [(old.id, Cause::Replaced)]);
}

#[test]
fn drains_replace_as_many_at_once_as_may_be_too_many() {
    let mut world = World::settled(5, 5);
    world.rolling.max_surge = Share::Count(2);
    for slot in 0..5 {
        world.at(slot).host = HostState::Draining;
    }
    let plan = world.plan();
    assert_eq!(created_slots(&plan.steps), [0, 1]);
    let blockers: Vec<_> = plan.blocked.iter().map(|it| (it.instance, it.blocker)).collect();
    let expected = [2, 3, 4].map(|slot| (world.id(slot), Blocker::MaxSurge));
    assert_eq!(blockers, expected);

    // Those that have begun count, also when they are asked about again.
    world.apply(&plan.steps[1]);
    assert_eq!(created_slots(&world.steps()), [0]);
    world.settle();
    assert!(world.members.iter().all(|it| it.host == HostState::Fine));
}

#[test]
fn a_drain_goes_on_where_nothing_may_be_too_many() {
    let mut world = World::settled(2, 2);
    world.rolling.max_surge = Share::Count(0);
    world.at(1).host = HostState::Draining;
    assert_eq!(created_slots(&world.steps()), [1]);
}

#[test]
fn an_overdue_member_goes_at_once() {
    let mut world = World::settled(2, 2);
    world.at(1).host = HostState::Overdue;
    let old = *world.at(1);
    let release = Step::Release { instance: old.id, cause: Cause::Drain };
    assert_eq!(world.steps(), [release, in_place_of(&old, OnDemand, Cause::Drain)]);
}

#[test]
fn an_overdue_replacement_is_no_reason_to_let_the_replaced_go() {
    let mut world = World::settled(1, 1);
    world.at(0).host = HostState::Draining;
    let first = world.id(0);
    let steps = world.steps();
    world.apply(&steps[0]);
    world.start();
    world.at(0).host = HostState::Overdue;
    let second = world.id(0);
    assert_eq!(released(&world.steps()), [(second, Cause::Drain)]);
    world.settle();
    assert!(world.members.iter().all(|it| it.id != first && it.id != second));
}

#[test]
fn the_replaced_member_has_its_slot_again_when_the_replacement_dies() {
    let mut world = World::settled(1, 1);
    world.at(0).host = HostState::Draining;
    let old = *world.at(0);
    let steps = world.steps();
    world.apply(&steps[0]);
    world.remove(0);
    assert_eq!(world.id(0), old.id);
    assert_eq!(world.steps(), [in_place_of(&old, OnDemand, Cause::Drain)]);
}

#[test]
fn a_lost_replacement_is_replaced_while_the_first_one_goes_on() {
    let mut world = World::settled(1, 1);
    world.at(0).host = HostState::Draining;
    let steps = world.steps();
    world.apply(&steps[0]);
    world.at(0).host = HostState::Lost;
    let lost = *world.at(0);
    let release = Step::Release { instance: lost.id, cause: Cause::NodeLost };
    assert_eq!(world.steps(), [release, in_place_of(&lost, OnDemand, Cause::NodeLost)]);
}

#[test]
fn a_drain_brings_a_member_to_the_kind_of_its_slot() {
    let mut world = World::settled(2, 2);
    world.rule = Some(limit(1));
    world.at(1).host = HostState::Draining;
    let old = *world.at(1);
    assert_eq!(world.steps(), [in_place_of(&old, Spot, Cause::Drain)]);
    world.settle();
    assert_eq!(world.row(1), "OS");
}

#[test]
fn surplus_members_are_not_replaced_on_their_way_out() {
    let mut world = World::settled(3, 1);
    world.replicas = 2;
    world.at(2).host = HostState::Reclaimed;
    let steps = world.steps();
    assert_eq!(steps, [Step::Release { instance: world.id(2), cause: Cause::ScaleDown }]);
}

/// One member with a volume.
fn with_volume() -> World {
    let mut world = World::empty(1, Some(limit(1)));
    world.single_writer = true;
    world.settle();
    world
}

#[test]
fn a_volume_keeps_its_member_on_a_node_that_goes() {
    let cases = [
        (HostState::Draining, Cause::Drain),
        (HostState::Overdue, Cause::Drain),
        (HostState::Reclaimed, Cause::Reclaim),
        (HostState::Lost, Cause::NodeLost),
    ];
    for (host, cause) in cases {
        let mut world = with_volume();
        world.at(0).host = host;
        let blocked = BlockedMember { instance: world.id(0), cause, blocker: Blocker::Volume };
        let plan = world.plan();
        assert_eq!((plan.steps, plan.blocked), (vec![], vec![blocked]), "{host:?}");
    }
}

#[test]
fn a_volume_is_let_go_before_the_next_revision_takes_it() {
    let mut world = with_volume();
    let old = world.id(0);
    world.revision = 2;
    let steps = world.steps();
    assert_eq!(released(&steps), [(old, Cause::RollOut)]);
    world.apply(&steps[0]);
    assert_eq!(world.steps(), []);
    world.stop();
    assert!(matches!(world.steps()[..], [Step::Create { revision: 2, slot: 0, .. }]));
}

#[test]
fn a_lost_writer_is_not_given_up_even_when_nobody_is_wanted() {
    let mut world = with_volume();
    world.at(0).host = HostState::Lost;
    world.replicas = 0;
    assert_eq!(world.steps(), []);
    world.at(0).host = HostState::Fine;
    assert_eq!(released(&world.steps()), [(world.id(0), Cause::ScaleDown)]);
}

#[test]
fn a_writer_of_the_wrong_kind_is_reported_and_stays() {
    let mut world = with_volume();
    world.rule = Some(limit(0));
    let plan = world.plan();
    let (cause, blocker) = (Cause::Rebuild, Blocker::Volume);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.blocked, [BlockedMember { instance: world.id(0), cause, blocker }]);
}

#[test]
fn of_two_writers_one_goes() {
    let mut world = World::settled(2, 2);
    world.single_writer = true;
    assert_eq!(released(&world.steps()), [(world.id(1), Cause::ScaleDown)]);
    world.at(0).state = MemberState::Leaving;
    assert_eq!(world.steps(), []);
}
