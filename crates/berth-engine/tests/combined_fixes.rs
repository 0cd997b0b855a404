//! Fixes of more than one change, of batches, and what is never proposed. Each is applied here.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_engine::affinity::Rule;
use berth_engine::{
    Batch, BatchMode, CapacityType, Engine, Fix, InstanceRequest, NodeFacts, NodeId, NodeState,
    Refusal, TraitValue,
};
use common::{NOW, builtin, claim, engine, node, node_with, place, refusal, request};

fn fix(engine: &mut Engine, wanted: &InstanceRequest, is_it: fn(&Fix) -> bool) -> Fix {
    let fixes = refusal(engine, wanted).fixes;
    let found = fixes.iter().find(|fix| is_it(fix));
    found.unwrap_or_else(|| panic!("{fixes:?}")).clone()
}

fn is_shrink(fix: &Fix) -> bool {
    matches!(fix, Fix::Shrink { .. })
}

fn is_free(fix: &Fix) -> bool {
    matches!(fix, Fix::Free { .. })
}

fn is_add_node(fix: &Fix) -> bool {
    matches!(fix, Fix::AddNode { .. })
}

fn rules(expressions: &[&str]) -> Vec<Rule> {
    let parsed = expressions.iter().map(|text| Rule::parse(text));
    parsed.map(|rule| rule.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// A virtual node.
fn host() -> NodeFacts {
    node_with("a", 1000, 4096, |facts| facts.is_virtual = true)
}

// Combined changes.

#[test]
fn two_rules_that_stand_in_the_way_are_relaxed_together() {
    let mut engine = engine(builtin("balanced"), &[host()]);
    let mut wanted = request(1, 100, 512);
    wanted.exclude_virtual = true;
    wanted.capacity_type = Some(CapacityType::Spot);
    let Fix::Combined { changes } = fix(&mut engine, &wanted, is_combined) else {
        panic!("not combined");
    };
    let filters: Vec<&str> = changes
        .iter()
        .map(|change| match change {
            Fix::Relax { filter, .. } => &**filter,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(filters, ["not-virtual", "capacity-type"]);
    wanted.exclude_virtual = false;
    wanted.capacity_type = None;
    assert_eq!(place(&mut engine, &wanted), "a");
}

fn is_combined(fix: &Fix) -> bool {
    matches!(fix, Fix::Combined { .. })
}

#[test]
fn a_smaller_size_and_a_relaxed_rule_are_proposed_together() {
    let mut engine = engine(builtin("balanced"), &[host()]);
    let mut wanted = request(1, 100, 9000);
    wanted.exclude_virtual = true;
    let Fix::Combined { changes } = fix(&mut engine, &wanted, is_combined) else {
        panic!("not combined");
    };
    let [Fix::Shrink { resources, .. }, Fix::Relax { filter, .. }] = changes.as_slice() else {
        panic!("{changes:?}");
    };
    assert_eq!((resources.memory_mib, &**filter), (4096, "not-virtual"));
}

#[test]
fn a_further_class_shrinks_like_any_other_amount() {
    let host = node_with("a", 1000, 4096, |facts| {
        facts.extra.insert("gpu".to_owned(), 2);
    });
    let mut engine = engine(builtin("balanced"), &[host]);
    let mut wanted = request(1, 100, 512);
    wanted.extra.insert("gpu".to_owned(), 4);
    let Fix::Shrink { extra, resources, .. } = fix(&mut engine, &wanted, is_shrink) else {
        panic!("not a shrink");
    };
    assert_eq!((extra["gpu"], resources), (2, wanted.resources));
    wanted.extra.extend(extra);
    assert_eq!(place(&mut engine, &wanted), "a");
}

#[test]
fn what_is_going_already_is_never_proposed_for_release() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    claim(&mut engine, &request(70, 0, 2000), "a");
    claim(&mut engine, &request(71, 0, 1900), "a");
    let wanted = request(1, 0, 1024);
    let first = fix(&mut engine, &wanted, is_free);
    let Fix::Free { instances, .. } = &first else { panic!("not a release") };
    engine.fleet_mut().set_leaving(instances[0], true);
    let Fix::Free { instances: others, .. } = fix(&mut engine, &wanted, is_free) else {
        panic!("not a release");
    };
    assert!(others.len() == 1 && others != *instances, "{others:?}");
    engine.fleet_mut().set_leaving(others[0], true);
    assert!(!refusal(&mut engine, &wanted).fixes.iter().any(is_free));
    engine.fleet_mut().set_leaving(instances[0], false);
    assert_eq!(fix(&mut engine, &wanted, is_free), first);
}

#[test]
fn waiting_may_help_only_if_some_node_could_hold_it_when_empty() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    claim(&mut engine, &request(70, 0, 4000), "a");
    assert!(refusal(&mut engine, &request(1, 0, 4096)).waiting_may_help);
    assert!(!refusal(&mut engine, &request(1, 0, 4097)).waiting_may_help, "it is too small");
    engine.fleet_mut().set_state(&NodeId::new("a"), NodeState::Cordoned);
    assert!(refusal(&mut engine, &request(1, 0, 4096)).waiting_may_help);
    let mut with_trait = request(1, 0, 512);
    with_trait.traits.insert("gpu".to_owned(), TraitValue::Bool(true));
    assert!(!refusal(&mut engine, &with_trait).waiting_may_help, "nothing gives it the trait");
}

// Batches.

fn batch_refusal(engine: &mut Engine, batch: &Batch) -> Refusal {
    let mut outcome = engine.place_batch(batch, NOW).unwrap();
    assert!(outcome.placements.is_empty(), "{:?}", outcome.placements);
    outcome.refused.remove(0).1
}

#[test]
fn a_batch_that_does_not_fit_is_told_how_many_do_and_which_size_and_how_many_nodes_would() {
    let nodes: Vec<NodeFacts> = (0..4).map(|n| node(&format!("n{n}"), 8000, 4096)).collect();
    let mut engine = engine(builtin("balanced"), &nodes);
    let batch = Batch::new((1..=20).map(|number| request(number, 100, 1000)).collect());
    let fixes = batch_refusal(&mut engine, &batch).fixes;
    assert_eq!(fixes[0], Fix::Fewer { count: 16, of: 20 });
    let Some(Fix::Shrink { resources, .. }) = fixes.iter().find(|fix| is_shrink(fix)) else {
        panic!("{fixes:?}");
    };
    assert!((800..=819).contains(&resources.memory_mib), "five of a node: {resources:?}");
    let Some(Fix::AddNode { count, shape, .. }) = fixes.iter().find(|fix| is_add_node(fix)) else {
        panic!("{fixes:?}");
    };
    // Four are left out, and one node of the size that nodes have holds them.
    assert_eq!((*count, shape.memory_mib), (1, 4 * (1000 + 64)));

    let half = batch.clone().with_mode(BatchMode::AtLeast(16));
    assert_eq!(engine.place_batch(&half, NOW).unwrap().placements.len(), 16);
}

#[test]
fn members_that_stay_apart_are_told_how_many_nodes_are_missing() {
    let nodes = [node("a", 1000, 4096), node("b", 1000, 4096)];
    let mut engine = engine(builtin("balanced"), &nodes);
    let member = |number| {
        let mut wanted = request(number, 0, 512);
        wanted.tags.insert("role".to_owned(), "db".to_owned());
        wanted.affinity = rules(&["role!=db"]);
        wanted
    };
    let batch = Batch::new((1..=5).map(member).collect());
    let fixes = batch_refusal(&mut engine, &batch).fixes;
    let Some(Fix::AddNode { count: 3, facts, .. }) = fixes.iter().find(|fix| is_add_node(fix))
    else {
        panic!("{fixes:?}");
    };
    for number in 1..=3 {
        let id = NodeId::new(&format!("new-{number}"));
        engine.fleet_mut().add_node(&NodeFacts { id, ..(**facts).clone() }).unwrap();
    }
    assert_eq!(engine.place_batch(&batch, NOW).unwrap().placements.len(), 5);
}

// What an explanation may cost.

/// So many nodes, four to a rack.
fn racks(nodes: u32) -> Engine {
    let facts = (0..nodes).map(|number| {
        node_with(&format!("n{number:05}"), 64_000, 65_536, |facts| {
            facts.zone = Some("z".to_owned());
            facts.rack = Some(format!("r{:04}", number / 4));
        })
    });
    engine(builtin("balanced"), &facts.collect::<Vec<_>>())
}

/// Instances that must all be in different racks.
fn apart(count: u32) -> Batch {
    let member = |number: u32| {
        let mut member = request(u128::from(number) + 1, 100, 64);
        member.tags.insert("role".to_owned(), "wide".to_owned());
        member.affinity.push(Rule::parse("role!=wide@rack").unwrap());
        member
    };
    Batch::new((0..count).map(member).collect())
}

/// Steps that a call takes.
fn work_of(engine: &mut Engine, call: impl FnOnce(&mut Engine)) -> u64 {
    let before = engine.work_done();
    call(engine);
    engine.work_done() - before
}

#[test]
fn the_fixes_of_a_large_batch_take_a_bounded_number_of_steps() {
    // Racks of cordoned nodes are worth a try each, and are not enough.
    let mut engine = racks(4000);
    for number in 0..40 {
        let facts = node_with(&format!("c{number:02}"), 64_000, 65_536, |facts| {
            (facts.zone, facts.rack) = (Some("z".to_owned()), Some(format!("c{number:02}")));
            facts.state = NodeState::Cordoned;
        });
        engine.fleet_mut().add_node(&facts).unwrap();
    }
    let batch = apart(1041);
    let to_place = work_of(&mut engine, |engine| drop(engine.try_batch(&batch, NOW)));
    assert!(to_place >= 1001 * 63, "every member is a choice among all nodes: {to_place}");
    let mut fixes = Vec::new();
    let to_explain = work_of(&mut engine, |engine| {
        let outcome = engine.place_batch(&batch, NOW).unwrap();
        assert!(outcome.placements.is_empty());
        fixes.clone_from(&outcome.refused[0].1.fixes);
    });
    // To place it, to search, to diagnose it, and then 200,000 steps and one try for fixes.
    let bound = to_place + 20_000 * 8 + 10_000 + 200_000 + to_place;
    assert!(to_explain <= bound, "{to_explain} steps, {to_place} for one try");
    // As many as there are racks is found nevertheless.
    assert!(fixes.contains(&Fix::Fewer { count: 1000, of: 1041 }), "{fixes:?}");
}

#[test]
fn a_batch_of_many_classes_is_explained_for_some_of_them_and_within_the_same_steps() {
    let mut engine = racks(400);
    let member = |number: u32| {
        // Each class is another size, larger than any node.
        let mut member = request(u128::from(number) + 1, 100, 70_000 + number);
        member.tags.insert("role".to_owned(), "wide".to_owned());
        member
    };
    let batch = Batch::new((0..200).map(member).collect()).with_mode(BatchMode::AtLeast(1));
    let one = Batch::new(vec![member(0)]).with_mode(BatchMode::AtLeast(1));
    let of_one = work_of(&mut engine, |engine| drop(engine.place_batch(&one, NOW)));
    let mut outcome = None;
    let of_all =
        work_of(&mut engine, |engine| outcome = Some(engine.place_batch(&batch, NOW).unwrap()));
    let refused = outcome.unwrap().refused;
    assert_eq!(refused.len(), 16);
    assert!(refused.iter().all(|(_, refusal)| refusal.code == "no_capacity_memory"));
    let each = u64::from(200_u32) * 8;
    assert!(of_all <= 16 * of_one + 10 * each + 200_000, "{of_all} steps, {of_one} for one");
}

// What is read.

#[test]
fn one_combination_is_proposed_once_whatever_nodes_it_would_work_on() {
    let hosts =
        ["a", "b", "c"].map(|id| node_with(id, 1000, 4096, |facts| facts.is_virtual = true));
    let mut engine = engine(builtin("balanced"), &hosts);
    let mut wanted = request(1, 100, 9000);
    wanted.exclude_virtual = true;
    let fixes = refusal(&mut engine, &wanted).fixes;
    let combined: Vec<String> =
        fixes.iter().filter(|fix| is_combined(fix)).map(ToString::to_string).collect();
    let [text] = combined.as_slice() else { panic!("{combined:?}") };
    assert_eq!(text.matches("fits on").count(), 1, "{text}");
}

#[test]
fn a_batch_gives_up_only_what_is_short() {
    let hosts = ["a", "b"].map(|id| node(id, 8000, 4096));
    let mut engine = engine(builtin("balanced"), &hosts);
    let members = (0..2).map(|number| request(number + 1, 4000, 20_000)).collect();
    let refused = engine.place_batch(&Batch::new(members), NOW).unwrap().refused;
    let fixes = refused.into_iter().flat_map(|(_, refusal)| refusal.fixes);
    let shrink = fixes.into_iter().find(is_shrink);
    let Some(Fix::Shrink { resources, .. }) = shrink else { panic!("{shrink:?}") };
    assert_eq!(resources.cpu_milli, 4000, "CPU is not short");
    assert!(resources.memory_mib > 3000, "{resources}");
}

#[test]
fn waiting_brings_a_link_up_but_no_network_and_no_other_capacity_type() {
    use berth_engine::{LinkState, Network};
    let link = |link| Network { tag: "storage".to_owned(), link };
    let host = node_with("a", 1000, 4096, |facts| facts.networks = vec![link(LinkState::Down)]);
    let mut engine = engine(builtin("balanced"), &[host]);
    let on = |networks: &[&str]| {
        let mut wanted = request(1, 100, 512);
        wanted.networks = networks.iter().map(|tag| vec![(*tag).to_owned()]).collect();
        wanted
    };
    assert!(refusal(&mut engine, &on(&["storage"])).waiting_may_help);
    assert!(!refusal(&mut engine, &on(&["dmz"])).waiting_may_help);
    assert!(!refusal(&mut engine, &on(&["storage", "dmz"])).waiting_may_help);
    let mut spot = request(1, 100, 512);
    spot.capacity_type = Some(CapacityType::Spot);
    assert!(!refusal(&mut engine, &spot).waiting_may_help);
}
