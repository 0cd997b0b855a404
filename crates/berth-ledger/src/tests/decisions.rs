//! Decisions of all chains, newest first; answers by request; and what an observer sees.

use std::sync::{Arc, Mutex};

use berth_engine::{Amounts, NodeFacts, NodeId, Policy};

use super::{new_database, request, server};
use crate::backend::{Backend, Options};
use crate::ledger::Ledger;
use crate::model::{
    Answer, Basis, DecisionOutcome, DecisionRecord, EventBody, NodeVersion, Op, Outcome, Plan,
    PlannedClaim, Text, Verdict,
};
use crate::retention::Retention;
use crate::transaction::CommitRecord;
use crate::writer::{Observer, WriterHooks};

fn options() -> Options {
    Options { writers: 1, ..Options::default() }
}

/// Runs a test on a ledger in SQLite, then on one in PostgreSQL.
fn on_every_database(test: impl Fn(&Backend)) {
    let folder = tempfile::tempdir().unwrap();
    test(&Backend::Sqlite(folder.path().join("ledger.db")));
    let server = server();
    test(&Backend::Postgres(new_database(&server)));
}

fn record(ledger: &Ledger, names: &[String]) {
    let refused = |name: &String| {
        let outcome = DecisionOutcome::Refused { code: "no".to_owned(), detail: None };
        let basis = Basis { policy: "p".to_owned(), fleet_version: 1, now: 77, in_flight: None };
        let (id, tenant) = (Text::from(name.as_str()), Text::from("acme"));
        DecisionRecord::new(id, tenant, basis, Vec::new(), outcome)
    };
    let op = Op::Record(names.iter().map(refused).collect());
    assert_eq!(ledger.administer(op).unwrap(), Outcome::Done);
}

#[test]
fn decisions_of_all_chains_are_paged_newest_first() {
    on_every_database(|backend| {
        let ledgers = [0, 1].map(|_| Ledger::open(backend.clone(), options()).unwrap());
        let mut expected = Vec::new();
        for round in 0..6 {
            let names: Vec<String> = (0..3).map(|place| format!("{round}-{place}")).collect();
            record(&ledgers[round % 2], &names);
            expected.extend(names);
        }
        expected.reverse();
        let ledger = &ledgers[0];
        for step in [1, 2, 3, 4, 100] {
            let (mut found, mut before) = (Vec::new(), None);
            loop {
                let page = ledger.decisions(before, step).unwrap();
                assert!(page.len() <= step);
                let Some(last) = page.last() else { break };
                before = Some((last.at.0, last.id.clone()));
                found.extend(page);
            }
            let names: Vec<&str> = found.iter().map(|found| &*found.record.request_id).collect();
            assert_eq!(names, expected, "in steps of {step}");
            for decision in &found {
                assert_eq!(decision.record.basis.now, 77);
                let same = ledger.decision(&decision.id).unwrap().unwrap();
                assert_eq!((same.at, &same.record), (decision.at, &decision.record));
            }
        }
        for wrong in ["", "a", "a/1", "a/x/1", "a/1/2/3", "a\0/1/1"] {
            let error = ledger.decisions(Some((1, wrong.to_owned())), 5).unwrap_err();
            assert!(error.to_string().contains("accepted is CHAIN/NUMBER/PLACE"), "{error}");
        }
        assert_eq!(ledger.decisions(None, 0).unwrap().len(), 0);
        assert!(ledger.verify().unwrap().faults.is_empty());
    });
}

#[test]
fn refusals_are_dropped_before_grants_and_chains_stay_verifiable() {
    on_every_database(|backend| {
        let ledger = Ledger::open(backend.clone(), options()).unwrap();
        let facts = NodeFacts::new("n1", Amounts::new(64_000, 65_536).with_disk(1 << 20));
        ledger.administer(Op::put_node(facts)).unwrap();
        for number in 1..=3 {
            record(&ledger, &[format!("refused-{number}")]);
            let answer = ledger.call(Op::Commit(plan(&format!("granted-{number}"), number)));
            assert!(matches!(answer, Ok(Answer::Plan(Verdict::Granted(_)))), "{answer:?}");
        }
        let names = || -> Vec<String> {
            let decisions = ledger.decisions(None, 100).unwrap();
            decisions.iter().map(|decision| decision.record.request_id.to_string()).collect()
        };
        assert_eq!(names().len(), 6);
        // Kept as long as other receipts: nothing goes.
        let keep = Retention { refusals_s: None, ..Retention::default() };
        ledger.forget(&keep).unwrap();
        assert_eq!(names().len(), 6);
        let forget = Retention { refusals_s: Some(-60), ..Retention::default() };
        ledger.forget(&forget).unwrap();
        // The newest stays: the next one is tied to it.
        let expected = ["granted-3", "refused-3", "granted-2", "granted-1"];
        assert_eq!(names(), expected);
        assert_eq!(ledger.verify().unwrap().faults, []);
        record(&ledger, &["refused-4".to_owned()]);
        assert_eq!(names()[0], "refused-4");
        assert_eq!(ledger.verify().unwrap().faults, []);
    });
}

#[test]
fn receipts_without_a_time_of_planning_are_read_as_zero() {
    let basis: Basis = serde_json::from_str(r#"{"policy":"p","fleet_version":3}"#).unwrap();
    assert_eq!((basis.fleet_version, basis.now, basis.in_flight), (3, 0, None));
}

fn plan(name: &str, instance: u128) -> Plan {
    let policy = Policy::builtin("balanced").unwrap();
    let node_version = NodeVersion { constraint_gen: 1, ..NodeVersion::default() };
    let request = Arc::new(request(instance));
    let claim = PlannedClaim::new(request, &policy, NodeId::new("n1"), node_version);
    Plan::new(name, "acme", vec![claim])
}

#[test]
fn the_grant_of_a_request_is_found_by_its_id() {
    on_every_database(|backend| {
        let ledger = Ledger::open(backend.clone(), options()).unwrap();
        let facts = NodeFacts::new("n1", Amounts::new(8000, 16_384).with_disk(100_000));
        ledger.administer(Op::put_node(facts)).unwrap();
        let Verdict::Granted(grant) = ledger.commit(plan("r", 1)).unwrap() else {
            panic!("not granted");
        };
        assert_eq!(ledger.answer("acme", "r").unwrap(), Some(grant.clone()));
        assert_eq!(ledger.answer("other", "r").unwrap(), None);
        assert_eq!(ledger.answer("acme", "r\0").unwrap(), None);
        let decision = ledger.decision(&grant.decision).unwrap().unwrap();
        assert_eq!(&*decision.record.request_id, "r");
    });
}

#[test]
fn an_observer_is_told_when_and_what_was_committed() {
    on_every_database(|backend| {
        let told: Arc<Mutex<Vec<CommitRecord>>> = Arc::default();
        let listener = Arc::clone(&told);
        let observer: Observer =
            Arc::new(move |committed| listener.lock().unwrap().push(committed));
        let hooks = WriterHooks { observer: Some(observer), ended: None };
        let ledger = Ledger::open_with(backend.clone(), options(), hooks).unwrap();
        let facts = NodeFacts::new("n1", Amounts::new(8000, 16_384).with_disk(100_000));
        ledger.administer(Op::put_node(facts)).unwrap();
        ledger.commit(plan("r", 1)).unwrap();
        // Nothing happens, and the observer is not called.
        ledger.commit(plan("r", 1)).unwrap();
        ledger.administer(Op::RemoveQuota(Text::from("acme"))).unwrap();
        let told = told.lock().unwrap();
        let kinds: Vec<usize> = told.iter().map(|committed| committed.events.len()).collect();
        assert_eq!(kinds, [1, 1]);
        let EventBody::Allocated(allocated) = &told[1].events[0] else { panic!("{told:?}") };
        assert!(allocated.lease_until.unwrap() > told[1].at);
        let events = ledger.events_after(0, 10).unwrap().events;
        let times: Vec<_> = events.iter().map(|event| event.at).collect();
        assert_eq!(times, told.iter().map(|committed| committed.at).collect::<Vec<_>>());
    });
}
