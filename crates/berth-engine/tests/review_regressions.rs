//! Behaviour that a second review found wrong. Each test states what is right.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::{
    Amounts, Batch, BatchMode, BatchOutcome, BootOutcome, CapacityType, CheckError, CpuCapMode,
    Engine, Fix, Fleet, Group, GroupKind, Hint, InstanceId, InstanceRequest, InvalidRequest,
    NodeFacts, NodeId, NodeState, PlaceError, Reuse, SearchEnd, TraitValue, Volume,
};
use common::{
    NOW, builtin, claim, engine, node, node_with, place, policy, refusal, request, request_of,
};

fn tagged(number: u128, memory_mib: u32, role: &str) -> InstanceRequest {
    let mut request = request(number, 100, memory_mib);
    request.tags.insert("role".to_owned(), role.to_owned());
    request
}

fn member(number: u128, groups: &[&str]) -> InstanceRequest {
    let mut request = request(number, 100, 100);
    request.groups = groups.iter().map(|&id| id.to_owned()).collect();
    request
}

fn hard_group(id: &str, kind: GroupKind, topology: Topology, most: Option<u32>) -> Group {
    let strength = Strength::Hard;
    Group { id: id.to_owned(), tenant: None, kind, strength, topology, max_per_domain: most }
}

fn with_volume(number: u128, volume: &str) -> InstanceRequest {
    let mut request = request(number, 1, 1);
    request.volumes = vec![volume.to_owned()];
    request
}

fn invalid(engine: &mut Engine, request: &InstanceRequest) -> InvalidRequest {
    match engine.place(request, NOW) {
        Err(PlaceError::Invalid(invalid)) => invalid,
        other => panic!("expected an invalid request, got {other:?}"),
    }
}

// Rankings and what is derived.

#[test]
fn a_far_hint_counts_no_longer_when_its_last_instance_is_gone() {
    let nodes = ["a", "b", "c", "d"].map(|id| node(id, 8000, 65_536));
    let mut engine = engine(builtin("balanced"), &nodes);
    claim(&mut engine, &tagged(1, 4096, "db"), "a");
    let web = |number| {
        let mut web = request(number, 100, 100);
        web.workload = Some("web".to_owned());
        web.locality.far = vec![Hint::Tag("role".to_owned(), "db".to_owned())];
        web
    };
    (10..13).for_each(|number| assert_ne!(place(&mut engine, &web(number)), "a"));
    // By what is in use, a is best; only the hint speaks against it.
    claim(&mut engine, &request_of("other", 2, 100, 20_000), "a");
    assert_ne!(place(&mut engine, &web(14)), "a");
    engine.fleet_mut().release(InstanceId::from_u128(1));
    let kept = engine.place_with(&web(20), NOW, Reuse::Ranking).unwrap();
    let scanned = engine.place_with(&web(20), NOW, Reuse::Mask).unwrap();
    assert_eq!(kept.node.as_str(), "a");
    assert_eq!((kept.node, kept.score), (scanned.node, scanned.score));
}

#[test]
fn a_fleet_put_in_the_place_of_another_is_looked_at_afresh() {
    let nodes = ["a", "b", "c"].map(|id| node(id, 8000, 65_536));
    let mut engine = engine(builtin("balanced"), &nodes);
    let before = engine.fleet().clone();
    for id in ["a", "b"] {
        engine.fleet_mut().set_state(&NodeId::new(id), NodeState::Cordoned);
    }
    assert_eq!(place(&mut engine, &request(1, 1, 1)), "c");
    *engine.fleet_mut() = before;
    // As many changes as the other fleet had seen, and more.
    for _ in 0..4 {
        engine.fleet_mut().set_state(&NodeId::new("c"), NodeState::Cordoned);
    }
    assert_eq!(place(&mut engine, &request(1, 1, 1)), "a");
}

// Facts and claims.

#[test]
fn a_group_defined_after_its_members_came_counts_them() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 65_536)]);
    claim(&mut engine, &member(1, &["g"]), "a");
    let apart = hard_group("g", GroupKind::Apart, Topology::Node, None);
    engine.fleet_mut().put_group(apart);
    assert_eq!(refusal(&mut engine, &member(2, &["g"])).filter.as_deref(), Some("groups"));
    claim(&mut engine, &member(2, &["g"]), "a");
    engine.fleet_mut().release(InstanceId::from_u128(1));
    assert_eq!(refusal(&mut engine, &member(3, &["g"])).filter.as_deref(), Some("groups"));
    engine.fleet_mut().release(InstanceId::from_u128(2));
    assert_eq!(place(&mut engine, &member(3, &["g"])), "a");
}

#[test]
fn the_newest_boot_counts_in_whatever_order_boots_are_listed() {
    let boot = |seconds, failed| BootOutcome::new(NOW.plus(seconds), failed);
    let facts = node_with("a", 8000, 1000, |facts| {
        facts.boots = vec![boot(-10, false), boot(-61, true), boot(-62, true)];
    });
    let mut engine = engine(builtin("balanced"), &[facts]);
    assert_eq!(place(&mut engine, &request(1, 1, 1)), "a");
}

#[test]
fn a_node_that_comes_back_has_another_constraint_generation() {
    let mut fleet = Fleet::new();
    let id = NodeId::new("a");
    fleet.add_node(&node("a", 1, 1)).unwrap();
    let before = fleet.constraint_gen(&id);
    assert!(fleet.remove_node(&id));
    fleet.add_node(&node_with("a", 1, 1, |facts| facts.kvm = false)).unwrap();
    assert!(before.is_some());
    assert_ne!(fleet.constraint_gen(&id), before);
}

#[test]
fn a_second_claim_on_a_volume_does_not_take_it_from_the_first() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 65_536)]);
    let (id, home) = ("v".to_owned(), NodeId::new("a"));
    engine.fleet_mut().put_volume(Volume { tenant: None, id, home, attached_to: None });
    let (first, second) = (with_volume(1, "v"), with_volume(2, "v"));
    claim(&mut engine, &first, "a");
    claim(&mut engine, &second, "a");
    engine.fleet_mut().release(second.id);
    assert_eq!(engine.fleet().volume("v").unwrap().attached_to, Some(first.id));
}

#[test]
fn a_node_carried_from_zone_to_zone_keeps_its_facts_and_its_instances() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 5000)]);
    let mut resident = tagged(1, 1, "db");
    resident.workload = Some("orders".to_owned());
    resident.extra.insert("gpu".to_owned(), 1);
    claim(&mut engine, &resident, "a");
    let id = NodeId::new("a");
    for zone in ["z1", "z2", "z3", "z1"] {
        let moved = node_with("a", 8000, 5000, |facts| {
            facts.zone = Some(zone.to_owned());
            facts.labels.insert("hall".to_owned(), zone.to_owned());
            facts.cached_images = vec![zone.to_owned()];
        });
        engine.fleet_mut().add_node(&moved).unwrap();
        assert_eq!(place(&mut engine, &request(9, 1, 1)), "a");
        assert_eq!(engine.fleet().node(&id), Some(moved));
        assert_eq!(engine.fleet().instances_on(&id), [resident.id]);
    }
    assert!(!engine.fleet_mut().remove_node(&id), "it still has an instance");
    assert_eq!(engine.fleet_mut().release(resident.id), Some(id.clone()));
    assert!(engine.fleet_mut().remove_node(&id));
}

/// A small fleet, with its nodes and instances in the orders given.
fn fingerprint(nodes: [&str; 3], instances: [u128; 3]) -> [u8; 32] {
    let mut fleet = Fleet::new();
    for id in nodes {
        let in_rack = |facts: &mut NodeFacts| facts.rack = Some(format!("rack of {id}"));
        fleet.add_node(&node_with(id, 8000, 1000, in_rack)).unwrap();
    }
    for number in instances {
        let mut resident = tagged(number, 1, &format!("role {number}"));
        resident.workload = Some(format!("workload {number}"));
        let home = if number == 3 { "b" } else { "a" };
        fleet.claim(&resident, &NodeId::new(home)).unwrap();
    }
    fleet.fingerprint()
}

#[test]
fn a_fingerprint_does_not_tell_in_which_order_things_came() {
    let usual = fingerprint(["a", "b", "c"], [1, 2, 3]);
    assert_eq!(fingerprint(["c", "b", "a"], [1, 2, 3]), usual);
    assert_eq!(fingerprint(["a", "b", "c"], [3, 2, 1]), usual);
    assert_eq!(fingerprint(["b", "c", "a"], [2, 3, 1]), usual);
}

// What a request may mean.

#[test]
fn check_refuses_what_place_finds_meaningless() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 1000)]);
    let placed = request(1, 1, 1);
    claim(&mut engine, &placed, "a");
    for meaningless in [placed, with_volume(2, "nowhere"), member(3, &["nobody"])] {
        let expected = invalid(&mut engine, &meaningless);
        let found = engine.check(&meaningless, &NodeId::new("a"), NOW);
        assert_eq!(found, Err(CheckError::Invalid(expected)));
    }
}

#[test]
fn an_image_too_large_for_any_node_is_not_valid() {
    let facts = node_with("a", 1000, 1000, |facts| {
        facts.capacity = Some(Amounts::new(1000, 1000).with_disk(Amounts::MAX));
    });
    let mut engine = engine(builtin("balanced"), &[facts]);
    let mut large = request(1, 1, 1);
    large.image_mib = u32::MAX;
    assert!(matches!(invalid(&mut engine, &large), InvalidRequest::TooLarge { .. }));
    // Each fits by itself; together they are more than a node can have.
    large.image_mib = Amounts::MAX;
    assert!(matches!(invalid(&mut engine, &large), InvalidRequest::TooLarge { .. }));
    large.image_mib = 1;
    assert_eq!(place(&mut engine, &large), "a");
}

#[test]
fn a_group_named_twice_is_not_valid() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 65_536)]);
    let pairs = hard_group("g", GroupKind::Apart, Topology::Node, Some(2));
    engine.fleet_mut().put_group(pairs);
    let twice = member(1, &["g", "g"]);
    assert!(matches!(invalid(&mut engine, &twice), InvalidRequest::Duplicate { .. }));
}

#[test]
fn the_order_in_which_filters_are_switched_off_does_not_change_the_policy() {
    let one = policy("name = 'p'\n[filters]\noff = ['kvm', 'traits']");
    let other = policy("name = 'p'\n[filters]\noff = ['traits', 'kvm']");
    assert_eq!(one.hash(), other.hash());
    assert_ne!(one.hash(), policy("name = 'p'\n[filters]\noff = ['kvm']").hash());
}

// Fixes and preemption.

#[test]
fn shrinking_is_tried_on_further_nodes_when_the_roomiest_has_another_rule() {
    let capped = |facts: &mut NodeFacts| facts.cpu_cap_mode = CpuCapMode::Capped;
    let nodes = [node_with("a", 8000, 1000, capped), node("b", 8000, 800)];
    let mut engine = engine(builtin("balanced"), &nodes);
    let fixes = refusal(&mut engine, &request(1, 100, 1100)).fixes;
    let smaller = fixes.iter().find_map(|fix| match fix {
        Fix::Shrink { resources, node, .. } => Some((resources.memory_mib, node.clone())),
        _ => None,
    });
    assert_eq!(smaller, Some((800, Some(NodeId::new("b")))));
}

#[test]
fn whoever_a_hard_rule_does_not_need_may_be_proposed_for_release() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 5000)]);
    let mut db = tagged(1, 100, "db");
    db.priority = 5;
    claim(&mut engine, &db, "a");
    claim(&mut engine, &request(3, 1, 4700), "a");
    let mut web = request(2, 1, 1000);
    web.affinity = vec![Rule::parse("role==db").unwrap()];
    web.priority = 1;
    let expected = vec![InstanceId::from_u128(3)];
    let fixes = refusal(&mut engine, &web).fixes;
    let freed = fixes.iter().find_map(|fix| match fix {
        Fix::Free { instances, .. } => Some(instances.clone()),
        _ => None,
    });
    assert_eq!(freed.as_ref(), Some(&expected));
    let proposed = engine.propose_preemption(&web, NOW, &|_| true);
    assert_eq!(proposed.map(|proposed| proposed.victims), Some(expected));
}

#[test]
fn the_instance_that_a_strict_hint_names_is_never_proposed_for_release() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 1000)]);
    claim(&mut engine, &request(1, 1, 1000), "a");
    let mut near = request(2, 1, 10);
    near.locality.near = vec![Hint::Instance(InstanceId::from_u128(1))];
    near.locality.strict = true;
    near.priority = 1;
    let fixes = refusal(&mut engine, &near).fixes;
    assert!(!fixes.iter().any(|fix| matches!(fix, Fix::Free { .. })), "{fixes:?}");
    assert_eq!(engine.propose_preemption(&near, NOW, &|_| true), None);
}

#[test]
fn nobody_is_pushed_out_for_an_instance_that_is_placed() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 1000)]);
    let mut resident = request(1, 1, 1000);
    claim(&mut engine, &resident, "a");
    resident.priority = 1;
    assert_eq!(engine.propose_preemption(&resident, NOW, &|_| true), None);
}

// Batches.

#[test]
fn instances_of_a_batch_do_not_share_an_address() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 65_536)]);
    let pair = || Batch::new(vec![request(1, 1, 1), request(2, 1, 1)]);
    for (free, placed) in [(0, 0), (1, 0), (2, 2)] {
        engine.fleet_mut().set_free_addresses(Some(free));
        let outcome = engine.place_batch(&pair(), NOW).unwrap();
        assert_eq!(outcome.placements.len(), placed, "with {free} free addresses");
    }
}

#[test]
fn a_large_batch_with_one_hopeless_member_is_known_not_to_fit() {
    let nodes: Vec<_> = (0..8).map(|n| node(&format!("n{n}"), 8000, 1000)).collect();
    let mut engine = engine(builtin("balanced"), &nodes);
    let mut requests: Vec<_> = (1..=19).map(|number| request(number, 1, 300)).collect();
    requests.push(request(20, 1, 1001));
    let outcome = engine.place_batch(&Batch::new(requests), NOW).unwrap();
    assert_eq!(outcome.end, SearchEnd::DoesNotFit);
    assert!(outcome.placements.is_empty());
    assert_eq!(outcome.refused[0].0, InstanceId::from_u128(20));
}

/// Two nodes of 1000 MiB of each capacity type. Six instances fill two nodes to the brim, but only
/// as 500 + 300 + 200 and 400 + 300 + 300: greedy strands one of each type.
fn tight_fleet() -> (Engine, Vec<InstanceRequest>) {
    let kinds = [("d", CapacityType::OnDemand), ("s", CapacityType::Spot)];
    let mut nodes = Vec::new();
    let mut requests: Vec<InstanceRequest> = Vec::new();
    for (name, kind) in kinds {
        for place in 0..2 {
            let of_kind = |facts: &mut NodeFacts| facts.capacity_type = kind;
            nodes.push(node_with(&format!("{name}{place}"), 8000, 1000, of_kind));
        }
        for memory_mib in [500, 400, 300, 300, 300, 200] {
            let mut wanted = request(requests.len() as u128 + 1, 1, memory_mib);
            wanted.capacity_type = Some(kind);
            requests.push(wanted);
        }
    }
    (engine(builtin("balanced"), &nodes), requests)
}

fn place_at_least(
    engine: &mut Engine,
    least: usize,
    requests: Vec<InstanceRequest>,
) -> BatchOutcome {
    let batch = Batch::new(requests).with_mode(BatchMode::AtLeast(least));
    engine.place_batch(&batch, NOW).unwrap()
}

#[test]
fn at_least_so_many_leaves_out_only_what_no_longer_fits() {
    let (mut engine, requests) = tight_fleet();
    let outcome = place_at_least(&mut engine, 11, requests.clone());
    assert!(outcome.placements.len() >= 11, "{:?}", outcome.end);
    for placed in &outcome.placements {
        let request = requests.iter().find(|request| request.id == placed.instance);
        claim(&mut engine, request.unwrap(), placed.node.as_str());
    }
    let is_placed = |request: &&InstanceRequest| engine.fleet().node_of(request.id).is_some();
    let left: Vec<_> = requests.iter().filter(|request| !is_placed(request)).cloned().collect();
    assert_eq!(left.len(), outcome.refused.len());
    left.iter().for_each(|request| {
        assert_eq!(refusal(&mut engine, request).filter.as_deref(), Some("memory"))
    });
}

/// A node and an instance that only it can take.
fn apart_from_the_others() -> (NodeFacts, InstanceRequest) {
    let value = TraitValue::Bool(true);
    let facts = node_with("t", 8000, 1000, |facts| {
        facts.traits.insert("t".to_owned(), value.clone());
    });
    let mut wanted = request(99, 0, 1);
    wanted.traits.insert("t".to_owned(), value);
    (facts, wanted)
}

#[test]
fn every_member_of_a_batch_with_a_quorum_is_placed_or_refused() {
    let (mut engine, mut requests) = tight_fleet();
    let (facts, wanted) = apart_from_the_others();
    engine.fleet_mut().add_node(&facts).unwrap();
    requests.push(wanted);
    let outcome = place_at_least(&mut engine, 12, requests);
    assert_eq!(outcome.placements.len() + outcome.refused.len(), 13, "{:?}", outcome.end);
}

#[test]
fn a_quorum_met_by_the_search_still_takes_along_an_instance_with_a_node_to_itself() {
    let (facts, wanted) = apart_from_the_others();
    let mut engine = engine(builtin("balanced"), &[node("n", 8000, 12), facts]);
    let sizes = [9, 4, 4, 4];
    let mut requests: Vec<_> = (1..).zip(sizes).map(|(n, size)| request(n, 0, size)).collect();
    requests.push(wanted);
    let outcome = place_at_least(&mut engine, 3, requests);
    assert_eq!(outcome.placements.len(), 4, "three small ones and the one apart");
}

#[test]
fn failures_make_a_node_sick_by_two_of_its_own_or_of_three_tenants() {
    let ago = |minutes: i64| NOW.plus(-60 * minutes);
    let failed = |at| BootOutcome::new(at, true);
    let of = |minutes, tenant: &str| BootOutcome::failed_for(ago(minutes), tenant);
    let table = [
        (vec![of(3, "a"), of(2, "a"), of(1, "a")], false),
        // Two tenants may work together.
        (vec![of(4, "a"), of(3, "b"), of(2, "a"), of(1, "b")], false),
        (vec![of(3, "c"), of(2, "b"), of(1, "a")], true),
        (vec![of(5, "c"), of(4, "a"), of(3, "b"), of(2, "a"), of(1, "a")], true),
        // One that the node caused is a witness like a tenant.
        (vec![of(2, "a"), failed(ago(1))], false),
        (vec![failed(ago(3)), of(2, "b"), of(1, "a")], true),
        // Whoever starts there disproves them.
        (vec![of(4, "c"), BootOutcome::new(ago(3), false), of(2, "b"), of(1, "a")], false),
        (vec![of(4, "c"), of(3, "b"), of(2, "a"), BootOutcome::new(ago(1), false)], false),
        (vec![failed(ago(3)), of(2, "a"), failed(ago(1))], true),
        // Each counts for a day.
        (vec![of(1500, "c"), of(2, "b"), of(1, "a")], false),
        (vec![failed(ago(1500)), failed(ago(1))], false),
        (vec![failed(ago(2)), failed(ago(1))], true),
    ];
    for (boots, is_sick) in table {
        let host = node_with("a", 1000, 4096, |facts| facts.boots.clone_from(&boots));
        let mut engine = engine(builtin("balanced"), &[host]);
        let found = engine.place(&request(1, 0, 1), NOW).is_err();
        assert_eq!(found, is_sick, "{boots:?}");
    }
}
