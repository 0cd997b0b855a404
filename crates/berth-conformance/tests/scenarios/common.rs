//! What scenarios share: a worker pool, instances, and the check that ends each of them.

use std::collections::BTreeMap;
use std::path::Path;

use berth_conformance::{
    Fixture, Outcome, PlaceResult, PlaceTask, Report, StepOutcome, Task, Violation, WorkerPool,
};
use berth_engine::{Amounts, InstanceId, InstanceRequest};

/// Workers in a worker pool.
pub(crate) const WORKERS: usize = 8;

/// The worker's program.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ledger-worker"))
}

/// A worker pool of the usual size.
pub(crate) fn pool(fixture: &Fixture) -> WorkerPool {
    WorkerPool::start(program(), &fixture.settings(), WORKERS)
        .unwrap_or_else(|why| panic!("{fixture}: {why:#}"))
}

/// An instance of the usual tenant.
pub(crate) fn instance(number: u128, memory_mib: u32) -> InstanceRequest {
    let wanted = Amounts::new(10, memory_mib).with_disk(1);
    InstanceRequest::new(InstanceId::from_u128(number), "acme", wanted)
}

/// One round; a worker pool that fails names the fixture.
pub(crate) fn round(fixture: &Fixture, pool: &mut WorkerPool, tasks: Vec<Task>) -> Vec<Report> {
    pool.round(tasks).unwrap_or_else(|why| panic!("{fixture}: {why:#}"))
}

/// One round of places, one ask a worker.
pub(crate) fn place_each(
    fixture: &Fixture,
    pool: &mut WorkerPool,
    asks: Vec<PlaceTask>,
) -> Vec<Outcome> {
    let tasks = asks.into_iter().map(|ask| Task::Place(vec![ask])).collect();
    outcomes(&round(fixture, pool, tasks))
}

/// All places of a round.
pub(crate) fn placed(wait_for_reports: &[Report]) -> Vec<PlaceResult> {
    let placed = wait_for_reports.iter().flat_map(|report| match report {
        Report::PlaceResult { placed, .. } => placed.clone(),
        _ => Vec::new(),
    });
    placed.collect()
}

/// All outcomes of a round.
pub(crate) fn outcomes(wait_for_reports: &[Report]) -> Vec<Outcome> {
    placed(wait_for_reports).into_iter().map(|placed| placed.outcome).collect()
}

/// All answers to orders of a round.
pub(crate) fn step_outcome(wait_for_reports: &[Report]) -> Vec<StepOutcome> {
    let step_outcome = wait_for_reports.iter().flat_map(|report| match report {
        Report::StepOutcome(step_outcome) => step_outcome.clone(),
        _ => Vec::new(),
    });
    step_outcome.collect()
}

/// No promise is broken.
pub(crate) fn assert_none(fixture: &Fixture, violations: &[Violation]) {
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(violations.is_empty(), "{fixture}:\n{}", lines.join("\n"));
}

/// The invariants, the reconciler and the log agree.
pub(crate) fn assert_clean(fixture: &Fixture) {
    assert_none(fixture, &fixture.violations().unwrap());
    assert_none(fixture, &fixture.log_violations().unwrap());
}

/// What every worker's planner knows is what the books say, once it has read the log.
pub(crate) fn assert_mirrors(fixture: &Fixture, pool: &mut WorkerPool) {
    let state = fixture.state().unwrap();
    let cursor = fixture.events().unwrap().last().map_or(0, |event| event.seq);
    let mut used: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for claim in &state.claims {
        let sum = used.entry(&claim.node).or_default();
        sum.0 += 1;
        sum.1 += claim.charged[1];
    }
    let nodes: Vec<String> = state.nodes.keys().cloned().collect();
    let task = Task::Mirror { nodes, cursor };
    let tasks = vec![task; pool.len()];
    for (worker, report) in round(fixture, pool, tasks).into_iter().enumerate() {
        let Report::Mirror { nodes, cursor: seen } = report else {
            panic!("{fixture}: {report:?}")
        };
        assert!(seen >= cursor, "{fixture}: worker {worker} saw event {seen} of {cursor}");
        for (node, instances, memory) in nodes {
            let truth = used.get(node.as_str()).copied().unwrap_or_default();
            let known = (instances, memory);
            assert_eq!(known, truth, "{fixture}: what worker {worker}'s planner knows of {node}");
        }
    }
}
