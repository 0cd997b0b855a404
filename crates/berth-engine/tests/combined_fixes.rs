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
