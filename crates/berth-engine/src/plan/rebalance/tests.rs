//! What plans do in fleets of a few nodes.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use super::*;
use crate::affinity::{Rule, Strength, Topology};
use crate::elastic::{WatermarkRule, watermark_free};
use crate::model::{Amounts, Group, GroupKind, Hint, NodeFacts, NodeState, Volume};
use crate::policy::Policy;

const NOW: Timestamp = Timestamp(1_000);

/// A fleet, and what its instances asked for.
struct Stage {
    engine: Engine,
    guests: Vec<RebalanceInstance>,
    watermark: WatermarkRule,
}

impl Stage {
    /// Nodes with this much memory each, named `a`, `b`, and so on, and as many mCPU.
    fn new(memory: &[u32]) -> Self {
        let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
        for (name, memory) in ["a", "b", "c", "d", "e"].into_iter().zip(memory) {
            let capacity = Amounts::new(*memory, *memory).with_disk(1_000_000);
            let mut facts = NodeFacts {
                heartbeat_at: NOW,
                vmm_overhead_mib: 0,
                zone: Some(if name < "c" { "z1" } else { "z2" }.to_owned()),
                ..NodeFacts::new(name, capacity)
            };
            facts.ratios.cpu_permille = 1000;
            engine.fleet_mut().add_node(&facts).unwrap();
        }
        Self { engine, guests: Vec::new(), watermark: WatermarkRule::default() }
    }

    fn claim(&mut self, number: u128, size: u32, node: &str) -> InstanceId {
        self.claim_with(number, size, node, |_| {})
    }

    fn claim_with(
        &mut self,
        number: u128,
        size: u32,
        node: &str,
        change: impl FnOnce(&mut InstanceRequest),
    ) -> InstanceId {
        let id = InstanceId::from_u128(number);
        let mut request = InstanceRequest::new(id, "acme", Amounts::new(size, size));
        change(&mut request);
        self.engine.fleet_mut().claim(&request, &NodeId::new(node)).unwrap();
        self.guests.push(RebalanceInstance {
            id,
            request: Arc::new(request),
            copy_mib: size,
            load_milli: Some(0),
            priority: 0,
            movable: true,
        });
        id
    }

    fn guest(&mut self, id: InstanceId) -> &mut RebalanceInstance {
        self.guests.iter_mut().find(|guest| guest.id == id).unwrap()
    }

    fn plan(&mut self, terms: RebalanceTerms) -> RebalancePlan {
        let before = self.engine.fleet().fingerprint();
        let (fleet, mark) = (self.engine.fleet().clone(), self.watermark);
        let free = |node: &NodeId| {
            let row = fleet.row(fleet.index_of(node).unwrap()).unwrap();
            watermark_free(&fleet.node(node).unwrap(), &row.used, mark)
        };
        let plan = self.engine.plan_rebalance(terms, &self.guests, &free, NOW);
        assert_eq!(self.engine.fleet().fingerprint(), before, "a plan left a trace");
        plan
    }

    fn spread(&mut self) -> RebalancePlan {
        self.plan(RebalanceTerms::new(RebalanceGoal::Spread, 100))
    }

    fn consolidate(&mut self, budget: u32) -> RebalancePlan {
        self.plan(RebalanceTerms::new(RebalanceGoal::Consolidate, budget))
    }

    fn apply(&mut self, plan: &RebalancePlan) {
        for made in &plan.moves {
            let fleet = self.engine.fleet_mut();
            assert_eq!(fleet.node_of(made.instance), Some(&made.from));
            let to = fleet.index_of(&made.to).unwrap();
            let detached = fleet.detach_instance(made.instance).unwrap();
            fleet.attach_instance(detached, to);
        }
    }
}

/// Who goes where.
fn moves(plan: &RebalancePlan) -> Vec<(u128, &str, &str)> {
    let each = plan.moves.iter();
    each.map(|m| (m.instance.0.as_u128(), m.from.as_str(), m.to.as_str())).collect()
}

fn spread_onto_empty() -> RebalanceTerms {
    RebalanceTerms { onto_empty: true, ..RebalanceTerms::new(RebalanceGoal::Spread, 100) }
}

#[test]
fn a_fleet_without_nodes_or_instances_needs_no_moves() {
    for mut stage in [Stage::new(&[]), Stage::new(&[1000, 1000])] {
        for plan in [stage.spread(), stage.consolidate(9)] {
            assert_eq!((plan.moves.len(), plan.stopped_by), (0, StopReason::NothingToGain));
            assert_eq!(plan.before, plan.after);
        }
    }
}

#[test]
fn spreading_evens_out_and_says_by_how_much() {
    let mut stage = Stage::new(&[1000, 1000]);
    for number in 1..=4 {
        stage.claim(number, 200, "a");
    }
    stage.claim(5, 100, "b");
    let plan = stage.spread();
    assert_eq!(moves(&plan), [(1, "a", "b"), (2, "a", "b")]);
    // 0.8² + 0.1² before, 0.6² + 0.3² between, 0.4² + 0.5² after.
    assert_eq!((plan.before.value_ppm, plan.after.value_ppm), (650_000, 410_000));
    assert_eq!((plan.before.fullest_ppm, plan.after.fullest_ppm), (800_000, 500_000));
    assert_eq!(
        plan.moves[0].why,
        "evens out a (80.0% used, then 60.0%) and b (10.0% used, then 30.0%): gains 200000 ppm of a \
         full node for about 200 MiB to copy"
    );
    assert_eq!((plan.moves[0].gain, plan.moves[0].cost), (200_000, 200));
    stage.apply(&plan);
    assert_eq!(stage.spread().moves, [], "it would only swap the roles");
}

#[test]
fn nodes_of_different_sizes_are_filled_to_the_same_share() {
    let mut stage = Stage::new(&[10_000, 1000]);
    for number in 1..=10 {
        stage.claim(number, 500, "a");
    }
    for number in 11..=15 {
        stage.claim(number, 100, "b");
    }
    assert_eq!(stage.spread().moves, [], "both are half full");
    let mut stage = Stage::new(&[10_000, 1000]);
    stage.claim(1, 500, "a");
    for number in 11..=18 {
        stage.claim(number, 100, "b");
    }
    let plan = stage.spread();
    assert!(plan.moves.len() >= 6, "the large one has room for most: {plan:#?}");
}

#[test]
fn gains_add_up_to_what_the_measure_falls_by() {
    let mut stage = Stage::new(&[1000, 1300, 900, 1100]);
    for number in 1..=13 {
        stage.claim(number, 50 + u32::try_from(number).unwrap(), "a");
    }
    for (number, node) in [(20, "b"), (21, "c"), (22, "d")] {
        stage.claim(number, 33, node);
    }
    let plan = stage.spread();
    assert!(plan.moves.len() > 3);
    let gained: u64 = plan.moves.iter().map(|made| made.gain).sum();
    assert_eq!(plan.before.value_ppm - plan.after.value_ppm, gained);
    assert!(plan.moves.iter().all(|made| made.gain >= 5000), "{plan:#?}");
}

#[test]
fn the_budget_ends_a_plan_and_says_so() {
    let mut stage = Stage::new(&[1000, 1000]);
    for number in 1..=8 {
        stage.claim(number, 100, "a");
    }
    stage.claim(9, 100, "b");
    let terms = |budget| RebalanceTerms::new(RebalanceGoal::Spread, budget);
    let (none, two) = (stage.plan(terms(0)), stage.plan(terms(2)));
    assert_eq!((none.moves.len(), none.stopped_by), (0, StopReason::Budget));
    assert_eq!((two.moves.len(), two.stopped_by), (2, StopReason::Budget));
    let (three, many) = (stage.plan(terms(3)), stage.plan(terms(50)));
    assert_eq!((three.moves.len(), three.stopped_by), (3, StopReason::NothingToGain));
    assert_eq!(three, many);
}

#[test]
fn a_small_gain_is_not_worth_a_move() {
    let mut stage = Stage::new(&[1000, 1000]);
    for number in 1..=6 {
        stage.claim(number, 100, if number <= 4 { "a" } else { "b" });
    }
    let terms = |min_gain_ppm| RebalanceTerms {
        min_gain_ppm,
        ..RebalanceTerms::new(RebalanceGoal::Spread, 9)
    };
    // 0.16 + 0.04 before, 0.09 + 0.09 after: 20000.
    assert_eq!(stage.plan(terms(20_000)).moves.len(), 1);
    assert_eq!(stage.plan(terms(20_001)).moves.len(), 0);
}

#[test]
fn empty_nodes_stay_empty_unless_asked_for() {
    let mut stage = Stage::new(&[1000, 1000]);
    for number in 1..=6 {
        stage.claim(number, 100, "a");
    }
    assert_eq!(stage.spread().moves, []);
    assert_eq!(stage.plan(spread_onto_empty()).moves.len(), 3);
}

#[test]
fn of_moves_that_gain_alike_the_least_important_and_then_the_cheapest_is_made() {
    let mut stage = Stage::new(&[1000, 1000]);
    let ids: Vec<InstanceId> = (1..=4).map(|number| stage.claim(number, 200, "a")).collect();
    stage.claim(9, 100, "b");
    stage.guest(ids[0]).load_milli = Some(3000);
    stage.guest(ids[1]).load_milli = None;
    stage.guest(ids[2]).load_milli = Some(100);
    stage.guest(ids[3]).priority = 1;
    let plan = stage.spread();
    assert_eq!((plan.moves[0].instance, plan.moves[0].cost), (ids[2], 220));
    stage.guest(ids[0]).priority = -1;
    let plan = stage.spread();
    assert_eq!((plan.moves[0].instance, plan.moves[0].cost), (ids[0], 800));
}

#[test]
fn no_destination_reaches_its_watermark() {
    let mut stage = Stage::new(&[1000, 1000]);
    for number in 1..=9 {
        stage.claim(number, 100, "a");
    }
    stage.claim(20, 100, "b");
    stage.watermark = WatermarkRule { cpu_permille: 1000, memory_permille: 400 };
    let plan = stage.spread();
    assert_eq!(plan.moves.len(), 2, "the third would reach it: {plan:#?}");
    stage.watermark = WatermarkRule { cpu_permille: 400, memory_permille: 1000 };
    assert_eq!(stage.spread().moves.len(), 3, "CPU may be at the mark");
    stage.watermark = WatermarkRule { cpu_permille: 50, memory_permille: 1000 };
    assert_eq!(stage.spread().moves.len(), 0, "it is above it already");
}

#[test]
fn what_may_not_move_stays() {
    let mut stage = Stage::new(&[1000, 1000]);
    let ids: Vec<InstanceId> = (1..=3).map(|number| stage.claim(number, 200, "a")).collect();
    let volume =
        Volume { id: "data".to_owned(), tenant: None, home: NodeId::new("a"), attached_to: None };
    stage.engine.fleet_mut().put_volume(volume);
    stage.claim_with(4, 200, "a", |request| request.volumes = vec!["data".to_owned()]);
    stage.claim(9, 100, "b");
    stage.guest(ids[0]).movable = false;
    stage.guests.retain(|guest| guest.id != ids[1]);
    assert_eq!(moves(&stage.spread()), [(3, "a", "b")]);
    stage.guest(ids[2]).movable = false;
    assert_eq!(stage.spread().moves, []);
}

#[test]
fn nodes_out_of_service_neither_give_nor_take_nor_count() {
    let mut stage = Stage::new(&[1000, 1000, 1000]);
    for number in 1..=8 {
        stage.claim(number, 100, "a");
    }
    stage.claim(11, 100, "b");
    stage.claim(12, 100, "c");
    stage.engine.fleet_mut().set_state(&NodeId::new("c"), NodeState::Draining);
    let plan = stage.spread();
    assert!(plan.moves.iter().all(|made| made.to.as_str() == "b"));
    assert_eq!((plan.moves.len(), plan.before.nodes), (3, 2));
    stage.engine.fleet_mut().set_state(&NodeId::new("a"), NodeState::Draining);
    assert_eq!(stage.spread().moves, []);
    assert_eq!(stage.consolidate(9).moves, []);
}

#[test]
fn hard_rules_hold_for_who_moves() {
    let mut stage = Stage::new(&[1000, 1000, 1000]);
    let group = Group {
        id: "apart".to_owned(),
        tenant: None,
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Node,
        max_per_domain: None,
    };
    stage.engine.fleet_mut().put_group(group);
    let apart = |request: &mut InstanceRequest| request.groups = vec!["apart".to_owned()];
    stage.claim_with(1, 400, "a", apart);
    stage.claim(2, 400, "a");
    stage.claim_with(3, 100, "b", apart);
    stage.claim(4, 300, "c");
    for number in [2, 4] {
        stage.guest(InstanceId::from_u128(number)).movable = false;
    }
    assert_eq!(moves(&stage.spread()), [(1, "a", "c")], "b would be better but has a member");
}

#[test]
fn who_must_be_together_is_not_parted_further() {
    let mut stage = Stage::new(&[1000, 1000, 1000]);
    let group = Group {
        id: "home".to_owned(),
        tenant: None,
        kind: GroupKind::Together,
        strength: Strength::Hard,
        topology: Topology::Zone,
        max_per_domain: None,
    };
    stage.engine.fleet_mut().put_group(group);
    let home = |request: &mut InstanceRequest| request.groups = vec!["home".to_owned()];
    for number in 1..=3 {
        stage.claim_with(number, 250, "a", home);
    }
    stage.claim(10, 200, "b");
    // A member that somebody put into the other zone: no reason to follow it there.
    stage.claim_with(11, 100, "c", home);
    stage.guest(InstanceId::from_u128(10)).movable = false;
    assert_eq!(moves(&stage.spread()), [(1, "a", "b")], "c has more room");
}

#[test]
fn who_stays_keeps_its_company_and_its_distance() {
    let mut stage = Stage::new(&[1000, 1000]);
    let web = |request: &mut InstanceRequest| {
        request.tags.insert("role".to_owned(), "web".to_owned());
    };
    stage.claim_with(1, 400, "a", web);
    let follower = stage.claim_with(2, 400, "a", |request| {
        request.affinity = vec![Rule::parse("role==web").unwrap()];
    });
    stage.claim(9, 100, "b");
    stage.guest(follower).movable = false;
    assert_eq!(stage.spread().moves, [], "the follower would be left behind");
    stage.guests.retain(|guest| guest.id != follower);
    assert_eq!(stage.spread().moves.len(), 1, "nobody knows of its rule any more");

    let mut stage = Stage::new(&[1000, 1000]);
    stage.claim_with(1, 400, "a", web);
    stage.claim(2, 400, "a");
    stage.claim_with(9, 100, "b", |request| {
        request.locality.far = vec![Hint::Tag("role".to_owned(), "web".to_owned())];
        request.locality.strict = true;
    });
    assert_eq!(moves(&stage.spread()), [(2, "a", "b")], "the other would come too near");
}

#[test]
fn replicas_do_not_come_closer_together() {
    let mut stage = Stage::new(&[1000, 1000, 1000]);
    let web = |request: &mut InstanceRequest| request.workload = Some("web".to_owned());
    stage.claim_with(1, 400, "a", web);
    stage.claim_with(2, 400, "a", |request| request.workload = Some("db".to_owned()));
    stage.claim_with(3, 100, "b", web);
    stage.claim_with(4, 100, "c", web);
    assert_eq!(moves(&stage.spread()), [(2, "a", "b")]);
    stage.engine.fleet_mut().release(InstanceId::from_u128(2));
    stage.claim_with(5, 400, "a", web);
    assert_eq!(moves(&stage.spread())[0], (1, "a", "b"), "two on one node may part");
}

#[test]
fn consolidating_empties_the_node_with_least_to_copy_onto_the_fullest() {
    let mut stage = Stage::new(&[1000, 1000, 1000]);
    stage.claim(1, 100, "a");
    stage.claim(2, 150, "a");
    stage.claim(3, 300, "b");
    stage.claim(4, 400, "c");
    let plan = stage.consolidate(9);
    assert_eq!(moves(&plan), [(2, "a", "c"), (1, "a", "c")]);
    assert_eq!(plan.emptied, [NodeId::new("a")]);
    assert_eq!((plan.before.value_ppm, plan.after.value_ppm), (1_000_000, 666_666));
    assert_eq!((plan.before.in_use, plan.after.in_use, plan.after.nodes), (3, 2, 3));
    assert_eq!(
        plan.moves[0].why,
        "move 1 of 2 that empty a and free 1000 MiB and 1 CPU there: gains 500 MiB of that for \
         about 150 MiB to copy"
    );
    assert_eq!(plan.stopped_by, StopReason::NothingToGain);
    stage.apply(&plan);
    assert_eq!(stage.consolidate(9).moves, []);
    let spread = stage.spread();
    assert_eq!(moves(&spread), [(2, "c", "b")], "what was emptied stays empty");
}

#[test]
fn a_node_is_emptied_whole_or_not_at_all() {
    let mut stage = Stage::new(&[1000, 1000, 1000]);
    for number in 1..=3 {
        stage.claim(number, 100, "a");
    }
    stage.claim(4, 600, "b");
    stage.claim(5, 650, "c");
    let plan = stage.consolidate(2);
    assert_eq!((plan.moves.len(), plan.stopped_by), (0, StopReason::Budget));
    assert_eq!(stage.consolidate(3).moves.len(), 3);
    stage.guest(InstanceId::from_u128(2)).movable = false;
    let plan = stage.consolidate(9);
    assert_eq!((plan.moves.len(), plan.stopped_by), (0, StopReason::NothingToGain));
    stage.guest(InstanceId::from_u128(2)).movable = true;
    stage.claim(6, 500, "a");
    assert_eq!(stage.consolidate(9).moves, [], "the largest has no room elsewhere");
}

#[test]
fn what_is_spent_on_one_node_is_not_spent_on_another() {
    let mut stage = Stage::new(&[1000, 1000, 1000, 1000]);
    stage.claim(1, 50, "a");
    for number in 2..=3 {
        stage.claim(number, 50, "b");
    }
    stage.claim(4, 300, "c");
    stage.claim(5, 300, "d");
    let plan = stage.consolidate(2);
    assert_eq!(moves(&plan), [(1, "a", "c"), (5, "d", "c")], "one move is too few for b");
    assert_eq!((plan.emptied.len(), plan.stopped_by), (2, StopReason::Budget));
    // a, then b, then c: all that they held fits on d.
    let plan = stage.consolidate(9);
    assert_eq!(plan.after.in_use, 1);
    assert_eq!((plan.moves.len(), plan.stopped_by), (4, StopReason::NothingToGain));
}

#[test]
fn a_plan_is_the_same_whatever_the_engine_was_asked_before() {
    let mut stage = Stage::new(&[1000, 1000, 1000, 900]);
    for number in 1..=16 {
        stage.claim(number, 40 + u32::try_from(number).unwrap() % 5 * 10, "a");
    }
    for (number, node) in [(20, "b"), (21, "c"), (22, "d")] {
        stage.claim(number, 50, node);
    }
    let (first, again) = (stage.spread(), stage.spread());
    assert_eq!(first, again);
    stage.guests.reverse();
    let copy = stage.engine.fleet().clone();
    stage.engine = Engine::with_fleet(copy, stage.engine.policy().clone());
    assert_eq!(stage.spread(), first);
}
