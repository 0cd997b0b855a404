//! What becomes of each instance, in fleets of a few nodes.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::affinity::{Strength, Topology};
use crate::model::{Amounts, Group, GroupKind, NodeFacts, Volume};
use crate::policy::Policy;

const NOW: Timestamp = Timestamp(1_000);

/// A fleet and what its instances asked for.
struct Stage {
    engine: Engine,
    requests: BTreeMap<InstanceId, Arc<InstanceRequest>>,
}

impl Stage {
    /// Nodes with this much memory each, named `a`, `b`, and so on.
    fn new(memory: &[u32]) -> Self {
        let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
        for (name, memory) in ["a", "b", "c", "d"].into_iter().zip(memory) {
            let capacity = Amounts::new(64_000, *memory).with_disk(1_000_000);
            let facts = NodeFacts {
                heartbeat_at: NOW,
                vmm_overhead_mib: 0,
                zone: Some(if name < "c" { "z1" } else { "z2" }.to_owned()),
                ..NodeFacts::new(name, capacity)
            };
            engine.fleet_mut().add_node(&facts).unwrap();
        }
        Self { engine, requests: BTreeMap::new() }
    }

    fn claim(&mut self, number: u128, memory: u32, node: &str) -> InstanceId {
        self.claim_with(number, memory, node, |_| {})
    }

    fn claim_with(
        &mut self,
        number: u128,
        memory: u32,
        node: &str,
        change: impl FnOnce(&mut InstanceRequest),
    ) -> InstanceId {
        let id = InstanceId::from_u128(number);
        let mut request = InstanceRequest::new(id, "acme", Amounts::new(100, memory));
        change(&mut request);
        self.engine.fleet_mut().claim(&request, &NodeId::new(node)).unwrap();
        self.requests.insert(id, Arc::new(request));
        id
    }

    fn group(&mut self, id: &str, kind: GroupKind, topology: Topology) {
        let group = Group {
            id: id.to_owned(),
            tenant: None,
            kind,
            strength: Strength::Hard,
            topology,
            max_per_domain: None,
        };
        self.engine.fleet_mut().put_group(group);
    }

    fn plan(&mut self, nodes: &[&str]) -> EvacuationPlan {
        self.plan_with(nodes, Effort::FULL)
    }

    fn plan_with(&mut self, nodes: &[&str], effort: Effort) -> EvacuationPlan {
        let before = self.engine.fleet().fingerprint();
        let nodes: Vec<NodeId> = nodes.iter().map(|node| NodeId::new(node)).collect();
        let requests = &self.requests;
        let guest = |id| {
            requests
                .get(&id)
                .cloned()
                .map_or(EvacuationInstance::Unknown, EvacuationInstance::Requested)
        };
        let plan = self.engine.plan_evacuation(&nodes, guest, effort, NOW);
        assert_eq!(self.engine.fleet().fingerprint(), before, "a plan left a trace");
        plan
    }

    fn outcome(&mut self, nodes: &[&str], id: InstanceId) -> MoveOutcome {
        let moves = self.plan(nodes).moves;
        moves.into_iter().find(|planned| planned.instance == id).unwrap().outcome
    }
}

fn to(node: &str) -> MoveOutcome {
    MoveOutcome::Moves { to: NodeId::new(node) }
}

#[test]
fn an_empty_or_unknown_node_needs_no_moves() {
    let mut stage = Stage::new(&[1000, 1000]);
    assert!(stage.plan(&["a"]).is_possible());
    assert_eq!(stage.plan(&["nobody"]).moves, []);
}

#[test]
fn everybody_moves_elsewhere_and_the_fleet_is_as_before() {
    let mut stage = Stage::new(&[4000, 4000, 4000]);
    for number in 0..4 {
        stage.claim(number, 1000, "a");
    }
    let plan = stage.plan(&["a"]);
    assert!(plan.is_possible());
    assert_eq!(plan.moves.len(), 4);
    assert!(plan.moves.iter().all(|planned| planned.from.as_str() == "a"));
    assert_eq!(stage.engine.fleet().node(&NodeId::new("a")).unwrap().state, NodeState::Active);
}

#[test]
fn a_refusal_has_numbers_and_no_advice_to_open_the_node_again() {
    let mut stage = Stage::new(&[4000, 2000]);
    let large = stage.claim(1, 3000, "a");
    let MoveOutcome::Refused { refusal, after_release: None } = stage.outcome(&["a"], large) else {
        panic!("it fits nowhere");
    };
    let refusal = refusal.unwrap();
    assert_eq!((&*refusal.code, refusal.instance), ("no_capacity_memory", large));
    assert!(refusal.headline().contains("2.92 GiB"), "{}", refusal.headline());
    assert!(!refusal.fixes.iter().any(|fix| fix.to_string().contains("repair a")), "{refusal}");
}

#[test]
fn nodes_that_can_be_emptied_alone_may_not_be_emptied_together() {
    let mut stage = Stage::new(&[2000, 2000, 2000]);
    stage.claim(1, 1500, "a");
    stage.claim(2, 1500, "b");
    assert!(stage.plan(&["a"]).is_possible());
    assert!(stage.plan(&["b"]).is_possible());
    let both = stage.plan(&["a", "b"]);
    let moved = both.moves.iter().filter(|planned| planned.outcome == to("c"));
    assert_eq!(moved.count(), 1);
    assert!(!both.is_possible());
}

#[test]
fn who_stands_in_its_own_way_could_go_after_its_release() {
    let mut stage = Stage::new(&[4000, 4000]);
    stage.group("apart", GroupKind::Apart, Topology::Zone);
    let one = stage.claim_with(1, 100, "a", |request| request.groups = vec!["apart".to_owned()]);
    let outcome = stage.outcome(&["a"], one);
    assert!(outcome.only_after_release() && !outcome.is_possible());
    let MoveOutcome::Refused { refusal, after_release } = outcome else { panic!("refused") };
    assert_eq!(after_release, Some(NodeId::new("b")));
    assert_eq!(&*refusal.unwrap().code, "group_no_node");
}

#[test]
fn volumes_hold_an_instance_and_the_plan_says_where_they_should_go() {
    let mut stage = Stage::new(&[4000, 1000, 4000]);
    let volume =
        Volume { id: "data".to_owned(), tenant: None, home: NodeId::new("a"), attached_to: None };
    stage.engine.fleet_mut().put_volume(volume);
    let one = stage.claim_with(1, 2000, "a", |request| request.volumes = vec!["data".to_owned()]);
    let outcome = stage.outcome(&["a"], one);
    let volumes = vec!["data".to_owned()];
    assert_eq!(outcome.code(), Some("volume_needs_move"));
    let (to, refusal) = (Some(NodeId::new("c")), None);
    assert_eq!(outcome, MoveOutcome::VolumeNeedsMove { volumes, to, refusal });
    let nowhere = stage.outcome(&["a", "c"], one);
    let MoveOutcome::VolumeNeedsMove { to: None, refusal, .. } = nowhere else {
        panic!("there is no room for it");
    };
    assert_eq!(&*refusal.unwrap().code, "no_capacity_memory");
}

#[test]
fn who_must_be_near_another_follows_it() {
    let mut stage = Stage::new(&[4000, 4000]);
    let follower = stage.claim_with(1, 200, "a", |request| {
        request.locality.near = vec![crate::model::Hint::Instance(InstanceId::from_u128(2))];
        request.locality.strict = true;
    });
    let leader = stage.claim(2, 100, "a");
    let plan = stage.plan(&["a"]);
    let order: Vec<InstanceId> = plan.moves.iter().map(|planned| planned.instance).collect();
    assert_eq!(order, [leader, follower], "it can go only when the other has gone");
    assert!(plan.is_possible());
}

#[test]
fn a_way_that_the_usual_choice_misses_is_found() {
    // Packing puts the first 600 next to the most used, and then the 1000 has no room.
    let mut stage = Stage::new(&[10_000, 1200, 1000, 1000]);
    let mut packed = Engine::new(Policy::builtin("pack").unwrap_or_else(|_| panic!("pack")));
    std::mem::swap(packed.fleet_mut(), stage.engine.fleet_mut());
    stage.engine = packed;
    for (number, memory) in [(1, 500), (2, 500), (3, 600), (4, 600), (5, 1000)] {
        stage.claim(number, memory, "a");
    }
    let plan = stage.plan(&["a"]);
    assert!(plan.is_possible(), "{plan:#?}");
    let hasty = Effort { search_budget: 0, ..Effort::FULL };
    assert!(!stage.plan_with(&["a"], hasty).is_possible(), "no search was needed");
}

#[test]
fn what_an_instance_is_charged_now_is_what_its_replacement_needs() {
    let mut stage = Stage::new(&[4000, 2000]);
    let grown = stage.claim(1, 1000, "a");
    assert_eq!(stage.outcome(&["a"], grown), to("b"));
    stage.engine.fleet_mut().resize(grown, Amounts::new(100, 3000).with_disk(4096));
    assert!(!stage.outcome(&["a"], grown).is_possible());
}

#[test]
fn who_cannot_be_asked_for_again_is_named_and_does_not_stop_the_others() {
    let mut stage = Stage::new(&[4000, 4000]);
    let (lost, fine) = (stage.claim(1, 100, "a"), stage.claim(2, 100, "a"));
    let stray = stage.claim_with(3, 100, "a", |request| request.groups = vec!["gone".to_owned()]);
    stage.requests.remove(&lost);
    assert_eq!(stage.outcome(&["a"], lost), MoveOutcome::RequestUnknown);
    assert!(matches!(stage.outcome(&["a"], stray), MoveOutcome::Invalid(_)));
    assert_eq!(stage.outcome(&["a"], fine), to("b"));
}

#[test]
fn a_verdict_explains_once_and_without_fixes() {
    let mut stage = Stage::new(&[8000, 100]);
    for number in 0..3 {
        stage.claim(number, 1000 + u32::try_from(number).unwrap(), "a");
    }
    let plan = stage.plan_with(&["a"], Effort::VERDICT);
    let explained = plan.moves.iter().filter(|planned| planned.outcome.code().is_some());
    assert_eq!((plan.moves.len(), explained.count()), (3, 1));
}

#[test]
fn who_leaves_already_needs_no_place_but_counts_until_it_is_gone() {
    let mut stage = Stage::new(&[4000, 4000]);
    stage.group("apart", GroupKind::Apart, Topology::Zone);
    stage.claim_with(1, 100, "a", |request| request.groups = vec!["apart".to_owned()]);
    let nodes = [NodeId::new("a")];
    let plan =
        stage.engine.plan_evacuation(&nodes, |_| EvacuationInstance::Leaving, Effort::FULL, NOW);
    assert_eq!(plan.moves, []);
}
