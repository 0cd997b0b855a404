//! Documents, the audit log and policies.

use berth_engine::{InstanceId, NodeId};

use super::{TestLedger, granted, new_database, on_every_database, open, release, request, server};
use crate::model::{
    Advance, Answer, AuditEntry, AuditFilter, Audited, ClaimKey, EventBody, Expect, Op, Outcome,
    Plan, Step, Text, Verdict,
};
use crate::postgres::Isolation;
use crate::retention::RetentionCutoffs;

fn put(id: &str, body: &str, expect: Expect) -> Op {
    Op::PutDocument { kind: Text::from("token"), id: Text::from(id), body: body.to_owned(), expect }
}

fn remove(id: &str, expect: Expect) -> Op {
    Op::RemoveDocument { kind: Text::from("token"), id: Text::from(id), expect }
}

fn stale(current: Option<i64>) -> Answer {
    Answer::Outcome(Outcome::Stale { current })
}

fn by(actor: &str, action: &str, subject: &str, op: Op) -> Op {
    Op::Audited(Box::new(Audited {
        actor: Text::from(actor),
        origin: Text::from("10.0.0.9"),
        action: Text::from(action),
        subject: Text::from(subject),
        request_id: Some(Text::from("r-1")),
        op,
    }))
}

fn audit(test: &mut TestLedger) -> Vec<AuditEntry> {
    test.tables.audit(i64::MAX, 64, &AuditFilter::default()).unwrap()
}

fn subjects(test: &mut TestLedger) -> Vec<String> {
    audit(test).into_iter().map(|entry| entry.subject.to_string()).collect()
}

#[test]
fn a_document_rises_by_one_revision_and_its_body_is_not_told() {
    on_every_database(|test| {
        test.done(put("a", "secret-1", Expect::Absent));
        assert_eq!(
            test.one(put("a", "secret-1", Expect::Any)),
            Answer::Outcome(Outcome::Unchanged)
        );
        test.done(put("a", "secret-2", Expect::Revision(1)));
        test.done(put("b", "secret-3", Expect::Any));
        let found = test.tables.document("token", "a").unwrap().unwrap();
        assert_eq!((found.rev, found.body.as_str()), (2, "secret-2"));
        assert!(found.at.0 > 1_700_000_000_000_000);
        assert_eq!(test.tables.document("other", "a").unwrap(), None);
        test.done(remove("a", Expect::Revision(2)));
        assert_eq!(test.one(remove("a", Expect::Any)), Answer::Outcome(Outcome::Unchanged));
        let told: Vec<(String, Option<i64>)> = test
            .events()
            .into_iter()
            .map(|event| match event.body {
                EventBody::DocumentChanged { document, id, revision } => {
                    assert_eq!(&*document, "token");
                    (id.to_string(), revision)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [("a", Some(1)), ("a", Some(2)), ("b", Some(1)), ("a", None)];
        assert_eq!(told, expected.map(|(id, revision)| (id.to_owned(), revision)));
        let segments = test.tables.segments_after(0, 100).unwrap();
        assert!(segments.iter().all(|segment| !segment.body.contains("secret")));
    });
}

#[test]
fn a_document_that_is_not_as_expected_stays_as_it_is() {
    on_every_database(|test| {
        assert_eq!(test.one(put("a", "1", Expect::Revision(1))), stale(None));
        assert_eq!(test.one(remove("a", Expect::Revision(1))), stale(None));
        test.done(put("a", "1", Expect::Absent));
        assert_eq!(test.one(put("a", "2", Expect::Absent)), stale(Some(1)));
        assert_eq!(test.one(put("a", "2", Expect::Revision(2))), stale(Some(1)));
        assert_eq!(test.one(remove("a", Expect::Absent)), stale(Some(1)));
        // In one transaction, each sees what those before it did.
        let ops = [put("a", "2", Expect::Revision(1)), put("a", "3", Expect::Revision(1))];
        assert_eq!(test.all(&ops)[1], stale(Some(2)));
        assert_eq!(test.tables.document("token", "a").unwrap().unwrap().body, "2");
        for wrong in [put("", "x", Expect::Any), put("a\0", "x", Expect::Any)] {
            let answer = test.one(wrong);
            assert!(matches!(answer, Answer::Outcome(Outcome::Impossible(_))), "{answer:?}");
        }
        assert_eq!(test.events().len(), 2);
    });
}

#[test]
fn of_two_who_add_the_same_document_one_is_told_that_it_is_there() {
    let server = server();
    let url = new_database(&server);
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let url = url.clone();
            std::thread::spawn(move || {
                let mut test = TestLedger::postgres(&url, Isolation::ReadCommitted);
                test.one(put("a", &n.to_string(), Expect::Absent))
            })
        })
        .collect();
    let answers: Vec<Answer> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let done = answers.iter().filter(|answer| **answer == Answer::Outcome(Outcome::Done));
    assert_eq!(done.count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| **answer == stale(Some(1))).count(), 3);
}

#[test]
fn documents_are_listed_by_kind_in_the_order_of_their_ids() {
    on_every_database(|test| {
        for id in ["b", "B", "a", "ä", "c"] {
            test.done(put(id, id, Expect::Absent));
        }
        let other = Op::PutDocument {
            kind: Text::from("x"),
            id: Text::from("y"),
            body: String::new(),
            expect: Expect::Any,
        };
        test.done(other);
        let mut page = |after: &str, limit| -> Vec<String> {
            let found = test.tables.documents("token", after, limit).unwrap();
            found.into_iter().map(|document| document.id.to_string()).collect()
        };
        assert_eq!(page("", 8), ["B", "a", "b", "c", "ä"]);
        assert_eq!(page("a", 2), ["b", "c"]);
        assert_eq!(page("ä", 2), Vec::<String>::new());
    });
}

#[test]
fn who_changed_something_is_noted_with_the_change_and_who_did_not_is_not() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let op = by("ann", "document.put", "token a", put("a", "1", Expect::Absent));
        assert_eq!(test.one(op.clone()), Answer::Outcome(Outcome::Done));
        assert_eq!(test.one(op), stale(Some(1)));
        let unchanged = by("ann", "document.put", "token a", put("a", "1", Expect::Any));
        assert_eq!(test.one(unchanged), Answer::Outcome(Outcome::Unchanged));
        let found = audit(test);
        let [entry] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((&*entry.actor, &*entry.origin), ("ann", "10.0.0.9"));
        assert_eq!((&*entry.action, &*entry.subject), ("document.put", "token a"));
        assert_eq!(entry.request_id.as_deref(), Some("r-1"));
        assert!(entry.at.0 > 1_700_000_000_000_000);
        // A NUL cannot be stored, and must not hide what was done.
        let odd = by(
            "a\0b",
            "secrets.put",
            "\0",
            Op::PutSecrets { tenant: None, env: Text::from("e"), version: Some(Text::from("1")) },
        );
        assert_eq!(test.one(odd), Answer::Outcome(Outcome::Done));
        assert_eq!(&*audit(test)[0].actor, "a\u{fffd}b");
    });
}

#[test]
fn a_granted_plan_says_which_node_won_and_a_repeat_is_not_noted_again() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let claims = vec![test.planned(request(1), "n1", "z", "r")];
        let one = by("ann", "place", "", Op::Commit(Plan::new("p-1", "acme", claims)));
        let Answer::Plan(verdict) = test.one(one.clone()) else { panic!("no verdict") };
        granted(&verdict);
        assert!(matches!(test.one(one), Answer::Repeated(_)));
        let claims = (2..=4).map(|n| test.planned(request(n), "n1", "z", "r")).collect();
        let many = by("ann", "place", "", Op::Commit(Plan::new("p-2", "acme", claims)));
        assert!(matches!(test.one(many), Answer::Plan(Verdict::Granted(_))));
        let claims = vec![test.planned(request(5), "nowhere", "z", "r")];
        let none = by("ann", "place", "", Op::Commit(Plan::new("p-3", "acme", claims)));
        assert!(matches!(test.one(none), Answer::Plan(Verdict::Conflict(_))));
        let claims = vec![test.planned(request(6), "n1", "z", "r")];
        let named = by("ann", "place", "web", Op::Commit(Plan::new("p-4", "acme", claims)));
        test.one(named);
        let id = |n: u128| InstanceId::from_u128(n);
        assert_eq!(
            subjects(test),
            [
                "web".to_owned(),
                format!("node n1 won, claim {} and 2 more", id(2)),
                format!("node n1 won, claim {}", id(1)),
            ]
        );
        test.assert_exact();
    });
}

#[test]
fn a_step_is_noted_when_it_is_taken_and_not_when_it_is_repeated() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let planned = test.planned(request(1), "n1", "z", "r");
        let fence = granted(&test.commit(vec![planned])).claims[0].fence;
        let key = ClaimKey::primary(InstanceId::from_u128(1));
        let bind = Op::Advance(Advance { key, tenant: None, fence, step: Step::Bind });
        let bind = by("agent", "bind", "1", bind);
        for _ in 0..2 {
            test.claim_answer(bind.clone()).unwrap();
        }
        let gone = by("ann", "release", "1", Op::Release(release("x", 1)));
        for _ in 0..2 {
            test.claim_answer(gone.clone()).unwrap();
        }
        let reap = by("housekeeper", "reap", "n1", Op::Reap(NodeId::new("n1")));
        assert_eq!(test.one(reap), Answer::Reaped(Vec::new()));
        let actions: Vec<String> =
            audit(test).iter().map(|entry| entry.action.to_string()).collect();
        assert_eq!(actions, ["release", "bind"]);
        assert_eq!(test.claim(1), None);
    });
}

#[test]
fn the_audit_log_is_read_page_by_page_and_filtered() {
    on_every_database(|test| {
        for (n, actor) in [(1, "ann"), (2, "bob"), (3, "ann"), (4, "bob")] {
            let action = if n < 4 { "put" } else { "change" };
            let op = put(&n.to_string(), "x", Expect::Any);
            test.one(by(actor, action, &format!("100% of_{n}"), op));
        }
        let mut ask = |before, filter: &AuditFilter| -> Vec<(i64, String)> {
            let found = test.tables.audit(before, 2, filter).unwrap();
            found.into_iter().map(|entry| (entry.n, entry.subject.to_string())).collect()
        };
        let all = AuditFilter::default();
        let newest = ask(i64::MAX, &all);
        assert_eq!(
            newest.iter().map(|(_, s)| s.as_str()).collect::<Vec<_>>(),
            ["100% of_4", "100% of_3"]
        );
        let next = ask(newest[1].0, &all);
        assert_eq!(
            next.iter().map(|(_, s)| s.as_str()).collect::<Vec<_>>(),
            ["100% of_2", "100% of_1"]
        );
        let bob = AuditFilter { actor: Some("bob".to_owned()), ..AuditFilter::default() };
        assert_eq!(ask(i64::MAX, &bob).len(), 2);
        let change = AuditFilter { action: Some("change".to_owned()), ..bob.clone() };
        assert_eq!(ask(i64::MAX, &change).len(), 1);
        let plain = |text: &str| AuditFilter {
            subject_contains: Some(text.to_owned()),
            ..AuditFilter::default()
        };
        assert_eq!(ask(i64::MAX, &plain("% of_1")).len(), 1);
        assert_eq!(ask(i64::MAX, &plain("100_ of")).len(), 0);
    });
}

#[test]
fn old_entries_of_the_audit_log_are_forgotten_and_numbers_still_grow() {
    on_every_database(|test| {
        for n in 1..=3 {
            test.one(by("ann", "put", &n.to_string(), put(&n.to_string(), "x", Expect::Any)));
        }
        let now = test.tables.clock().unwrap();
        let mut forget = RetentionCutoffs {
            events_before: 0,
            answers_before: now,
            receipts_before: None,
            refusals_before: None,
            audit_before: Some(now.plus_seconds(-60)),
            now,
        };
        assert_eq!(test.tables.forget(&forget).unwrap(), 0);
        let newest = audit(test)[0].n;
        forget.audit_before = Some(now.plus_seconds(60));
        assert_eq!(test.tables.forget(&forget).unwrap(), 2);
        assert_eq!(subjects(test), ["3"]);
        test.one(by("ann", "put", "4", put("4", "x", Expect::Any)));
        assert!(audit(test)[0].n > newest);
    });
}

#[test]
fn a_policy_is_stored_put_in_force_and_remembered() {
    on_every_database(|test| {
        let activate = |hash: &str, expect: Option<&str>| Op::ActivatePolicy {
            name: format!("name-{hash}"),
            hash: hash.to_owned(),
            body: "{}".to_owned(),
            expect: expect.map(str::to_owned),
        };
        let store = Op::PutPolicy {
            name: "name-b".to_owned(),
            hash: "b".to_owned(),
            body: "{}".to_owned(),
        };
        test.done(store.clone());
        assert_eq!(test.one(store), Answer::Outcome(Outcome::Unchanged));
        assert_eq!(test.events().len(), 0, "nothing is in force yet");
        assert_eq!(test.one(activate("a", Some("b"))), stale(None));
        test.done(activate("a", None));
        test.done(activate("b", Some("a")));
        assert_eq!(test.one(activate("a", Some("a"))), stale(None));
        assert_eq!(test.one(activate("b", Some("b"))), Answer::Outcome(Outcome::Unchanged));
        test.done(activate("a", Some("b")));
        let policies = test.tables.policies().unwrap();
        let told: Vec<(&str, &str, bool)> =
            policies.iter().map(|p| (p.name.as_str(), p.hash.as_str(), p.active)).collect();
        assert_eq!(told, [("name-a", "a", true), ("name-b", "b", false)]);
        assert!(policies.iter().all(|policy| policy.at.0 > 1_700_000_000_000_000));
        let history = test.tables.policy_history(8).unwrap();
        assert_eq!(
            history.iter().map(|(_, hash, _)| hash.as_str()).collect::<Vec<_>>(),
            ["a", "b", "a"]
        );
        assert!(history.is_sorted_by(|newer, older| newer.0 > older.0 && newer.2 >= older.2));
        assert_eq!(test.tables.policy_history(1).unwrap().len(), 1);
        assert_eq!(test.events().len(), 3);
    });
}

#[test]
fn a_name_that_no_database_can_store_is_refused_and_not_a_fault() {
    on_every_database(|test| {
        let secrets = Op::PutSecrets { tenant: None, env: Text::from("a\0"), version: None };
        let answer = test.one(secrets);
        assert!(matches!(answer, Answer::Outcome(Outcome::Impossible(_))), "{answer:?}");
        test.node("n1", "z", "r");
        let mut odd = request(1);
        odd.groups.push("g\0".to_owned());
        let planned = test.planned(odd, "n1", "z", "r");
        assert!(matches!(test.commit(vec![planned]), Verdict::Refused(_)));
    });
}

#[test]
fn a_ledger_on_postgres_may_be_dropped_in_an_async_task() {
    let server = server();
    let database = open(&new_database(&server), Isolation::ReadCommitted);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // A connection that waits for its threads when it is dropped panics here.
    runtime.block_on(async { drop(database) });
}
