//! The same inputs give the same bytes: a long run of decisions hashes to one number.
//!
//! When a formula, a built-in policy or a tie-break changes on purpose, so does the number here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use std::collections::{BTreeMap, VecDeque};

use berth_engine::affinity::Rule;
use berth_engine::policy::Policy;
use berth_engine::{
    BootOutcome, Engine, InstanceId, InstanceRequest, Locality, NodeFacts, NodeId, NodeState,
    PlaceError,
};
use oracle::random::{GROUPS, Rng, START, Wildness, group, node};
use oracle::requests::request;

const NODES: usize = 2000;
const DECISIONS: u64 = 100_000;
const SHAPES: u64 = 40;
/// About as many instances as are kept at a time: enough that nodes fill up.
const KEPT: usize = 5000;
const EXPECTED: &str = "05616bf130acd575dea13debd434b815291e9e7e2abc064d56d815abae808460";

fn nodes() -> Vec<NodeFacts> {
    let facts = |number: usize| {
        let seed = 7_000 + number as u64;
        let mut facts = node(seed, Wildness(2), START);
        facts.id = NodeId::new(&format!("node-{:04}", (number * 1237) % NODES));
        // An agent that never falls silent: time passes, and hearing it is not what is tested.
        facts.heartbeat_at = START.plus(365 * 86_400);
        facts
    };
    (0..NODES).map(facts).collect()
}

/// Mostly plain, so that the rankings are what answers; every eighth has groups, soft rules and
/// hints. Little that can refuse: explaining a refusal is slow, and is tested elsewhere.
fn shape(number: u64, id: u64) -> InstanceRequest {
    let drawn = request(number, id, Wildness(0));
    let with_rules = number.is_multiple_of(8);
    let soft = |rule: &Rule| with_rules && !rule.is_hard();
    InstanceRequest {
        affinity: drawn.affinity.iter().filter(|r| soft(r)).cloned().collect(),
        locality: Locality {
            strict: false,
            ..if with_rules { drawn.locality } else { Locality::default() }
        },
        groups: if with_rules { drawn.groups } else { Vec::new() },
        extra: BTreeMap::new(),
        volumes: Vec::new(),
        needs_secrets: false,
        excluded_nodes: Vec::new(),
        ..drawn
    }
}

fn disturb(engine: &mut Engine, rng: &mut Rng, nodes: &[NodeFacts], seconds: i64) {
    let facts = rng.pick(nodes);
    let at = START.plus(seconds);
    match rng.below(4) {
        0 => {
            let failed = rng.chance(50);
            let outcome = BootOutcome::new(at, failed);
            engine.fleet_mut().record_boot(&facts.id, outcome);
        }
        1 => {
            let state = rng.pick(&[NodeState::Active, NodeState::Active, NodeState::Cordoned]);
            engine.fleet_mut().set_state(&facts.id, state);
        }
        2 => assert!(engine.fleet_mut().heartbeat(&facts.id, at)),
        _ => {
            let drawn = node(rng.next(), Wildness(2), START);
            let changed = NodeFacts {
                heartbeat_at: facts.heartbeat_at,
                capacity: drawn.capacity,
                cached_images: drawn.cached_images,
                ..facts
            };
            engine.fleet_mut().add_node(&changed).unwrap();
        }
    }
}

#[test]
fn a_digest_over_100_000_decisions_is_stable() {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    let nodes = nodes();
    for facts in &nodes {
        engine.fleet_mut().add_node(facts).unwrap();
    }
    let mut rng = Rng::new(2026);
    for id in GROUPS {
        engine.fleet_mut().put_group(group(id, rng.next()));
    }
    let mut placed: VecDeque<InstanceId> = VecDeque::new();
    let mut hasher = blake3::Hasher::new();
    let mut refused = 0u64;
    for number in 0..DECISIONS {
        let seconds = i64::try_from(number / 20).unwrap();
        let request = shape(rng.next() % SHAPES, number);
        match engine.place(&request, START.plus(seconds)) {
            Ok(placement) => {
                hasher.update(placement.node.as_str().as_bytes());
                hasher.update(&placement.score.to_le_bytes());
                engine.fleet_mut().claim(&request, &placement.node).unwrap();
                placed.push_back(request.id);
            }
            Err(PlaceError::Refused(refusal)) => {
                hasher.update(refusal.code.as_bytes());
                refused += 1;
            }
            Err(PlaceError::Invalid(invalid)) => panic!("{invalid}"),
        }
        if placed.len() > KEPT {
            let taken = rng.below(100);
            engine.fleet_mut().release(placed.remove(taken).unwrap());
        }
        if number.is_multiple_of(200) {
            disturb(&mut engine, &mut rng, &nodes, seconds);
        }
    }
    assert!(refused < DECISIONS / 10, "{refused} refused: hardly a test of decisions");
    let digest = hasher.finalize().to_hex();
    assert_eq!(digest.as_str(), EXPECTED);
}
