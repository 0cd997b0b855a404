//! Where a request asks to be, and where it would rather be.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_engine::node_selector::NodeSelector;
use berth_engine::{
    Audience, BUILTIN_POLICIES, Engine, Fix, InstanceRequest, NodeFacts, NodeId, Notice, Policy,
    Reuse,
};
use common::{
    NOW, builtin, claim, engine, node, node_with, place, policy, refusal, request, survivors,
    totals,
};

fn at(id: &str, zone: &str, rack: &str) -> NodeFacts {
    node_with(id, 8000, 65_536, |facts| {
        facts.zone = Some(zone.to_owned());
        facts.rack = Some(rack.to_owned());
    })
}

fn fleet() -> Vec<NodeFacts> {
    let mut nodes = vec![
        at("a", "z1", "secret-rack-1"),
        at("b", "z1", "secret-rack-2"),
        at("c", "z2", "secret-rack-3"),
    ];
    nodes[1].labels.insert("tier".to_owned(), "gold".to_owned());
    nodes
}

fn in_place(number: u128, text: &str) -> InstanceRequest {
    let required_place = Some(NodeSelector::parse(text).unwrap());
    InstanceRequest { required_place, ..request(number, 1000, 1024) }
}

fn rather(number: u128, texts: &[&str]) -> InstanceRequest {
    let selectors = texts.iter().map(|text| NodeSelector::parse(text).unwrap());
    InstanceRequest { preferred_places: selectors.collect(), ..request(number, 1000, 1024) }
}

#[test]
fn a_required_place_is_the_only_place() {
    let table: [(&str, &[&str]); 6] = [
        ("zone = z2", &["c"]),
        ("zone = z1 and not rack = secret-rack-1", &["b"]),
        ("node in (a, c)", &["a", "c"]),
        ("label:tier = gold or zone = z2", &["b", "c"]),
        ("not has label:tier", &["a", "c"]),
        ("zone != z9", &["a", "b", "c"]),
    ];
    for name in BUILTIN_POLICIES {
        let mut engine = engine(builtin(name), &fleet());
        for (text, expected) in table {
            assert_eq!(survivors(&mut engine, &in_place(1, text)), expected, "{name}: {text}");
            let placed = place(&mut engine, &in_place(1, text));
            assert!(expected.contains(&placed.as_str()), "{name}: {text} at {placed}");
        }
    }
}

#[test]
fn a_refusal_echoes_the_request_and_names_no_rack() {
    let mut engine = engine(builtin("balanced"), &fleet());
    let wanted = in_place(1, "zone = z3 and label:tier = gold");
    let refused = refusal(&mut engine, &wanted);
    assert_eq!(refused.code, "placement_no_node");
    assert_eq!(refused.counts[0].filter, "placement-constraint");
    let policy = builtin("balanced");
    let seen = refused.redacted_for(Audience::Tenant("acme"), &policy);
    let text = serde_json::to_string(&seen).unwrap();
    assert!(text.contains("zone = z3"), "{text}");
    assert!(
        !text.contains("secret-rack") && !text.contains("z1") && !text.contains("z2"),
        "{text}"
    );
}

#[test]
fn dropping_the_part_that_fails_is_proposed_and_works() {
    let mut engine = engine(builtin("balanced"), &fleet());
    let wanted = in_place(1, "zone = z3 and label:tier = gold");
    let fixes = refusal(&mut engine, &wanted).fixes;
    let relaxed: Vec<&str> = fixes
        .iter()
        .filter_map(|fix| match fix {
            Fix::Relax { filter, change, node } => {
                assert_eq!(filter, "placement-constraint");
                assert_eq!(*node, Some(NodeId::new("b")));
                Some(change.as_str())
            }
            _ => None,
        })
        .collect();
    assert_eq!(relaxed, ["drop where zone = z3"]);
    assert_eq!(place(&mut engine, &in_place(1, "label:tier = gold")), "b");
}

#[test]
fn a_proposed_node_is_where_the_request_asks_to_be() {
    let mut engine = engine(builtin("balanced"), &fleet());
    let wanted = in_place(1, "zone = z3 and rack in (r7, r8) and label:tier = gold");
    let fixes = refusal(&mut engine, &wanted).fixes;
    let added = fixes.iter().find_map(|fix| match fix {
        Fix::AddNode { facts, .. } => Some((**facts).clone()),
        _ => None,
    });
    let mut facts = added.unwrap();
    assert_eq!((facts.zone.as_deref(), facts.rack.as_deref()), (Some("z3"), Some("r7")));
    facts.heartbeat_at = NOW;
    engine.fleet_mut().add_node(&facts).unwrap();
    assert_eq!(place(&mut engine, &wanted), "new-node");
    // A node that exists and is full is not proposed once more.
    claim(&mut engine, &request(9, 0, 65_000), "a");
    let full = InstanceRequest {
        required_place: Some(NodeSelector::parse("node = a").unwrap()),
        ..request(2, 0, 4096)
    };
    let fixes = refusal(&mut engine, &full).fixes;
    assert!(!fixes.iter().any(|fix| matches!(fix, Fix::AddNode { .. })), "{fixes:?}");
}

#[test]
fn a_preferred_place_is_taken_while_it_has_room() {
    for name in BUILTIN_POLICIES {
        let mut engine = engine(builtin(name), &fleet());
        assert_eq!(place(&mut engine, &rather(1, &["zone = z2"])), "c", "{name}");
        assert_eq!(place(&mut engine, &rather(1, &["label:tier = gold"])), "b", "{name}");
        // Both count: b fits two of three, a and c one each.
        let wanted = rather(1, &["zone = z1", "label:tier = gold", "zone = z2"]);
        assert_eq!(place(&mut engine, &wanted), "b", "{name}");
        claim(&mut engine, &request(9, 0, 65_000), "c");
        assert_ne!(place(&mut engine, &rather(1, &["zone = z2"])), "c", "{name}");
        let nowhere = rather(1, &["zone = z9"]);
        assert_eq!(place(&mut engine, &nowhere), place(&mut engine, &request(1, 1000, 1024)));
    }
}

#[test]
fn without_preferences_every_total_is_as_it_was() {
    for name in BUILTIN_POLICIES {
        let now = builtin(name);
        let mut text: serde_json::Value = serde_json::from_str(&now.to_json()).unwrap();
        let scores = text["scores"].as_object_mut().unwrap();
        assert!(scores.remove("preferred-place").is_some(), "{name}");
        let before = Policy::from_json(&text.to_string()).unwrap();
        let plain = request(1, 1000, 1024);
        let found = totals(&mut engine(now, &fleet()), &plain);
        assert_eq!(found, totals(&mut engine(before, &fleet()), &plain), "{name}");
        assert!(!found.is_empty());
    }
}

#[test]
fn a_label_that_changes_is_followed_by_masks_and_rankings() {
    let gold = |engine: &mut Engine, id: &str, on: bool| {
        let mut facts = engine.fleet().node(&NodeId::new(id)).unwrap();
        facts.labels.clear();
        if on {
            facts.labels.insert("tier".to_owned(), "gold".to_owned());
        }
        engine.fleet_mut().add_node(&facts).unwrap();
    };
    let mut engine = engine(builtin("balanced"), &fleet());
    let modes = [Reuse::Ranking, Reuse::Ranking, Reuse::Ranking, Reuse::Mask, Reuse::Nothing];
    let mut number = 100;
    for expected in ["b", "a", "c", "b"] {
        for id in ["a", "b", "c"] {
            gold(&mut engine, id, id == expected);
        }
        for reuse in modes {
            number += 1;
            let required = in_place(number, "label:tier = gold");
            let placed = engine.place_with(&required, NOW, reuse).unwrap();
            assert_eq!(placed.node, NodeId::new(expected), "{reuse:?}");
            let preferred = rather(number, &["label:tier = gold"]);
            let placed = engine.place_with(&preferred, NOW, reuse).unwrap();
            assert_eq!(placed.node, NodeId::new(expected), "{reuse:?}");
        }
    }
}

#[test]
fn a_policy_that_ignores_preferences_says_so_whatever_the_answer() {
    let without = "name = 'plain'\n[scores]\ncpu-pressure = 1";
    let with = "name = 'plain'\n[scores]\ncpu-pressure = 1\npreferred-place = 1";
    let ignored = Notice::PreferenceIgnored { policy: "plain".to_owned() };
    for (text, expected) in [(without, vec![ignored]), (with, Vec::new())] {
        let mut engine = engine(policy(text), &[node("a", 4000, 8192)]);
        let preferred = rather(1, &["label:tier = gold"]);
        for reuse in [Reuse::Ranking, Reuse::Mask, Reuse::Nothing] {
            let placed = engine.place_with(&preferred, NOW, reuse).unwrap();
            assert_eq!(placed.notices, expected, "{text}");
        }
        assert_eq!(engine.explain(&preferred, NOW).unwrap().notices, expected, "{text}");
        assert_eq!(engine.explain_page(&preferred, NOW, 0, 1).unwrap().notices, expected);
        let mut large = preferred.clone();
        large.resources.memory_mib = 1 << 20;
        assert_eq!(refusal(&mut engine, &large).notices, expected, "{text}");
        assert!(engine.place(&request(2, 1000, 1024), NOW).unwrap().notices.is_empty());
    }
}

#[test]
fn more_preferences_than_eight_are_refused() {
    let texts = vec!["zone = z1"; 9];
    let mut engine = engine(builtin("balanced"), &fleet());
    let error = engine.place(&rather(1, &texts), NOW).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "prefer has 9 items; accepted is at most 8 items");
}
