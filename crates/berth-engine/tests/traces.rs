//! Replays of public traces. First fit depends on feasibility and the order of nodes alone, so an
//! exact replay must give the very integers that an independent program got.
//!
//! The traces lie next to the repository and are not part of it; without them there is nothing to
//! replay, and the tests say so.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;

use berth_engine::{
    Amounts, Engine, InstanceId, InstanceRequest, NodeFacts, PlaceError, Policy, Timestamp,
};

/// No scores at all: every node is equal, and the smallest id wins.
const FIRST_FIT: &str = "name = 'first-fit'\n[filters]\ncpu = 'hard'";

fn read(trace: &str) -> Option<String> {
    let shared = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let Ok(file) = std::fs::File::open(shared.join(trace)) else {
        eprintln!("skipped: the trace {trace} is not next to the repository");
        return None;
    };
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    Some(text)
}

fn fleet(nodes: &str, count: usize, policy: Policy) -> Engine {
    let mut engine = Engine::new(policy);
    for (number, line) in nodes.lines().skip(1).take(count).enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        let capacity = Amounts::new(fields[1].parse().unwrap(), fields[2].parse().unwrap());
        let mut facts = NodeFacts::new(&format!("n{number:05}"), capacity.with_disk(1 << 30));
        facts.ratios.cpu_permille = 1000;
        facts.vmm_overhead_mib = 0;
        facts.instance_limit = 1_000_000;
        engine.fleet_mut().add_node(&facts).unwrap();
    }
    engine
}

/// How many were rejected, and how many had been placed before the first of them.
fn replay(engine: &mut Engine, events: &str) -> (usize, usize) {
    let mut placed: BTreeMap<String, InstanceId> = BTreeMap::new();
    let (mut rejected, mut granted, mut before_first) = (0, 0, 0);
    for (number, line) in (1u128..).zip(events.lines().skip(1)) {
        let fields: Vec<&str> = line.split(',').collect();
        if fields[1] != "create" {
            if let Some(id) = placed.remove(fields[2]) {
                engine.fleet_mut().release(id);
            }
            continue;
        }
        let wanted = Amounts::new(fields[3].parse().unwrap(), fields[4].parse().unwrap());
        let id = InstanceId::from_u128(number);
        let request = InstanceRequest::new(id, "trace", wanted.with_disk(1));
        match engine.place(&request, Timestamp(0)) {
            Ok(placement) => {
                engine.fleet_mut().claim(&request, &placement.node).unwrap();
                placed.insert(fields[2].to_owned(), id);
                granted += 1;
            }
            Err(PlaceError::Refused(_)) => {
                if rejected == 0 {
                    before_first = granted;
                }
                rejected += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    (rejected, before_first)
}

fn first_fit(folder: &str, nodes: &str, count: usize) -> Option<(usize, usize)> {
    let policy = Policy::from_toml(FIRST_FIT).unwrap();
    let mut engine = fleet(&read(&format!("{folder}/{nodes}.csv.gz"))?, count, policy);
    Some(replay(&mut engine, &read(&format!("{folder}/events.csv.gz"))?))
}

#[test]
fn first_fit_on_a_month_of_huawei_gives_the_reference_integers() {
    if let Some(found) = first_fit("huawei_east1", "nodes", 56) {
        assert_eq!(found, (16, 63_177));
    }
}

#[test]
fn first_fit_on_three_days_of_azure_gives_the_reference_integers() {
    if let Some(found) = first_fit("azure2017", "nodes_homog", 723) {
        assert_eq!(found, (357, 239_545));
    }
}

#[test]
fn first_fit_on_a_mixed_fleet_gives_the_reference_integers() {
    if let Some(found) = first_fit("azure2017", "nodes_mixed", 780) {
        assert_eq!(found, (281, 212_960));
    }
}
