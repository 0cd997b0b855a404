//! Groups and rules hold under a race: scenarios 5 and 6, and rules about tags.

use std::collections::BTreeSet;

use berth_conformance::{Ask, Claimant, Fault, Kind, Outcome, Stage, Task};
use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::{Group, GroupKind, InstanceRequest};

use crate::setting::{
    CREW, assert_clean, assert_mirrors, assert_none, crew, instance, outcomes, place_each, round,
};

fn group(kind: GroupKind, topology: Topology, max_per_domain: Option<u32>) -> Group {
    let (id, strength) = ("team".to_owned(), Strength::Hard);
    Group { id, owner: None, kind, strength, topology, max_per_domain }
}

fn member(number: u128) -> InstanceRequest {
    let mut member = instance(number, 64);
    member.groups.push("team".to_owned());
    member
}

fn members(round: u128) -> Vec<Ask> {
    (0..CREW as u128).map(|worker| Ask::one(member(round * 100 + worker + 1))).collect()
}

fn eight_nodes(stage: &Stage, memory_mib: u32) {
    for number in 0..8 {
        let (name, rack) = (format!("n{number}"), format!("r{}", number / 2));
        stage.put_node(Stage::facts(&name, 1_000_000, memory_mib, &rack)).unwrap();
    }
}

/// Eight members at once over eight nodes: one each.
pub(crate) fn apart(stage: &Stage, rounds: u128) -> Vec<Fault> {
    eight_nodes(stage, 65_536);
    stage.put_group(group(GroupKind::Apart, Topology::Node, None)).unwrap();
    let mut crew = crew(stage);
    let mut faults = Vec::new();
    for number in 0..rounds {
        let outcomes = place_each(stage, &mut crew, members(number));
        for outcome in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
            faults.push(Fault::new(Kind::Granted, format!("a node is left, yet {outcome:?}")));
        }
        faults.extend(stage.faults().unwrap());
        if !faults.is_empty() {
            return faults;
        }
        if stage.claimant == Claimant::Placer {
            assert_ninth_is_constrained(stage, &mut crew, member(number * 100 + 99));
        }
        stage.clear().unwrap();
    }
    if stage.claimant == Claimant::Placer {
        assert_mirrors(stage, &mut crew);
    }
    faults
}

/// A further member is refused for the group's sake, though every node has room.
fn assert_ninth_is_constrained(
    stage: &Stage,
    crew: &mut berth_conformance::Crew,
    ninth: InstanceRequest,
) {
    let outcomes = place_each(stage, crew, vec![Ask::one(ninth)]);
    let [outcome] = outcomes.as_slice() else { panic!("{stage}: {outcomes:?}") };
    let refusal = outcome.refusal().unwrap_or_else(|| panic!("{stage}: {outcome:?}"));
    assert_eq!(refusal["code"], "group_no_node", "{stage}: {refusal}");
    assert_eq!(refusal["counts"].as_array().unwrap().len(), 1, "{stage}: {refusal}");
    assert_eq!(refusal["counts"][0]["removed"], 8, "{stage}: {refusal}");
}

pub(crate) fn a_group_stays_apart(stage: &Stage) {
    assert_none(stage, &apart(stage, 8));
    assert_clean(stage);
}

pub(crate) fn at_most_two_in_a_rack(stage: &Stage) {
    // Four racks of two nodes, so eight members fit; a node may have both of its rack's.
    eight_nodes(stage, 65_536);
    stage.put_group(group(GroupKind::Apart, Topology::Rack, Some(2))).unwrap();
    let mut crew = crew(stage);
    for number in 0..8 {
        let outcomes = place_each(stage, &mut crew, members(number));
        let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        assert_eq!(granted, 8, "{stage}: {outcomes:?}");
        let books = stage.books().unwrap();
        let racks: BTreeSet<&i64> = books.domains.values().collect();
        assert_eq!(racks, BTreeSet::from([&2]), "{stage}: {:?}", books.domains);
        assert_none(stage, &stage.faults().unwrap());
        assert_ninth_is_constrained(stage, &mut crew, member(number * 100 + 99));
        stage.clear().unwrap();
    }
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}

/// Eight members of an empty group at once: one node for all.
pub(crate) fn together(stage: &Stage, rounds: u128) -> Vec<Fault> {
    eight_nodes(stage, 65_536);
    stage.put_group(group(GroupKind::Together, Topology::Node, None)).unwrap();
    let mut crew = crew(stage);
    let mut faults = Vec::new();
    for number in 0..rounds {
        let outcomes = place_each(stage, &mut crew, members(number));
        if stage.claimant == Claimant::Placer {
            for outcome in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
                faults.push(Fault::new(Kind::Granted, format!("there is room, yet {outcome:?}")));
            }
        }
        faults.extend(stage.faults().unwrap());
        if !faults.is_empty() {
            return faults;
        }
        stage.clear().unwrap();
    }
    if stage.claimant == Claimant::Placer {
        assert_mirrors(stage, &mut crew);
    }
    faults
}

pub(crate) fn a_group_stays_together(stage: &Stage) {
    assert_none(stage, &together(stage, 8));
    assert_clean(stage);
    let full = Stage::new(stage.engine).unwrap();
    a_full_home_is_named(&full);
    assert_clean(&full);
}

/// Nodes hold four members each: four are placed, and the others learn that their node is full.
fn a_full_home_is_named(stage: &Stage) {
    eight_nodes(stage, 256);
    stage.put_group(group(GroupKind::Together, Topology::Node, None)).unwrap();
    let mut crew = crew(stage);
    let outcomes = place_each(stage, &mut crew, members(0));
    let homes: BTreeSet<&str> =
        outcomes.iter().flat_map(Outcome::claims).map(|claim| claim.node.as_str()).collect();
    let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
    assert_eq!((granted, homes.len()), (4, 1), "{stage}: {outcomes:?}");
    let home = homes.first().unwrap();
    for outcome in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
        let refusal = outcome.refusal().unwrap_or_else(|| panic!("{stage}: {outcome:?}"));
        assert_eq!(refusal["code"], "no_capacity_memory", "{stage}: {refusal}");
        let misses = refusal["nearest"].as_array().unwrap();
        let full = misses.iter().find(|miss| miss["filter"] == "memory").unwrap();
        assert_eq!(full["node"], **home, "{stage}: {refusal}");
        let groups = refusal["counts"].as_array().unwrap();
        let elsewhere = groups.iter().find(|count| count["filter"] == "groups").unwrap();
        assert_eq!(elsewhere["removed"], 7, "{stage}: {refusal}");
    }
}

/// Every instance forbids others of its tag on its node, so each claim changes what the next plan
/// rests on. There is a node for each, so nobody may be turned away.
pub(crate) fn rules_about_tags_hold(stage: &Stage) {
    eight_nodes(stage, 65_536);
    let mut crew = crew(stage);
    for number in 0..8u128 {
        let ask = |worker: usize| {
            let mut one = instance(number * 100 + worker as u128 + 1, 64);
            one.tags.insert("role".to_owned(), "db".to_owned());
            one.affinity.push(Rule::parse("role!=db").unwrap());
            Ask::one(one)
        };
        let outcomes = place_each(stage, &mut crew, (0..CREW).map(ask).collect());
        let nodes: BTreeSet<&str> =
            outcomes.iter().flat_map(Outcome::claims).map(|claim| claim.node.as_str()).collect();
        assert_eq!(nodes.len(), CREW, "{stage}: round {number}: {outcomes:?}");
        assert_none(stage, &stage.faults().unwrap());
        stage.clear().unwrap();
    }
    // On one node, where the rules agree with each other, there is room for all. One that others
    // outran every time may be told so, but none may be told that there is no room.
    let tasks = (0..CREW).map(|worker| {
        let from = (worker as u128 + 1) * 10_000;
        let asks = (from..from + 10).map(|id| {
            let mut one = instance(id, 64);
            one.tags.insert("role".to_owned(), "web".to_owned());
            one.affinity.push(Rule::parse("role!=db").unwrap());
            Ask::one(one)
        });
        Task::Place(asks.collect())
    });
    let outcomes = outcomes(&round(stage, &mut crew, tasks.collect()));
    let fine = |outcome: &&Outcome| {
        outcome.is_granted()
            || matches!(outcome, Outcome::Contended { code, .. } if code == "rules_changed")
    };
    let refused: Vec<_> = outcomes.iter().filter(|outcome| !fine(outcome)).collect();
    assert!(refused.is_empty(), "{stage}: {} turned away: {refused:?}", refused.len());
    assert_mirrors(stage, &mut crew);
    assert_clean(stage);
}
