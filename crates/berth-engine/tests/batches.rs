//! Batches against every possible assignment.
//!
//! Small enough to enumerate: an instance is placed after another in any order, on any node, and
//! the oracle says whether it may be there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use berth_engine::policy::Policy;
use berth_engine::{
    Amounts, Batch, BatchMode, BatchOutcome, InstanceRequest, NodeFacts, NodeId, Reuse, SearchEnd,
    Timestamp, Volume,
};
use oracle::config;
use oracle::decide::{Answer, decide, fits};
use oracle::model::World;
use oracle::random::{Rng, Wildness, node};
use oracle::requests::request;
use oracle::twin::Twin;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::test_runner::TestCaseError;

/// Seeds of a fleet and of a batch.
#[derive(Clone, Debug)]
struct Case {
    setting: u64,
    nodes: Vec<u64>,
    shapes: Vec<u64>,
    residents: Vec<u64>,
    members: Vec<u64>,
}

fn cases() -> impl Strategy<Value = Case> {
    let seed = || any::<u64>().no_shrink();
    (seed(), vec(seed(), 2..=5), vec(seed(), 1..=3), vec(seed(), 0..=3), vec(seed(), 2..=5))
        .prop_map(|(setting, nodes, shapes, residents, members)| Case {
            setting,
            nodes,
            shapes,
            residents,
            members,
        })
}

/// A tight fleet: a few instances fill a node.
fn twin(case: &Case) -> Twin {
    let policy = Policy::builtin(Rng::new(case.setting).pick(&["balanced", "pack", "triton"]));
    let mut twin = Twin::new(policy.expect("a built-in policy"));
    for seed in &case.nodes {
        let mut rng = Rng::new(*seed);
        let drawn = node(*seed, Wildness(2), twin.now);
        let capacity = Amounts::new(rng.pick(&[1000, 2000]), rng.pick(&[1200, 2400]));
        let facts = NodeFacts {
            capacity: Some(capacity.with_disk(60_000).with_bandwidth(1000)),
            vmm_overhead_mib: rng.pick(&[0, 64, 150]),
            ..drawn
        };
        twin.add_node(&facts);
    }
    twin.furnish(case.setting);
    for (number, seed) in case.residents.iter().enumerate() {
        let mut rng = Rng::new(*seed);
        let request = request(rng.pick(&case.shapes), number as u64, Wildness(0));
        let node = rng.pick(&twin.world.nodes).id;
        twin.claim(&request, &node);
    }
    twin
}

fn members(case: &Case) -> Vec<InstanceRequest> {
    let numbered = case.members.iter().enumerate();
    numbered
        .map(|(number, seed)| {
            let shape = Rng::new(*seed).pick(&case.shapes);
            request(shape, 6 + number as u64, Wildness(0))
        })
        .collect()
}

/// The most of a batch that can be placed, in any order, on any nodes.
fn most(world: &World, policy: &Policy, rest: &[InstanceRequest], now: Timestamp) -> usize {
    let mut best = 0;
    for (place, request) in rest.iter().enumerate() {
        let mut others = rest.to_vec();
        others.remove(place);
        for node in &world.nodes {
            if fits(world, policy, request, node, now) {
                let mut with = world.clone();
                with.claim(request, &node.id);
                best = best.max(1 + most(&with, policy, &others, now));
                if best == rest.len() {
                    return best;
                }
            }
        }
    }
    best
}

/// Whether some order of the placements breaks no rule on the way.
fn some_order_works(
    world: &World,
    policy: &Policy,
    rest: &[(&InstanceRequest, NodeId)],
    now: Timestamp,
) -> bool {
    rest.is_empty()
        || (0..rest.len()).any(|place| {
            let mut others = rest.to_vec();
            let (request, id) = others.remove(place);
            let node = world.node(&id).expect("a node of the fleet");
            fits(world, policy, request, node, now) && {
                let mut with = world.clone();
                with.claim(request, &id);
                some_order_works(&with, policy, &others, now)
            }
        })
}

/// How many plain greedy places, in the order given.
fn greedy(world: &World, policy: &Policy, requests: &[InstanceRequest], now: Timestamp) -> usize {
    let mut world = world.clone();
    let mut placed = 0;
    for request in requests {
        if let Answer::Placed { node, .. } = decide(&world, policy, request, now) {
            world.claim(request, &node);
            placed += 1;
        }
    }
    placed
}

fn place(
    twin: &mut Twin,
    requests: &[InstanceRequest],
    mode: BatchMode,
    budget: u32,
) -> Result<BatchOutcome, TestCaseError> {
    let mut batch = Batch::new(requests.to_vec()).with_mode(mode);
    batch.search_budget = budget;
    let now = twin.now;
    let placed = twin.engine.place_batch(&batch, now);
    let outcome = placed.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let named = |id| requests.iter().find(|request| request.id == id);
    let placements: Vec<(&InstanceRequest, NodeId)> = outcome
        .placements
        .iter()
        .map(|placement| {
            let request = named(placement.instance).expect("a member of the batch");
            (request, placement.node.clone())
        })
        .collect();
    prop_assert!(
        some_order_works(&twin.world, twin.engine.policy(), &placements, now),
        "{mode:?}: {placements:?} breaks a rule in every order"
    );
    Ok(outcome)
}

/// What a reader of a failure needs to know of the members.
fn brief(world: &World, requests: &[InstanceRequest]) -> String {
    let members = requests.iter().map(|request| {
        let rules: Vec<&str> = request.affinity.iter().map(|rule| rule.as_str()).collect();
        let groups: Vec<_> = request.groups.iter().map(|id| world.group(id)).collect();
        let (id, name, wanted) = (request.id, &request.name, request.resources);
        let (hints, tags) = (&request.locality, &request.tags);
        let (tenant, workload, volumes) = (&request.tenant, &request.workload, &request.volumes);
        format!(
            "{tenant} {workload:?} {id} {name:?} {wanted:?} {rules:?} {hints:?} {tags:?} {groups:?} \
             {volumes:?}"
        )
    });
    let members = members.collect::<Vec<_>>().join("\n");
    let placed: Vec<_> = world.placed.iter().map(|(r, at)| (r.id, at)).collect();
    format!("{members}\n{placed:?}\n{:?}", world.volumes)
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let mut twin = twin(case);
    let requests = members(case);
    let policy = twin.engine.policy().clone();
    let most = most(&twin.world, &policy, &requests, twin.now);
    let brief = brief(&twin.world, &requests);
    let all = place(&mut twin, &requests, BatchMode::AllOrNothing, 200_000)?;
    let fits = most == requests.len();
    let told = (all.placements.len(), all.end, &brief);
    prop_assert_eq!(all.placements.len(), if fits { requests.len() } else { 0 }, "{:?}", told);
    let expected_end = all.end == SearchEnd::DoesNotFit;
    prop_assert_eq!(!fits, expected_end, "{:?}", told);

    let least = 1 + Rng::new(case.setting ^ 1).below(requests.len());
    let some = place(&mut twin, &requests, BatchMode::AtLeast(least), 200_000)?;
    let placed = some.placements.len();
    let told = (placed, least, most, some.end, &brief);
    prop_assert!(if most >= least { placed >= least } else { placed == 0 }, "{:?}", told);
    prop_assert_eq!(most < least, some.end == SearchEnd::DoesNotFit, "{:?}", told);

    let effort = place(&mut twin, &requests, BatchMode::BestEffort, 200_000)?;
    let by_greedy = greedy(&twin.world, &policy, &requests, twin.now);
    let placed = effort.placements.len();
    prop_assert!(placed >= by_greedy && placed <= most, "{} {} {}", placed, by_greedy, most);

    // Too little to try anything: whatever greedy missed may or may not fit.
    let hasty = place(&mut twin, &requests, BatchMode::AllOrNothing, 1)?;
    prop_assert!(fits || hasty.placements.is_empty());
    prop_assert!(!(fits && hasty.end == SearchEnd::DoesNotFit), "a tiny budget proves nothing");

    // The fleet is where it was: it still answers as the oracle does, which saw no batch.
    for request in &requests {
        let reuse = Reuse::Ranking;
        twin.place(request, reuse).map_err(TestCaseError::fail)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(config("proptest-regressions/batches.txt", 250))]

    #[test]
    fn a_batch_is_placed_exactly_when_some_assignment_works(case in cases()) {
        check(&case)?;
    }
}

#[test]
fn a_batch_leaves_a_volume_attached_to_the_instance_that_had_it() {
    let mut twin = Twin::new(Policy::builtin("balanced").unwrap());
    twin.add_node(&NodeFacts {
        heartbeat_at: twin.now,
        ..NodeFacts::new("a", Amounts::new(8000, 16_384).with_disk(65_536))
    });
    let mut request =
        InstanceRequest::new(oracle::requests::instance_id(1), "acme", Amounts::new(1000, 2048));
    request.volumes = vec!["v".to_owned()];
    let volume = Volume {
        tenant: None,
        id: "v".to_owned(),
        home: NodeId::new("a"),
        attached_to: Some(request.id),
    };
    twin.put_volume(volume.clone());
    let outcome = twin.engine.place_batch(&Batch::new(vec![request]), twin.now);
    assert_eq!(outcome.unwrap().placements.len(), 1);
    assert_eq!(twin.engine.fleet().volume("v"), Some(&volume));
}
