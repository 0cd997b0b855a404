//! Hosts that are less busy are favoured, where a policy says so.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_engine::{
    BUILTIN_POLICIES, Engine, InstanceRequest, MeasuredLoad, NodeFacts, NodeId, NodeVerdict, Reuse,
};
use common::{NOW, builtin, claim, engine, node_with, place, policy, request, totals};

const POLICY: &str =
    "name = 'calm'\n[filters]\nheartbeat_grace_s = 86400\n[scores]\nmeasured-load = 1";

fn load(cpu_permille: u16, memory_permille: Option<u16>) -> Option<MeasuredLoad> {
    Some(MeasuredLoad { cpu_permille, memory_permille })
}

fn host(id: &str, load: Option<MeasuredLoad>) -> NodeFacts {
    node_with(id, 64_000, 65_536, |facts| facts.load = load)
}

fn small(number: u128) -> InstanceRequest {
    request(number, 1000, 1024)
}

/// The choice in every way that the engine has to make it.
fn choice(engine: &mut Engine, number: u128, after_s: i64) -> String {
    let now = NOW.plus(after_s);
    let ways = [Reuse::Ranking, Reuse::Mask, Reuse::Nothing]
        .map(|reuse| engine.place_with(&small(number), now, reuse).unwrap().node.to_string());
    assert!(ways.iter().all(|node| *node == ways[0]), "{ways:?}");
    ways[0].clone()
}

#[test]
fn a_value_is_what_is_idle_on_average_and_half_where_nothing_is_known() {
    let hosts = [
        host("busy", load(1000, None)),
        host("cpu", load(250, None)),
        host("both", load(250, Some(755))),
        host("idle", load(0, Some(0))),
        host("unknown", None),
    ];
    let mut engine = engine(policy(POLICY), &hosts);
    // In order of id: both, busy, cpu, idle, unknown.
    let expected = [497_500, 0, 750_000, 1_000_000, 500_000];
    assert_eq!(totals(&mut engine, &small(1)), expected);
    assert_eq!(place(&mut engine, &small(1)), "idle");
}

#[test]
fn a_choice_follows_loads_that_change_between_two_requests_of_a_class() {
    let mut engine =
        engine(policy(POLICY), &[host("a", load(100, None)), host("b", load(150, None))]);
    for number in 1..=2 {
        assert_eq!(choice(&mut engine, number, 0), "a");
        claim(&mut engine, &small(number), "a");
    }
    assert!(engine.fleet_mut().set_load(&NodeId::new("a"), load(200, None)));
    assert_eq!(choice(&mut engine, 3, 0), "b");
    assert!(engine.fleet_mut().set_load(&NodeId::new("b"), None));
    assert_eq!(choice(&mut engine, 3, 0), "a");
    assert!(!engine.fleet_mut().set_load(&NodeId::new("nobody"), None));
}

#[test]
fn a_load_counts_as_long_as_the_last_heartbeat_is_young_enough() {
    let text = format!("{POLICY}\n[options]\nload_max_age_s = 60");
    let mut engine = engine(policy(&text), &[host("a", load(0, None)), host("b", load(600, None))]);
    let heard = |engine: &mut Engine, node: &str, after_s: i64| {
        engine.fleet_mut().heartbeat(&NodeId::new(node), NOW.plus(after_s));
    };
    for node in ["a", "b"] {
        heard(&mut engine, node, 0);
    }
    heard(&mut engine, "b", 55);
    assert_eq!(choice(&mut engine, 1, 60), "a", "60 s old, and 60 s are allowed");
    engine.fleet_mut().set_load(&NodeId::new("b"), load(400, None));
    assert_eq!(choice(&mut engine, 1, 61), "b", "b is known to be less than half busy");
    heard(&mut engine, "a", 62);
    assert_eq!(choice(&mut engine, 1, 62), "a", "heard again, its load counts again");
    assert_eq!(choice(&mut engine, 1, 200), "a", "of two that are unknown, the first");
}

#[test]
fn the_term_is_part_of_the_explanation() {
    let text = format!("{POLICY}\nmemory-pack = 0.5");
    let mut engine = engine(policy(&text), &[host("a", load(300, Some(100)))]);
    let explanation = engine.explain(&small(1), NOW).unwrap();
    let NodeVerdict::Scored { terms, .. } = &explanation.table[0] else { panic!("not scored") };
    let term = terms.iter().find(|term| term.scorer == "measured-load").unwrap();
    assert_eq!((term.value, term.weight_permille, term.points), (800_000, 1000, 800_000));
}

#[test]
fn no_policy_that_comes_with_berth_looks_at_loads() {
    for name in BUILTIN_POLICIES {
        let mut with =
            engine(builtin(name), &[host("a", load(1000, Some(1000))), host("b", load(0, None))]);
        let mut without = engine(builtin(name), &[host("a", None), host("b", None)]);
        assert_eq!(totals(&mut with, &small(1)), totals(&mut without, &small(1)), "{name}");
    }
}

#[test]
fn a_load_that_wavers_within_a_step_is_kept_as_it_was() {
    let after = |measured: Option<MeasuredLoad>, kept| measured.unwrap().kept_after(kept);
    assert_eq!(Some(after(load(312, Some(988)), None)), load(300, Some(1000)), "whole steps");
    assert_eq!(Some(after(load(325, None), None)), load(350, None));
    let kept = load(300, Some(500));
    for (cpu, memory) in [(300, 500), (350, 450), (250, 550)] {
        assert_eq!(Some(after(load(cpu, Some(memory)), kept)), kept, "{cpu} {memory}");
    }
    assert_eq!(Some(after(load(351, Some(520)), kept)), load(350, Some(500)));
    assert_eq!(Some(after(load(300, Some(551)), kept)), load(300, Some(550)));
    assert_eq!(Some(after(load(300, None), kept)), load(300, None), "no longer measured");
}
