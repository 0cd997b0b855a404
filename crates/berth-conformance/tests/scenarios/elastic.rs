//! Permits are claims, and a migration is source or target: scenarios 19 and 20.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_conformance::{Ask, Crew, Fault, Kind, Order, PlannedAsk, Stage, Stood, Task};
use berth_engine::{Amounts, Elastic, InstanceRequest};

use crate::setting::{CREW, assert_clean, assert_none, crew, instance, outcomes, round, stood};

/// What each instance begins with, and what the node has for each.
const BEGIN: u32 = 256;
const SHARE: u32 = 1024;

fn elastic(number: u128) -> InstanceRequest {
    let (min, max) = (Amounts::new(10, 64), Amounts::new(10, 8192));
    InstanceRequest { elastic: Some(Elastic::new(min, max)), ..instance(number, BEGIN) }
}

/// Two nodes, each with four times what eight instances begin with. Before there is a crew, so that
/// all of it knows them.
fn nodes(stage: &Stage) {
    let memory = SHARE * u32::try_from(CREW).unwrap();
    for node in ["a", "b"] {
        stage.put_node(Stage::facts(node, 1_000_000, memory, "r")).unwrap();
    }
}

/// Eight instances that run on one node.
fn running(stage: &Stage, crew: &mut Crew) -> Vec<InstanceRequest> {
    let instances: Vec<InstanceRequest> = (1..=CREW as u128).map(elastic).collect();
    let plans = instances.iter().map(|instance| PlannedAsk {
        ask: Ask::one(instance.clone()),
        nodes: vec!["a".to_owned()],
    });
    let placed = outcomes(&round(stage, crew, vec![Task::Commit(plans.collect())]));
    let bound = placed.iter().flat_map(|outcome| outcome.claims()).map(|claim| {
        let (instance, fence) = (claim.instance, claim.fence);
        [Order::Bind { instance, fence }, Order::Activate { instance, fence }]
    });
    let orders: Vec<Order> = bound.flatten().collect();
    assert_eq!(orders.len(), 2 * CREW, "{stage}: {placed:?}");
    stood(&round(stage, crew, vec![Task::Orders(orders)]));
    instances
}

fn granted(answers: &[Stood]) -> Vec<u32> {
    let memory = |answer: &Stood| match answer {
        Stood::Permitted { memory_mib, .. } => *memory_mib,
        other => panic!("{other:?}"),
    };
    answers.iter().map(memory).collect()
}

pub(crate) fn permits_never_oversell(stage: &Stage) {
    nodes(stage);
    let mut crew = crew(stage);
    let instances = running(stage, &mut crew);
    for number in 1..=20_u32 {
        // All want far more than their share at once; every third time all shrink.
        let wanted = if number.is_multiple_of(3) { BEGIN } else { SHARE * 3 + 64 * number };
        let tasks = instances.iter().map(|instance| {
            let permit = Order::Permit { instance: instance.id, seq: None, memory_mib: wanted };
            Task::Orders(vec![permit; 3])
        });
        let answers = granted(&stood(&round(stage, &mut crew, tasks.collect())));
        assert_none(stage, &stage.faults().unwrap());
        if wanted == BEGIN {
            assert!(answers.iter().all(|memory| *memory == BEGIN), "{stage}: {answers:?}");
        } else {
            let memory: i64 = stage.books().unwrap().claims.iter().map(|it| it.charged[1]).sum();
            let all = i64::from(SHARE) * i64::try_from(CREW).unwrap();
            assert!(all - memory < 64, "{stage}: {memory} of {all} MiB given, a unit is 64");
        }
    }
    assert_clean(stage);
}

pub(crate) fn one_wish_from_everywhere(stage: &Stage) {
    nodes(stage);
    let mut crew = crew(stage);
    let instances = running(stage, &mut crew);
    let shared = instances.first().map(|instance| instance.id).unwrap();
    for number in 1..=20_u64 {
        let memory_mib = 320 + 64 * u32::try_from(number).unwrap();
        let permit = Order::Permit { instance: shared, seq: Some(number), memory_mib };
        let tasks = vec![Task::Orders(vec![permit]); CREW];
        let answers = stood(&round(stage, &mut crew, tasks));
        let first =
            answers.iter().filter(|it| matches!(it, Stood::Permitted { repeated: false, .. }));
        assert_eq!(first.count(), 1, "{stage}: {answers:?}");
        assert!(
            granted(&answers).iter().all(|memory| *memory == memory_mib),
            "{stage}: {answers:?}"
        );
    }
    assert_clean(stage);
}

pub(crate) fn a_killed_migration_leaves_source_or_target(stage: &Stage) {
    nodes(stage);
    let instances = running(stage, &mut crew(stage));
    let mut moved = false;
    for number in 0..4_u64 {
        let mut crew = crew(stage);
        let tasks = instances.iter().map(|instance| Task::MigrateToAndFro {
            instance: instance.clone(),
            nodes: ["b".to_owned(), "a".to_owned()],
        });
        let before = stage.events().unwrap().len();
        crew.begin(tasks.collect()).unwrap();
        std::thread::sleep(Duration::from_millis(60 + 31 * number));
        for _ in 0..CREW {
            crew.kill(0).unwrap();
        }
        moved |= stage.events().unwrap().len() > before + CREW;
        one_place_each(stage, &instances);
        assert_none(stage, &stage.faults().unwrap());
    }
    assert!(moved, "{stage}: nothing had moved when the workers were killed");
    assert_clean(stage);
}

/// Each instance runs in one place, and has at most one more, which its document tells of.
fn one_place_each(stage: &Stage, instances: &[InstanceRequest]) {
    let mut roles: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for claim in stage.books().unwrap().claims {
        roles.entry(claim.instance).or_default().push(claim.role);
    }
    let states = stage.migration_states().unwrap();
    for instance in instances {
        let mut found = roles.remove(&instance.id.0.simple().to_string()).unwrap_or_default();
        found.sort_unstable();
        let state = states.get(&instance.id.to_string()).map(String::as_str);
        let expected: &[i64] = match state {
            None | Some("done") => &[0],
            Some("held") => &[0, 1],
            Some("switched") => &[0, 2],
            Some(other) => panic!("{stage}: {other}"),
        };
        assert_eq!(found, expected, "{stage}: {} is {state:?}", instance.id);
    }
}

/// The same race by looking first and taking then, for the control.
pub(crate) fn by_looking_first(stage: &Stage, rounds: u128) -> Vec<Fault> {
    // Room for half of them to grow once.
    let memory = BEGIN * u32::try_from(CREW + CREW / 2).unwrap();
    stage.put_node(Stage::facts("a", 1_000_000, memory, "r")).unwrap();
    let mut crew = crew(stage);
    let instances: Vec<InstanceRequest> = (1..=CREW as u128).map(elastic).collect();
    let plans = instances.iter().map(|instance| PlannedAsk {
        ask: Ask::one(instance.clone()),
        nodes: vec!["a".to_owned()],
    });
    let placed = outcomes(&round(stage, &mut crew, vec![Task::Commit(plans.collect())]));
    assert!(placed.iter().all(|outcome| outcome.is_granted()), "{stage}: {placed:?}");
    for _ in 0..rounds {
        let tasks = instances.iter().map(|instance| {
            let order = Order::NaivePermit { instance: instance.id, more_mib: BEGIN };
            Task::Orders(vec![order; 2])
        });
        round(stage, &mut crew, tasks.collect());
        let faults = stage.faults().unwrap();
        if faults.iter().any(|fault| fault.kind == Kind::Oversold) {
            return faults;
        }
        // They did not meet: once more from where they began.
        let used = BEGIN * u32::try_from(CREW).unwrap();
        let again = format!(
            "UPDATE claim SET memory = {BEGIN}; UPDATE node_room SET used_memory = {used};"
        );
        stage.hand().run(&again).unwrap();
    }
    Vec::new()
}

mod naive_permits_oversell {
    use berth_conformance::{Engine, Kind, Stage};
    use berth_ledger::Isolation;

    fn assert_caught(stage: &Stage) {
        let faults = super::by_looking_first(stage, 20);
        let caught = faults.iter().find(|fault| fault.kind == Kind::Oversold);
        assert!(caught.is_some(), "{stage}: nothing was oversold: {faults:?}");
    }

    #[test]
    fn sqlite() {
        assert_caught(&Stage::new(Engine::Sqlite).unwrap());
    }

    #[test]
    fn postgres_read_committed() {
        assert_caught(&Stage::new(Engine::Postgres(Isolation::ReadCommitted)).unwrap());
    }
}
