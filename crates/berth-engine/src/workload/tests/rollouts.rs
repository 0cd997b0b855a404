//! How a new revision takes over, in each of the ways, and what a pause keeps still.

use super::super::{Blocker, Cause, HostState, MemberState, Share, Step, Strategy};
use super::world::{World, created_slots, released, rolling};
use crate::model::CapacityType::OnDemand;

/// Five replicas, three of them on-demand, as a new revision comes.
fn five_with_a_new_revision(strategy: super::super::Rolling) -> World {
    let mut world = World::settled(5, 3);
    world.rolling = strategy;
    world.revision = 2;
    world
}

/// Rolls out step by step; returns the most on-demand members and the most members at one time.
fn peaks(world: &mut World) -> (usize, usize) {
    let (mut on_demand, mut members) = (0, 0);
    for _ in 0..50 {
        for step in world.steps() {
            world.apply(&step);
        }
        on_demand = on_demand.max(world.live(OnDemand));
        members = members.max(world.members.iter().filter(|it| it.is_live()).count());
        world.start();
        world.stop();
    }
    (on_demand, members)
}

#[test]
fn s16_a_roll_out_by_one_keeps_on_demand_members_few() {
    let mut world = five_with_a_new_revision(rolling(1, 0));
    assert_eq!(peaks(&mut world), (4, 6));
    assert_eq!((world.row(1), world.row(2)), (String::new(), "OOOSS".to_owned()));
}

#[test]
fn s17_a_roll_out_all_at_once_has_its_own_slots() {
    let mut world = five_with_a_new_revision(rolling(5, 0));
    assert_eq!(peaks(&mut world), (6, 10));
    assert_eq!((world.row(1), world.row(2)), (String::new(), "OOOSS".to_owned()));
}

#[test]
fn blue_green_lets_nobody_go_before_every_new_one_runs() {
    let mut world = five_with_a_new_revision(super::super::Rolling::default());
    let steps = world.steps();
    assert_eq!(created_slots(&steps), [0, 1, 2, 3, 4]);
    for step in &steps {
        world.apply(step);
    }
    world.start();
    world.at(4).state = MemberState::Starting;
    let plan = world.plan();
    assert_eq!(plan.steps, []);
    assert!(plan.blocked.iter().all(|it| it.blocker == Blocker::Replacement));
    assert_eq!(plan.blocked.len(), 5);
    world.start();
    assert_eq!(released(&world.steps()).len(), 5);
}

#[test]
fn blue_green_keeps_no_more_old_ones_than_are_wanted() {
    let mut world = five_with_a_new_revision(super::super::Rolling::default());
    for step in world.steps() {
        world.apply(&step);
    }
    world.replicas = 3;
    let old = [world.holder(1, 4), world.holder(1, 3)].map(|it| it.expect("an old one").id);
    let new = [world.id(4), world.id(3)];
    let expected: Vec<_> = old.into_iter().chain(new).map(|id| (id, Cause::ScaleDown)).collect();
    assert_eq!(released(&world.steps()), expected);
}

#[test]
fn rolling_without_surge_lets_one_go_first() {
    let mut world = five_with_a_new_revision(rolling(0, 1));
    let steps = world.steps();
    assert!(created_slots(&steps).is_empty());
    let first = world.holder(1, 2).expect("the highest on-demand slot").id;
    assert_eq!(released(&steps), [(first, Cause::RollOut)]);
    world.apply(&steps[0]);
    assert_eq!(created_slots(&world.steps()), [0]);
    world.settle();
    assert_eq!(world.row(2), "OOOSS");
}

#[test]
fn shares_that_round_to_nothing_do_not_stop_a_roll_out() {
    let mut strategy = rolling(0, 0);
    strategy.max_unavailable = Share::Percent(10);
    let mut world = five_with_a_new_revision(strategy);
    world.settle();
    assert_eq!(world.row(2), "OOOSS");
}

#[test]
fn rolling_lets_go_at_once_of_what_does_not_run_if_enough_others_do() {
    let mut world = World::settled(3, 0);
    world.at(1).state = MemberState::Starting;
    let starting = world.id(1);
    world.rolling = rolling(1, 1);
    world.revision = 2;
    assert_eq!(released(&world.steps()), [(starting, Cause::RollOut)]);
    world.rolling = rolling(1, 0);
    assert_eq!(released(&world.steps()), [], "two of three run, and no new one does");
    for member in &mut world.members {
        member.state = MemberState::Starting;
    }
    assert_eq!(released(&world.steps()).len(), 3, "the old revision never ran");
}

/// Does what is planned. Members of the new revision never run.
fn round_without_new(world: &mut World) -> Vec<Step> {
    let steps = world.steps();
    for step in &steps {
        world.apply(step);
    }
    let revision = world.revision;
    for member in world.members.iter_mut().filter(|it| it.revision != revision) {
        if member.state == MemberState::Starting {
            member.state = MemberState::Ready;
        }
    }
    world.stop();
    steps
}

fn settle_without_new(world: &mut World) {
    for _ in 0..20 {
        if round_without_new(world).is_empty() {
            return;
        }
    }
    panic!("never rests: {:?} of {world:?}", world.plan());
}

#[test]
fn lost_old_members_are_replaced_while_the_new_revision_never_runs() {
    for (strategy, floor) in [
        (rolling(1, 0), 5),
        (rolling(1, 1), 4),
        (rolling(0, 1), 4),
        (super::super::Rolling::default(), 5),
    ] {
        let mut world = five_with_a_new_revision(strategy);
        settle_without_new(&mut world);
        assert_eq!(world.available(|it| it.revision == 1), floor, "{strategy:?}");
        for lost in [1, 2, floor] {
            let old: Vec<_> = (0..world.members.len())
                .filter(|which| world.members[*which].revision == 1)
                .take(lost)
                .collect();
            for which in old {
                world.members[which].host = HostState::Lost;
            }
            settle_without_new(&mut world);
            let runs = world.available(|it| it.revision == 1);
            assert_eq!(runs, floor, "{lost} were lost of {strategy:?}");
        }
        // Once it can run, the roll-out is completed as ever.
        world.settle();
        assert_eq!((world.row(1), world.row(2)), (String::new(), "OOOSS".to_owned()));
    }
}

#[test]
fn an_old_member_that_ended_is_replaced_while_the_new_revision_never_runs() {
    let mut world = five_with_a_new_revision(rolling(1, 0));
    settle_without_new(&mut world);
    for slot in [4, 1] {
        let ended = world.holder(1, slot).expect("an old one").id;
        world.members.retain(|it| it.id != ended);
        settle_without_new(&mut world);
        assert_eq!(world.row(1), "OOOSS", "the one of slot {slot} ended");
    }
}

#[test]
fn old_members_that_a_new_one_replaced_before_it_ended_come_back() {
    let mut world = five_with_a_new_revision(rolling(1, 0));
    world.round();
    // A new one ran, and old ones went for it. Then it ended, and keeps ending.
    world.round();
    assert_eq!(world.available(|it| it.revision == 1), 4);
    world.members.retain(|it| it.revision == 1);
    world.failing = true;
    settle_without_new(&mut world);
    assert_eq!(world.available(|it| it.revision == 1), 5);
}

#[test]
fn lost_old_members_are_replaced_while_no_new_one_finds_a_place() {
    let mut world = five_with_a_new_revision(rolling(1, 0));
    world.members[2].host = HostState::Lost;
    let places_old = |step: &Step| !matches!(step, Step::Create { revision: 2, .. });
    for _ in 0..3 {
        for step in world.steps().iter().filter(|step| places_old(step)) {
            world.apply(step);
        }
        world.start();
        world.stop();
    }
    assert_eq!((world.row(1), world.row(2)), ("OOOSS".to_owned(), String::new()));
}

#[test]
fn a_new_member_that_runs_ends_the_replacement_of_old_ones() {
    let mut world = five_with_a_new_revision(rolling(1, 0));
    settle_without_new(&mut world);
    world.members[0].host = HostState::Lost;
    for step in world.steps() {
        world.apply(&step);
    }
    let starting = world.holder(1, 0).expect("an old one that starts").id;
    world.at(0).state = MemberState::Ready;
    assert!(released(&world.steps()).contains(&(starting, Cause::RollOut)));
}

#[test]
fn more_replicas_with_a_new_revision_are_all_new() {
    for strategy in [rolling(1, 0), super::super::Rolling::default()] {
        let mut world = World::settled(3, 0);
        (world.rolling, world.revision, world.replicas) = (strategy, 2, 5);
        for _ in 0..3 {
            round_without_new(&mut world);
        }
        assert_eq!(world.row(1), "SSS", "{strategy:?}");
    }
}

#[test]
fn old_members_on_drained_nodes_are_the_first_to_go_and_are_not_replaced() {
    let mut world = World::settled(3, 1);
    world.at(1).host = HostState::Draining;
    let drained = world.id(1);
    world.rolling = rolling(1, 0);
    world.revision = 2;
    assert_eq!(created_slots(&world.steps()), [0]);
    let first = |world: &World| world.plan().blocked[0];
    assert_eq!((first(&world).instance, first(&world).cause), (drained, Cause::Drain));
    world.round();
    assert_eq!(released(&world.steps()), [(drained, Cause::RollOut)]);
}

#[test]
fn old_members_about_to_be_taken_away_make_room_for_new_ones() {
    let mut world = World::settled(3, 1);
    world.at(1).host = HostState::Reclaimed;
    world.rolling = rolling(1, 0);
    world.revision = 2;
    assert_eq!(created_slots(&world.steps()), [0, 1]);
}

#[test]
fn recreate_waits_until_every_old_one_is_gone() {
    let mut strategy = rolling(1, 0);
    strategy.strategy = Strategy::Recreate;
    let mut world = five_with_a_new_revision(strategy);
    let steps = world.steps();
    assert_eq!((created_slots(&steps), released(&steps).len()), (vec![], 5));
    for step in &steps {
        world.apply(step);
    }
    assert_eq!(world.steps(), []);
    world.stop();
    assert_eq!(created_slots(&world.steps()), [0, 1, 2, 3, 4]);
}

#[test]
fn a_pause_stops_a_roll_out_where_it_is() {
    let mut world = five_with_a_new_revision(rolling(1, 0));
    for rows in [("OOOSS", "O"), ("OO.SS", "O"), ("OO.SS", "OO"), ("O..SS", "OO")] {
        world.paused = false;
        world.round();
        world.paused = true;
        world.round();
        assert!(world.plan().is_settled());
        assert_eq!((&*world.row(1), &*world.row(2)), rows);
    }
    world.paused = false;
    world.settle();
    assert_eq!((world.row(1), world.row(2)), (String::new(), "OOOSS".to_owned()));
}

#[test]
fn a_pause_before_the_roll_out_began_refills_the_old_revision() {
    let mut world = World::settled(3, 1);
    (world.revision, world.paused) = (2, true);
    assert!(world.plan().is_settled());
    world.members[1].host = HostState::Lost;
    let lost = world.members[1];
    let expected = |step: &Step| {
        let Step::Create { revision, slot, in_place_of, cause, .. } = *step else { return false };
        (revision, slot, in_place_of, cause) == (1, lost.slot, Some(lost.id), Cause::Missing)
    };
    assert!(world.steps().iter().any(expected), "{:?}", world.steps());

    // Also once the lost one was told to stop, and when more are wanted.
    world.settle();
    world.replicas = 4;
    world.settle();
    assert_eq!((world.row(1), world.row(2)), ("OSSS".to_owned(), String::new()));
}

#[test]
fn a_drain_during_a_pause_replaces_within_the_revision() {
    let mut world = World::settled(2, 1);
    (world.revision, world.paused) = (2, true);
    world.members[0].host = HostState::Draining;
    let steps = world.steps();
    assert!(
        matches!(steps[..], [Step::Create { revision: 1, slot: 0, cause: Cause::Drain, .. }]),
        "{steps:?}"
    );
    world.settle();
    assert_eq!((world.row(1), world.row(2)), ("OS".to_owned(), String::new()));
}

#[test]
fn more_replicas_during_a_pause_are_of_the_newest_revision_that_runs() {
    let mut world = five_with_a_new_revision(rolling(1, 0));
    world.round();
    world.paused = true;
    world.settle();
    assert_eq!((&*world.row(1), &*world.row(2)), ("OOOSS", "O"));
    world.replicas = 8;
    world.settle();
    assert_eq!((&*world.row(1), &*world.row(2)), ("OOOSS", "OOO"));
}

#[test]
fn fewer_replicas_during_a_pause_let_the_old_ones_go_first() {
    let mut world = five_with_a_new_revision(rolling(2, 0));
    world.round();
    world.paused = true;
    world.settle();
    assert_eq!((&*world.row(1), &*world.row(2)), ("OOOSS", "OO"));
    // What a roll-out may have too many stays, or the pause would be none.
    world.replicas = 3;
    world.settle();
    assert_eq!((&*world.row(1), &*world.row(2)), ("OOO", "OO"));
    world.replicas = 1;
    world.rolling = rolling(1, 0);
    world.settle();
    // With the last old one gone there is no roll-out left to stand still.
    assert_eq!((&*world.row(1), &*world.row(2)), ("", "O"));
}

#[test]
fn a_pause_with_both_revisions_complete_finishes_nothing() {
    let mut world = five_with_a_new_revision(super::super::Rolling::default());
    world.round();
    world.paused = true;
    assert!(world.plan().is_settled());
    assert_eq!((&*world.row(1), &*world.row(2)), ("OOOSS", "OOOSS"));
    world.replicas = 4;
    world.settle();
    assert_eq!((&*world.row(1), &*world.row(2)), ("OOOS", "OOOS"));
}
