//! A thousand nodes, and a refusal over many: scenarios 16 and 17.

use berth_conformance::{Fixture, PlaceTask, Report, Task};
use berth_engine::{Amounts, InstanceId, InstanceRequest};

use crate::common::{
    WORKERS, assert_clean, assert_none, instance, outcomes, place_each, placed, pool, round,
};

pub(crate) fn a_thousand_nodes_end_consistent(fixture: &Fixture) {
    put_nodes(fixture, 1000);
    let mut pool = pool(fixture);
    let asks = |worker: usize| {
        let from = (worker as u128 + 1) * 1000;
        Task::Place((from..from + 60).map(|id| PlaceTask::one(instance(id, 512))).collect())
    };
    let wait_for_reports = round(fixture, &mut pool, (0..WORKERS).map(asks).collect());
    let mut micros: Vec<u64> =
        placed(&wait_for_reports).iter().map(|placed| placed.micros).collect();
    micros.sort_unstable();
    let retries: u64 = wait_for_reports
        .iter()
        .map(|report| match report {
            Report::PlaceResult { retries, .. } => *retries,
            _ => 0,
        })
        .sum();
    let granted = outcomes(&wait_for_reports).iter().filter(|outcome| outcome.is_granted()).count();
    assert_eq!(granted, WORKERS * 60, "{fixture}");
    println!(
        "{fixture}: {granted} grants by {WORKERS} processes on 1000 nodes, debug build: \
         p50 {} us, p99 {} us, {retries} retries",
        micros[micros.len() / 2],
        micros[micros.len() * 99 / 100],
    );
    assert_none(fixture, &fixture.violations().unwrap());
    assert_clean(fixture);
}

/// Nodes of different sizes, a few of them cordoned or of unknown capacity.
fn put_nodes(fixture: &Fixture, many: u32) {
    let (sender, answers) = std::sync::mpsc::channel();
    let jobs = (0..many).map(|number| {
        let facts = Fixture::facts(
            &format!("n{number:04}"),
            16_000,
            16_384 + 1024 * (number % 7),
            &format!("r{}", number % 20),
        );
        let sender = sender.clone();
        let op = berth_ledger::Op::put_node(facts);
        berth_ledger::Job { op, reply: Box::new(move |answer| drop(sender.send(answer))) }
    });
    fixture.ledger().unwrap().submit(jobs.collect::<Vec<_>>());
    drop(sender);
    assert!(answers.iter().all(|answer| answer.is_ok()), "{fixture}");
}

pub(crate) fn a_refusal_explains_itself(fixture: &Fixture) {
    let mut random = fastrand::Rng::with_seed(17);
    let mut largest = (0, String::new());
    for number in 0..60 {
        let (name, memory) = (format!("n{number:02}"), 1024 * random.u32(1..64));
        let mut facts = Fixture::facts(&name, 16_000, memory, "r");
        match random.u32(..6) {
            0 => facts.state = berth_engine::NodeState::Cordoned,
            1 => facts.capacity = None,
            2 => facts.kvm = false,
            _ if memory > largest.0 => largest = (memory, name),
            _ => {}
        }
        fixture.put_node(facts).unwrap();
    }
    let mut pool = pool(fixture);
    let ask = |worker: usize| {
        let wanted = Amounts::new(10, 1_000_000).with_disk(1);
        PlaceTask::one(InstanceRequest::new(
            InstanceId::from_u128(worker as u128 + 1),
            "acme",
            wanted,
        ))
    };
    for outcome in place_each(fixture, &mut pool, (0..WORKERS).map(ask).collect()) {
        let refusal = outcome.refusal().unwrap_or_else(|| panic!("{fixture}: {outcome:?}"));
        let removed = refusal["counts"].as_array().unwrap().iter();
        let sum: u64 = removed.map(|count| count["removed"].as_u64().unwrap()).sum();
        assert_eq!((sum, refusal["nodes"].as_u64()), (60, Some(60)), "{fixture}: {refusal}");
        let misses = refusal["nearest"].as_array().unwrap();
        let miss = misses.iter().find(|miss| miss["filter"] == "memory").unwrap();
        assert_eq!(miss["node"], largest.1, "{fixture}: {refusal}");
        assert_eq!(miss["evidence"]["free"], largest.0, "{fixture}: {refusal}");
        assert_eq!(miss["evidence"]["wanted"], 1_000_000, "{fixture}: {refusal}");
        assert_eq!(refusal["code"], "no_capacity_memory", "{fixture}: {refusal}");
    }
    let demand = fixture.ledger().unwrap().demand().unwrap();
    let times: i64 = demand.iter().map(|demand| demand.times).sum();
    assert_eq!(times, 8, "{fixture}: unmet demand is counted: {demand:?}");
    assert_clean(fixture);
}
