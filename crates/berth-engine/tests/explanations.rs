//! Explanations: golden texts, what a tenant may see, and choices that explain themselves. That
//! every proposed fix works is shown in `fixes.rs`.

mod common;

use std::collections::BTreeMap;

use berth_engine::affinity::{Strength, Topology};
use berth_engine::{
    Audience, Batch, Engine, Explanation, Fix, Group, GroupKind, InstanceId, InstanceRequest,
    NodeFacts, NodeId, NodeState, Policy, Refusal, SearchEnd, TraitValue, Volume,
};
use common::{
    NOW, builtin, claim, engine, explain, node, node_with, place, policy, refusal, request,
    request_of,
};

/// `balanced`, but tenants do not see node names.
fn discreet() -> Policy {
    let json = builtin("balanced").to_json();
    let hidden = json.replace("\"tenants_see_nodes\":true", "\"tenants_see_nodes\":false");
    assert_ne!(json, hidden);
    Policy::from_json(&hidden).unwrap_or_else(|error| panic!("{error}"))
}

/// Four nodes: one is full of another tenant, one drains, one is silent, one is small.
fn four_nodes() -> Engine {
    let host = |name: &str, memory_mib, change: fn(&mut NodeFacts)| {
        let id = format!("host-{name}");
        node_with(&id, 8000, memory_mib, |facts| {
            facts.zone = Some("zone-north".to_owned());
            facts.rack = Some(format!("rack-{name}"));
            facts.vmm_overhead_mib = 64;
            change(facts);
        })
    };
    let nodes = [
        host("ash", 16_384, |_| {}),
        host("birch", 16_384, |facts| facts.state = NodeState::Draining),
        host("cedar", 16_384, |facts| facts.heartbeat_at = NOW.plus(-600)),
        host("dogwood", 4096, |_| {}),
    ];
    let mut engine = engine(discreet(), &nodes);
    claim(&mut engine, &request_of("globex", 70, 0, 12_000), "host-ash");
    claim(&mut engine, &request(71, 0, 1024), "host-dogwood");
    engine
}

/// What a tenant must never read.
fn assert_says_nothing_of_others(text: &str) {
    let others = InstanceId::from_u128(70).to_string();
    for secret in ["globex", "host-", "rack-", "zone-north", &others] {
        assert!(!text.contains(secret), "{secret} in:\n{text}");
    }
}

#[test]
fn a_refusal_for_memory_as_an_operator_reads_it() {
    let mut engine = four_nodes();
    let refused = refusal(&mut engine, &request(1, 1000, 8192));
    assert_eq!(refused.code, "no_capacity_memory");
    let seen = refused.redacted_for(Audience::Operator, engine.policy());
    assert_eq!(seen, refused, "the operator sees everything");
    insta::assert_snapshot!("memory_for_the_operator", seen.to_string());
}

#[test]
fn a_refusal_for_memory_as_the_tenant_reads_it() {
    let mut engine = four_nodes();
    let refused = refusal(&mut engine, &request(1, 1000, 8192));
    let names_others = |refusal: &Refusal| {
        let free = |fix: &Fix| matches!(fix, Fix::Free { tenants, .. } if tenants == &["globex"]);
        refusal.fixes.iter().any(free)
    };
    assert!(names_others(&refused), "else the test shows nothing");
    let seen = refused.redacted_for(Audience::Tenant("acme"), engine.policy());
    insta::assert_snapshot!("memory_for_the_tenant", seen.to_string());
    assert_says_nothing_of_others(&seen.to_string());
    // The value is as discreet as its text: an API would send it as JSON.
    assert_says_nothing_of_others(&serde_json::to_string(&seen).unwrap());
    let everything = serde_json::to_string(&refused).unwrap();
    assert!(everything.contains("globex") && everything.contains("host-ash"));
}

#[test]
fn node_names_are_shown_to_tenants_where_the_policy_allows() {
    let mut engine = four_nodes();
    let refused = refusal(&mut engine, &request(1, 1000, 8192));
    let seen = refused.redacted_for(Audience::Tenant("acme"), &builtin("balanced"));
    let text = seen.to_string();
    assert!(text.contains("host-ash"), "{text}");
    assert!(!text.contains("globex") && !text.contains("rack-"), "{text}");
}

#[test]
fn a_tenant_learns_that_a_volume_is_in_use_and_not_by_whom() {
    let mut engine = engine(discreet(), &[node("host-ash", 1000, 4096)]);
    engine.fleet_mut().put_volume(Volume {
        tenant: None,
        id: "data".to_owned(),
        home: NodeId::new("host-ash"),
        attached_to: Some(InstanceId::from_u128(70)),
    });
    let mut wanted = request(1, 0, 512);
    wanted.volumes = vec!["data".to_owned()];
    let refused = refusal(&mut engine, &wanted);
    assert_eq!(refused.code, "volume_in_use");
    let user = InstanceId::from_u128(70).to_string();
    assert!(refused.to_string().contains(&user));
    let seen = refused.redacted_for(Audience::Tenant("acme"), engine.policy());
    assert_says_nothing_of_others(&seen.to_string());
    assert!(seen.headline().starts_with("volume_in_use"));
}

#[test]
fn a_refusal_by_traits() {
    let with = |id, pairs: &[(&str, TraitValue)]| {
        node_with(id, 1000, 4096, |facts| facts.traits = owned(pairs))
    };
    let nodes = [
        with("a", &[]),
        with("b", &[("gpu", TraitValue::Text("t4".to_owned()))]),
        with("c", &[("ssd", TraitValue::Bool(true))]),
    ];
    let mut engine = engine(builtin("balanced"), &nodes);
    let mut wanted = request(1, 0, 512);
    wanted.traits = owned(&[("gpu", TraitValue::Text("a100".to_owned()))]);
    let refused = refusal(&mut engine, &wanted);
    assert_eq!(refused.code, "traits_no_node");
    assert!(!refused.waiting_may_help);
    insta::assert_snapshot!("traits", refused.to_string());
}

fn owned(pairs: &[(&str, TraitValue)]) -> BTreeMap<String, TraitValue> {
    let owned = pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
    owned.collect()
}

#[test]
fn a_refusal_by_a_group_that_keeps_its_members_apart() {
    let nodes = [node("a", 1000, 4096), node("b", 1000, 4096)];
    let mut engine = engine(builtin("balanced"), &nodes);
    engine.fleet_mut().put_group(Group {
        id: "quorum".to_owned(),
        tenant: None,
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Node,
        max_per_domain: None,
    });
    let member = |number| {
        let mut wanted = request(number, 0, 512);
        wanted.groups = vec!["quorum".to_owned()];
        wanted
    };
    claim(&mut engine, &member(70), "a");
    claim(&mut engine, &member(71), "b");
    let refused = refusal(&mut engine, &member(1));
    assert_eq!(refused.code, "group_no_node");
    assert_eq!(refused.best_relaxation, Some(("groups".into(), 2)));
    insta::assert_snapshot!("group_apart", refused.to_string());
}

/// Two bins of 1000 MiB under the policy `pack`.
fn bins() -> Engine {
    engine(builtin("pack"), &[node("a", 1000, 1000), node("b", 1000, 1000)])
}

fn items(sizes: &[u32]) -> Batch {
    let numbered = (1..).zip(sizes);
    Batch::new(numbered.map(|(n, mib)| request(n, 0, *mib)).collect())
}

#[test]
fn a_batch_that_does_not_fit_says_so() {
    let outcome = bins().place_batch(&items(&[600, 600, 600]), NOW).unwrap();
    assert_eq!(outcome.end, SearchEnd::DoesNotFit);
    assert!(outcome.placements.is_empty());
    let (id, refused) = &outcome.refused[0];
    assert_eq!(*id, InstanceId::from_u128(3));
    assert_eq!(refused.search, Some(SearchEnd::DoesNotFit));
    insta::assert_snapshot!("batch_that_does_not_fit", refused.to_string());
}

#[test]
fn a_batch_whose_budget_ran_out_does_not_claim_that_it_cannot_fit() {
    // 400 + 300 + 300 twice fills both bins, which neither greedy order finds.
    let mut batch = items(&[400, 400, 300, 300, 300, 300]);
    batch.search_budget = 3;
    let mut engine = bins();
    let outcome = engine.place_batch(&batch, NOW).unwrap();
    assert_eq!(outcome.end, SearchEnd::NotFoundWithinBudget);
    assert!(outcome.placements.is_empty());
    let (_, refused) = &outcome.refused[0];
    insta::assert_snapshot!("batch_out_of_budget", refused.to_string());

    batch.search_budget = Batch::DEFAULT_BUDGET;
    let outcome = engine.place_batch(&batch, NOW).unwrap();
    assert_eq!(outcome.end, SearchEnd::Search, "and indeed it fits");
    assert_eq!(outcome.placements.len(), 6);
    for (wanted, placed) in batch.requests.iter().zip(&outcome.placements) {
        assert_eq!(wanted.id, placed.instance);
        assert_eq!(engine.check(wanted, &placed.node, NOW), Ok(()));
        claim(&mut engine, wanted, placed.node.as_str());
    }
}

// Successes.

fn uneven() -> (Engine, InstanceRequest) {
    let nodes = [
        node("a", 4000, 4096),
        node("b", 8000, 8192),
        node("c", 4000, 1024),
        node_with("d", 8000, 8192, |facts| facts.state = NodeState::Cordoned),
    ];
    let mut engine = engine(builtin("balanced"), &nodes);
    claim(&mut engine, &request(70, 1000, 1024), "a");
    claim(&mut engine, &request(71, 1000, 1024), "b");
    let mut wanted = request(1, 1000, 2048);
    wanted.workload = Some("web".to_owned());
    (engine, wanted)
}

#[test]
fn a_success_names_winner_and_runner_up_and_every_term_adds_up() {
    let (mut engine, wanted) = uneven();
    let explained = explain(&mut engine, &wanted);
    let winner = explained.winner.clone().unwrap();
    let second = explained.runner_up.clone().unwrap();
    assert_eq!((winner.node.as_str(), second.node.as_str()), ("a", "b"));
    assert!(winner.total > second.total);
    for decision in [&winner, &second] {
        let sum: i64 = decision.terms.iter().map(|term| term.points).sum();
        assert_eq!(sum, decision.total, "{}", decision.node);
        for term in &decision.terms {
            let points = i64::from(term.value) * i64::from(term.weight_permille) / 1000;
            assert_eq!(term.points, points, "{}", term.scorer);
        }
    }
    let placed = engine.place(&wanted, NOW).unwrap();
    assert_eq!((placed.node, placed.score), (winner.node, winner.total));
    let every: Vec<&str> = explained.table.iter().map(|v| v.node().as_str()).collect();
    assert_eq!(every, ["a", "b", "c", "d"]);
    assert_eq!(explained.policy, "balanced");
}

#[test]
fn a_success_is_explained_by_its_first_nodes_and_says_where_the_next_begin() {
    let (mut engine, wanted) = uneven();
    let every = explain(&mut engine, &wanted);
    assert_eq!((every.nodes, every.eligible, every.next.as_deref()), (4, every.eligible, None));
    for limit in [0, 1, 3] {
        let first = engine.explain_first(&wanted, NOW, limit).unwrap();
        assert_eq!(first.table, every.table[..limit]);
        assert_eq!(first.next, Some(limit.to_string()));
        assert_eq!((first.nodes, first.eligible), (every.nodes, every.eligible));
        assert_eq!((&first.winner, &first.runner_up), (&every.winner, &every.runner_up));
        let rest = engine.explain_page(&wanted, NOW, limit, 10).unwrap();
        assert_eq!(rest.items, every.table[limit..]);
        // A tenant that may not know names sees the same numbers, however much is listed.
        let policy = policy("name = 'x'\n[explain]\ntenants_see_nodes = false");
        let numbered = |one: &Explanation| {
            let seen = one.redacted_for(Audience::Tenant("acme"), &policy);
            (seen.winner.unwrap().node, seen.runner_up.unwrap().node)
        };
        assert_eq!(numbered(&first), numbered(&every));
        assert_eq!(numbered(&first).0.as_str(), "#1");
    }
}

#[test]
fn every_policy_explains_the_node_it_places_on() {
    for name in berth_engine::BUILTIN_POLICIES {
        let (mut engine, wanted) = uneven();
        engine.set_policy(builtin(name));
        let mut wanted = wanted;
        wanted.resources.cpu_milli = 100;
        let winner = explain(&mut engine, &wanted).winner.unwrap();
        let placed = engine.place(&wanted, NOW).unwrap();
        assert_eq!((placed.node, placed.score), (winner.node, winner.total), "{name}");
    }
}

#[test]
fn a_product_is_explained_by_its_factors() {
    let (mut engine, wanted) = uneven();
    engine.set_policy(policy(
        "name = 'x'\ncombine = 'product'\n[scores]\nmemory-spread = 2\ncpu-pressure = 1",
    ));
    let winner = explain(&mut engine, &wanted).winner.unwrap();
    // b: 7/8 of its memory free, and 31/32 of its CPU, whose zero would cost only half.
    assert_eq!(winner.node.as_str(), "b");
    assert_eq!(winner.total, 861_328);
    assert_eq!(place(&mut engine, &wanted), "b");
}

#[test]
fn a_request_that_fits_nowhere_is_explained_without_a_winner() {
    let (mut engine, mut wanted) = uneven();
    wanted.resources.memory_mib = 100_000;
    let explained = explain(&mut engine, &wanted);
    assert_eq!((explained.winner, explained.runner_up), (None, None));
    assert_eq!(explained.table.len(), 4);
}

#[test]
fn the_table_names_every_rule_that_a_node_breaks_and_not_only_the_first() {
    let cordoned = common::node_with("a", 1000, 64, |facts| {
        facts.state = berth_engine::NodeState::Cordoned;
        facts.kvm = false;
    });
    let mut engine = engine(builtin("balanced"), &[cordoned]);
    let explanation = engine.explain(&request(1, 0, 128), NOW).unwrap();
    let [berth_engine::NodeVerdict::Removed { filter, others, .. }] = &explanation.table[..] else {
        panic!("one node, removed");
    };
    let others: Vec<&str> = others.iter().map(|(name, _)| &**name).collect();
    assert_eq!((&**filter, others), ("node-active", vec!["kvm", "memory"]));
}

#[test]
fn usage_says_what_is_used_of_what_may_be_promised() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 1024)]);
    claim(&mut engine, &request(1, 500, 256), "a");
    let usage = engine.fleet().usage(&berth_engine::NodeId::new("a")).unwrap();
    assert_eq!((usage.cpu_milli.used, usage.cpu_milli.limit), (500, 4000));
    assert_eq!((usage.memory_mib.used, usage.memory_mib.limit), (256, 1024));
    let here = engine.fleet().instances_on(&berth_engine::NodeId::new("a"));
    assert_eq!(here, [berth_engine::InstanceId::from_u128(1)]);
}

#[test]
fn a_choice_without_an_explanation_is_the_same_choice() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 1024), node("b", 1000, 512)]);
    let small = request(1, 0, 256);
    let tried = engine.try_place(&small, NOW).unwrap();
    assert_eq!(tried, engine.place(&small, NOW).ok());
    assert!(tried.is_some());
    assert_eq!(engine.try_place(&request(2, 0, 4096), NOW), Ok(None));
    assert!(engine.try_place(&request(3, 0, 0), NOW).is_err(), "no memory means nothing");
}
