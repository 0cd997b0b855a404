//! Room is promised once: scenarios 1, 2, 3, 4 and 14.

use berth_conformance::{
    Fixture, Outcome, PlaceTask, PlannedPlaceTask, Task, Violation, ViolationKind,
};

use crate::common::{
    WORKERS, assert_clean, assert_mirrors, assert_none, instance, outcomes, place_each, pool, round,
};

const BATCH: u128 = 50;

/// Five nodes with room for ten instances each, and batches of fifty: two in even rounds, eight in
/// odd ones. Exactly one must win.
pub(crate) fn batches(fixture: &Fixture, rounds: u128) -> Vec<Violation> {
    for number in 0..5 {
        fixture.put_node(Fixture::facts(&format!("n{number}"), 1_000_000, 10_240, "r")).unwrap();
    }
    let mut pool = pool(fixture);
    let mut violations = Vec::new();
    for number in 0..rounds {
        let contenders = if number % 2 == 0 { 2 } else { WORKERS };
        let first = usize::try_from(number).unwrap() % WORKERS;
        let mut tasks = vec![Task::Idle; WORKERS];
        for place in 0..contenders {
            let worker = (first + place) % WORKERS;
            let from = (number * 100 + worker as u128 + 1) * 1000;
            let instances = (from..from + BATCH).map(|id| instance(id, 1024)).collect();
            let ask = PlaceTask::all(&format!("batch-{number}-{worker}"), instances);
            tasks[worker] = Task::Place(vec![ask]);
        }
        let outcomes = outcomes(&round(fixture, &mut pool, tasks));
        assert_eq!(outcomes.len(), contenders, "{fixture}");
        let won = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        if won != 1 {
            let text = format!("round {number}: {won} of {contenders} batches won: {outcomes:?}");
            violations.push(Violation::new(ViolationKind::Winners, text));
        }
        let errors =
            outcomes.iter().filter(|outcome| !outcome.is_granted() && !outcome.is_refusal());
        violations.extend(
            errors.map(|error| Violation::new(ViolationKind::Answer, format!("{error:?}"))),
        );
        violations.extend(fixture.violations().unwrap());
        if !violations.is_empty() {
            return violations;
        }
        fixture.clear().unwrap();
    }
    violations
}

pub(crate) fn two_batches_with_room_for_one(fixture: &Fixture) {
    assert_none(fixture, &batches(fixture, 100));
    assert_clean(fixture);
}

/// Eight processes with forty requests each onto so many nodes that hold a hundred together.
pub(crate) fn hundred(fixture: &Fixture, nodes: u32) -> Vec<Violation> {
    for number in 0..nodes {
        let memory = 100 / nodes * 64;
        fixture.put_node(Fixture::facts(&format!("n{number}"), 1_000_000, memory, "r")).unwrap();
    }
    let mut pool = pool(fixture);
    let asks = |worker: usize| {
        let from = (worker as u128 + 1) * 1000;
        Task::Place((from..from + 40).map(|id| PlaceTask::one(instance(id, 64))).collect())
    };
    let outcomes = outcomes(&round(fixture, &mut pool, (0..WORKERS).map(asks).collect()));
    assert_eq!(outcomes.len(), WORKERS * 40, "{fixture}");
    let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
    let mut violations = fixture.violations().unwrap();
    if granted != 100 {
        violations
            .push(Violation::new(ViolationKind::Granted, format!("{granted} granted of 100")));
    }
    let errors = outcomes.iter().filter(|outcome| !outcome.is_granted() && !outcome.is_refusal());
    violations
        .extend(errors.map(|error| Violation::new(ViolationKind::Answer, format!("{error:?}"))));
    if violations.is_empty() {
        assert_mirrors(fixture, &mut pool);
    }
    violations
}

pub(crate) fn many_requests_onto_a_hundred_places(fixture: &Fixture) {
    assert_none(fixture, &hundred(fixture, 1));
    assert_clean(fixture);
    let other = Fixture::new(fixture.database).unwrap();
    assert_none(&other, &hundred(&other, 4));
    assert_clean(&other);
}

pub(crate) fn a_race_for_the_last_place(fixture: &Fixture) {
    fixture.put_node(Fixture::facts("only", 1_000_000, 1024, "r")).unwrap();
    let mut pool = pool(fixture);
    for number in 0..20u128 {
        let ask = |worker: usize| PlaceTask::one(instance(number * 100 + worker as u128 + 1, 1024));
        let outcomes = place_each(fixture, &mut pool, (0..WORKERS).map(ask).collect());
        let won = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        assert_eq!(won, 1, "{fixture}: round {number}: {outcomes:?}");
        for loser in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
            assert_names(fixture, loser, "only", "memory");
        }
        assert_none(fixture, &fixture.violations().unwrap());
        fixture.clear().unwrap();
    }
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}

/// A refusal's nearest misses name a node, and what it lacks with both numbers.
fn assert_names(fixture: &Fixture, outcome: &Outcome, node: &str, filter: &str) {
    if let Outcome::Contended { node: found, code, .. } = outcome {
        let wanted = format!("no_capacity_{filter}");
        assert_eq!((found.as_str(), code), (node, &wanted), "{fixture}: {outcome:?}");
        return;
    }
    let refusal = outcome.refusal().unwrap_or_else(|| panic!("{fixture}: {outcome:?}"));
    let misses = refusal["nearest"].as_array().unwrap();
    let miss = misses.iter().find(|miss| miss["node"] == node && miss["filter"] == filter);
    let miss = miss.unwrap_or_else(|| panic!("{fixture}: {node} lacks no {filter}: {refusal}"));
    let numbers = ["wanted", "free"].map(|name| miss["evidence"][name].as_i64());
    let [Some(wanted), Some(free)] = numbers else { panic!("{fixture}: no numbers in {miss}") };
    assert!(wanted > free, "{fixture}: {miss}");
}

pub(crate) fn two_nodes_bound_by_different_things(fixture: &Fixture) {
    // Each instance takes 1000 milli-CPU and 1024 MiB.
    fixture.put_node(Fixture::facts("few-cores", 3000, 1_000_000, "r")).unwrap();
    fixture.put_node(Fixture::facts("little-memory", 1_000_000, 2048, "r")).unwrap();
    let mut pool = pool(fixture);
    let asks = |worker: usize| {
        let from = (worker as u128 + 1) * 100;
        let many = if worker < 2 { 7 } else { 6 };
        let asks = (from..from + many).map(|id| {
            let mut one = instance(id, 1024);
            one.resources.cpu_milli = 1000;
            PlaceTask::one(one)
        });
        Task::Place(asks.collect())
    };
    let outcomes = outcomes(&round(fixture, &mut pool, (0..WORKERS).map(asks).collect()));
    assert_eq!(outcomes.len(), 50, "{fixture}");
    let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
    assert_eq!(granted, 5, "{fixture}");
    let state = fixture.state().unwrap();
    let per_node = state.claims_per_node();
    assert_eq!((per_node["few-cores"], per_node["little-memory"]), (3, 2), "{fixture}");
    for refused in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
        assert!(refused.refusal().is_some(), "{fixture}: {refused:?}");
        assert_names(fixture, refused, "few-cores", "cpu");
        assert_names(fixture, refused, "little-memory", "memory");
    }
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}

pub(crate) fn a_node_without_facts_is_never_chosen(fixture: &Fixture) {
    let mut unknown = Fixture::facts("a-unknown", 1_000_000, 1_000_000, "r");
    unknown.capacity = None;
    fixture.put_node(unknown).unwrap();
    fixture.put_node(Fixture::facts("b-known", 1_000_000, 4096, "r")).unwrap();
    let mut pool = pool(fixture);
    let ask = |worker: usize| PlaceTask::one(instance(worker as u128 + 1, 1024));
    let outcomes = place_each(fixture, &mut pool, (0..WORKERS).map(ask).collect());
    let granted: Vec<_> = outcomes.iter().flat_map(Outcome::claims).collect();
    assert_eq!(granted.len(), 4, "{fixture}: {outcomes:?}");
    assert!(granted.iter().all(|claim| claim.node.as_str() == "b-known"), "{fixture}: {granted:?}");
    // Nor does the ledger take it from a planner that knows no better.
    let plan = PlannedPlaceTask {
        ask: PlaceTask::one(instance(100, 1024)),
        nodes: vec!["a-unknown".to_owned()],
    };
    let answers =
        crate::common::outcomes(&round(fixture, &mut pool, vec![Task::Commit(vec![plan])]));
    let [Outcome::Contended { node, code, .. }] = answers.as_slice() else {
        panic!("{fixture}: {answers:?}")
    };
    assert_eq!((node.as_str(), code.as_str()), ("a-unknown", "no_nodes_active"), "{fixture}");
    assert_clean(fixture);
}
