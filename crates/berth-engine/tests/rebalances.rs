//! Plans to consolidate and to spread, in random fleets: every move can be made in its order, breaks
//! nobody's rule, brings no node to its watermark and gains; a plan upon a plan finds nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::elastic::Free;
use berth_engine::policy::Policy;
use berth_engine::{
    CheckError, Engine, Fleet, InstanceId, InstanceRequest, NodeId, RebalanceGoal,
    RebalanceInstance, RebalancePlan, RebalanceTerms, StopReason, Timestamp,
};
use oracle::config;
use oracle::random::{Rng, Wildness, node};
use oracle::requests::request;
use oracle::twin::Twin;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::test_runner::TestCaseError;

/// Seeds of a fleet and its instances, and of what is asked.
#[derive(Clone, Debug)]
struct Case {
    policy: usize,
    setting: u64,
    wild: u64,
    nodes: Vec<u64>,
    residents: Vec<u64>,
    terms: RebalanceTerms,
}

fn cases(goal: RebalanceGoal) -> impl Strategy<Value = Case> {
    let seed = || any::<u64>().no_shrink();
    let terms = (1..=40u32, proptest::sample::select(vec![0, 1000, 5000]), any::<bool>()).prop_map(
        move |(budget, min_gain_ppm, onto_empty)| RebalanceTerms {
            min_gain_ppm,
            onto_empty,
            ..RebalanceTerms::new(goal, budget)
        },
    );
    let fleet = (0..3usize, seed(), 0..4u64, vec(seed(), 2..=16), vec(seed(), 1..=50));
    (fleet, terms).prop_map(|((policy, setting, wild, nodes, residents), terms)| Case {
        policy,
        setting,
        wild,
        nodes,
        residents,
        terms,
    })
}

type Requests = BTreeMap<InstanceId, Arc<InstanceRequest>>;

/// A fleet in which some are where the engine put them, and others crowd where they just may be.
fn settled(case: &Case) -> (Twin, Requests) {
    let policy = ["balanced", "pack", "spread"][case.policy];
    let mut twin = Twin::new(Policy::builtin(policy).expect("a built-in policy"));
    for seed in &case.nodes {
        twin.add_node(&node(*seed, Wildness(case.wild), twin.now));
    }
    twin.furnish(case.setting);
    let mut requests = Requests::new();
    for (number, seed) in case.residents.iter().enumerate() {
        let mut rng = Rng::new(*seed);
        let request = request(rng.next(), number as u64, Wildness(case.wild));
        let mut ids = twin.world.nodes.iter().map(|node| node.id.clone());
        let crowded = ids.find(|id| twin.engine.check(&request, id, twin.now).is_ok());
        let placed = twin.engine.place(&request, twin.now).map(|placed| placed.node);
        let chosen = if rng.chance(60) { crowded } else { placed.ok() };
        let node = chosen.unwrap_or_else(|| rng.pick(&twin.world.nodes).id);
        twin.claim(&request, &node);
        requests.insert(request.id, Arc::new(request));
    }
    (twin, requests)
}

fn guests(case: &Case, requests: &Requests) -> Vec<RebalanceInstance> {
    let mut rng = Rng::new(case.setting);
    let one = |(id, request): (&InstanceId, &Arc<InstanceRequest>)| RebalanceInstance {
        id: *id,
        request: Arc::clone(request),
        copy_mib: request.resources.memory_mib,
        load_milli: rng.chance(50).then(|| rng.number(0, 5000)),
        priority: request.priority,
        movable: rng.chance(90),
    };
    requests.iter().map(one).collect()
}

/// Nine tenths of what may be promised.
fn below_watermark(fleet: &Fleet) -> impl Fn(&NodeId) -> Free + use<> {
    let fleet = fleet.clone();
    move |id| {
        let usage = fleet.usage(id).expect("a known node");
        let free = |of: berth_engine::UsedOf| of.limit * 9 / 10 - of.used;
        Free { cpu: free(usage.cpu_milli), memory: free(usage.memory_mib) }
    }
}

fn is_calm(free: Free) -> bool {
    free.cpu >= 0 && free.memory > 0
}

/// Those whose rules about others hold where they are.
fn content(engine: &Engine, requests: &Requests, now: Timestamp) -> BTreeSet<InstanceId> {
    let mut engine = engine.clone();
    let about_others = ["groups", "resident-rules", "affinity", "strict-locality"];
    let mut content = BTreeSet::new();
    for (id, request) in requests {
        let node = engine.fleet_mut().release(*id).expect("it is placed");
        let verdict = engine.check(request, &node, now);
        if !matches!(verdict, Err(CheckError::Removed { filter, .. }) if about_others.contains(&filter))
        {
            content.insert(*id);
        }
        engine.fleet_mut().claim(request, &node).expect("it was there");
    }
    content
}

/// Makes the moves one after the other, as migrations would, and checks each before and after.
fn apply(
    engine: &mut Engine,
    plan: &RebalancePlan,
    requests: &Requests,
    now: Timestamp,
) -> Result<(), TestCaseError> {
    for (turn, made) in plan.moves.iter().enumerate() {
        let request = InstanceRequest::clone(&requests[&made.instance]);
        prop_assert_eq!(engine.fleet().node_of(request.id), Some(&made.from));
        prop_assert!(made.cost > 0);
        let spare = InstanceId::from_u128(u128::MAX - turn as u128);
        let target = InstanceRequest { id: spare, ..request.clone() };
        let allowed = engine.check(&target, &made.to, now);
        prop_assert!(allowed.is_ok(), "move {} of {:#?}: {:?}", turn, plan, allowed);
        engine.fleet_mut().release(request.id);
        let allowed = engine.check(&request, &made.to, now);
        prop_assert!(allowed.is_ok(), "after move {} of {:#?}: {:?}", turn, plan, allowed);
        engine.fleet_mut().claim(&request, &made.to).expect("a known node");
        let free = below_watermark(engine.fleet())(&made.to);
        prop_assert!(is_calm(free), "move {} brings {} to {:?}", turn, made.to, free);
    }
    Ok(())
}

fn check_spread(plan: &RebalancePlan, terms: &RebalanceTerms) -> Result<(), TestCaseError> {
    let gained: u64 = plan.moves.iter().map(|made| made.gain).sum();
    prop_assert_eq!(plan.before.value_ppm - plan.after.value_ppm, gained);
    let least = u64::from(terms.min_gain_ppm.max(1));
    prop_assert!(plan.moves.iter().all(|made| made.gain >= least), "{:#?}", plan);
    prop_assert!(plan.after.fullest_ppm <= plan.before.fullest_ppm);
    Ok(())
}

fn check_consolidated(plan: &RebalancePlan, before: &Fleet) -> Result<(), TestCaseError> {
    let emptied: BTreeSet<&NodeId> = plan.emptied.iter().collect();
    let sources: BTreeSet<&NodeId> = plan.moves.iter().map(|made| &made.from).collect();
    prop_assert_eq!(&emptied, &sources, "a node was half emptied");
    prop_assert!(plan.moves.iter().all(|made| !emptied.contains(&made.to)));
    prop_assert!(plan.moves.iter().all(|made| !before.instances_on(&made.to).is_empty()));
    let freed: i64 =
        emptied.iter().map(|id| before.usage(id).unwrap().memory_mib.limit.max(0)).sum();
    let gained: u64 = plan.moves.iter().map(|made| made.gain).sum();
    prop_assert_eq!(i64::try_from(gained).unwrap(), freed);
    let in_use = usize::try_from(plan.before.in_use - plan.after.in_use).unwrap();
    prop_assert_eq!(in_use, emptied.len());
    Ok(())
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let (mut twin, requests) = settled(case);
    let (now, mut guests) = (twin.now, guests(case, &requests));
    let (before, terms) = (twin.engine.fleet().clone(), case.terms);
    let marks = below_watermark(&before);
    let plan = twin.engine.plan_rebalance(terms, &guests, &marks, now);
    prop_assert!(twin.engine.fleet().fingerprint() == before.fingerprint(), "it left a trace");
    // An engine that was asked before, and one that knows nothing, plan the same.
    let mut fresh = Engine::with_fleet(before.clone(), twin.engine.policy().clone());
    prop_assert_eq!(&fresh.plan_rebalance(terms, &guests, &marks, now), &plan);
    prop_assert!(plan.moves.len() <= terms.budget as usize);
    let moved: BTreeSet<InstanceId> = plan.moves.iter().map(|made| made.instance).collect();
    prop_assert_eq!(moved.len(), plan.moves.len(), "somebody moves twice");
    let may_move = |id: &InstanceId| guests.iter().any(|guest| guest.id == *id && guest.movable);
    prop_assert!(moved.iter().all(may_move));
    match terms.goal {
        RebalanceGoal::Spread => check_spread(&plan, &terms)?,
        RebalanceGoal::Consolidate => check_consolidated(&plan, &before)?,
    }
    let were_content = content(&fresh, &requests, now);
    apply(&mut fresh, &plan, &requests, now)?;
    let are_content = content(&fresh, &requests, now);
    let wronged: Vec<_> = were_content.difference(&are_content).collect();
    prop_assert!(wronged.is_empty(), "{:?} after {:#?}", wronged, plan);
    let marks = below_watermark(fresh.fleet());
    // Who was moved is left alone for a while.
    for guest in guests.iter_mut().filter(|guest| moved.contains(&guest.id)) {
        guest.movable = false;
    }
    let again = fresh.plan_rebalance(terms, &guests, &marks, now);
    prop_assert_eq!(again.before, plan.after);
    if plan.stopped_by == StopReason::NothingToGain {
        prop_assert_eq!(&again.moves, &[], "after {:#?}", plan);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config("proptest-regressions/rebalances.txt", 200))]

    #[test]
    fn spreading_gains_with_every_move_breaks_nothing_and_comes_to_rest(
        case in cases(RebalanceGoal::Spread)
    ) {
        check(&case)?;
    }

    #[test]
    fn consolidating_empties_whole_nodes_breaks_nothing_and_comes_to_rest(
        case in cases(RebalanceGoal::Consolidate)
    ) {
        check(&case)?;
    }
}
