//! A plan in the room of other instances: released and claimed in one commit, or not at all.

use std::sync::Arc;

use berth_engine::{Amounts, InstanceRequest};

use super::{TestLedger, code, granted, key, on_every_database, request};
use crate::model::{
    Advance, Answer, AvailabilityGuard, ClaimState, EventBody, Expect, Op, Plan, PlannedClaim,
    Preempt, PreemptVictim, SlotKey, Step, Text, Verdict, Workload,
};

/// All of a node, with both of its GPUs.
fn whole(instance: u128) -> InstanceRequest {
    let mut request = request(instance);
    request.resources = Amounts::new(8000, 16_384);
    request.extra.insert("gpu".to_owned(), 2);
    request
}

fn place(test: &mut TestLedger, instance: u128) {
    let planned = test.planned(whole(instance), "n1", "z", "r");
    granted(&test.commit(vec![planned]));
}

fn start(test: &mut TestLedger, instance: u128) {
    let fence = test.claim(instance).unwrap().fence;
    for step in [Step::Bind, Step::Activate] {
        let advance = Advance { key: key(instance), tenant: None, fence, step };
        test.claim_answer(Op::Advance(advance)).unwrap();
    }
}

fn victim(test: &mut TestLedger, instance: u128) -> PreemptVictim {
    let fence = test.claim(instance).unwrap().fence;
    PreemptVictim { instance: key(instance).instance, tenant: None, fence, guard: None }
}

fn preempt(test: &mut TestLedger, instance: u128, victims: Vec<PreemptVictim>) -> Answer {
    let planned = test.planned(whole(instance), "n1", "z", "r");
    let plan = Plan::new(&format!("preempt-{instance}"), "acme", vec![planned]);
    test.one(Op::Preempt(Box::new(Preempt { plan, victims })))
}

fn verdict(answer: &Answer) -> &'static str {
    match answer {
        Answer::Plan(verdict) => code(verdict),
        Answer::Repeated(_) => "repeated",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_running_victim_hands_its_room_over_and_keeps_its_claim_until_it_has_stopped() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        place(test, 1);
        start(test, 1);
        let planned = test.planned(whole(2), "n1", "z", "r");
        assert_ne!(code(&test.commit(vec![planned])), "granted", "the node is full");
        let first = victim(test, 1);
        let answer = preempt(test, 2, vec![first.clone()]);
        let Answer::Plan(Verdict::Granted(grant)) = &answer else { panic!("{answer:?}") };
        let left = test.claim(1).unwrap();
        assert_eq!((left.state, left.amounts), (ClaimState::Releasing, Amounts::default()));
        assert_eq!(test.claim(2).unwrap().state, ClaimState::Held);
        test.assert_exact();
        // A retry gets the same answer and releases nobody, whatever it names.
        let second = victim(test, 2);
        let again = preempt(test, 2, vec![second]);
        assert_eq!(again, Answer::Repeated(grant.clone()));
        assert_eq!(test.claim(2).unwrap().state, ClaimState::Held);
        // Nobody else gets the room in between.
        let planned = test.planned(whole(3), "n1", "z", "r");
        assert_ne!(code(&test.commit(vec![planned])), "granted");
        test.release(1).unwrap();
        assert_eq!(test.claim(1), None);
        test.assert_exact();
        let events = test.events();
        let resized = |body: &EventBody| matches!(body, EventBody::Resized { resources, .. } if *resources == Amounts::default());
        assert_eq!(events.iter().filter(|event| resized(&event.body)).count(), 1);
    });
}

#[test]
fn a_victim_that_only_waited_to_be_bound_is_gone_at_once() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        place(test, 1);
        let first = victim(test, 1);
        assert_eq!(verdict(&preempt(test, 2, vec![first])), "granted");
        assert_eq!(test.claim(1), None);
        test.assert_exact();
    });
}

#[test]
fn nothing_is_released_when_the_plan_or_another_victim_does_not_hold() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        place(test, 1);
        start(test, 1);
        let first = victim(test, 1);
        let stale = PreemptVictim { fence: first.fence - 1, ..first.clone() };
        let foreign = PreemptVictim { tenant: Some(Text::from("globex")), ..first.clone() };
        let gone = PreemptVictim { instance: key(9).instance, ..first.clone() };
        for victims in [vec![stale], vec![foreign], vec![first.clone(), gone]] {
            assert_eq!(verdict(&preempt(test, 2, victims)), "victim_changed");
        }
        assert_eq!(verdict(&preempt(test, 2, Vec::new())), "no_capacity_memory");
        let claim = test.claim(1).unwrap();
        assert_eq!((claim.state, claim.amounts.memory_mib), (ClaimState::Active, 16_384));
        test.assert_exact();
        assert_eq!(verdict(&preempt(test, 2, vec![first.clone()])), "granted");
        assert_eq!(verdict(&preempt(test, 3, vec![first])), "victim_changed", "leaving already");
        test.assert_exact();
    });
}

#[test]
fn a_member_that_its_workload_cannot_miss_is_not_preempted() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let (tenant, name) = ("acme".to_owned(), "web".to_owned());
        let body = "{}".to_owned();
        let workload = Workload { tenant, name, revision: 1, replicas: 1, body };
        test.done(Op::PutWorkload { workload, expect: Expect::Any });
        let (tenant, workload) = (Text::from("acme"), Text::from("web"));
        let mut member = whole(1);
        member.workload = Some("web".to_owned());
        let slot =
            SlotKey { tenant: tenant.clone(), workload: workload.clone(), revision: 1, slot: 0 };
        let planned = PlannedClaim { slot: Some(slot), ..test.planned(member, "n1", "z", "r") };
        granted(&test.commit(vec![planned]));
        start(test, 1);
        let guard = |at_least, version| {
            let (tenant, workload) = (tenant.clone(), workload.clone());
            Some(Arc::new(AvailabilityGuard {
                tenant,
                workload,
                version,
                running: Vec::new(),
                at_least,
            }))
        };
        for (at_least, version, expected) in
            [(1, 1, "too_few_running"), (0, 2, "workload_changed"), (0, 1, "granted")]
        {
            let guarded = PreemptVictim { guard: guard(at_least, version), ..victim(test, 1) };
            assert_eq!(verdict(&preempt(test, 2, vec![guarded])), expected);
            test.assert_exact();
        }
    });
}
