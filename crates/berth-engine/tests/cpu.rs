//! CPU: one instance fits into its host, the sum is soft, hard, or soft below a ceiling.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_engine::elastic::Size;
use berth_engine::{Amounts, Elastic, Evidence, Fix, NodeId, Notice, Policy, Reuse, Unit};
use common::{NOW, builtin, claim, engine, node, node_with, place, policy, refusal, request};

#[test]
fn one_instance_never_has_more_cpu_than_its_host_in_any_policy() {
    for name in berth_engine::BUILTIN_POLICIES {
        let mut engine = engine(
            builtin(name),
            &[
                node_with("a", 32_000, 65_536, |facts| facts.ratios.cpu_permille = 1_000_000),
                node_with("b", 64_000, 65_536, |facts| facts.ratios.cpu_permille = 1_000_000),
            ],
        );
        let absurd = request(1, 64_000_000, 1024);
        let refused = refusal(&mut engine, &absurd);
        assert_eq!(refused.code, "cpu_exceeds_host", "{name}");
        assert_eq!(refused.counts[0].removed, 2, "{name}");
        assert!(!refused.waiting_may_help, "{name}");
        let nearest = &refused.nearest[0];
        assert_eq!(nearest.node, Some(NodeId::new("b")), "{name}");
        let expected = Evidence::Exceeds {
            resource: "CPU".to_owned(),
            wanted: 64_000_000,
            most: 64_000,
            unit: Unit::MilliCpu,
        };
        assert_eq!(nearest.evidence, expected, "{name}");
        let whole = Amounts::new(64_000, 1024).with_disk(1);
        let shrink = Fix::Shrink {
            resources: whole,
            extra: Default::default(),
            node: Some(NodeId::new("b")),
        };
        assert!(refused.fixes.contains(&shrink), "{name}: {:?}", refused.fixes);
        assert_eq!(place(&mut engine, &request(2, 64_000, 1024)), "b", "{name}");
        assert_eq!(
            refusal(&mut engine, &request(3, 64_001, 1024)).code,
            "cpu_exceeds_host",
            "{name}"
        );
    }
}

#[test]
fn the_sum_of_cpu_stays_soft_in_balanced() {
    let mut engine = engine(builtin("balanced"), &[node("a", 64_000, 65_536)]);
    for number in 1..=4 {
        let wanted = request(number, 64_000, 1024);
        assert_eq!(place(&mut engine, &wanted), "a");
        claim(&mut engine, &wanted, "a");
    }
}

#[test]
fn a_new_node_has_the_cores_that_an_oversold_instance_sees() {
    let mut engine = engine(builtin("balanced"), &[node("a", 4000, 8192)]);
    let mut oversold = request(1, 2000, 1024);
    let mut elastic = Elastic::new(Amounts::new(500, 512), Amounts::new(8000, 2048));
    elastic.using = Some(Size::new(8000, 1024));
    oversold.elastic = Some(elastic);
    let refused = refusal(&mut engine, &oversold);
    assert_eq!(refused.code, "cpu_exceeds_host");
    let shape = refused.fixes.iter().find_map(|fix| match fix {
        Fix::AddNode { shape, .. } => Some(*shape),
        _ => None,
    });
    assert_eq!(shape.map(|shape| shape.cpu_milli), Some(8000), "{:?}", refused.fixes);
}

#[test]
fn an_elastic_instance_is_told_when_its_host_is_smaller_than_its_maximum() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 8192)]);
    for (max_cpu_milli, is_limited) in [(0, false), (8000, false), (8001, true)] {
        let mut elastic = request(1, 1000, 1024);
        let max = Amounts::new(max_cpu_milli, 4096);
        elastic.elastic = Some(Elastic::new(Amounts::new(500, 512), max));
        let placed = engine.place(&elastic, NOW).unwrap();
        let limited = Notice::GrowthLimited { max_cpu_milli, host_cpu_milli: 8000 };
        let expected = if is_limited { vec![limited] } else { Vec::new() };
        assert_eq!(placed.notices, expected);
    }
}

#[test]
fn a_small_host_that_joins_later_takes_only_what_it_can() {
    let mut engine = engine(builtin("balanced"), &[node("a", 8000, 8192)]);
    // Twice each, so that masks and rankings exist before the small host comes.
    for number in 1..=4 {
        let cpu = if number % 2 == 0 { 4000 } else { 1000 };
        let wanted = request(number, cpu, 512);
        assert_eq!(place(&mut engine, &wanted), "a");
        claim(&mut engine, &wanted, "a");
    }
    engine.fleet_mut().add_node(&node("small", 2000, 65_536)).unwrap();
    engine.fleet_mut().set_state(&NodeId::new("a"), berth_engine::NodeState::Cordoned);
    for reuse in [Reuse::Ranking, Reuse::Mask, Reuse::Nothing] {
        let small = engine.place_with(&request(10, 1000, 512), NOW, reuse).unwrap();
        assert_eq!(small.node, NodeId::new("small"), "{reuse:?}");
        assert!(engine.place_with(&request(11, 4000, 512), NOW, reuse).is_err(), "{reuse:?}");
    }
}

#[test]
fn a_policy_stored_before_the_rule_decides_as_it_did() {
    let earlier = builtin("balanced").to_json().replace(r#""cpu_within_host":true,"#, "");
    let mut engine = engine(Policy::from_stored(&earlier).unwrap(), &[node("a", 64_000, 65_536)]);
    assert_eq!(place(&mut engine, &request(1, 64_000_000, 1024)), "a");
}

#[test]
fn soft_cpu_ends_at_the_ceiling_on_every_path() {
    let text = "name = 'x'\n[filters]\ncpu_ceiling_permille = 1500\n[scores]\ncpu-pressure = 1";
    for reuse in [Reuse::Ranking, Reuse::Mask, Reuse::Nothing] {
        let host = node_with("a", 4000, 65_536, |facts| facts.ratios.cpu_permille = 2000);
        let mut engine = engine(policy(text), &[host]);
        // 4 cores, promised twice: 8; half as much again: 12.
        for number in 1..=12 {
            let wanted = request(number, 1000, 64);
            let placed = engine.place_with(&wanted, NOW, reuse).unwrap();
            engine.fleet_mut().claim(&wanted, &placed.node).unwrap();
        }
        let refused = refusal(&mut engine, &request(13, 1000, 64));
        assert_eq!(refused.code, "no_capacity_cpu", "{reuse:?}");
        assert!(engine.place_with(&request(13, 1000, 64), NOW, reuse).is_err(), "{reuse:?}");
        assert_eq!(place(&mut engine, &request(14, 0, 64)), "a", "nothing asked for fits");
        engine.fleet_mut().release(request(5, 0, 1).id).unwrap();
        assert!(engine.place_with(&request(13, 1000, 64), NOW, reuse).is_ok(), "{reuse:?}");
    }
}
