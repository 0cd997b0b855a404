//! Behaviour that was once wrong. Each test states what is right.

mod common;

use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::{
    Batch, BatchMode, Fix, Group, GroupKind, InstanceId, NodeFacts, NodeId, Platform,
    PlatformVersion, SearchEnd, Timestamp, TraitValue,
};
use common::{
    NOW, builtin, claim, engine, node, node_with, place, place_at, refusal, request, scores,
    survivors, values_at,
};

fn in_rack(id: &str, rack: &str) -> NodeFacts {
    node_with(id, 1000, 4096, |facts| facts.rack = Some(rack.to_owned()))
}

#[test]
fn a_node_that_changes_rack_takes_its_instances_along() {
    let mut engine = engine(builtin("balanced"), &[in_rack("a", "r1"), in_rack("b", "r1")]);
    engine.fleet_mut().put_group(Group {
        id: "db".to_owned(),
        tenant: None,
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Rack,
        max_per_domain: None,
    });
    let mut first = request(10, 0, 1);
    first.groups = vec!["db".to_owned()];
    claim(&mut engine, &first, "a");
    // a is carried to another rack, with what runs on it: now b's rack has no member.
    engine.fleet_mut().add_node(&in_rack("a", "r2")).unwrap();
    let mut second = request(11, 0, 1);
    second.groups = vec!["db".to_owned()];
    assert_eq!(survivors(&mut engine, &second), ["b"]);
    // And when it is released, no rack has one.
    engine.fleet_mut().release(InstanceId::from_u128(10));
    assert_eq!(survivors(&mut engine, &second), ["a", "b"]);
}

fn built(id: &str, at: i64) -> NodeFacts {
    node_with(id, 1000, 4096, |facts| {
        facts.platform =
            Some(Platform { version: PlatformVersion::new(7, 0), built_at: Timestamp(at) });
    })
}

#[test]
fn facts_that_change_while_the_clock_steps_back_are_not_missed() {
    let nodes = [built("a", 100), built("b", 200)];
    let mut engine = engine(scores("newest-platform = 1"), &nodes);
    let wanted = request(1, 0, 1);
    assert_eq!(place(&mut engine, &wanted), "b");
    engine.fleet_mut().add_node(&built("c", 300)).unwrap();
    let earlier = NOW.plus(-1);
    let found = values_at(&mut engine, &wanted, "newest-platform", earlier);
    assert_eq!(found, [0, 500_000, 1_000_000]);
    assert_eq!(place_at(&mut engine, &wanted, earlier), "c");
}

#[test]
fn a_reboot_counts_again_when_the_clock_steps_back() {
    let nodes = [
        node("a", 1000, 4096),
        node_with("b", 1000, 4096, |facts| {
            facts.next_reboot = Some(NOW.plus(10));
        }),
        node_with("c", 1000, 4096, |facts| {
            facts.next_reboot = Some(NOW.plus(30 * Timestamp::DAY));
        }),
    ];
    let mut engine = engine(scores("next-reboot = 1"), &nodes);
    let wanted = request(1, 0, 1);
    let before = [1_000_000, 0, 500_000];
    assert_eq!(values_at(&mut engine, &wanted, "next-reboot", NOW), before);
    let after = values_at(&mut engine, &wanted, "next-reboot", NOW.plus(20));
    assert_eq!(after, [1_000_000, 1_000_000, 0]);
    assert_eq!(values_at(&mut engine, &wanted, "next-reboot", NOW), before);
}

#[test]
fn a_batch_explains_an_instance_that_does_not_fit_and_not_one_that_does() {
    // Greedy puts the small one on the only node for the huge one and stops. Largest first places
    // four and stops at the fourth medium one; the small one was not tried, and would fit.
    let nodes =
        [node("a", 1000, 1000), node("b", 1000, 100), node("c", 1000, 100), node("d", 1000, 100)];
    let mut engine = engine(scores("memory-spread = 1"), &nodes);
    let mut requests = vec![request(1, 0, 5), request(2, 0, 1000)];
    requests.extend((3..=6).map(|number| request(number, 0, 60)));
    let outcome = engine.place_batch(&Batch::new(requests), NOW).unwrap();
    assert_eq!(outcome.end, SearchEnd::DoesNotFit);
    let (id, refusal) = &outcome.refused[0];
    assert_eq!(*id, InstanceId::from_u128(6), "one of the medium ones");
    assert_eq!(refusal.code, "no_capacity_memory");
    let removed: usize = refusal.counts.iter().map(|count| count.removed).sum();
    assert_eq!(removed, refusal.nodes, "every node is accounted for");
}

#[test]
fn an_instance_that_waits_for_another_of_its_batch_is_placed_after_it() {
    let nodes = [node("a", 1000, 4096), node("b", 1000, 4096)];
    let mut engine = engine(builtin("balanced"), &nodes);
    let mut web = request(1, 0, 1024);
    web.affinity = vec![Rule::parse("role==db").unwrap()];
    let mut database = request(2, 0, 512);
    database.tags.insert("role".to_owned(), "db".to_owned());
    let batch = Batch::new(vec![web, database]).with_mode(BatchMode::BestEffort);
    let outcome = engine.place_batch(&batch, NOW).unwrap();
    let placed: Vec<&str> = outcome.placements.iter().map(|placed| placed.node.as_str()).collect();
    assert_eq!(placed, ["a", "a"]);
    assert!(outcome.refused.is_empty());
}

#[test]
fn a_request_that_fits_needs_no_victims() {
    let nodes = [node("a", 1000, 1024), node("b", 1000, 1024)];
    let mut engine = engine(builtin("balanced"), &nodes);
    claim(&mut engine, &request(10, 0, 1024), "a");
    let mut urgent = request(1, 0, 512);
    urgent.priority = 10;
    assert_eq!(place(&mut engine, &urgent), "b");
    assert_eq!(engine.propose_preemption(&urgent, NOW, &|_| true), None);
    assert!(engine.fleet().node(&NodeId::new("b")).is_some());
}

#[test]
fn a_refused_batch_does_not_propose_to_release_its_own_members() {
    // None of them is placed, so there is nothing to release. The golden texts
    // `batch_that_does_not_fit` and `batch_out_of_budget` in explanations.rs agree.
    let nodes = [node("a", 1000, 1000), node("b", 1000, 1000)];
    let mut engine = engine(builtin("pack"), &nodes);
    let requests = (1..=3).map(|number| request(number, 0, 600)).collect();
    let outcome = engine.place_batch(&Batch::new(requests), NOW).unwrap();
    let (_, refused) = &outcome.refused[0];
    let releases = |fix: &Fix| matches!(fix, Fix::Free { .. });
    assert!(!refused.fixes.iter().any(releases), "{:?}", refused.fixes);
}

#[test]
fn a_proposed_node_is_told_what_else_it_must_have() {
    // A node of the proposed shape without the class, or without the trait, would not help.
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    let mut with_class = request(1, 0, 512);
    with_class.extra.insert("gpu".to_owned(), 2);
    let mut with_trait = request(2, 0, 512);
    let wanted = TraitValue::Text("gpu-a100".to_owned());
    with_trait.traits.insert("accelerator".to_owned(), wanted);
    for wanted in [with_class, with_trait] {
        let fixes = refusal(&mut engine, &wanted).fixes;
        let added = fixes.iter().find(|fix| matches!(fix, Fix::AddNode { .. }));
        let text = added.map(ToString::to_string).unwrap_or_default();
        assert!(text.contains("gpu"), "{text}");
    }
}

#[test]
fn the_neighbour_that_a_hard_rule_needs_is_never_proposed_for_release() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    let mut db = request(1, 0, 4000);
    db.tags.insert("role".to_owned(), "db".to_owned());
    claim(&mut engine, &db, "a");
    let mut web = request(2, 0, 2000);
    web.affinity = vec![Rule::parse("role==db").unwrap()];
    let fixes = refusal(&mut engine, &web).fixes;
    assert!(!fixes.iter().any(|fix| matches!(fix, Fix::Free { .. })), "{fixes:?}");
}

#[test]
fn a_node_is_proposed_with_a_zone_for_a_group_that_needs_one_to_start_in() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    engine.fleet_mut().put_group(Group {
        id: "pair".to_owned(),
        tenant: None,
        kind: GroupKind::Together,
        strength: Strength::Hard,
        topology: Topology::Zone,
        max_per_domain: None,
    });
    let mut first = request(1, 0, 1);
    first.groups = vec!["pair".to_owned()];
    let fixes = refusal(&mut engine, &first).fixes;
    let facts = fixes.iter().find_map(|fix| match fix {
        Fix::AddNode { facts, .. } => Some(facts),
        _ => None,
    });
    let facts = facts.unwrap_or_else(|| panic!("{fixes:?}"));
    assert!(facts.zone.is_some());
    engine.fleet_mut().add_node(facts).unwrap();
    assert_eq!(engine.place(&first, NOW).unwrap().node, facts.id);
}

#[test]
fn what_the_exact_search_finds_has_its_score_and_takes_along_whatever_else_fits() {
    // Largest first puts 6 on the larger node and strands the rest; only 5+5 and 6+4 works.
    let nodes = [node("a", 1000, 10), node("b", 1000, 10)];
    let mut engine = engine(builtin("pack"), &nodes);
    let sizes = [6, 5, 5, 4];
    let requests: Vec<_> = (0u128..).zip(sizes).map(|(n, size)| request(n, 0, size)).collect();
    let batch = Batch::new(requests).with_mode(BatchMode::AllOrNothing);
    let outcome = engine.place_batch(&batch, NOW).unwrap();
    assert_eq!(outcome.placements.len(), 4, "{:?}", outcome.end);
    assert!(outcome.placements.iter().all(|placement| placement.score > 0));
}

#[test]
fn a_request_read_from_json_gets_the_default_disk_unless_it_names_one() {
    let read = |resources: &str| {
        let id = InstanceId::from_u128(1);
        let text = format!(r#"{{"id":"{id}","tenant":"acme","resources":{resources}}}"#);
        serde_json::from_str::<berth_engine::InstanceRequest>(&text).map(|r| r.resources.disk_mib)
    };
    assert_eq!(read(r#"{"memory_mib":512}"#).unwrap(), 4096);
    assert_eq!(read(r#"{"memory_mib":512,"disk_mib":0}"#).unwrap(), 0);
    assert!(read(r#"{"disk_mib":1}"#).is_err(), "memory has no default");
    assert!(read(r#"{"memory_mib":1,"memory":1}"#).is_err(), "unknown fields are refused");
}
