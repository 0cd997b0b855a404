//! The same answer for the same question, and none after the node is closed: scenarios 10 and 11.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_conformance::{Database, Fixture, Outcome, PlaceTask, StepTask, Task};
use berth_engine::NodeState;
use berth_ledger::EventBody;

use crate::common::{
    WORKERS, assert_clean, assert_mirrors, assert_none, instance, outcomes, place_each, pool, round,
};

pub(crate) fn nothing_is_granted_after_a_cordon(fixture: &Fixture) {
    let mut pool = pool(fixture);
    let mut raced = false;
    for number in 0..6u128 {
        let node = format!("n{number}");
        fixture.put_node(Fixture::facts(&node, 1_000_000, 65_536, "r")).unwrap();
        // Seven processes with a hundred creates between them, and one that cordons.
        let mut tasks: Vec<Task> = (0..WORKERS - 1)
            .map(|worker| {
                let from = (number * 100 + worker as u128 + 1) * 1000;
                let many = if worker < 2 { 15 } else { 14 };
                Task::Place(
                    (from..from + many).map(|id| PlaceTask::one(instance(id, 64))).collect(),
                )
            })
            .collect();
        let after_ms = 5 + 12 * u64::try_from(number).unwrap();
        tasks.push(Task::Steps(vec![StepTask::Cordon { node: node.clone(), after_ms }]));
        let outcomes = outcomes(&round(fixture, &mut pool, tasks));
        assert_eq!(outcomes.len(), 100, "{fixture}");
        for outcome in &outcomes {
            assert!(outcome.is_granted() || outcome.is_refusal(), "{fixture}: {outcome:?}");
        }
        let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        raced |= granted > 0 && granted < 100;
        assert_none(fixture, &fixture.violations().unwrap());
        assert_none_after_cordon(fixture, &node);
    }
    assert!(raced, "{fixture}: every cordon came before the first create or after the last");
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}

/// In the log, no allocation on the node follows its cordon.
fn assert_none_after_cordon(fixture: &Fixture, node: &str) {
    let events = fixture.events().unwrap();
    let cordoned = events.iter().find_map(|event| match &event.body {
        EventBody::NodeState { node_id, state: NodeState::Cordoned, .. }
            if node_id.as_str() == node =>
        {
            Some(event.seq)
        }
        _ => None,
    });
    let cordoned = cordoned.unwrap_or_else(|| panic!("{fixture}: {node} was not cordoned"));
    let late = events.iter().find(|event| {
        let here = |found: &EventBody| matches!(found, EventBody::Allocated(allocated) if allocated.node_id.as_str() == node);
        event.seq > cordoned && here(&event.body)
    });
    assert!(late.is_none(), "{fixture}: cordoned by event {cordoned}, then {late:?}");
}

/// The same batch from every worker.
fn same(number: u128, many: u128, memory_mib: u32) -> Vec<PlaceTask> {
    let from = (number + 1) * 100;
    // Of different sizes, which a planner takes in another order than they were asked for.
    let size = |id: u128| memory_mib * u32::try_from((id - from) * 7 % 5 + 1).unwrap();
    let instances = (from..from + many).map(|id| instance(id, size(id))).collect();
    vec![PlaceTask::all(&format!("same-{number}"), instances); WORKERS]
}

fn assert_one_answer(fixture: &Fixture, outcomes: &[Outcome]) {
    let first = outcomes.first().unwrap();
    assert!(first.is_granted(), "{fixture}: {first:?}");
    for outcome in outcomes {
        assert_eq!(outcome, first, "{fixture}: one request, two answers");
    }
}

pub(crate) fn one_request_from_everywhere(fixture: &Fixture) {
    for node in ["a", "b", "c"] {
        fixture.put_node(Fixture::facts(node, 1_000_000, 65_536, "r")).unwrap();
    }
    let mut pool = pool(fixture);
    for number in 0..20 {
        let outcomes = place_each(fixture, &mut pool, same(number, 3, 64));
        assert_one_answer(fixture, &outcomes);
        let state = fixture.state().unwrap();
        assert_eq!(state.claims.len(), 3 * (usize::try_from(number).unwrap() + 1), "{fixture}");
        assert_none(fixture, &fixture.violations().unwrap());
        // Asked again later, the answer is still the first.
        let again = place_each(fixture, &mut pool, same(number, 3, 64));
        assert_eq!(again, outcomes, "{fixture}");
    }
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}

/// The one that comes second finds the room taken, by the very claim it asks for.
pub(crate) fn one_request_for_the_last_place(fixture: &Fixture) {
    fixture.put_node(Fixture::facts("only", 1_000_000, 1024, "r")).unwrap();
    let mut pool = pool(fixture);
    for number in 0..10 {
        let outcomes = place_each(fixture, &mut pool, same(number, 1, 1024));
        assert_one_answer(fixture, &outcomes);
        assert_eq!(fixture.state().unwrap().claims.len(), 1, "{fixture}");
        assert_none(fixture, &fixture.violations().unwrap());
        fixture.clear().unwrap();
        // A retry after its end gets the first answer too, and claims nothing.
        let again = place_each(fixture, &mut pool, same(number, 1, 1024));
        assert_eq!(again, outcomes, "{fixture}");
        assert_eq!(fixture.state().unwrap().claims.len(), 0, "{fixture}");
    }
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}

pub(crate) fn one_request_over_broken_connections(fixture: &Fixture) {
    for node in ["a", "b", "c"] {
        fixture.put_node(Fixture::facts(node, 1_000_000, 65_536, "r")).unwrap();
    }
    let mut pool = pool(fixture);
    let mut ids = BTreeSet::new();
    for number in 0..6 {
        let tasks = same(number, 3, 64).into_iter().map(|ask| {
            ids.insert(ask.request_id.clone());
            // Asked twice: the second is the retry of a client that never heard the answer.
            Task::Place(vec![ask.clone(), ask])
        });
        pool.begin_round(tasks.collect()).unwrap();
        // SQLite has no connection to lose; there the scenario is the one above, with retries.
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(3));
            fixture.drop_connections().unwrap();
        }
        let wait_for_reports =
            pool.wait_for_reports().unwrap_or_else(|why| panic!("{fixture}: {why:#}"));
        assert_one_answer(fixture, &outcomes(&wait_for_reports));
        assert_none(fixture, &fixture.violations().unwrap());
    }
    assert_eq!(fixture.state().unwrap().claims.len(), ids.len() * 3, "{fixture}");
    let lost = matches!(fixture.database, Database::Postgres(_));
    println!("{fixture}: connections were {}", if lost { "dropped" } else { "not there to drop" });
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}
