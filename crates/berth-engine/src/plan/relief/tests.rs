//! Who leaves and where they go, in fleets of a few nodes.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::elastic::{Holding, Sums, WatermarkRule, watermark_free};
use crate::model::{Amounts, NodeFacts, Ratios, Used, Volume};
use crate::policy::Policy;

const NOW: Timestamp = Timestamp(1_000);
const MARK: WatermarkRule = WatermarkRule { cpu_permille: 800, memory_permille: 800 };

struct Stage {
    engine: Engine,
    instances: BTreeMap<InstanceId, ReliefInstance>,
}

impl Stage {
    /// Nodes with so many MiB and ten times as many milli-CPU, `a`, `b` and so on. Their watermark
    /// is at 80 %.
    fn new(memory: &[u32]) -> Self {
        let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
        for (name, memory) in ["a", "b", "c", "d"].into_iter().zip(memory) {
            let capacity = Amounts::new(memory * 10, *memory).with_disk(1_000_000);
            let facts = NodeFacts {
                heartbeat_at: NOW,
                vmm_overhead_mib: 10,
                ratios: Ratios { cpu_permille: 1000, ..Ratios::default() },
                ..NodeFacts::new(name, capacity)
            };
            engine.fleet_mut().add_node(&facts).unwrap();
        }
        Self { engine, instances: BTreeMap::new() }
    }

    fn claim(&mut self, number: u128, cpu: u32, memory: u32, node: &str) -> InstanceId {
        self.claim_with(number, cpu, memory, node, |_| {})
    }

    fn claim_with(
        &mut self,
        number: u128,
        cpu: u32,
        memory: u32,
        node: &str,
        change: impl FnOnce(&mut ReliefInstance),
    ) -> InstanceId {
        let id = InstanceId::from_u128(number);
        let request = InstanceRequest::new(id, "acme", Amounts::new(cpu, memory));
        let mut instance = ReliefInstance {
            id,
            request: Arc::new(request),
            charge: Size::new(cpu, memory),
            pressure: Size::ZERO,
            copy_mib: memory,
            load_milli: Some(0),
            priority: 0,
            movable: true,
            moved_recently_ppm: 0,
        };
        change(&mut instance);
        self.engine.fleet_mut().claim(&instance.request, &NodeId::new(node)).unwrap();
        self.instances.insert(id, instance);
        id
    }

    fn used(&self, node: &NodeId) -> Used {
        let ids = self.engine.fleet().instances_on(node);
        let mut used = Used::default();
        for id in ids {
            used.charge(&self.engine.fleet().instance(id).unwrap().resources, false, 1);
        }
        used
    }

    fn account(&self, node: &NodeId) -> Account {
        let facts = self.engine.fleet().node(node).unwrap();
        Account::of(&facts, &self.used(node), MARK, &Sums::default())
    }

    fn plan(&mut self, node: &str) -> ReliefPlan {
        self.plan_with(node, |_| false, 100)
    }

    fn plan_with(&mut self, node: &str, closed: fn(&NodeId) -> bool, most: usize) -> ReliefPlan {
        let node = NodeId::new(node);
        let account = self.account(&node);
        let free: BTreeMap<NodeId, Free> = ["a", "b", "c", "d"]
            .into_iter()
            .map(NodeId::new)
            .filter(|id| self.engine.fleet().node(id).is_some())
            .map(|id| {
                let facts = self.engine.fleet().node(&id).unwrap();
                let free = watermark_free(&facts, &self.used(&id), MARK);
                (id, free)
            })
            .collect();
        let instances: Vec<ReliefInstance> = self.instances.values().cloned().collect();
        let before = self.engine.fleet().fingerprint();
        let below = |node: &NodeId| free[node];
        let plan = self.engine.plan_relief(&node, &account, &instances, &below, &closed, most, NOW);
        assert_eq!(self.engine.fleet().fingerprint(), before, "a plan left a trace");
        plan
    }
}

fn who(plan: &ReliefPlan) -> Vec<(InstanceId, &str)> {
    plan.moves.iter().map(|one| (one.instance, one.to.as_str())).collect()
}

#[test]
fn a_node_below_its_watermark_is_left_alone() {
    let mut stage = Stage::new(&[1000, 1000]);
    stage.claim(1, 100, 700, "a");
    assert_eq!(stage.plan("a"), ReliefPlan::default());
    assert_eq!(stage.plan("b"), ReliefPlan::default());
}

#[test]
fn the_cheapest_that_relieve_both_resources_leave() {
    let mut stage = Stage::new(&[1000, 1000]);
    // 9 percent of memory and 10 of CPU too much.
    let large = stage.claim(1, 4000, 600, "a");
    let cpu = stage.claim(2, 1000, 50, "a");
    let memory = stage.claim(3, 100, 100, "a");
    let both = stage.claim_with(4, 3900, 100, "a", |instance| instance.copy_mib = 400);
    let plan = stage.plan("a");
    // One that relieves both would cost 400, these two together 150.
    assert_eq!(who(&plan), [(cpu, "b"), (memory, "b")], "{plan:?}");
    assert_eq!((plan.left, plan.without_target.len()), (Size::ZERO, 0));
    assert!(![large, both].iter().any(|id| plan.without_target.contains(id)));
}

#[test]
fn who_may_not_be_moved_stays_and_what_is_left_is_said() {
    let mut stage = Stage::new(&[1000, 1000]);
    stage.claim_with(1, 100, 800, "a", |instance| instance.movable = false);
    let only = stage.claim(2, 100, 50, "a");
    let plan = stage.plan("a");
    assert_eq!(who(&plan), [(only, "b")]);
    // 870 with the hypervisor's part, of 800; it relieves 50.
    assert_eq!(plan.left, Size::new(0, 20));
}

#[test]
fn who_finds_no_place_is_named_and_another_leaves_instead() {
    let mut stage = Stage::new(&[1000, 300]);
    stage.claim_with(1, 10, 500, "a", |instance| instance.movable = false);
    let large = stage.claim_with(2, 10, 240, "a", |instance| instance.copy_mib = 1);
    let small = stage.claim(3, 10, 100, "a");
    let plan = stage.plan("a");
    assert_eq!((who(&plan), &plan.without_target), (vec![(small, "b")], &vec![large]));
    assert_eq!(plan.left, Size::ZERO);
}

#[test]
fn a_destination_never_passes_its_watermark_and_is_never_closed() {
    let mut state = 11u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from((state >> 33) % bound).unwrap()
    };
    let (mut moves, mut stuck) = (0, 0);
    for _ in 0..150 {
        let mut stage = Stage::new(&[2000, 1000, 1000, 1000]);
        for number in 0..12 {
            stage.claim(number, below(3000), 20 + below(250), "a");
        }
        for (number, node) in (100..).zip(["b", "b", "c", "c", "d"]) {
            stage.claim(number, below(4000), 20 + below(380), node);
        }
        let plan = stage.plan_with("a", |node| node.as_str() == "d", 100);
        for planned in &plan.moves {
            assert_ne!(planned.to.as_str(), "d");
            let detached = stage.engine.fleet_mut().detach_instance(planned.instance).unwrap();
            let index = stage.engine.fleet().index_of(&planned.to).unwrap();
            stage.engine.fleet_mut().attach_instance(detached, index);
        }
        for node in ["b", "c"].map(NodeId::new) {
            if plan.moves.iter().any(|planned| planned.to == node) {
                let free = stage.account(&node).below_watermark();
                assert!(free.cpu >= 0 && free.memory >= 0, "{node} {free:?} {plan:?}");
            }
        }
        if plan.left.is_zero() {
            assert!(!stage.account(&NodeId::new("a")).must_shed(), "{plan:?}");
        }
        moves += plan.moves.len();
        stuck += plan.without_target.len();
    }
    assert!(moves > 100 && stuck > 100, "{moves} moves, {stuck} without a place");
}

#[test]
fn only_so_many_go_at_once_those_who_relieve_most_first() {
    let mut stage = Stage::new(&[1000, 1000]);
    for number in 1..=9 {
        stage.claim(number, 10, 90 + u32::try_from(number).unwrap(), "a");
    }
    let all = stage.plan("a");
    assert!(all.moves.len() > 1, "{all:?}");
    let one = stage.plan_with("a", |_| false, 1);
    assert_eq!(one.moves[..], all.moves[..1]);
    assert!(!one.left.is_zero());
    let none = stage.plan_with("a", |_| false, 0);
    assert_eq!(none.left.memory_mib, one.left.memory_mib + one.moves[0].frees.memory_mib);
    assert!(none.moves.is_empty());
}

#[test]
fn who_lacks_room_beside_another_is_tried_first() {
    // The larger goes first, and to the fuller node, where alone the other may go.
    let mut stage = Stage::new(&[2000, 700, 400]);
    stage.claim_with(1, 10, 1500, "a", |instance| instance.movable = false);
    let large = stage.claim(2, 10, 250, "a");
    let choosy = stage.claim_with(3, 10, 200, "a", |instance| {
        let mut request = InstanceRequest::clone(&instance.request);
        request.excluded_nodes = vec![NodeId::new("c")];
        instance.request = Arc::new(request);
    });
    stage.claim(4, 10, 130, "b");
    let alone = stage.plan_with("a", |_| false, 1);
    assert_eq!(who(&alone), [(large, "b")], "else this test tests nothing");
    let plan = stage.plan("a");
    assert_eq!(who(&plan), [(choosy, "b"), (large, "c")], "{plan:?}");
}

#[test]
fn local_volumes_hold_their_instance() {
    let mut stage = Stage::new(&[1000, 1000]);
    let home = NodeId::new("a");
    let volume = Volume { id: "data".to_owned(), tenant: None, home, attached_to: None };
    stage.engine.fleet_mut().put_volume(volume);
    let pinned = stage.claim_with(1, 10, 900, "a", |instance| {
        let mut request = InstanceRequest::clone(&instance.request);
        request.volumes = vec!["data".to_owned()];
        instance.request = Arc::new(request);
    });
    let plan = stage.plan("a");
    assert_eq!((plan.moves.len(), plan.without_target), (0, vec![pinned]));
}

#[test]
fn what_is_leaving_already_is_not_relieved_twice() {
    let mut stage = Stage::new(&[1000, 1000]);
    stage.claim(1, 10, 500, "a");
    stage.claim(2, 10, 400, "a");
    let node = NodeId::new("a");
    let facts = stage.engine.fleet().node(&node).unwrap();
    let leaving = Holding { charge: Size::new(10, 400), permit: None, leaving: true };
    let account = Account::of(&facts, &stage.used(&node), MARK, &Sums::of([leaving], 0, 60));
    let instances: Vec<ReliefInstance> = stage.instances.values().cloned().collect();
    let below = |_: &NodeId| Free::UNLIMITED;
    let plan = stage.engine.plan_relief(&node, &account, &instances, &below, &|_| false, 9, NOW);
    assert_eq!(plan, ReliefPlan::default());
}

#[test]
fn a_node_that_is_almost_full_is_chosen_only_when_no_other_is_there() {
    let mut stage = Stage::new(&[1000, 1000, 1000]);
    let instance = stage.claim(1, 10, 900, "a");
    stage.instances.get_mut(&instance).unwrap().movable = false;
    let moves = stage.claim(2, 10, 50, "a");
    // Packing prefers `b`, which would be 40 below its watermark with it.
    stage.claim(3, 10, 690, "b");
    stage.claim(4, 10, 300, "c");
    assert_eq!(who(&stage.plan("a")), [(moves, "c")]);
    let closed = |node: &NodeId| node.as_str() == "c";
    assert_eq!(who(&stage.plan_with("a", closed, 9)), [(moves, "b")]);
}
