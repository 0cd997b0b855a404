//! A slot has a row while any member has the slot, also while it is handed over from one to another.

use std::sync::{Arc, Barrier};
use std::thread;

use berth_engine::{Amounts, InstanceId};

use super::{TestLedger, granted, key, new_database, on_every_database, request, server};
use crate::model::{
    Answer, Expect, Guard, Hold, Move, Op, Outcome, PlannedClaim, SlotKey, Switch, Text, Verdict,
    Workload,
};
use crate::postgres::Isolation;

const WORKLOAD: &str = "web";

fn put_workload(test: &mut TestLedger) {
    for node in ["n1", "n2"] {
        test.node(node, "z", "r");
    }
    let (tenant, name, body) = ("acme".to_owned(), WORKLOAD.to_owned(), "{}".to_owned());
    let workload = Workload { tenant, name, revision: 1, replicas: 1, body };
    test.done(Op::PutWorkload { workload, expect: Expect::Any });
}

fn planned(
    test: &TestLedger,
    instance: u128,
    node: &str,
    taken_from: Option<u128>,
) -> PlannedClaim {
    let mut request = request(instance);
    request.workload = Some(WORKLOAD.to_owned());
    request.resources = Amounts::new(1, 1);
    let (tenant, workload) = (Text::from("acme"), Text::from(WORKLOAD));
    let slot = Some(SlotKey { tenant, workload, revision: 1, slot: 0 });
    let takes_over = taken_from.map(key);
    PlannedClaim { slot, takes_over, ..test.planned(request, node, "z", "r") }
}

/// Gives an instance the slot, and has it run.
fn place(test: &mut TestLedger, instance: u128, taken_from: Option<u128>) {
    let planned = planned(test, instance, "n1", taken_from);
    granted(&test.commit(vec![planned]));
    super::start(test, instance);
}

/// The instance that has the slot by its row. It is found by asking for the slot with an instance
/// that goes at once if it gets it.
fn holder(test: &mut TestLedger) -> Option<InstanceId> {
    let probe = planned(test, 999, "n2", None);
    match test.commit(vec![probe]) {
        Verdict::Granted(_) => {
            test.release(999).unwrap();
            None
        }
        Verdict::Conflict(conflict) => match conflict.guard {
            Guard::SlotTaken { by, .. } => Some(by),
            other => panic!("{other:?}"),
        },
        other @ Verdict::Refused(_) => panic!("{other:?}"),
    }
}

fn id(instance: u128) -> Option<InstanceId> {
    Some(InstanceId::from_u128(instance))
}

fn remove_workload(test: &mut TestLedger) -> Answer {
    let (tenant, name) = (Text::from("acme"), Text::from(WORKLOAD));
    test.one(Op::RemoveWorkload { tenant, name, expect: Expect::Any })
}

#[test]
fn a_member_keeps_its_slot_when_the_one_that_should_replace_it_goes_first() {
    on_every_database(|test| {
        put_workload(test);
        place(test, 1, None);
        place(test, 2, Some(1));
        assert_eq!(holder(test), id(2));
        test.release(2).unwrap();
        assert_eq!(holder(test), id(1), "the handover was aborted");
        let removed = remove_workload(test);
        assert!(matches!(removed, Answer::Outcome(Outcome::Impossible(_))), "{removed:?}");
        // The next one can take over, and this time it is the first that goes.
        place(test, 3, Some(1));
        test.release(1).unwrap();
        assert_eq!(holder(test), id(3));
        test.release(3).unwrap();
        assert_eq!(holder(test), None);
        assert_eq!(remove_workload(test), Answer::Outcome(Outcome::Done));
        test.assert_exact();
    });
}

#[test]
fn a_member_keeps_its_slot_when_the_lease_of_its_replacement_ends() {
    on_every_database(|test| {
        put_workload(test);
        place(test, 1, None);
        let replacement = planned(test, 2, "n2", Some(1));
        let mut plan = test.plan(vec![replacement]);
        plan.lease_s = 0;
        granted(&test.commit_plan(plan));
        let reaped = test.one(Op::Reap(berth_engine::NodeId::new("n2")));
        assert_eq!(reaped, Answer::Reaped(vec![InstanceId::from_u128(2)]));
        assert_eq!(holder(test), id(1));
    });
}

#[test]
fn a_slot_that_was_handed_over_twice_goes_back_to_the_latest_member_that_is_left() {
    on_every_database(|test| {
        put_workload(test);
        place(test, 1, None);
        place(test, 2, Some(1));
        place(test, 3, Some(2));
        place(test, 4, Some(3));
        test.release(3).unwrap();
        test.release(4).unwrap();
        assert_eq!(holder(test), id(2));
        // One in the middle goes; the first has it once more.
        place(test, 5, Some(2));
        test.release(2).unwrap();
        assert_eq!(holder(test), id(5));
        test.release(5).unwrap();
        assert_eq!(holder(test), id(1));
        let stored = test.claim(1).unwrap().holdings.unwrap();
        assert!(stored.slot_predecessors.is_empty(), "{stored:?}");
        test.release(1).unwrap();
        assert_eq!(holder(test), None);
    });
}

#[test]
fn members_that_are_gone_are_not_remembered_as_predecessors() {
    on_every_database(|test| {
        put_workload(test);
        place(test, 1, None);
        for instance in 2..=6 {
            place(test, instance, Some(instance - 1));
            test.release(instance - 1).unwrap();
            let stored = test.claim(instance).unwrap().holdings.unwrap();
            assert_eq!(stored.slot_predecessors, [key(instance - 1)]);
        }
    });
}

#[test]
fn both_members_of_a_handover_can_move_and_the_replacement_still_has_the_slot() {
    for moved in [1, 2] {
        on_every_database(|test| {
            put_workload(test);
            place(test, 1, None);
            place(test, 2, Some(1));
            let to = PlannedClaim { slot: None, ..planned(test, moved, "n2", None) };
            let request_id = Text::from("move");
            let op = Op::Move(Box::new(Move {
                request_id,
                to,
                fence: None,
                restart: false,
                guard: None,
            }));
            test.claim_answer(op).unwrap();
            assert_eq!(holder(test), id(2), "{moved} moved");
            test.release(1).unwrap();
            assert_eq!(holder(test), id(2), "{moved} moved");
            test.release(2).unwrap();
            assert_eq!(holder(test), None, "{moved} moved");
        });
    }
}

#[test]
fn both_members_of_a_handover_can_migrate_and_the_replacement_still_has_the_slot() {
    for moved in [1, 2] {
        on_every_database(|test| {
            put_workload(test);
            place(test, 1, None);
            place(test, 2, Some(1));
            let fence = test.claim(moved).unwrap().fence;
            let to = PlannedClaim { slot: None, ..planned(test, moved, "n2", None) };
            test.claim_answer(Op::Hold(Box::new(Hold { to, fence }))).unwrap();
            let (instance, to) = (InstanceId::from_u128(moved), berth_engine::NodeId::new("n2"));
            test.claim_answer(Op::Switch(Switch { instance, to })).unwrap();
            assert_eq!(holder(test), id(2), "{moved} migrated");
            // Its replacement fails after the migration: the slot is back with the first.
            test.release(2).unwrap();
            assert_eq!(holder(test), id(1), "{moved} migrated");
            test.release(1).unwrap();
            assert_eq!(holder(test), None, "{moved} migrated");
        });
    }
}

#[test]
fn when_both_members_of_a_handover_go_at_once_the_slot_is_free() {
    let server = server();
    for isolation in Isolation::ALL {
        let url = new_database(&server);
        let mut test = TestLedger::postgres(&url, isolation);
        put_workload(&mut test);
        for round in 0..10 {
            let pair = [1 + 2 * round, 2 + 2 * round];
            place(&mut test, pair[0], None);
            place(&mut test, pair[1], Some(pair[0]));
            let together = Arc::new(Barrier::new(2));
            let releases = pair.map(|instance| {
                let (url, together) = (url.clone(), Arc::clone(&together));
                thread::spawn(move || {
                    let mut test = TestLedger::postgres(&url, isolation);
                    test.requests = u32::try_from(1000 * instance).unwrap();
                    together.wait();
                    test.release(instance).unwrap();
                })
            });
            for release in releases {
                release.join().unwrap();
            }
            assert_eq!(holder(&mut test), None, "{isolation}, round {round}");
        }
    }
}
