//! A move is one transaction over two nodes: scenario 7.

use std::time::Duration;

use berth_conformance::{Ask, Crew, MoveAsk, Order, PlannedAsk, Stage, Stood, Task};
use berth_engine::InstanceRequest;

use crate::setting::{CREW, assert_clean, assert_none, crew, instance, outcomes, round, stood};

/// Four instances on each of two nodes, which have room for all eight.
fn four_on_each(stage: &Stage, crew: &mut Crew) -> Vec<InstanceRequest> {
    let instances: Vec<InstanceRequest> = (0..8).map(|number| instance(number + 1, 1024)).collect();
    let plans = instances.iter().enumerate().map(|(number, instance)| PlannedAsk {
        ask: Ask::one(instance.clone()),
        nodes: vec![home(number, 0)],
    });
    let placed = outcomes(&round(stage, crew, vec![Task::Commit(plans.collect())]));
    assert!(placed.iter().all(|outcome| outcome.is_granted()), "{stage}: {placed:?}");
    instances
}

/// Where an instance is after so many moves.
fn home(number: usize, moves: usize) -> String {
    if (number + moves).is_multiple_of(2) { "a".to_owned() } else { "b".to_owned() }
}

pub(crate) fn crossing_moves(stage: &Stage) {
    for node in ["a", "b"] {
        stage.put_node(Stage::facts(node, 1_000_000, 8 * 1024, "r")).unwrap();
    }
    let mut crew = crew(stage);
    let instances = four_on_each(stage, &mut crew);
    for number in 1..=20 {
        let tasks = instances.iter().enumerate().map(|(worker, instance)| {
            let node = home(worker, number);
            let request_id = format!("move-{number}-{worker}");
            let to = MoveAsk { request_id, instance: instance.clone(), node };
            Task::Orders(vec![Order::Move(Box::new(to))])
        });
        let answers = stood(&round(stage, &mut crew, tasks.collect()));
        for (worker, answer) in answers.iter().enumerate() {
            let Stood::Stands { node, .. } = answer else { panic!("{stage}: {answer:?}") };
            assert_eq!(*node, home(worker, number), "{stage}");
        }
        let books = stage.books().unwrap();
        let per_node = books.claims_per_node();
        assert_eq!((per_node["a"], per_node["b"]), (4, 4), "{stage}");
        assert_none(stage, &stage.faults().unwrap());
    }
    assert_clean(stage);
}

pub(crate) fn a_killed_mover_leaves_source_or_target(stage: &Stage) {
    for node in ["a", "b"] {
        stage.put_node(Stage::facts(node, 1_000_000, 8 * 1024, "r")).unwrap();
    }
    let instances = four_on_each(stage, &mut crew(stage));
    let mut moved = false;
    for number in 0..4u64 {
        let mut crew = crew(stage);
        let tasks = instances.iter().map(|instance| Task::MoveToAndFro {
            instance: instance.clone(),
            nodes: ["b".to_owned(), "a".to_owned()],
        });
        let before = stage.events().unwrap().len();
        crew.begin(tasks.collect()).unwrap();
        std::thread::sleep(Duration::from_millis(40 + 23 * number));
        for _ in 0..CREW {
            crew.kill(0).unwrap();
        }
        moved |= stage.events().unwrap().len() > before;
        let books = stage.books().unwrap();
        assert_eq!(books.claims.len(), instances.len(), "{stage}: {:?}", books.claims);
        assert_none(stage, &stage.faults().unwrap());
    }
    assert!(moved, "{stage}: nothing had moved when the workers were killed");
    assert_clean(stage);
}
