//! Fixes of more than one change, of batches, and what is never proposed. Each is applied here.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_engine::affinity::Rule;
use berth_engine::{
    Amounts, Batch, BatchMode, CapacityType, Engine, Fix, InstanceRequest, NodeFacts, NodeId,
    NodeState, Refusal, TraitValue, Volume,
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

#[test]
fn an_instance_that_would_be_replaced_is_never_proposed_for_release() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    claim(&mut engine, &request(70, 0, 3000), "a");
    let wanted = request(1, 0, 2048);
    assert!(refusal(&mut engine, &wanted).fixes.iter().any(is_free));
    let id = request(70, 0, 3000).id;
    engine.fleet_mut().set_replaced(id, true);
    assert!(!refusal(&mut engine, &wanted).fixes.iter().any(is_free));
    assert!(engine.fleet().releasable_instances(&wanted.tenant).is_empty());
    // A preemption gives its room to the request in the same commit.
    let urgent = InstanceRequest { priority: 1, ..wanted.clone() };
    let preempts = |fix: &Fix| matches!(fix, Fix::Free { preempts: true, .. });
    let fixes = refusal(&mut engine, &urgent).fixes;
    assert!(fixes.iter().filter(|fix| is_free(fix)).all(preempts), "{fixes:?}");
    assert!(fixes.iter().any(preempts));
    engine.fleet_mut().set_replaced(id, false);
    assert!(refusal(&mut engine, &wanted).fixes.iter().any(is_free));
}

#[test]
fn waiting_may_help_where_a_neighbour_that_is_wanted_may_come() {
    let rack = |id: &str, rack: Option<&str>| {
        node_with(id, 1000, 4096, |facts| facts.rack = rack.map(str::to_owned))
    };
    let near_db = |scope: &str| {
        let mut wanted = request(1, 100, 512);
        wanted.affinity.push(Rule::parse(&format!("role==db{scope}")).unwrap());
        wanted
    };
    let mut plain = engine(builtin("balanced"), &[rack("a", None)]);
    assert!(refusal(&mut plain, &near_db("")).waiting_may_help, "one may come");
    assert!(!refusal(&mut plain, &near_db("@rack")).waiting_may_help, "it is in no rack");
    let mut racked = engine(builtin("balanced"), &[rack("a", Some("r1"))]);
    assert!(refusal(&mut racked, &near_db("@rack")).waiting_may_help);
    let large = InstanceRequest { resources: Amounts::new(100, 8192), ..near_db("") };
    assert!(!refusal(&mut racked, &large).waiting_may_help, "it is too small");
}

#[test]
fn waiting_moves_no_volume() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 1024), node("b", 1000, 4096)]);
    let (id, home) = ("data".to_owned(), NodeId::new("a"));
    engine.fleet_mut().put_volume(Volume { tenant: None, id, home, attached_to: None });
    let mut wanted = request(1, 100, 2048);
    wanted.volumes.push("data".to_owned());
    assert!(!refusal(&mut engine, &wanted).waiting_may_help, "its home is too small");
    wanted.resources.memory_mib = 512;
    claim(&mut engine, &request(70, 0, 900), "a");
    assert!(refusal(&mut engine, &wanted).waiting_may_help, "its home is only full");
}

// The state of a node.

#[test]
fn a_state_that_keeps_instances_out_is_named_and_only_an_operator_ends_what_one_began() {
    let states = [
        (NodeState::Cordoned, "uncordon it"),
        (NodeState::Draining, "cancel its drain"),
        (NodeState::Degraded, "repair what its agent reports, which ends the state"),
        (NodeState::Lost, "start the host or its agent, whose next heartbeat ends the state"),
    ];
    let mut nodes = Vec::new();
    // From last to first, each is preferred to those before it.
    for (number, (state, remedy)) in states.into_iter().enumerate().rev() {
        let id = format!("n{}", 9 - number);
        nodes.push(node_with(&id, 1000, 4096, |facts| facts.state = state));
        let mut engine = engine(builtin("balanced"), &nodes);
        let found = fix(&mut engine, &request(1, 100, 512), |fix| matches!(fix, Fix::Mend { .. }));
        let Fix::Mend { node, state: named, remedy: text, .. } = found else { panic!("a mend") };
        let named = (node.unwrap().to_string(), named, text.to_string());
        assert_eq!(named, (id, Some(state), remedy.to_owned()));
    }
}

// Batches.

/// Whether the refusal of a batch says that waiting may help.
fn may_wait(engine: &mut Engine, members: Vec<InstanceRequest>) -> bool {
    batch_refusal(engine, &Batch::new(members)).waiting_may_help
}

fn members(count: u128, change: impl Fn(&mut InstanceRequest)) -> Vec<InstanceRequest> {
    let member = |number: u128| {
        let mut member = request(number, 100, 1000);
        change(&mut member);
        member
    };
    (1..=count).map(member).collect()
}

#[test]
fn waiting_may_help_a_batch_only_if_nodes_that_may_take_it_could_hold_all_of_it() {
    let ssd = |facts: &mut NodeFacts| {
        drop(facts.traits.insert("ssd".to_owned(), TraitValue::Bool(true)));
    };
    let mut nodes: Vec<NodeFacts> =
        (0..4).map(|number| node(&format!("n{number}"), 64_000, 65_536)).collect();
    nodes.push(node_with("fast", 64_000, 4400, ssd));
    let mut engine = engine(builtin("balanced"), &nodes);
    claim(&mut engine, &request(70, 0, 4000), "fast");
    let on_ssd = |member: &mut InstanceRequest| {
        drop(member.traits.insert("ssd".to_owned(), TraitValue::Bool(true)));
    };
    assert!(may_wait(&mut engine, members(4, on_ssd)), "the one node holds four");
    assert!(!may_wait(&mut engine, members(10, on_ssd)), "and no ten");
}

#[test]
fn waiting_does_not_help_a_batch_that_must_be_apart_on_more_nodes_than_there_are() {
    let nodes = ["a", "b", "c"].map(|id| node(id, 64_000, 4096));
    let mut engine = engine(builtin("balanced"), &nodes);
    for (number, id) in [(70, "a"), (71, "b"), (72, "c")] {
        claim(&mut engine, &request(number, 0, 3500), id);
    }
    let apart = |member: &mut InstanceRequest| {
        member.tags.insert("role".to_owned(), "web".to_owned());
        member.affinity.push(Rule::parse("role!=web").unwrap());
    };
    assert!(may_wait(&mut engine, members(3, apart)));
    assert!(!may_wait(&mut engine, members(5, apart)));
    // Many of them are counted, not searched.
    assert!(!may_wait(&mut engine, members(40, apart)));
}

#[test]
fn waiting_does_not_help_a_batch_of_two_kinds_that_share_too_little_room() {
    let mut engine = engine(builtin("balanced"), &[node("a", 64_000, 8192)]);
    claim(&mut engine, &request(70, 0, 4000), "a");
    let mixed = |large: u128, small: u128| {
        let mut all = members(large + small, |_| {});
        all.iter_mut().take(usize::try_from(large).unwrap()).for_each(|member| {
            member.resources.memory_mib = 3000;
        });
        all
    };
    assert!(may_wait(&mut engine, mixed(2, 2)));
    assert!(!may_wait(&mut engine, mixed(2, 3)), "each kind fits alone, both do not");
}

#[test]
fn what_was_left_out_of_a_batch_waits_next_to_those_that_were_placed() {
    let nodes = ["a", "b", "c"].map(|id| node(id, 64_000, 4096));
    let apart = |member: &mut InstanceRequest| {
        member.tags.insert("role".to_owned(), "web".to_owned());
        member.affinity.push(Rule::parse("role!=web").unwrap());
    };
    let mut open = engine(builtin("balanced"), &nodes);
    let some = Batch::new(members(5, apart)).with_mode(BatchMode::BestEffort);
    let refused = open.place_batch(&some, NOW).unwrap().refused;
    assert!(!refused[0].1.waiting_may_help, "its siblings stay where they are");
    claim(&mut open, &request(70, 0, 3500), "a");
    let three = Batch::new(members(3, apart)).with_mode(BatchMode::BestEffort);
    let refused = open.place_batch(&three, NOW).unwrap().refused;
    assert!(refused[0].1.waiting_may_help, "the third node is full of others");
}

#[test]
fn what_was_placed_of_a_batch_makes_no_room_for_the_rest() {
    let mut engine = engine(builtin("balanced"), &[node("a", 64_000, 4096)]);
    let some = Batch::new(members(6, |_| {})).with_mode(BatchMode::BestEffort);
    let outcome = engine.place_batch(&some, NOW).unwrap();
    assert_eq!(outcome.placements.len(), 4);
    let refused = &outcome.refused[0].1;
    assert!(!refused.fixes.iter().any(is_free), "{refused}");
    // Nothing that leaves would help, so that is not advised either.
    assert!(!refused.waiting_may_help && !refused.remedy.contains("release"), "{refused}");
}

#[test]
fn nodes_that_are_added_for_a_batch_are_few_and_small() {
    let mut engine = engine(builtin("balanced"), &[node("a", 64_000, 16_384)]);
    claim(&mut engine, &request(70, 0, 15_000), "a");
    // The roomiest node holds 16 such: the 20 that are left need two nodes, for ten each.
    let found = batch_refusal(&mut engine, &Batch::new(members(21, |_| {}))).fixes;
    let added = found.iter().find_map(|fix| match fix {
        Fix::AddNode { shape, count, .. } => Some((*shape, *count)),
        _ => None,
    });
    let (shape, count) = added.unwrap();
    assert_eq!((count, shape.memory_mib), (2, 10 * 1064), "{shape}");
}

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
