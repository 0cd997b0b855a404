//! Plans to empty nodes: every move of them can be made, and planning leaves no trace.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::policy::Policy;
use berth_engine::{
    Effort, EvacuationInstance, EvacuationPlan, InstanceId, InstanceRequest, MoveOutcome,
    NodeFacts, NodeId, NodeState,
};
use oracle::config;
use oracle::random::{Rng, Wildness, node};
use oracle::requests::request;
use oracle::twin::Twin;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::test_runner::TestCaseError;

/// Seeds of a fleet and its instances, and how many nodes are emptied.
#[derive(Clone, Debug)]
struct Case {
    policy: usize,
    setting: u64,
    nodes: Vec<u64>,
    residents: Vec<u64>,
    emptied: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let seed = || any::<u64>().no_shrink();
    (0..3usize, seed(), vec(seed(), 1..=16), vec(seed(), 1..=40), 1..=4usize).prop_map(
        |(policy, setting, nodes, residents, emptied)| Case {
            policy,
            setting,
            nodes,
            residents,
            emptied,
        },
    )
}

type Requests = BTreeMap<InstanceId, Arc<InstanceRequest>>;

/// A fleet in which everybody is where the engine put it, or, if that refused, just anywhere.
fn settled(case: &Case) -> (Twin, Requests) {
    let policy = ["balanced", "pack", "spread"][case.policy];
    let mut twin = Twin::new(Policy::builtin(policy).expect("a built-in policy"));
    for seed in &case.nodes {
        twin.add_node(&node(*seed, Wildness(3), twin.now));
    }
    twin.furnish(case.setting);
    let mut requests = Requests::new();
    for (number, seed) in case.residents.iter().enumerate() {
        let mut rng = Rng::new(*seed);
        let request = request(rng.next(), number as u64, Wildness(4));
        let placed = twin.engine.place(&request, twin.now).map(|placed| placed.node);
        let node = placed.unwrap_or_else(|_| rng.pick(&twin.world.nodes).id);
        twin.claim(&request, &node);
        requests.insert(request.id, Arc::new(request));
    }
    (twin, requests)
}

fn facts(twin: &Twin) -> Vec<Option<NodeFacts>> {
    twin.world.nodes.iter().map(|node| twin.engine.fleet().node(&node.id)).collect()
}

/// Makes the moves one after the other, as a drain would, and checks each before it is made.
fn apply(
    twin: &mut Twin,
    plan: &EvacuationPlan,
    requests: &Requests,
    emptied: &[NodeId],
) -> Result<(), TestCaseError> {
    for node in emptied {
        twin.engine.fleet_mut().set_state(node, NodeState::Draining);
    }
    for (turn, planned) in plan.moves.iter().enumerate() {
        let request = InstanceRequest::clone(&requests[&planned.instance]);
        prop_assert_eq!(twin.engine.fleet().node_of(request.id), Some(&planned.from));
        let (to, leaves_first) = match &planned.outcome {
            MoveOutcome::Moves { to } => (Some(to), false),
            MoveOutcome::Refused { after_release, .. } => (after_release.as_ref(), true),
            MoveOutcome::VolumeNeedsMove { to, .. } => (to.as_ref(), true),
            MoveOutcome::Invalid(_) | MoveOutcome::RequestUnknown => (None, false),
        };
        let Some(to) = to else { continue };
        prop_assert!(!emptied.contains(to), "{} goes to an emptied node", planned.instance);
        let spare = InstanceId::from_u128(u128::MAX - turn as u128);
        let volumes = Vec::new();
        let replacement = InstanceRequest { id: spare, volumes, ..request.clone() };
        if leaves_first {
            twin.engine.fleet_mut().release(request.id);
        }
        let allowed = twin.engine.check(&replacement, to, twin.now);
        prop_assert!(allowed.is_ok(), "move {} of {:?}: {:?}", turn, plan, allowed);
        twin.engine.fleet_mut().release(request.id);
        twin.engine.fleet_mut().claim(&request, to).expect("a known node");
    }
    // The one that has no place has none in the end either.
    for planned in &plan.moves {
        if let MoveOutcome::Refused { refusal: Some(refusal), after_release: None } =
            &planned.outcome
        {
            prop_assert_eq!(refusal.instance, planned.instance);
            let spare = InstanceId::from_u128(u128::MAX);
            let request = InstanceRequest::clone(&requests[&planned.instance]);
            let again = InstanceRequest { id: spare, ..request };
            prop_assert_eq!(twin.engine.try_place(&again, twin.now).expect("valid"), None);
        }
    }
    Ok(())
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let (mut twin, requests) = settled(case);
    let ids: Vec<NodeId> = twin.world.nodes.iter().map(|node| node.id.clone()).collect();
    let emptied = &ids[..case.emptied.min(ids.len())];
    let before = (twin.engine.fleet().fingerprint(), facts(&twin));
    let guest = |id| {
        requests
            .get(&id)
            .cloned()
            .map_or(EvacuationInstance::Unknown, EvacuationInstance::Requested)
    };
    let now = twin.now;
    let plan = twin.engine.plan_evacuation(emptied, guest, Effort::FULL, now);
    let after = (twin.engine.fleet().fingerprint(), facts(&twin));
    prop_assert!(before == after, "planning left a trace");
    let there = requests
        .keys()
        .filter(|id| twin.engine.fleet().node_of(**id).is_some_and(|node| emptied.contains(node)));
    prop_assert_eq!(there.count(), plan.moves.len());
    // An engine that was asked before, and one that knows nothing, plan the same.
    let mut fresh =
        berth_engine::Engine::with_fleet(twin.engine.fleet().clone(), twin.engine.policy().clone());
    prop_assert_eq!(&fresh.plan_evacuation(emptied, guest, Effort::FULL, now), &plan);
    apply(&mut twin, &plan, &requests, emptied)
}

proptest! {
    #![proptest_config(config("proptest-regressions/evacuations.txt", 200))]

    #[test]
    fn every_move_of_a_plan_can_be_made_in_its_order_and_planning_leaves_no_trace(case in cases()) {
        check(&case)?;
    }
}
