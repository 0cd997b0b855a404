//! Claims that are taken off and put back, in any order, leave the fleet exactly where it was.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use berth_engine::policy::Policy;
use berth_engine::{InstanceId, InstanceRequest, NodeId, Reuse};
use oracle::config;
use oracle::decide::{Answer, decide};
use oracle::random::{Rng, Wildness, node};
use oracle::requests::request;
use oracle::twin::Twin;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
use proptest::test_runner::TestCaseError;

/// Seeds of a fleet, its instances, and the order of what happens to them.
#[derive(Clone, Debug)]
struct Case {
    setting: u64,
    nodes: Vec<u64>,
    residents: Vec<u64>,
    moves: Vec<u64>,
}

fn cases() -> impl Strategy<Value = Case> {
    let seed = || any::<u64>().no_shrink();
    (seed(), vec(seed(), 1..=20), vec(seed(), 1..=40), vec(seed(), 1..=60))
        .prop_map(|(setting, nodes, residents, moves)| Case { setting, nodes, residents, moves })
}

fn settled(case: &Case) -> Twin {
    let mut twin = Twin::new(Policy::builtin("balanced").expect("a built-in policy"));
    for seed in &case.nodes {
        twin.add_node(&node(*seed, Wildness(5), twin.now));
    }
    twin.furnish(case.setting);
    for (number, seed) in case.residents.iter().enumerate() {
        let mut rng = Rng::new(*seed);
        let request = request(rng.next(), number as u64, Wildness(5));
        let node = rng.pick(&twin.world.nodes).id;
        twin.claim(&request, &node);
    }
    // Two instances may share a volume here, and then the last to come has it. The one that comes back
    // takes it again, so volumes are left out of this.
    for volume in twin.world.volumes.clone() {
        let free = berth_engine::Volume { attached_to: Some(InstanceId::from_u128(1)), ..volume };
        twin.put_volume(free);
    }
    twin
}

/// Everything the fleet says of itself, and what it would decide.
#[derive(Debug, PartialEq)]
struct FleetObservation {
    nodes: Vec<Option<berth_engine::NodeFacts>>,
    instances: Vec<(InstanceId, Option<NodeId>)>,
    count: usize,
    /// Every column, row and posting.
    fingerprint: [u8; 32],
    answers: Vec<Option<(NodeId, i64)>>,
}

fn seen(twin: &mut Twin, placed: &[(InstanceRequest, NodeId)]) -> FleetObservation {
    let fleet = twin.engine.fleet();
    let nodes = twin.world.nodes.iter().map(|node| fleet.node(&node.id));
    let (nodes, count) = (nodes.collect(), fleet.instance_count());
    let fingerprint = fleet.fingerprint();
    let instances = placed
        .iter()
        .map(|(request, _)| (request.id, fleet.node_of(request.id).cloned()))
        .collect();
    let probes = (0..12u64).map(|probe| request(probe, 1000 + probe, Wildness(5)));
    let now = twin.now;
    let answers = probes
        .map(|probe| {
            let probe = InstanceRequest { volumes: Vec::new(), ..probe };
            let placed = twin.engine.place_with(&probe, now, Reuse::Ranking).ok();
            placed.map(|placed| (placed.node, placed.score))
        })
        .collect();
    FleetObservation { nodes, instances, count, fingerprint, answers }
}

/// Takes instances off and puts them back as the seeds say, and all of them back in the end.
fn shuffle(twin: &mut Twin, case: &Case) {
    let mut away: Vec<(InstanceRequest, NodeId)> = Vec::new();
    for seed in &case.moves {
        let mut rng = Rng::new(*seed);
        let placed = &twin.world.placed;
        if !placed.is_empty() && (away.is_empty() || rng.chance(60)) {
            let one = rng.pick(placed);
            twin.release(one.0.id);
            away.push(one);
        } else {
            let (request, node) = away.remove(rng.below(away.len()));
            twin.claim(&request, &node);
        }
        if rng.chance(10) {
            // Somebody may decide in between; that must leave no trace.
            let probe = request(rng.next(), 2000, Wildness(5));
            let _ = twin.engine.place(&probe, twin.now);
        }
    }
    let mut rng = Rng::new(case.setting);
    while !away.is_empty() {
        let (request, node) = away.remove(rng.below(away.len()));
        twin.claim(&request, &node);
    }
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let mut twin = settled(case);
    let placed = twin.world.placed.clone();
    let before = seen(&mut twin, &placed);
    let volumes = twin.world.volumes.clone();
    shuffle(&mut twin, case);
    for volume in volumes {
        twin.put_volume(volume);
    }
    let after = seen(&mut twin, &placed);
    prop_assert_eq!(before, after);
    Ok(())
}

proptest! {
    #![proptest_config(config("proptest-regressions/reversible.txt", 60))]

    #[test]
    fn claims_taken_off_and_put_back_in_any_order_leave_no_trace(case in cases()) {
        check(&case)?;
    }

    #[test]
    fn an_emptied_fleet_decides_like_one_that_was_always_empty(case in cases()) {
        let mut twin = settled(&case);
        while let Some((request, _)) = twin.world.placed.first() {
            let id = request.id;
            twin.release(id);
        }
        prop_assert_eq!(twin.engine.fleet().instance_count(), 0);
        for probe in 0..12u64 {
            let probe = request(probe, 1000 + probe, Wildness(5));
            let expected = decide(&twin.world, twin.engine.policy(), &probe, twin.now);
            let found = twin.engine.place(&probe, twin.now).ok();
            match expected {
                Answer::Placed { node, score } => {
                    let found = found.map(|placed| (placed.node, placed.score));
                    prop_assert_eq!(found, Some((node, score)));
                }
                Answer::Refused(_) => prop_assert_eq!(found, None),
            }
        }
    }
}
