//! What is stored and cannot be: the ledger refuses to go on from it, or reports it and does what it can.

use berth_engine::{NodeId, NodeState};

use super::{TestLedger, granted, key, on_every_database, request, start};
use crate::invariants::expect_violations;
use crate::model::{
    Advance, Answer, ClaimKey, ClaimRejection, ClaimState, Expect, HeldValue, Hold, Op, Outcome,
    PlannedClaim, Release, SlotKey, Step, Switch, Text, Workload,
};

fn on_node(test: &TestLedger, node: &str) -> PlannedClaim {
    test.planned(request(1), node, "z", "r")
}

/// An instance that runs on the first of two nodes.
fn running(test: &mut TestLedger) {
    for node in ["n1", "n2"] {
        test.node(node, "z", "r");
    }
    let planned = on_node(test, "n1");
    granted(&test.commit(vec![planned]));
    start(test, 1);
}

fn advance(test: &mut TestLedger, step: Step) -> Result<ClaimState, ClaimRejection> {
    let fence = test.claim(1).unwrap().fence;
    let advance = Advance { key: key(1), tenant: None, fence, step };
    test.claim_answer(Op::Advance(advance)).map(|status| status.state.unwrap())
}

#[test]
fn every_step_is_refused_in_every_state_that_it_does_not_lead_from() {
    on_every_database(|test| {
        running(test);
        let steps = [Step::Renew { lease_s: 60 }, Step::Bind, Step::Activate];
        for (number, state) in ClaimState::ALL.into_iter().enumerate() {
            for step in steps {
                let lease = if state == ClaimState::Held { "9000000000000000" } else { "NULL" };
                (test.run_sql)(&format!(
                    "UPDATE claim SET state = {number}, lease_until = {lease}"
                ));
                let expected = match (step, state) {
                    (Step::Renew { .. }, ClaimState::Held) => Some(ClaimState::Held),
                    (Step::Bind, ClaimState::Held) => Some(ClaimState::Binding),
                    (Step::Activate, ClaimState::Binding) => Some(ClaimState::Active),
                    // Done before.
                    (Step::Bind, ClaimState::Binding | ClaimState::Active)
                    | (Step::Activate, ClaimState::Active) => Some(state),
                    _ => None,
                };
                match (advance(test, step), expected) {
                    (Ok(found), Some(expected)) => {
                        assert_eq!(found, expected, "{step:?} of {state:?}")
                    }
                    (Err(ClaimRejection::WrongState { found, .. }), None) => {
                        assert_eq!(
                            (found, test.claim(1).unwrap().state),
                            (state, state),
                            "{step:?}"
                        );
                    }
                    (other, _) => panic!("{step:?} of {state:?}: {other:?}"),
                }
            }
        }
    });
}

#[test]
fn a_migration_of_an_instance_that_is_only_held_is_refused() {
    on_every_database(|test| {
        running(test);
        let fence = test.claim(1).unwrap().fence;
        let to = on_node(test, "n2");
        test.claim_answer(Op::Hold(Box::new(Hold { to, fence }))).unwrap();
        (test.run_sql)("UPDATE claim SET state = 0 WHERE role = 0");
        let switch = Switch { instance: key(1).instance, to: NodeId::new("n2") };
        let refused = test.claim_answer(Op::Switch(switch.clone()));
        let held = Err(ClaimState::Held);
        assert_eq!(refused.map_err(|it| wrong_state(&it)).map(|_| ()), held);
        let here = test.claim(1).unwrap();
        assert_eq!((here.node.as_str(), here.state), ("n1", ClaimState::Held));
        assert_eq!(test.tables.claim(ClaimKey::source(key(1).instance)).unwrap(), None);
        (test.run_sql)("UPDATE claim SET state = 2 WHERE role = 0");
        test.claim_answer(Op::Switch(switch)).unwrap();
        assert_eq!(test.claim(1).unwrap().node.as_str(), "n2");
        test.assert_exact();
    });
}

fn wrong_state(rejected: &ClaimRejection) -> ClaimState {
    match rejected {
        ClaimRejection::WrongState { found, .. } => *found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_whose_slot_is_lost_is_reported_and_released_all_the_same() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let (tenant, name, body) = ("acme".to_owned(), "web".to_owned(), "{}".to_owned());
        let workload = Workload { tenant, name, revision: 1, replicas: 1, body };
        test.done(Op::PutWorkload { workload, expect: Expect::Any });
        let mut member = request(1);
        member.workload = Some("web".to_owned());
        let (tenant, workload) = (Text::from("acme"), Text::from("web"));
        let slot = Some(SlotKey { tenant, workload, revision: 1, slot: 0 });
        let planned = PlannedClaim { slot, ..test.planned(member, "n1", "z", "r") };
        granted(&test.commit(vec![planned]));
        (test.run_sql)("DELETE FROM slot");
        let expected = expect_violations("slot_of_claim_is_taken");
        test.release(1).unwrap();
        assert_eq!(expected.count(), 1);
        assert_eq!(test.claim(1), None);
        test.assert_exact();
    });
}

#[test]
fn a_drain_ends_by_an_operator_and_neither_by_silence_nor_by_health() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let node = NodeId::new("n1");
        let state = |state| Op::SetNodeState { node: node.clone(), state, expect: None };
        for decided in [NodeState::Draining, NodeState::Cordoned] {
            test.done(state(decided));
            for observed in [NodeState::Lost, NodeState::Degraded, NodeState::Joining] {
                let answer = test.one(state(observed));
                let Answer::Outcome(Outcome::Impossible(why)) = answer else {
                    panic!("{answer:?}")
                };
                let expected =
                    format!("is {} and cannot become {}", decided.name(), observed.name());
                assert!(why.contains(&expected), "{why}");
            }
        }
        test.done(state(NodeState::Active));
        test.done(state(NodeState::Lost));
        test.done(state(NodeState::Draining));
    });
}

#[test]
fn a_held_value_that_is_none_is_reported_and_the_claim_released_all_the_same() {
    on_every_database(|test| {
        running(test);
        let claim = test.claim(1).unwrap();
        assert_eq!(claim.holdings, None);
        let value = HeldValue { pool: Text::from("p"), value: "not a number".to_owned() };
        let holdings = serde_json::json!({ "values": [value] });
        (test.run_sql)(&format!("UPDATE claim SET ties = '{holdings}'"));
        let expected = expect_violations("held_value_is_a_number");
        let release = Release { confirmed: true, ..super::release("gone", 1) };
        test.claim_answer(Op::Release(release)).unwrap();
        assert_eq!(expected.count(), 1);
        assert_eq!(test.claim(1), None);
    });
}
