//! Decisions are derived again from the log, byte for byte, whatever became of the fleet since.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_api::ReplayOutcome;
use berth_control::{
    ExplanationRange, MaintenanceConfig, MaintenanceWorker, PlaceAnswer, PlaceRequest, Placer,
    PlacerOptions, explain_decision, replay,
};
use berth_engine::{
    Amounts, BatchMode, InstanceId, InstanceRequest, MeasuredLoad, NodeFacts, NodeId, NodeState,
    Policy, Timestamp,
};
use berth_ledger::{
    Backend, ClaimKey, Decision, DecisionOutcome, Ledger, Op, Options, Retention, Text,
};
use berth_pgtemp::TempPostgres;

const NOW: Timestamp = Timestamp(1_000_000);

fn placer(backend: &Backend) -> Placer {
    placer_of(backend, None)
}

/// A placer whose ledger has so many lanes.
fn placer_of(backend: &Backend, lanes: Option<usize>) -> Placer {
    let mut options = PlacerOptions::new(Policy::builtin("balanced").unwrap());
    options.ledger.writers = lanes.unwrap_or(options.ledger.writers);
    options.clock = Arc::new(|| NOW);
    let placer = Placer::start(backend.clone(), &options).unwrap();
    let policy = &options.policy;
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let op = Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None };
    placer.ledger().administer(op).unwrap();
    placer
}

fn facts(number: u32, cpu: u32, memory: u32) -> NodeFacts {
    let capacity = Amounts::new(cpu, memory).with_disk(1_000_000);
    let mut facts = NodeFacts::new(&format!("n{number:02}"), capacity);
    facts.zone = Some(format!("z{}", number % 2));
    facts.rack = Some(format!("r{}", number % 8));
    facts.heartbeat_at = NOW;
    facts
}

fn fleet(ledger: &Ledger, nodes: u32) {
    for number in 0..nodes {
        ledger.administer(Op::put_node(facts(number, 32_000, 65_536))).unwrap();
    }
}

fn request(id: u128, count: u128, memory: u32) -> PlaceRequest {
    let instance = |number: u128| {
        let amounts = Amounts::new(500, memory).with_disk(10);
        let id = InstanceId::from_u128(id * 1000 + number);
        let mut request = InstanceRequest::new(id, "acme", amounts);
        request.name = Some(format!("vm-{number}"));
        Arc::new(request)
    };
    PlaceRequest {
        request_id: Text::from(id.to_string()),
        tenant: Text::from("acme"),
        instances: (0..count).map(instance).collect(),
        mode: BatchMode::AllOrNothing,
        lease_s: 3600,
        ..PlaceRequest::default()
    }
}

fn key(id: u128) -> ClaimKey {
    ClaimKey::primary(InstanceId::from_u128(id * 1000))
}

fn decisions(ledger: &Ledger) -> Vec<Decision> {
    ledger.decisions(None, 100_000).unwrap()
}

fn is_refusal(decision: &Decision) -> bool {
    matches!(decision.record.outcome, DecisionOutcome::Refused { .. })
}

/// Places and refuses, then changes everything there is.
fn history(placer: &Placer) {
    let ledger = placer.ledger();
    fleet(ledger, 12);
    for id in 1..=20 {
        let size = 512 * u32::try_from(id % 7 + 1).unwrap();
        assert!(matches!(placer.place(request(id, 1, size)), PlaceAnswer::Granted(_)));
    }
    for id in 21..=23 {
        assert!(matches!(placer.place(request(id, 4, 2048)), PlaceAnswer::Granted(_)));
    }
    for id in 24..=26 {
        assert!(matches!(placer.place(request(id, 1, 99_999)), PlaceAnswer::NoRoom(_)));
    }
    assert!(matches!(placer.place(request(27, 3, 99_999)), PlaceAnswer::NoRoom(_)));
    for id in 1..=15 {
        assert!(ledger.force_release(key(id), "gone").unwrap());
    }
    for number in 0..12 {
        ledger.administer(Op::put_node(facts(number, 1000, 8192 + number))).unwrap();
        let state = if number % 2 == 0 { NodeState::Cordoned } else { NodeState::Active };
        let node = NodeId::new(&format!("n{number:02}"));
        ledger.administer(Op::SetNodeState { node, state, expect: None }).unwrap();
    }
    let policy = Policy::builtin("pack").unwrap();
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let op = Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None };
    ledger.administer(op).unwrap();
}

#[test]
fn grants_and_refusals_come_out_the_same_on_a_fleet_that_changed_since() {
    let folder = tempfile::tempdir().unwrap();
    let placer = placer(&Backend::Sqlite(folder.path().join("ledger.db")));
    history(&placer);
    let ledger = placer.ledger();
    let decisions = decisions(ledger);
    assert_eq!(decisions.len(), 27);
    assert_eq!(decisions.iter().filter(|decision| is_refusal(decision)).count(), 4);
    for decision in &decisions {
        let replayed = replay(ledger, decision).unwrap();
        assert_eq!(replayed.outcome, ReplayOutcome::Identical, "{replayed:#?}");
        assert_eq!(replayed.derived, Some(replayed.recorded));
        assert!(replayed.fleet_version.is_some());
    }
    let few = Retention { events: 3, ..Retention::default() };
    ledger.forget(&few).unwrap();
    let replayed = replay(ledger, &decisions[0]).unwrap();
    assert_eq!(replayed.outcome, ReplayOutcome::OutOfReach);
    assert!(replayed.note.contains("the log now begins at event"), "{}", replayed.note);
}

/// Does the upkeep of a ledger, of which so many events are kept, until the log begins after this one.
fn keep_events(ledger: &Ledger, events: i64, until: i64) {
    let retention = Retention { events, ..Retention::default() };
    let every = std::time::Duration::from_millis(1);
    let config = MaintenanceConfig {
        reap_every: every,
        forget_every: every,
        retention,
        ..MaintenanceConfig::default()
    };
    let _worker = MaintenanceWorker::start(ledger.clone(), config).unwrap();
    for _ in 0..3000 {
        if ledger.oldest_event().unwrap() > until {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    panic!("the log is not cut");
}

#[test]
fn decisions_after_the_beginning_of_the_log_was_cut_are_derived_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let placer = placer(&Backend::Sqlite(folder.path().join("ledger.db")));
    let ledger = placer.ledger();
    fleet(ledger, 12);
    for id in 1..=30 {
        assert!(matches!(placer.place(request(id, 1, 1024)), PlaceAnswer::Granted(_)));
    }
    for id in 1..=15 {
        assert!(ledger.force_release(key(id), "gone").unwrap());
    }
    let early = decisions(ledger);
    // A snapshot is stored, and then the log up to it is cut.
    keep_events(ledger, 16, 40);
    for id in 31..=50 {
        let size = 512 * u32::try_from(id % 7 + 1).unwrap();
        assert!(matches!(placer.place(request(id, 1, size)), PlaceAnswer::Granted(_)));
    }
    assert!(matches!(placer.place(request(51, 1, 99_999)), PlaceAnswer::NoRoom(_)));
    assert!(matches!(placer.place(request(52, 3, 2048)), PlaceAnswer::Granted(_)));
    ledger.administer(Op::put_node(facts(3, 1000, 8192))).unwrap();
    let known: std::collections::BTreeSet<String> = early.iter().map(|it| it.id.clone()).collect();
    let later: Vec<Decision> =
        decisions(ledger).into_iter().filter(|it| !known.contains(&it.id)).collect();
    assert_eq!(later.len(), 22);
    for decision in &later {
        let replayed = replay(ledger, decision).unwrap();
        assert_eq!(replayed.outcome, ReplayOutcome::Identical, "{replayed:#?}");
        assert_eq!(replayed.derived, Some(replayed.recorded));
        let range = ExplanationRange { limit: 100, ..ExplanationRange::default() };
        let explained = explain_decision(ledger, decision, range).unwrap().explanation.unwrap();
        let explained = explained.page;
        assert_eq!(explained.items.len(), 12, "every node is in it");
        assert_eq!(explained.runner_up.is_some(), !is_refusal(decision), "{explained:#?}");
    }
    // Those before it are out of reach, and say so.
    let replayed = replay(ledger, &early[5]).unwrap();
    assert_eq!(replayed.outcome, ReplayOutcome::OutOfReach);
    assert!(replayed.note.contains("no snapshot of the fleet"), "{}", replayed.note);
}

#[test]
fn snapshots_of_the_fleet_are_removed_once_the_log_does_not_go_on_from_them() {
    let folder = tempfile::tempdir().unwrap();
    let placer = placer(&Backend::Sqlite(folder.path().join("ledger.db")));
    let ledger = placer.ledger();
    fleet(ledger, 4);
    for id in 1..=20 {
        assert!(matches!(placer.place(request(id, 1, 128)), PlaceAnswer::Granted(_)));
        keep_events(ledger, 16, ledger.newest_event().unwrap() - 20);
    }
    let events = |kind: &str| {
        let documents = ledger.documents(kind, None, 1000).unwrap();
        let event = |id: &str| id.split('/').next().unwrap().parse::<i64>().unwrap();
        documents.iter().map(|document| event(&document.id)).collect::<Vec<_>>()
    };
    let (headers, parts) = (events("fleet_snapshot"), events("fleet_snapshot_part"));
    assert!(!headers.is_empty() && headers[0] > 10, "{headers:?}");
    assert!(parts.iter().all(|event| headers.contains(event)), "{headers:?} {parts:?}");
}

#[test]
fn a_record_that_was_altered_comes_out_different() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let backend = Backend::Sqlite(path.clone());
    history(&placer(&backend));
    let copy = folder.path().join("copy.db");
    let hand = rusqlite::Connection::open(&path).unwrap();
    hand.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    drop(hand);
    let hand = rusqlite::Connection::open(&copy).unwrap();
    // Another node than the one that won, another reason, another number of nodes.
    for (old, new) in [("\"node\":\"n", "\"node\":\"x"), ("no_capacity_memory", "no_nodes_kvm")] {
        hand.execute("UPDATE receipt SET body = replace(body, ?1, ?2)", [old, new]).unwrap();
    }
    drop(hand);
    let ledger = Ledger::open(Backend::Sqlite(copy), Options::default()).unwrap();
    let all = decisions(&ledger);
    let grant = all.iter().find(|decision| !is_refusal(decision)).unwrap();
    let replayed = replay(&ledger, grant).unwrap();
    assert_eq!(replayed.outcome, ReplayOutcome::Different, "{replayed:#?}");
    assert!(replayed.note.contains("/placed/0/node was recorded as \"x"), "{}", replayed.note);
    let refusal = all.iter().find(|decision| is_refusal(decision)).unwrap();
    let replayed = replay(&ledger, refusal).unwrap();
    assert_eq!(replayed.outcome, ReplayOutcome::Different, "{replayed:#?}");
    assert!(replayed.note.contains("no_nodes_kvm"), "{}", replayed.note);
    assert!(!ledger.verify().unwrap().faults.is_empty());
}

/// Places and releases from many threads at once, while nodes come and go.
fn load(placer: &Placer, each: u128) {
    let ids = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for client in 0..6_u128 {
            let ids = &ids;
            scope.spawn(move || {
                let mut mine = Vec::new();
                for round in 0..each {
                    let id = u128::from(ids.fetch_add(1, Ordering::Relaxed));
                    let spread = u32::try_from((id * 37 + client) % 9 + 1).unwrap();
                    let (count, memory) = match id % 17 {
                        0 => (1, 90_000),
                        5 => (3, 512 * spread),
                        _ => (1, 512 * spread),
                    };
                    if matches!(placer.place(request(id, count, memory)), PlaceAnswer::Granted(_)) {
                        mine.push(id);
                    }
                    if round % 3 == 2 && !mine.is_empty() {
                        let gone = mine.swap_remove(usize::try_from(id).unwrap() % mine.len());
                        placer.ledger().force_release(key(gone), "gone").unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..u32::try_from(each).unwrap() / 4 {
                let node = NodeId::new(&format!("n{:02}", round % 24));
                let state = if round % 2 == 0 { NodeState::Cordoned } else { NodeState::Active };
                let op = Op::SetNodeState { node, state, expect: None };
                placer.ledger().administer(op).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        });
    });
}

/// How many of 200 decisions, chosen at random, come out the same, of how many, and why the others do not.
fn replayed(ledger: &Ledger) -> (usize, usize, BTreeMap<String, u32>) {
    let all = decisions(ledger);
    let mut seed = 7_u64;
    let mut random = |below: usize| {
        // Knuth's multiplier; the high bits are the good ones.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let mut order: Vec<usize> = (0..all.len()).collect();
    for place in 0..order.len() {
        let other = place + random(order.len() - place);
        order.swap(place, other);
    }
    let chosen: Vec<&Decision> = order.iter().take(200).map(|place| &all[*place]).collect();
    let (mut same, mut ahead) = (0, 0);
    let mut causes: BTreeMap<String, u32> = BTreeMap::new();
    for decision in &chosen {
        let replayed = replay(ledger, decision).unwrap();
        if replayed.outcome == ReplayOutcome::Identical {
            same += 1;
            let recorded = decision.record.basis.fleet_version;
            ahead += i32::from(replayed.fleet_version.unwrap() != recorded);
        } else {
            *causes.entry(replayed.note).or_default() += 1;
        }
    }
    println!("{same} of {} decisions of {} came out the same", chosen.len(), all.len());
    println!("{ahead} of them on another event than the recorded one");
    causes.iter().for_each(|(note, times)| println!("{times} times: {note}"));
    (same, chosen.len(), causes)
}

#[test]
fn decisions_under_load_come_out_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let placer = placer(&Backend::Sqlite(folder.path().join("ledger.db")));
    fleet(placer.ledger(), 24);
    load(&placer, 80);
    let (same, of, _) = replayed(placer.ledger());
    assert_eq!(of, 200);
    assert!(same * 100 >= of * 99, "{same} of {of}");
}

#[test]
fn decisions_under_load_come_out_the_same_on_postgres() {
    let server = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let backend = Backend::Postgres(server.create_database("replay").unwrap());
    let placer = placer_of(&backend, Some(4));
    fleet(placer.ledger(), 24);
    load(&placer, 80);
    let (same, of, causes) = replayed(placer.ledger());
    assert_eq!(of, 200);
    let is_of_writers = |note: &String| note.contains("several writers committed around it");
    assert!(causes.keys().all(is_of_writers), "{causes:?}");
    // Writers commit in another order than the planner planned in, the more so on a busy machine; whatever
    // comes out different says so.
    assert!(same * 100 >= of * 60, "{same} of {of}");
}

#[test]
fn decisions_by_measured_loads_are_derived_again_whatever_was_measured_since() {
    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::Sqlite(folder.path().join("loads.db"));
    let placer = placer(&backend);
    let ledger = placer.ledger();
    let policy = Policy::from_toml("name = 'calm'\n[scores]\nmeasured-load = 8\ncpu-pressure = 1");
    let policy = policy.unwrap();
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let op = Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None };
    ledger.administer(op).unwrap();
    fleet(ledger, 8);
    // Before each decision another node is the least busy.
    let mut chosen = std::collections::BTreeSet::new();
    for number in 0..24_u16 {
        let load = |node: u16| MeasuredLoad {
            cpu_permille: 50 * ((node * 7 + number * 5) % 20),
            memory_permille: node.is_multiple_of(2).then_some(50 * ((node + number) % 20)),
        };
        let loads = (0..8).map(|node| (NodeId::new(&format!("n{node:02}")), Some(load(node))));
        ledger.administer(Op::SetLoads(loads.collect())).unwrap();
        let answer = placer.place(request(u128::from(number) + 1, 1, 256));
        let PlaceAnswer::Granted(granted) = answer else { panic!("{answer:?}") };
        chosen.insert(granted.grant.claims[0].node.clone());
        if number == 12 {
            // Facts that are stated once more do not take the load away.
            ledger.administer(Op::put_node(facts(3, 64_000, 65_536))).unwrap();
        }
    }
    assert!(chosen.len() > 3, "the loads decide: {chosen:?}");
    let gone = (0..8).map(|node| (NodeId::new(&format!("n{node:02}")), None));
    ledger.administer(Op::SetLoads(gone.collect())).unwrap();
    let recorded = decisions(ledger);
    assert_eq!(recorded.len(), 24);
    for decision in recorded {
        let replayed = replay(ledger, &decision).unwrap();
        assert_eq!(replayed.outcome, ReplayOutcome::Identical, "{replayed:?}");
    }
    let stated = ledger.node(&NodeId::new("n03")).unwrap().unwrap().0;
    assert_eq!(stated.load, None, "what is no longer measured is not kept");
}

/// Bytes that the refusal of one instance may take, with what was asked for. Its explanation alone has
/// some two thousand.
const REFUSAL_BYTES: i64 = 1200;

#[test]
fn a_refusal_is_stored_in_few_bytes_and_explained_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let placer = placer(&Backend::Sqlite(path.clone()));
    fleet(placer.ledger(), 12);
    let PlaceAnswer::NoRoom(refusals) = placer.place(request(1, 1, 99_999)) else { panic!() };
    let hand = rusqlite::Connection::open(&path).unwrap();
    let sql = "SELECT max(length(body)) FROM receipt WHERE chain LIKE '%-refusals' AND count = 1";
    let bytes: i64 = hand.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(bytes <= REFUSAL_BYTES, "{bytes} bytes");
    let decision = decisions(placer.ledger()).remove(0);
    let DecisionOutcome::Refused { detail: Some(detail), .. } = decision.record.outcome else {
        panic!("{decision:?}")
    };
    let explained = serde_json::to_string(&refusals).unwrap();
    assert_eq!(detail.json().unwrap(), explained);
    assert!(explained.len() > 1500, "as long as people get: {explained}");
}
