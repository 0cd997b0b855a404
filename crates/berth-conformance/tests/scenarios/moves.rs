//! A move is one transaction over two nodes: scenario 7.

use std::time::Duration;

use berth_conformance::{
    Fixture, MoveTask, PlaceTask, PlannedPlaceTask, StepOutcome, StepTask, Task, WorkerPool,
};
use berth_engine::InstanceRequest;

use crate::common::{
    WORKERS, assert_clean, assert_none, instance, outcomes, pool, round, step_outcome,
};

/// Four instances on each of two nodes, which have room for all eight.
fn four_on_each(fixture: &Fixture, pool: &mut WorkerPool) -> Vec<InstanceRequest> {
    let instances: Vec<InstanceRequest> = (0..8).map(|number| instance(number + 1, 1024)).collect();
    let plans = instances.iter().enumerate().map(|(number, instance)| PlannedPlaceTask {
        ask: PlaceTask::one(instance.clone()),
        nodes: vec![home(number, 0)],
    });
    let placed = outcomes(&round(fixture, pool, vec![Task::Commit(plans.collect())]));
    assert!(placed.iter().all(|outcome| outcome.is_granted()), "{fixture}: {placed:?}");
    instances
}

/// Where an instance is after so many moves.
fn home(number: usize, moves: usize) -> String {
    if (number + moves).is_multiple_of(2) { "a".to_owned() } else { "b".to_owned() }
}

pub(crate) fn crossing_moves(fixture: &Fixture) {
    for node in ["a", "b"] {
        fixture.put_node(Fixture::facts(node, 1_000_000, 8 * 1024, "r")).unwrap();
    }
    let mut pool = pool(fixture);
    let instances = four_on_each(fixture, &mut pool);
    for number in 1..=20 {
        let tasks = instances.iter().enumerate().map(|(worker, instance)| {
            let node = home(worker, number);
            let request_id = format!("move-{number}-{worker}");
            let to = MoveTask { request_id, instance: instance.clone(), node };
            Task::Steps(vec![StepTask::Move(Box::new(to))])
        });
        let answers = step_outcome(&round(fixture, &mut pool, tasks.collect()));
        for (worker, answer) in answers.iter().enumerate() {
            let StepOutcome::Status { node, .. } = answer else { panic!("{fixture}: {answer:?}") };
            assert_eq!(*node, home(worker, number), "{fixture}");
        }
        let state = fixture.state().unwrap();
        let per_node = state.claims_per_node();
        assert_eq!((per_node["a"], per_node["b"]), (4, 4), "{fixture}");
        assert_none(fixture, &fixture.violations().unwrap());
    }
    assert_clean(fixture);
}

pub(crate) fn a_killed_mover_leaves_source_or_target(fixture: &Fixture) {
    for node in ["a", "b"] {
        fixture.put_node(Fixture::facts(node, 1_000_000, 8 * 1024, "r")).unwrap();
    }
    let instances = four_on_each(fixture, &mut pool(fixture));
    let mut moved = false;
    for number in 0..4u64 {
        let mut pool = pool(fixture);
        let tasks = instances.iter().map(|instance| Task::MoveBackAndForth {
            instance: instance.clone(),
            nodes: ["b".to_owned(), "a".to_owned()],
        });
        let before = fixture.events().unwrap().len();
        pool.begin_round(tasks.collect()).unwrap();
        std::thread::sleep(Duration::from_millis(40 + 23 * number));
        for _ in 0..WORKERS {
            pool.kill(0).unwrap();
        }
        moved |= fixture.events().unwrap().len() > before;
        let state = fixture.state().unwrap();
        assert_eq!(state.claims.len(), instances.len(), "{fixture}: {:?}", state.claims);
        assert_none(fixture, &fixture.violations().unwrap());
    }
    assert!(moved, "{fixture}: nothing had moved when the workers were killed");
    assert_clean(fixture);
}
