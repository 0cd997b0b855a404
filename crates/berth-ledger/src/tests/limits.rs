//! Nothing beyond a limit is stored, whichever operation brings it: the API is not the only way in.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{Amounts, Demand, FactChange, InstanceId, InstanceRequest, NodeFacts, NodeId};
use serde_json::json;

use super::{TestLedger, granted, on_every_database, release, request};
use crate::model::{
    Adopt, Answer, Assumptions, Audited, Basis, ClaimRejection, DecisionOutcome, DecisionRecord,
    DocumentWrite, Expect, Hold, Move, Op, Outcome, Plan, PlannedClaim, Preempt, QuarantinedTicket,
    RefusalReason, Release, Scheduling, SchedulingFailure, Spec, Text, UnmetDemand, Verdict,
    WithDocuments,
};

/// Why an operation was refused; absent if it was not refused for a limit.
fn excess(answer: &Answer) -> Option<&str> {
    match answer {
        Answer::Plan(Verdict::Refused(RefusalReason::Malformed(why)))
        | Answer::Claim(Err(ClaimRejection::Refused(RefusalReason::Malformed(why))))
        | Answer::Outcome(Outcome::Impossible(why)) => Some(why),
        _ => None,
    }
}

fn text(length: usize) -> Text {
    Text::from("x".repeat(length))
}

/// An instance with more networks than one may have.
fn wide(instance: u128) -> InstanceRequest {
    let mut request = request(instance);
    request.networks = vec![vec!["lan".to_owned()]; 12_000];
    request
}

/// An instance whose texts are too long together, though each is not.
fn long(instance: u128) -> InstanceRequest {
    let mut request = request(instance);
    let set = |number: usize| {
        (0..16).map(|other| format!("{number:03}-{other:02}-{}", "n".repeat(190))).collect()
    };
    request.networks = (0..32).map(set).collect();
    request
}

/// An operation that would store something beyond a limit, and what it is told.
type Excessive = (Op, &'static str);

fn excessive_plans(test: &TestLedger) -> Vec<Excessive> {
    let claim = |request| test.planned(request, "n1", "z", "r");
    let (many, large) = (claim(wide(2)), claim(long(3)));
    let mut pooled = claim(request(5));
    pooled.pools = vec![Text::from("lan"); 17];
    let plan = |claim: &PlannedClaim| Plan::new("request-of-a-limit", "acme", vec![claim.clone()]);
    let preempt = Preempt { plan: plan(&many), victims: Vec::new() };
    let moved = Move {
        request_id: Text::from("m"),
        fence: None,
        to: large.clone(),
        restart: false,
        guard: None,
    };
    vec![
        (Op::Commit(plan(&many)), "claims[0].request.networks has 12000 items"),
        (Op::Commit(plan(&large)), "claims[0].request has"),
        (Op::Commit(plan(&pooled)), "claims[0].pools has 17 items"),
        (Op::DryRun(plan(&many), Assumptions::default()), "networks"),
        (Op::Preempt(Box::new(preempt)), "networks"),
        (Op::Hold(Box::new(Hold { to: large, fence: 1 })), "request has"),
        (Op::Move(Box::new(moved)), "request has"),
    ]
}

fn excessive_steps(test: &TestLedger) -> Vec<Excessive> {
    let adopted = Arc::new(wide(4));
    let adopt = Adopt {
        request_id: Text::from("a"),
        demand: Demand::new(&adopted, &test.policy),
        request: adopted,
        node: NodeId::new("n1"),
    };
    let release = |reason| Op::Release(Release { reason, ..super::release("r", 1) });
    let named = Release { request_id: text(600), ..super::release("r", 1) };
    let degraded =
        Op::SetHealth { node: NodeId::new("n1"), degraded: Some(text(201)), expect: None };
    let reason = "reason has 201 characters; accepted is at most 200 characters";
    vec![
        (Op::Adopt(adopt), "request.networks"),
        (release(text(201)), reason),
        (release(Text::from("a\u{1b}[2J")), "reason has the control character U+001B"),
        (Op::Release(named), "request_id"),
        (degraded, "degraded"),
    ]
}

fn change_of_facts(change: FactChange) -> Op {
    let change = Box::new(change);
    Op::ChangeFacts { node: NodeId::new("n1"), change, create: None, expect: None }
}

fn excessive_facts() -> Vec<Excessive> {
    let one = |path: String| BTreeMap::from([(path, json!("on"))]);
    let labels = (0..2000).map(|number| (format!("labels.{number}"), json!("on"))).collect();
    let unset = vec![String::new(); 2000];
    let long_path = one(format!("labels.{}", "x".repeat(300)));
    vec![
        (change_of_facts(FactChange::Report(long_path)), "values"),
        (change_of_facts(FactChange::Report(labels)), "values has 2000 items"),
        (change_of_facts(FactChange::Policy(one("x".repeat(1 << 21)))), "values"),
        (
            change_of_facts(FactChange::Set { values: BTreeMap::new(), unset }),
            "unset has 2000 items",
        ),
    ]
}

fn decision(specs: Vec<(InstanceId, Spec)>) -> Op {
    let refused = DecisionOutcome::Refused { code: "no_capacity_memory".to_owned(), detail: None };
    let name = || Text::from("acme");
    Op::Record(vec![DecisionRecord::new(name(), name(), Basis::default(), specs, refused)])
}

fn excessive_records() -> Vec<Excessive> {
    let (instance, huge) = (request(9).id, "x".repeat(1 << 20));
    let empty = (instance, Spec::stored("{}".to_owned()));
    let demand = UnmetDemand {
        tenant: "acme".to_owned(),
        code: "no_capacity_memory".to_owned(),
        spec: huge.clone(),
        times: 1,
        first_at: 0,
        last_at: 0,
    };
    let failing =
        SchedulingFailure { code: text(201), message: Text::default(), body: "{}".to_owned() };
    let scheduling = Scheduling {
        tenant: Text::from("acme"),
        env: None,
        workload: Text::from("web"),
        failing: Some(failing),
    };
    let ticket = QuarantinedTicket {
        tenant: Text::from("acme"),
        ticket: text(201),
        excess: Text::default(),
    };
    vec![
        (decision(vec![(instance, Spec::stored(huge))]), "decisions.spec"),
        (decision(vec![empty; 1001]), "decisions.instances has 1001 items"),
        (Op::Demand(demand), "spec"),
        (Op::SetScheduling(Box::new(scheduling)), "code has 201 characters"),
        (Op::QuarantineTicket(ticket), "ticket has 201 characters"),
    ]
}

/// Operations inside others.
fn excessive_wrappers() -> Vec<Excessive> {
    let document = DocumentWrite {
        kind: Text::from("note"),
        id: Text::from("a"),
        body: "x".repeat((16 << 20) + 1),
        expect: Expect::Any,
    };
    let with = WithDocuments { op: Op::Release(release("w", 1)), documents: vec![document] };
    let audited = Audited {
        actor: Text::from("a"),
        origin: Text::from("b"),
        action: Text::from("c"),
        subject: text(1 << 17),
        request_id: None,
        op: Op::Release(release("s", 1)),
    };
    vec![
        (Op::WithDocuments(Box::new(with)), "body has"),
        (Op::Audited(Box::new(audited)), "subject has"),
    ]
}

#[test]
fn whatever_brings_it_what_is_beyond_a_limit_is_not_stored() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let planned = test.planned(request(1), "n1", "z", "r");
        granted(&test.commit(vec![planned]));
        let events = test.events().len();
        let of_claims = excessive_plans(test).into_iter().chain(excessive_steps(test));
        let others = excessive_facts().into_iter().chain(excessive_records());
        for (op, expected) in of_claims.chain(others).chain(excessive_wrappers()) {
            let answer = test.one(op.clone());
            let why = excess(&answer).unwrap_or_else(|| panic!("{expected}: {answer:?}"));
            assert!(why.contains(expected) && why.contains("accepted is"), "{expected}: {why}");
        }
        assert_eq!(test.events().len(), events, "nothing happened");
        assert!(test.claim(1).is_some(), "what was to be released is still there");
        test.assert_exact();
    });
}

#[test]
fn facts_of_two_layers_are_limited_together() {
    on_every_database(|test| {
        let labels = |prefix: &str, count: usize| -> BTreeMap<String, String> {
            (0..count).map(|number| (format!("{prefix}{number}"), String::new())).collect()
        };
        let mut facts = NodeFacts::new("n1", Amounts::new(8000, 16_384));
        facts.labels = labels("a", 100);
        test.done(Op::put_node(facts));
        let set = |count: usize| Op::ChangeFacts {
            node: NodeId::new("n1"),
            change: Box::new(FactChange::Set {
                values: labels("labels.b", count)
                    .into_keys()
                    .map(|path| (path, json!("")))
                    .collect(),
                unset: Vec::new(),
            }),
            create: None,
            expect: None,
        };
        let answer = test.one(set(29));
        let why = excess(&answer).unwrap();
        assert_eq!(why, "labels has 129 items; accepted is at most 128 items");
        test.done(set(28));
    });
}

#[test]
fn a_plan_of_the_largest_requests_within_the_limits_is_granted() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let mut largest = request(1);
        largest.resources = Amounts::new(100, 16);
        largest.tags = (0..64).map(|n| (format!("tag-{n}"), "v".repeat(200))).collect();
        let first = test.planned(largest.clone(), "n1", "z", "r");
        let claims = (1..=8).map(|instance| {
            let mut claim = first.clone();
            claim.key.instance = request(instance).id;
            claim
        });
        let claims = claims.collect();
        granted(&test.commit(claims));
        test.assert_exact();
    });
}
