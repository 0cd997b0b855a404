//! How long it takes to plan a hundred moves, and how often a plan upon a plan finds more if nobody
//! leaves alone what was moved. Run it with
//! `cargo test --release -p berth-engine --test rebalance_speed -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures and says so")]

use std::sync::Arc;
use std::time::Instant;

use berth_engine::affinity::Rule;
use berth_engine::elastic::Free;
use berth_engine::{
    Amounts, Engine, Fleet, InstanceId, InstanceRequest, NodeFacts, NodeId, Policy, RebalanceGoal,
    RebalanceInstance, RebalancePlan, RebalanceTerms, Timestamp,
};

const NOW: Timestamp = Timestamp(1_000);

/// Numbers that look random and are not.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(sides)).unwrap()
    }
}

/// Nodes of three sizes, unevenly filled with instances of many sizes; some have a rule that another
/// of their tenant's instances be in their zone.
fn fleet(nodes: u32, instances: u32, rules: bool, seed: u64) -> (Engine, Vec<RebalanceInstance>) {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    let mut dice = Dice(seed);
    for number in 0..nodes {
        let size = 1 + number % 3;
        let capacity = Amounts::new(16_000 * size, 65_536 * size).with_disk(40_000_000);
        let facts = NodeFacts {
            heartbeat_at: NOW,
            rack: Some(format!("r{:03}", number / 40)),
            zone: Some(format!("z{}", number % 3)),
            ..NodeFacts::new(&format!("n{number:05}"), capacity)
        };
        engine.fleet_mut().add_node(&facts).unwrap();
    }
    let mut guests = Vec::new();
    for number in 0..instances {
        let id = InstanceId::from_u128(u128::from(number) + 1);
        let memory = 512 << dice.roll(4);
        let class = dice.roll(1000);
        let mut request = InstanceRequest {
            workload: Some(format!("w{class}")),
            tags: [("role".to_owned(), format!("r{}", class % 7))].into(),
            ..InstanceRequest::new(
                id,
                &format!("t{}", class % 20),
                Amounts::new(memory / 2, memory),
            )
        };
        if rules && number % 10 == 0 {
            request.affinity = vec![Rule::parse("role==*@zone").unwrap()];
        }
        // The lower half of the nodes gets two thirds.
        let node = if dice.roll(3) == 0 { dice.roll(nodes) } else { dice.roll(nodes / 2) };
        let node = NodeId::new(&format!("n{node:05}"));
        if engine.fleet().node(&node).is_none() {
            continue;
        }
        engine.fleet_mut().claim(&request, &node).unwrap();
        guests.push(RebalanceInstance {
            id,
            copy_mib: memory,
            load_milli: Some(dice.roll(2000)),
            priority: 0,
            movable: dice.roll(20) != 0,
            request: Arc::new(request),
        });
    }
    (engine, guests)
}

fn plan(engine: &mut Engine, terms: RebalanceTerms, guests: &[RebalanceInstance]) -> RebalancePlan {
    let fleet: Fleet = engine.fleet().clone();
    let free = |id: &NodeId| {
        let usage = fleet.usage(id).unwrap();
        let free = |of: berth_engine::UsedOf| of.limit * 9 / 10 - of.used;
        Free { cpu: free(usage.cpu_milli), memory: free(usage.memory_mib) }
    };
    engine.plan_rebalance(terms, guests, &free, NOW)
}

fn apply(engine: &mut Engine, plan: &RebalancePlan, guests: &[RebalanceInstance]) {
    for made in &plan.moves {
        let guest = guests.iter().find(|guest| guest.id == made.instance).unwrap();
        engine.fleet_mut().release(made.instance);
        engine.fleet_mut().claim(&guest.request, &made.to).unwrap();
    }
}

#[test]
#[ignore = "a measurement, of use in a release build only"]
fn a_hundred_moves() {
    for (nodes, instances, rules) in
        [(1000, 20_000, false), (1000, 20_000, true), (10_000, 100_000, false)]
    {
        let (mut engine, guests) = fleet(nodes, instances, rules, 7);
        for goal in [RebalanceGoal::Spread, RebalanceGoal::Consolidate] {
            // A plan that is let run to its end; of the largest fleet that takes minutes.
            for budget in [100, 5000].into_iter().filter(|&most| most == 100 || nodes < 10_000) {
                let terms = RebalanceTerms::new(goal, budget);
                let start = Instant::now();
                let plan = plan(&mut engine, terms, &guests);
                println!(
                    "{nodes} nodes, {instances} instances, rules {rules}, {goal:?} within {budget}: {} \
                     moves, {} emptied, {:?}, {} to {} ppm, in {:?}",
                    plan.moves.len(),
                    plan.emptied.len(),
                    plan.stopped_by,
                    plan.before.value_ppm,
                    plan.after.value_ppm,
                    start.elapsed()
                );
            }
        }
    }
}

#[test]
#[ignore = "a measurement, of use in a release build only"]
fn a_plan_upon_a_plan_without_a_pause() {
    for goal in [RebalanceGoal::Spread, RebalanceGoal::Consolidate] {
        let (mut first, mut more, mut fleets, mut plans, mut returns) = (0, 0, 0, 0, 0);
        for seed in 0..50 {
            let (mut engine, guests) = fleet(30, 400, seed % 2 == 0, seed);
            let terms = RebalanceTerms { onto_empty: true, ..RebalanceTerms::new(goal, 1000) };
            let made = plan(&mut engine, terms, &guests);
            first += made.moves.len();
            apply(&mut engine, &made, &guests);
            let mut been: Vec<_> =
                made.moves.iter().map(|m| (m.instance, m.from.clone())).collect();
            let mut again = plan(&mut engine, terms, &guests);
            fleets += usize::from(!again.moves.is_empty());
            while !again.moves.is_empty() {
                plans += 1;
                more += again.moves.len();
                returns += again
                    .moves
                    .iter()
                    .filter(|m| been.contains(&(m.instance, m.to.clone())))
                    .count();
                been.extend(again.moves.iter().map(|m| (m.instance, m.from.clone())));
                apply(&mut engine, &again, &guests);
                again = plan(&mut engine, terms, &guests);
            }
        }
        println!(
            "{goal:?}: 50 fleets, {first} moves at first; without a pause {fleets} fleets find {more} \
             more in {plans} plans, {returns} of them back to where they had been"
        );
    }
}
