//! How long it takes to check every node of a fleet, one at a time. Run it with
//! `cargo test --release -p berth-engine --test evacuation_speed -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures and says so")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_engine::{
    Amounts, Effort, Engine, EvacuationInstance, InstanceId, InstanceRequest, NodeFacts, NodeId,
    Policy, Timestamp,
};

const NOW: Timestamp = Timestamp(1_000);

type Requests = HashMap<InstanceId, Arc<InstanceRequest>>;

fn fleet(nodes: u32, each: u32, spare_mib: u32, classes: u32) -> (Engine, Requests) {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    let capacity = Amounts::new(64_000, each * (2048 + 64) + spare_mib).with_disk(4_000_000);
    for number in 0..nodes {
        let facts = NodeFacts {
            heartbeat_at: NOW,
            rack: Some(format!("r{:03}", number / 40)),
            zone: Some(format!("z{}", number % 3)),
            ..NodeFacts::new(&format!("n{number:05}"), capacity)
        };
        engine.fleet_mut().add_node(&facts).unwrap();
    }
    let mut requests = Requests::default();
    for number in 0..nodes * each {
        let id = InstanceId::from_u128(u128::from(number) + 1);
        let class = number.wrapping_mul(2_654_435_761) % classes;
        let request = InstanceRequest {
            workload: Some(format!("w{class}")),
            tags: [("role".to_owned(), format!("r{}", class % 7))].into(),
            ..InstanceRequest::new(id, &format!("t{}", class % 20), Amounts::new(500, 2048))
        };
        let node = NodeId::new(&format!("n{:05}", number % nodes));
        engine.fleet_mut().claim(&request, &node).unwrap();
        requests.insert(id, Arc::new(request));
    }
    (engine, requests)
}

fn check_all(engine: &mut Engine, requests: &Requests) -> (usize, Duration) {
    let count = engine.fleet().node_count();
    let nodes: Vec<NodeId> =
        (0..count).map(|number| NodeId::new(&format!("n{number:05}"))).collect();
    let guest = |id| {
        requests
            .get(&id)
            .cloned()
            .map_or(EvacuationInstance::Unknown, EvacuationInstance::Requested)
    };
    let start = Instant::now();
    let possible = nodes
        .iter()
        .filter(|node| {
            let node = std::slice::from_ref(*node);
            engine.plan_evacuation(node, guest, Effort::VERDICT, NOW).is_possible()
        })
        .count();
    (possible, start.elapsed())
}

#[test]
#[ignore = "a measurement, of use in a release build only"]
fn every_node_by_itself() {
    for (nodes, each, classes) in [(1000, 20, 50), (1000, 20, 1000), (10_000, 10, 1000)] {
        for spare in [8192, 100] {
            let start = Instant::now();
            let (engine, requests) = fleet(nodes, each, spare, classes);
            let built = start.elapsed();
            let start = Instant::now();
            let copy = engine.fleet().clone();
            let cloned = start.elapsed();
            let mut scratch = Engine::with_fleet(copy, engine.policy().clone());
            let (possible, took) = check_all(&mut scratch, &requests);
            println!(
                "{nodes} nodes, {} instances, {classes} classes, {spare} MiB spare each: built \
                 in {built:?}, copied in {cloned:?}; {possible} can be emptied, checked in {took:?}",
                nodes * each
            );
        }
    }
}
