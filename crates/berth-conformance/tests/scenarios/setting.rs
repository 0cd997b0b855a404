//! What scenarios share: a crew, instances, and the check that ends each of them.

use std::collections::BTreeMap;
use std::path::Path;

use berth_conformance::{Ask, Crew, Fault, Outcome, Placed, Report, Stage, Stood, Task};
use berth_engine::{Amounts, InstanceId, InstanceRequest};

/// Workers in a crew.
pub(crate) const CREW: usize = 8;

/// The worker's program.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ledger-worker"))
}

/// A crew of the usual size.
pub(crate) fn crew(stage: &Stage) -> Crew {
    Crew::start(program(), &stage.settings(), CREW).unwrap_or_else(|why| panic!("{stage}: {why:#}"))
}

/// An instance of the usual tenant.
pub(crate) fn instance(number: u128, memory_mib: u32) -> InstanceRequest {
    let wanted = Amounts::new(10, memory_mib).with_disk(1);
    InstanceRequest::new(InstanceId::from_u128(number), "acme", wanted)
}

/// One round; a crew that fails names the stage.
pub(crate) fn round(stage: &Stage, crew: &mut Crew, tasks: Vec<Task>) -> Vec<Report> {
    crew.round(tasks).unwrap_or_else(|why| panic!("{stage}: {why:#}"))
}

/// One round of places, one ask a worker.
pub(crate) fn place_each(stage: &Stage, crew: &mut Crew, asks: Vec<Ask>) -> Vec<Outcome> {
    let tasks = asks.into_iter().map(|ask| Task::Place(vec![ask])).collect();
    outcomes(&round(stage, crew, tasks))
}

/// All places of a round.
pub(crate) fn placed(reports: &[Report]) -> Vec<Placed> {
    let placed = reports.iter().flat_map(|report| match report {
        Report::Placed { placed, .. } => placed.clone(),
        _ => Vec::new(),
    });
    placed.collect()
}

/// All outcomes of a round.
pub(crate) fn outcomes(reports: &[Report]) -> Vec<Outcome> {
    placed(reports).into_iter().map(|placed| placed.outcome).collect()
}

/// All answers to orders of a round.
pub(crate) fn stood(reports: &[Report]) -> Vec<Stood> {
    let stood = reports.iter().flat_map(|report| match report {
        Report::Stood(stood) => stood.clone(),
        _ => Vec::new(),
    });
    stood.collect()
}

/// No promise is broken.
pub(crate) fn assert_none(stage: &Stage, faults: &[Fault]) {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "{stage}:\n{}", lines.join("\n"));
}

/// The invariants, the reconciler and the log agree.
pub(crate) fn assert_clean(stage: &Stage) {
    assert_none(stage, &stage.faults().unwrap());
    assert_none(stage, &stage.log_faults().unwrap());
}

/// What every worker's planner knows is what the books say, once it has read the log.
pub(crate) fn assert_mirrors(stage: &Stage, crew: &mut Crew) {
    let books = stage.books().unwrap();
    let cursor = stage.events().unwrap().last().map_or(0, |event| event.seq);
    let mut used: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for claim in &books.claims {
        let sum = used.entry(&claim.node).or_default();
        sum.0 += 1;
        sum.1 += claim.charged[1];
    }
    let nodes: Vec<String> = books.nodes.keys().cloned().collect();
    let task = Task::Mirror { nodes, cursor };
    let tasks = vec![task; crew.len()];
    for (worker, report) in round(stage, crew, tasks).into_iter().enumerate() {
        let Report::Mirror { nodes, cursor: seen } = report else { panic!("{stage}: {report:?}") };
        assert!(seen >= cursor, "{stage}: worker {worker} saw event {seen} of {cursor}");
        for (node, instances, memory) in nodes {
            let truth = used.get(node.as_str()).copied().unwrap_or_default();
            let known = (instances, memory);
            assert_eq!(known, truth, "{stage}: what worker {worker}'s planner knows of {node}");
        }
    }
}
