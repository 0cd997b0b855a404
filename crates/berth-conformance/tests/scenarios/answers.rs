//! The same answer for the same question, and none after the node is closed: scenarios 10 and 11.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_conformance::{Ask, Engine, Order, Outcome, Stage, Task};
use berth_engine::NodeState;
use berth_ledger::EventBody;

use crate::setting::{
    CREW, assert_clean, assert_mirrors, assert_none, crew, instance, outcomes, place_each, round,
};

pub(crate) fn nothing_is_granted_after_a_cordon(stage: &Stage) {
    let mut crew = crew(stage);
    let mut raced = false;
    for number in 0..6u128 {
        let node = format!("n{number}");
        stage.put_node(Stage::facts(&node, 1_000_000, 65_536, "r")).unwrap();
        // Seven processes with a hundred creates between them, and one that cordons.
        let mut tasks: Vec<Task> = (0..CREW - 1)
            .map(|worker| {
                let from = (number * 100 + worker as u128 + 1) * 1000;
                let many = if worker < 2 { 15 } else { 14 };
                Task::Place((from..from + many).map(|id| Ask::one(instance(id, 64))).collect())
            })
            .collect();
        let after_ms = 5 + 12 * u64::try_from(number).unwrap();
        tasks.push(Task::Orders(vec![Order::Cordon { node: node.clone(), after_ms }]));
        let outcomes = outcomes(&round(stage, &mut crew, tasks));
        assert_eq!(outcomes.len(), 100, "{stage}");
        for outcome in &outcomes {
            assert!(outcome.is_granted() || outcome.is_no(), "{stage}: {outcome:?}");
        }
        let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        raced |= granted > 0 && granted < 100;
        assert_none(stage, &stage.faults().unwrap());
        assert_none_after_cordon(stage, &node);
    }
    assert!(raced, "{stage}: every cordon came before the first create or after the last");
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}

/// In the log, no allocation on the node follows its cordon.
fn assert_none_after_cordon(stage: &Stage, node: &str) {
    let events = stage.events().unwrap();
    let cordoned = events.iter().find_map(|event| match &event.body {
        EventBody::NodeState { node_id, state: NodeState::Cordoned, .. }
            if node_id.as_str() == node =>
        {
            Some(event.seq)
        }
        _ => None,
    });
    let cordoned = cordoned.unwrap_or_else(|| panic!("{stage}: {node} was not cordoned"));
    let late = events.iter().find(|event| {
        let here = |found: &EventBody| matches!(found, EventBody::Allocated(allocated) if allocated.node_id.as_str() == node);
        event.seq > cordoned && here(&event.body)
    });
    assert!(late.is_none(), "{stage}: cordoned by event {cordoned}, then {late:?}");
}

/// The same batch from every worker.
fn same(number: u128, many: u128, memory_mib: u32) -> Vec<Ask> {
    let from = (number + 1) * 100;
    // Of different sizes, which a planner takes in another order than they were asked for.
    let size = |id: u128| memory_mib * u32::try_from((id - from) * 7 % 5 + 1).unwrap();
    let instances = (from..from + many).map(|id| instance(id, size(id))).collect();
    vec![Ask::all(&format!("same-{number}"), instances); CREW]
}

fn assert_one_answer(stage: &Stage, outcomes: &[Outcome]) {
    let first = outcomes.first().unwrap();
    assert!(first.is_granted(), "{stage}: {first:?}");
    for outcome in outcomes {
        assert_eq!(outcome, first, "{stage}: one request, two answers");
    }
}

pub(crate) fn one_request_from_everywhere(stage: &Stage) {
    for node in ["a", "b", "c"] {
        stage.put_node(Stage::facts(node, 1_000_000, 65_536, "r")).unwrap();
    }
    let mut crew = crew(stage);
    for number in 0..20 {
        let outcomes = place_each(stage, &mut crew, same(number, 3, 64));
        assert_one_answer(stage, &outcomes);
        let books = stage.books().unwrap();
        assert_eq!(books.claims.len(), 3 * (usize::try_from(number).unwrap() + 1), "{stage}");
        assert_none(stage, &stage.faults().unwrap());
        // Asked again later, the answer is still the first.
        let again = place_each(stage, &mut crew, same(number, 3, 64));
        assert_eq!(again, outcomes, "{stage}");
    }
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}

/// Whoever comes second finds the room taken, by the very claim it asks for.
pub(crate) fn one_request_for_the_last_place(stage: &Stage) {
    stage.put_node(Stage::facts("only", 1_000_000, 1024, "r")).unwrap();
    let mut crew = crew(stage);
    for number in 0..10 {
        let outcomes = place_each(stage, &mut crew, same(number, 1, 1024));
        assert_one_answer(stage, &outcomes);
        assert_eq!(stage.books().unwrap().claims.len(), 1, "{stage}");
        assert_none(stage, &stage.faults().unwrap());
        stage.clear().unwrap();
        // A retry after its end gets the first answer too, and claims nothing.
        let again = place_each(stage, &mut crew, same(number, 1, 1024));
        assert_eq!(again, outcomes, "{stage}");
        assert_eq!(stage.books().unwrap().claims.len(), 0, "{stage}");
    }
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}

pub(crate) fn one_request_over_broken_connections(stage: &Stage) {
    for node in ["a", "b", "c"] {
        stage.put_node(Stage::facts(node, 1_000_000, 65_536, "r")).unwrap();
    }
    let mut crew = crew(stage);
    let mut ids = BTreeSet::new();
    for number in 0..6 {
        let tasks = same(number, 3, 64).into_iter().map(|ask| {
            ids.insert(ask.request_id.clone());
            // Asked twice: the second is the retry of a client that never heard the answer.
            Task::Place(vec![ask.clone(), ask])
        });
        crew.begin(tasks.collect()).unwrap();
        // SQLite has no connection to lose; there the scenario is the one above, with retries.
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(3));
            stage.drop_connections().unwrap();
        }
        let reports = crew.reports().unwrap_or_else(|why| panic!("{stage}: {why:#}"));
        assert_one_answer(stage, &outcomes(&reports));
        assert_none(stage, &stage.faults().unwrap());
    }
    assert_eq!(stage.books().unwrap().claims.len(), ids.len() * 3, "{stage}");
    let lost = matches!(stage.engine, Engine::Postgres(_));
    println!("{stage}: connections were {}", if lost { "dropped" } else { "not there to drop" });
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}
