//! Groups and rules hold under a race: scenarios 5 and 6, and rules about tags.

use std::collections::BTreeSet;

use berth_conformance::{Claimant, Fixture, Outcome, PlaceTask, Task, Violation, ViolationKind};
use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::{Group, GroupKind, InstanceRequest};

use crate::common::{
    WORKERS, assert_clean, assert_mirrors, assert_none, instance, outcomes, place_each, pool, round,
};

fn group(kind: GroupKind, topology: Topology, max_per_domain: Option<u32>) -> Group {
    let (id, strength) = ("placement_group".to_owned(), Strength::Hard);
    Group { id, tenant: None, kind, strength, topology, max_per_domain }
}

fn member(number: u128) -> InstanceRequest {
    let mut member = instance(number, 64);
    member.groups.push("placement_group".to_owned());
    member
}

fn members(round: u128) -> Vec<PlaceTask> {
    (0..WORKERS as u128).map(|worker| PlaceTask::one(member(round * 100 + worker + 1))).collect()
}

fn eight_nodes(fixture: &Fixture, memory_mib: u32) {
    for number in 0..8 {
        let (name, rack) = (format!("n{number}"), format!("r{}", number / 2));
        fixture.put_node(Fixture::facts(&name, 1_000_000, memory_mib, &rack)).unwrap();
    }
}

/// Eight members at once over eight nodes: one each.
pub(crate) fn apart(fixture: &Fixture, rounds: u128) -> Vec<Violation> {
    eight_nodes(fixture, 65_536);
    fixture.put_group(group(GroupKind::Apart, Topology::Node, None)).unwrap();
    let mut pool = pool(fixture);
    let mut violations = Vec::new();
    for number in 0..rounds {
        let outcomes = place_each(fixture, &mut pool, members(number));
        for outcome in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
            violations.push(Violation::new(
                ViolationKind::Granted,
                format!("a node is left, yet {outcome:?}"),
            ));
        }
        violations.extend(fixture.violations().unwrap());
        if !violations.is_empty() {
            return violations;
        }
        if fixture.claimant == Claimant::Placer {
            assert_ninth_is_constrained(fixture, &mut pool, member(number * 100 + 99));
        }
        fixture.clear().unwrap();
    }
    if fixture.claimant == Claimant::Placer {
        assert_mirrors(fixture, &mut pool);
    }
    violations
}

/// A further member is refused for the group's sake, though every node has room.
fn assert_ninth_is_constrained(
    fixture: &Fixture,
    pool: &mut berth_conformance::WorkerPool,
    ninth: InstanceRequest,
) {
    let outcomes = place_each(fixture, pool, vec![PlaceTask::one(ninth)]);
    let [outcome] = outcomes.as_slice() else { panic!("{fixture}: {outcomes:?}") };
    let refusal = outcome.refusal().unwrap_or_else(|| panic!("{fixture}: {outcome:?}"));
    assert_eq!(refusal["code"], "group_no_node", "{fixture}: {refusal}");
    assert_eq!(refusal["counts"].as_array().unwrap().len(), 1, "{fixture}: {refusal}");
    assert_eq!(refusal["counts"][0]["removed"], 8, "{fixture}: {refusal}");
}

pub(crate) fn a_group_stays_apart(fixture: &Fixture) {
    assert_none(fixture, &apart(fixture, 8));
    assert_clean(fixture);
}

pub(crate) fn at_most_two_in_a_rack(fixture: &Fixture) {
    // Four racks of two nodes, so eight members fit; a node may have both of its rack's.
    eight_nodes(fixture, 65_536);
    fixture.put_group(group(GroupKind::Apart, Topology::Rack, Some(2))).unwrap();
    let mut pool = pool(fixture);
    for number in 0..8 {
        let outcomes = place_each(fixture, &mut pool, members(number));
        let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
        assert_eq!(granted, 8, "{fixture}: {outcomes:?}");
        let state = fixture.state().unwrap();
        let racks: BTreeSet<&i64> = state.domains.values().collect();
        assert_eq!(racks, BTreeSet::from([&2]), "{fixture}: {:?}", state.domains);
        assert_none(fixture, &fixture.violations().unwrap());
        assert_ninth_is_constrained(fixture, &mut pool, member(number * 100 + 99));
        fixture.clear().unwrap();
    }
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}

/// Eight members of an empty group at once: one node for all.
pub(crate) fn together(fixture: &Fixture, rounds: u128) -> Vec<Violation> {
    eight_nodes(fixture, 65_536);
    fixture.put_group(group(GroupKind::Together, Topology::Node, None)).unwrap();
    let mut pool = pool(fixture);
    let mut violations = Vec::new();
    for number in 0..rounds {
        let outcomes = place_each(fixture, &mut pool, members(number));
        if fixture.claimant == Claimant::Placer {
            for outcome in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
                violations.push(Violation::new(
                    ViolationKind::Granted,
                    format!("there is room, yet {outcome:?}"),
                ));
            }
        }
        violations.extend(fixture.violations().unwrap());
        if !violations.is_empty() {
            return violations;
        }
        fixture.clear().unwrap();
    }
    if fixture.claimant == Claimant::Placer {
        assert_mirrors(fixture, &mut pool);
    }
    violations
}

pub(crate) fn a_group_stays_together(fixture: &Fixture) {
    assert_none(fixture, &together(fixture, 8));
    assert_clean(fixture);
    let full = Fixture::new(fixture.database).unwrap();
    a_full_home_is_named(&full);
    assert_clean(&full);
}

/// Nodes hold four members each: four are placed, and the others learn that their node is full.
fn a_full_home_is_named(fixture: &Fixture) {
    eight_nodes(fixture, 256);
    fixture.put_group(group(GroupKind::Together, Topology::Node, None)).unwrap();
    let mut pool = pool(fixture);
    let outcomes = place_each(fixture, &mut pool, members(0));
    let homes: BTreeSet<&str> =
        outcomes.iter().flat_map(Outcome::claims).map(|claim| claim.node.as_str()).collect();
    let granted = outcomes.iter().filter(|outcome| outcome.is_granted()).count();
    assert_eq!((granted, homes.len()), (4, 1), "{fixture}: {outcomes:?}");
    let home = homes.first().unwrap();
    for outcome in outcomes.iter().filter(|outcome| !outcome.is_granted()) {
        let refusal = outcome.refusal().unwrap_or_else(|| panic!("{fixture}: {outcome:?}"));
        assert_eq!(refusal["code"], "no_capacity_memory", "{fixture}: {refusal}");
        let misses = refusal["nearest"].as_array().unwrap();
        let full = misses.iter().find(|miss| miss["filter"] == "memory").unwrap();
        assert_eq!(full["node"], **home, "{fixture}: {refusal}");
        let groups = refusal["counts"].as_array().unwrap();
        let elsewhere = groups.iter().find(|count| count["filter"] == "groups").unwrap();
        assert_eq!(elsewhere["removed"], 7, "{fixture}: {refusal}");
    }
}

/// Every instance forbids others of its tag on its node, so each claim changes what the next plan
/// rests on. There is a node for each, so no one may be turned away.
pub(crate) fn rules_about_tags_hold(fixture: &Fixture) {
    eight_nodes(fixture, 65_536);
    let mut pool = pool(fixture);
    for number in 0..8u128 {
        let ask = |worker: usize| {
            let mut one = instance(number * 100 + worker as u128 + 1, 64);
            one.tags.insert("role".to_owned(), "db".to_owned());
            one.affinity.push(Rule::parse("role!=db").unwrap());
            PlaceTask::one(one)
        };
        let outcomes = place_each(fixture, &mut pool, (0..WORKERS).map(ask).collect());
        let nodes: BTreeSet<&str> =
            outcomes.iter().flat_map(Outcome::claims).map(|claim| claim.node.as_str()).collect();
        assert_eq!(nodes.len(), WORKERS, "{fixture}: round {number}: {outcomes:?}");
        assert_none(fixture, &fixture.violations().unwrap());
        fixture.clear().unwrap();
    }
    // On one node, where the rules agree with each other, there is room for all. One that others
    // outran every time may be told so, but none may be told that there is no room.
    let tasks = (0..WORKERS).map(|worker| {
        let from = (worker as u128 + 1) * 10_000;
        let asks = (from..from + 10).map(|id| {
            let mut one = instance(id, 64);
            one.tags.insert("role".to_owned(), "web".to_owned());
            one.affinity.push(Rule::parse("role!=db").unwrap());
            PlaceTask::one(one)
        });
        Task::Place(asks.collect())
    });
    let outcomes = outcomes(&round(fixture, &mut pool, tasks.collect()));
    let fine = |outcome: &&Outcome| {
        outcome.is_granted()
            || matches!(outcome, Outcome::Contended { code, .. } if code == "rules_changed")
    };
    let refused: Vec<_> = outcomes.iter().filter(|outcome| !fine(outcome)).collect();
    assert!(refused.is_empty(), "{fixture}: {} turned away: {refused:?}", refused.len());
    assert_mirrors(fixture, &mut pool);
    assert_clean(fixture);
}
