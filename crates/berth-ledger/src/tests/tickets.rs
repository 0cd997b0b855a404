//! A ticket keeps its request's id from being used for something else, in the commit itself.

use super::{TestLedger, code, granted, on_every_database, request};
use crate::model::{
    Answer, Expect, IfUnanswered, Micros, Op, Outcome, Plan, Preempt, RefusalReason, Text,
    TicketAnswer, Verdict,
};
use crate::retention::RetentionCutoffs;
use crate::unit_of_work::{RequestRow, StoredAnswer};

/// When the tests' tickets end, long after they run.
const DEADLINE: Micros = Micros(4_000_000_000_000_000);

fn ticket(request_hash: u8, closed: Option<&str>, op: Op) -> Op {
    let (request_id, tenant) = (Text::from("r"), Text::from("acme"));
    let closed = closed.map(str::to_owned);
    let ticket = TicketAnswer { request_hash: [request_hash; 16], kept_from: DEADLINE, closed };
    let ticket = Some(ticket);
    Op::IfUnanswered(Box::new(IfUnanswered { request_id, tenant, ticket, op }))
}

fn enqueue(request_hash: u8) -> Op {
    let (kind, id) = (Text::from("ticket"), Text::from("t"));
    let put = Op::PutDocument { kind, id, body: "{}".to_owned(), expect: Expect::Absent };
    ticket(request_hash, None, put)
}

fn close(request_hash: u8) -> Op {
    let (kind, id) = (Text::from("ticket"), Text::from("t"));
    let remove = Op::RemoveDocument { kind, id, expect: Expect::Revision(1) };
    ticket(request_hash, Some("cancelled"), remove)
}

/// A plan under the ticket's id, for what a request of this hash asks for.
fn plan(test: &TestLedger, request_hash: Option<u8>) -> Plan {
    let planned = test.planned(request(1), "n1", "z", "r");
    let mut plan = Plan::new("r", "acme", vec![planned]);
    plan.request_hash = request_hash.map(|hash| [hash; 16]);
    plan
}

fn ticket_answer(test: &mut TestLedger) -> Option<RequestRow> {
    test.tables.answer("r", "acme").unwrap()
}

fn assert_reused(answer: &Answer) {
    let refused =
        matches!(answer, Answer::Plan(Verdict::Refused(RefusalReason::RequestIdReused { .. })));
    assert!(refused, "{answer:?}");
}

#[test]
fn nothing_else_is_granted_under_the_id_of_a_ticket() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(enqueue(1));
        for other in [Some(2), None] {
            let plan = plan(test, other);
            assert_reused(&test.one(Op::Commit(plan.clone())));
            let preempt = Preempt { plan, victims: Vec::new() };
            assert_reused(&test.one(Op::Preempt(Box::new(preempt))));
        }
        assert_reused(&test.one(enqueue(2)));
        let again = test.one(enqueue(1));
        assert!(matches!(again, Answer::Outcome(Outcome::Stale { .. })), "{again:?}");
        assert!(test.claim(1).is_none());
        // The request itself is granted, whether it is known to have a ticket or not; once.
        for has_ticket in [true, false] {
            let plan = Plan { has_ticket, ..plan(test, Some(1)) };
            granted(&test.commit_plan(plan));
        }
        assert!(matches!(test.one(enqueue(1)), Answer::Repeated(_)));
        test.assert_exact();
    });
}

#[test]
fn two_plans_of_one_transaction_do_not_both_take_the_place_of_a_ticket() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(enqueue(1));
        let plans = [Some(1), Some(1), Some(2)].map(|hash| Op::Commit(plan(test, hash)));
        let answers = test.all(&plans);
        assert!(matches!(&answers[0], Answer::Plan(Verdict::Granted(_))), "{:?}", answers[0]);
        assert!(matches!(&answers[1], Answer::Repeated(_)), "{:?}", answers[1]);
        test.assert_exact();
    });
}

#[test]
fn what_became_of_a_ticket_is_kept_when_its_document_is_gone() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(enqueue(1));
        test.done(close(1));
        let answer = StoredAnswer::Ticket { closed: Some("cancelled".to_owned()) };
        let row = RequestRow { body_hash: [1; 16], answer, at: DEADLINE };
        assert_eq!(ticket_answer(test), Some(row));
        // It does not wait again, and its id is still taken.
        let again = test.one(enqueue(1));
        assert_eq!(again, Answer::Outcome(Outcome::Stale { current: None }));
        assert_reused(&test.one(enqueue(2)));
        assert_reused(&test.one(Op::Commit(plan(test, Some(2)))));
        // Kept as long as answers are, from its end.
        for (before, is_kept) in [(DEADLINE.0, true), (DEADLINE.0 + 1, false)] {
            let cutoffs = RetentionCutoffs {
                events_before: 0,
                answers_before: Micros(before),
                receipts_before: None,
                refusals_before: None,
                audit_before: None,
                now: Micros(0),
            };
            test.tables.forget(&cutoffs).unwrap();
            assert_eq!(ticket_answer(test).is_some(), is_kept);
        }
        assert_eq!(code(&test.commit_plan(plan(test, Some(2)))), "granted");
    });
}
