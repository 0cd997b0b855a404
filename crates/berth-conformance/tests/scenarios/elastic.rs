//! Permits are claims, and a migration is source or target: scenarios 19 and 20.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_conformance::{
    Fixture, PlaceTask, PlannedPlaceTask, StepOutcome, StepTask, Task, Violation, ViolationKind,
    WorkerPool,
};
use berth_engine::{Amounts, Elastic, InstanceRequest};

use crate::common::{
    WORKERS, assert_clean, assert_none, instance, outcomes, pool, round, step_outcome,
};

/// What each instance begins with, and what the node has for each.
const BEGIN: u32 = 256;
const SHARE: u32 = 1024;

fn elastic(number: u128) -> InstanceRequest {
    let (min, max) = (Amounts::new(10, 64), Amounts::new(10, 8192));
    InstanceRequest { elastic: Some(Elastic::new(min, max)), ..instance(number, BEGIN) }
}

/// Two nodes, each with four times what eight instances begin with. Before there is a worker pool, so that
/// all of it knows them.
fn nodes(fixture: &Fixture) {
    let memory = SHARE * u32::try_from(WORKERS).unwrap();
    for node in ["a", "b"] {
        fixture.put_node(Fixture::facts(node, 1_000_000, memory, "r")).unwrap();
    }
}

/// Eight instances that run on one node.
fn running(fixture: &Fixture, pool: &mut WorkerPool) -> Vec<InstanceRequest> {
    let instances: Vec<InstanceRequest> = (1..=WORKERS as u128).map(elastic).collect();
    let plans = instances.iter().map(|instance| PlannedPlaceTask {
        ask: PlaceTask::one(instance.clone()),
        nodes: vec!["a".to_owned()],
    });
    let placed = outcomes(&round(fixture, pool, vec![Task::Commit(plans.collect())]));
    let bound = placed.iter().flat_map(|outcome| outcome.claims()).map(|claim| {
        let (instance, fence) = (claim.instance, claim.fence);
        [StepTask::Bind { instance, fence }, StepTask::Activate { instance, fence }]
    });
    let steps: Vec<StepTask> = bound.flatten().collect();
    assert_eq!(steps.len(), 2 * WORKERS, "{fixture}: {placed:?}");
    step_outcome(&round(fixture, pool, vec![Task::Steps(steps)]));
    instances
}

fn granted(answers: &[StepOutcome]) -> Vec<u32> {
    let memory = |answer: &StepOutcome| match answer {
        StepOutcome::Permitted { memory_mib, .. } => *memory_mib,
        other => panic!("{other:?}"),
    };
    answers.iter().map(memory).collect()
}

pub(crate) fn permits_never_oversell(fixture: &Fixture) {
    nodes(fixture);
    let mut pool = pool(fixture);
    let instances = running(fixture, &mut pool);
    for number in 1..=20_u32 {
        // All want far more than their share at once; every third time all shrink.
        let wanted = if number.is_multiple_of(3) { BEGIN } else { SHARE * 3 + 64 * number };
        let tasks = instances.iter().map(|instance| {
            let permit = StepTask::Permit { instance: instance.id, seq: None, memory_mib: wanted };
            Task::Steps(vec![permit; 3])
        });
        let answers = granted(&step_outcome(&round(fixture, &mut pool, tasks.collect())));
        assert_none(fixture, &fixture.violations().unwrap());
        if wanted == BEGIN {
            assert!(answers.iter().all(|memory| *memory == BEGIN), "{fixture}: {answers:?}");
        } else {
            let memory: i64 = fixture.state().unwrap().claims.iter().map(|it| it.charged[1]).sum();
            let all = i64::from(SHARE) * i64::try_from(WORKERS).unwrap();
            assert!(all - memory < 64, "{fixture}: {memory} of {all} MiB given, a unit is 64");
        }
    }
    assert_clean(fixture);
}

pub(crate) fn one_wish_from_everywhere(fixture: &Fixture) {
    nodes(fixture);
    let mut pool = pool(fixture);
    let instances = running(fixture, &mut pool);
    let shared = instances.first().map(|instance| instance.id).unwrap();
    for number in 1..=20_u64 {
        let memory_mib = 320 + 64 * u32::try_from(number).unwrap();
        let permit = StepTask::Permit { instance: shared, seq: Some(number), memory_mib };
        let tasks = vec![Task::Steps(vec![permit]); WORKERS];
        let answers = step_outcome(&round(fixture, &mut pool, tasks));
        let first = answers
            .iter()
            .filter(|it| matches!(it, StepOutcome::Permitted { repeated: false, .. }));
        assert_eq!(first.count(), 1, "{fixture}: {answers:?}");
        assert!(
            granted(&answers).iter().all(|memory| *memory == memory_mib),
            "{fixture}: {answers:?}"
        );
    }
    assert_clean(fixture);
}

pub(crate) fn a_killed_migration_leaves_source_or_target(fixture: &Fixture) {
    nodes(fixture);
    let instances = running(fixture, &mut pool(fixture));
    let mut moved = false;
    for number in 0..4_u64 {
        let mut pool = pool(fixture);
        let tasks = instances.iter().map(|instance| Task::MigrateBackAndForth {
            instance: instance.clone(),
            nodes: ["b".to_owned(), "a".to_owned()],
        });
        let before = fixture.events().unwrap().len();
        pool.begin_round(tasks.collect()).unwrap();
        std::thread::sleep(Duration::from_millis(60 + 31 * number));
        for _ in 0..WORKERS {
            pool.kill(0).unwrap();
        }
        moved |= fixture.events().unwrap().len() > before + WORKERS;
        one_place_each(fixture, &instances);
        assert_none(fixture, &fixture.violations().unwrap());
    }
    assert!(moved, "{fixture}: nothing had moved when the workers were killed");
    assert_clean(fixture);
}

/// Each instance runs in one place, and has at most one more, which its document tells of.
fn one_place_each(fixture: &Fixture, instances: &[InstanceRequest]) {
    let mut roles: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for claim in fixture.state().unwrap().claims {
        roles.entry(claim.instance).or_default().push(claim.role);
    }
    let states = fixture.migration_states().unwrap();
    for instance in instances {
        let mut found = roles.remove(&instance.id.0.simple().to_string()).unwrap_or_default();
        found.sort_unstable();
        let state = states.get(&instance.id.to_string()).map(String::as_str);
        let expected: &[i64] = match state {
            None | Some("done") => &[0],
            Some("held") => &[0, 1],
            Some("switched") => &[0, 2],
            Some(other) => panic!("{fixture}: {other}"),
        };
        assert_eq!(found, expected, "{fixture}: {} is {state:?}", instance.id);
    }
}

/// The same race by looking first and taking then, for the control.
pub(crate) fn by_looking_first(fixture: &Fixture, rounds: u128) -> Vec<Violation> {
    // Room for half of them to grow once.
    let memory = BEGIN * u32::try_from(WORKERS + WORKERS / 2).unwrap();
    fixture.put_node(Fixture::facts("a", 1_000_000, memory, "r")).unwrap();
    let mut pool = pool(fixture);
    let instances: Vec<InstanceRequest> = (1..=WORKERS as u128).map(elastic).collect();
    let plans = instances.iter().map(|instance| PlannedPlaceTask {
        ask: PlaceTask::one(instance.clone()),
        nodes: vec!["a".to_owned()],
    });
    let placed = outcomes(&round(fixture, &mut pool, vec![Task::Commit(plans.collect())]));
    assert!(placed.iter().all(|outcome| outcome.is_granted()), "{fixture}: {placed:?}");
    for _ in 0..rounds {
        let tasks = instances.iter().map(|instance| {
            let order = StepTask::NaivePermit { instance: instance.id, more_mib: BEGIN };
            Task::Steps(vec![order; 2])
        });
        round(fixture, &mut pool, tasks.collect());
        let violations = fixture.violations().unwrap();
        if violations.iter().any(|fault| fault.kind == ViolationKind::Oversold) {
            return violations;
        }
        // They did not meet: once more from where they began.
        let used = BEGIN * u32::try_from(WORKERS).unwrap();
        let again = format!(
            "UPDATE claim SET memory = {BEGIN}; UPDATE node_room SET used_memory = {used};"
        );
        fixture.sql_connection().run(&again).unwrap();
    }
    Vec::new()
}

mod naive_permits_oversell {
    use berth_conformance::{Database, Fixture, ViolationKind};
    use berth_ledger::Isolation;

    fn assert_caught(fixture: &Fixture) {
        let violations = super::by_looking_first(fixture, 20);
        let caught = violations.iter().find(|fault| fault.kind == ViolationKind::Oversold);
        assert!(caught.is_some(), "{fixture}: nothing was oversold: {violations:?}");
    }

    #[test]
    fn sqlite() {
        assert_caught(&Fixture::new(Database::Sqlite).unwrap());
    }

    #[test]
    fn postgres_read_committed() {
        assert_caught(&Fixture::new(Database::Postgres(Isolation::ReadCommitted)).unwrap());
    }
}
