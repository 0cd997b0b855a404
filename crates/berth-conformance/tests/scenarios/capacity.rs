//! Room is promised once: scenarios 1, 2, 3, 4 and 14.

use berth_conformance::{Ask, Fault, Kind, Outcome, PlannedAsk, Stage, Task};

use crate::setting::{
    CREW, assert_clean, assert_mirrors, assert_none, crew, instance, outcomes, place_each, round,
};

const BATCH: u128 = 50;

/// Five nodes with room for ten instances each, and batches of fifty: two in even rounds, eight in
/// odd ones. Exactly one must win.
pub(crate) fn batches(stage: &Stage, rounds: u128) -> Vec<Fault> {
    for number in 0..5 {
        stage.put_node(Stage::facts(&format!("n{number}"), 1_000_000, 10_240, "r")).unwrap();
    }
    let mut crew = crew(stage);
    let mut faults = Vec::new();
    for number in 0..rounds {
        let contenders = if number % 2 == 0 { 2 } else { CREW };
        let first = usize::try_from(number).unwrap() % CREW;
        let mut tasks = vec![Task::Idle; CREW];
        for place in 0..contenders {
            let worker = (first + place) % CREW;
            let from = (number * 100 + worker as u128 + 1) * 1000;
            let instances = (from..from + BATCH).map(|id| instance(id, 1024)).collect();
            let ask = Ask::all(&format!("batch-{number}-{worker}"), instances);
            tasks[worker] = Task::Place(vec![ask]);
        }
        let outcomes = outcomes(&round(stage, &mut crew, tasks));
        assert_eq!(outcomes.len(), contenders, "{stage}");
        let won = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        if won != 1 {
            let text = format!("round {number}: {won} of {contenders} batches won: {outcomes:?}");
            faults.push(Fault::new(Kind::Winners, text));
        }
        let errors = outcomes.iter().filter(|outcome| !outcome.is_granted() && !outcome.is_no());
        faults.extend(errors.map(|error| Fault::new(Kind::Answer, format!("{error:?}"))));
        faults.extend(stage.faults().unwrap());
        if !faults.is_empty() {
            return faults;
        }
        stage.clear().unwrap();
    }
    faults
}

pub(crate) fn two_batches_with_room_for_one(stage: &Stage) {
    assert_none(stage, &batches(stage, 100));
    assert_clean(stage);
}

/// Eight processes with forty requests each onto so many nodes that hold a hundred together.
pub(crate) fn hundred(stage: &Stage, nodes: u32) -> Vec<Fault> {
    for number in 0..nodes {
        let memory = 100 / nodes * 64;
        stage.put_node(Stage::facts(&format!("n{number}"), 1_000_000, memory, "r")).unwrap();
    }
    let mut crew = crew(stage);
    let asks = |worker: usize| {
        let from = (worker as u128 + 1) * 1000;
        Task::Place((from..from + 40).map(|id| Ask::one(instance(id, 64))).collect())
    };
    let outcomes = outcomes(&round(stage, &mut crew, (0..CREW).map(asks).collect()));
    assert_eq!(outcomes.len(), CREW * 40, "{stage}");
    let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
    let mut faults = stage.faults().unwrap();
    if granted != 100 {
        faults.push(Fault::new(Kind::Granted, format!("{granted} granted of 100")));
    }
    let errors = outcomes.iter().filter(|outcome| !outcome.is_granted() && !outcome.is_no());
    faults.extend(errors.map(|error| Fault::new(Kind::Answer, format!("{error:?}"))));
    if faults.is_empty() {
        assert_mirrors(stage, &mut crew);
    }
    faults
}

pub(crate) fn many_requests_onto_a_hundred_places(stage: &Stage) {
    assert_none(stage, &hundred(stage, 1));
    assert_clean(stage);
    let other = Stage::new(stage.engine).unwrap();
    assert_none(&other, &hundred(&other, 4));
    assert_clean(&other);
}

pub(crate) fn a_race_for_the_last_place(stage: &Stage) {
    stage.put_node(Stage::facts("only", 1_000_000, 1024, "r")).unwrap();
    let mut crew = crew(stage);
    for number in 0..20u128 {
        let ask = |worker: usize| Ask::one(instance(number * 100 + worker as u128 + 1, 1024));
        let outcomes = place_each(stage, &mut crew, (0..CREW).map(ask).collect());
        let won = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        assert_eq!(won, 1, "{stage}: round {number}: {outcomes:?}");
        for loser in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
            assert_names(stage, loser, "only", "memory");
        }
        assert_none(stage, &stage.faults().unwrap());
        stage.clear().unwrap();
    }
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}

/// A refusal's nearest misses name a node, and what it lacks with both numbers.
fn assert_names(stage: &Stage, outcome: &Outcome, node: &str, filter: &str) {
    if let Outcome::Contended { node: found, code, .. } = outcome {
        let wanted = format!("no_capacity_{filter}");
        assert_eq!((found.as_str(), code), (node, &wanted), "{stage}: {outcome:?}");
        return;
    }
    let refusal = outcome.refusal().unwrap_or_else(|| panic!("{stage}: {outcome:?}"));
    let misses = refusal["nearest"].as_array().unwrap();
    let miss = misses.iter().find(|miss| miss["node"] == node && miss["filter"] == filter);
    let miss = miss.unwrap_or_else(|| panic!("{stage}: {node} lacks no {filter}: {refusal}"));
    let numbers = ["wanted", "free"].map(|name| miss["evidence"][name].as_i64());
    let [Some(wanted), Some(free)] = numbers else { panic!("{stage}: no numbers in {miss}") };
    assert!(wanted > free, "{stage}: {miss}");
}

pub(crate) fn two_nodes_bound_by_different_things(stage: &Stage) {
    // Each instance takes 1000 milli-CPU and 1024 MiB.
    stage.put_node(Stage::facts("few-cores", 3000, 1_000_000, "r")).unwrap();
    stage.put_node(Stage::facts("little-memory", 1_000_000, 2048, "r")).unwrap();
    let mut crew = crew(stage);
    let asks = |worker: usize| {
        let from = (worker as u128 + 1) * 100;
        let many = if worker < 2 { 7 } else { 6 };
        let asks = (from..from + many).map(|id| {
            let mut one = instance(id, 1024);
            one.resources.cpu_milli = 1000;
            Ask::one(one)
        });
        Task::Place(asks.collect())
    };
    let outcomes = outcomes(&round(stage, &mut crew, (0..CREW).map(asks).collect()));
    assert_eq!(outcomes.len(), 50, "{stage}");
    let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
    assert_eq!(granted, 5, "{stage}");
    let books = stage.books().unwrap();
    let per_node = books.claims_per_node();
    assert_eq!((per_node["few-cores"], per_node["little-memory"]), (3, 2), "{stage}");
    for refused in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
        assert!(refused.refusal().is_some(), "{stage}: {refused:?}");
        assert_names(stage, refused, "few-cores", "cpu");
        assert_names(stage, refused, "little-memory", "memory");
    }
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}

pub(crate) fn a_node_without_facts_is_never_chosen(stage: &Stage) {
    let mut unknown = Stage::facts("a-unknown", 1_000_000, 1_000_000, "r");
    unknown.capacity = None;
    stage.put_node(unknown).unwrap();
    stage.put_node(Stage::facts("b-known", 1_000_000, 4096, "r")).unwrap();
    let mut crew = crew(stage);
    let ask = |worker: usize| Ask::one(instance(worker as u128 + 1, 1024));
    let outcomes = place_each(stage, &mut crew, (0..CREW).map(ask).collect());
    let granted: Vec<_> = outcomes.iter().flat_map(Outcome::claims).collect();
    assert_eq!(granted.len(), 4, "{stage}: {outcomes:?}");
    assert!(granted.iter().all(|claim| claim.node.as_str() == "b-known"), "{stage}: {granted:?}");
    // Nor does the ledger take it from a planner that knows no better.
    let plan =
        PlannedAsk { ask: Ask::one(instance(100, 1024)), nodes: vec!["a-unknown".to_owned()] };
    let answers =
        crate::setting::outcomes(&round(stage, &mut crew, vec![Task::Commit(vec![plan])]));
    let [Outcome::Contended { node, code, .. }] = answers.as_slice() else {
        panic!("{stage}: {answers:?}")
    };
    assert_eq!((node.as_str(), code.as_str()), ("a-unknown", "no_nodes_active"), "{stage}");
    assert_clean(stage);
}
