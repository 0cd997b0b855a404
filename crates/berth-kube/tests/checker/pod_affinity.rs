//! Pods that must be near or away from others.

use serde_json::{Value, json};

use crate::broken;
use crate::checker::check_final;
use crate::objects::{namespace, node, node_in, patched, pod, pod_on};

const FINE: [&str; 0] = [];
const ZONE: &str = "topology.kubernetes.io/zone";

fn rule(kind: &str, terms: &Value) -> Value {
    json!({"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}})
}

fn web() -> Value {
    json!({"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE})
}

fn nodes() -> Vec<Value> {
    vec![node_in("a", "a1"), node_in("a", "a2"), node_in("b", "b1"), node("nowhere", &json!({}))]
}

#[test]
fn anti_affinity_keeps_a_pod_out_of_the_whole_domain() {
    let there = [pod_on("a1", "web", &json!({"app": "web"}))];
    let new = pod("new", &rule("podAntiAffinity", &json!([web()])));
    let at = |node: &str| broken(&nodes(), &there, &[], &new, node);
    assert_eq!(at("a2"), ["anti-affinity"]);
    assert_eq!(at("b1"), FINE);
    // A node without the label is in no domain.
    assert_eq!(at("nowhere"), FINE);
}

#[test]
fn anti_affinity_holds_against_newcomers_too() {
    let guard = rule("podAntiAffinity", &json!([web()]));
    let there = [patched(pod_on("a1", "guard", &json!({})), &guard)];
    let new = pod("new", &json!({"metadata": {"labels": {"app": "web"}}}));
    assert_eq!(broken(&nodes(), &there, &[], &new, "a2"), ["anti-affinity-of-others"]);
    assert_eq!(broken(&nodes(), &there, &[], &new, "b1"), FINE);
    let ended = [patched(there[0].clone(), &json!({"status": {"phase": "Failed"}}))];
    assert_eq!(broken(&nodes(), &ended, &[], &new, "a2"), FINE);
}

#[test]
fn affinity_needs_a_match_in_the_domain_or_the_first_pod_of_its_kind() {
    let new = pod("new", &rule("podAffinity", &json!([web()])));
    assert_eq!(broken(&nodes(), &[], &[], &new, "a1"), ["affinity"]);
    let there = [pod_on("a1", "web", &json!({"app": "web"}))];
    assert_eq!(broken(&nodes(), &there, &[], &new, "a2"), FINE);
    assert_eq!(broken(&nodes(), &there, &[], &new, "b1"), ["affinity"]);
    let first = patched(new, &json!({"metadata": {"labels": {"app": "web"}}}));
    assert_eq!(broken(&nodes(), &[], &[], &first, "a1"), FINE);
    assert_eq!(broken(&nodes(), &[], &[], &first, "nowhere"), ["affinity"]);
    assert_eq!(broken(&nodes(), &there, &[], &first, "b1"), ["affinity"]);
}

#[test]
fn required_affinity_needs_a_pod_that_matches_all_terms() {
    let terms = json!([
        web(),
        {"labelSelector": {"matchLabels": {"tier": "front"}}, "topologyKey": "kubernetes.io/hostname"},
    ]);
    let new = pod("new", &rule("podAffinity", &terms));
    let one =
        [pod_on("a1", "x", &json!({"app": "web"})), pod_on("a1", "y", &json!({"tier": "front"}))];
    assert_eq!(broken(&nodes(), &one, &[], &new, "a1"), ["affinity"]);
    let both = [pod_on("a1", "x", &json!({"app": "web", "tier": "front"}))];
    assert_eq!(broken(&nodes(), &both, &[], &new, "a1"), FINE);
    assert_eq!(broken(&nodes(), &both, &[], &new, "a2"), ["affinity"]);
}

#[test]
fn namespaces_are_the_pods_own_those_named_and_those_selected() {
    let others = [
        namespace("default", &json!({})),
        namespace("blue", &json!({"team": "blue"})),
        namespace("red", &json!({"team": "red"})),
    ];
    let there = |namespace: &str| {
        let patch = json!({"metadata": {"namespace": namespace}});
        [patched(pod_on("a1", "web", &json!({"app": "web"})), &patch)]
    };
    let at = |namespace: &str, more: &Value| {
        let term = patched(web(), more);
        let new = pod("new", &rule("podAntiAffinity", &json!([term])));
        broken(&nodes(), &there(namespace), &others, &new, "a1")
    };
    assert_eq!(at("default", &json!({})), ["anti-affinity"]);
    assert_eq!(at("blue", &json!({})), FINE);
    assert_eq!(at("blue", &json!({"namespaces": ["blue"]})), ["anti-affinity"]);
    assert_eq!(at("default", &json!({"namespaces": ["blue"]})), FINE);
    let blue = json!({"namespaceSelector": {"matchLabels": {"team": "blue"}}});
    assert_eq!(at("blue", &blue), ["anti-affinity"]);
    assert_eq!(at("red", &blue), FINE);
    assert_eq!(at("default", &blue), FINE);
    assert_eq!(at("red", &patched(blue, &json!({"namespaces": ["red"]}))), ["anti-affinity"]);
    assert_eq!(at("red", &json!({"namespaceSelector": {}})), ["anti-affinity"]);
}

#[test]
fn match_label_keys_compare_with_the_pods_own_labels() {
    let hash = |hash: &str| json!({"app": "web", "pod-template-hash": hash});
    let there = [pod_on("a1", "old", &hash("1"))];
    let new = |hash_of_new: &str, keys: &str| {
        let term = patched(web(), &json!({keys: ["pod-template-hash", "absent"]}));
        let labels = json!({"metadata": {"labels": hash(hash_of_new)}});
        patched(pod("new", &rule("podAntiAffinity", &json!([term]))), &labels)
    };
    let at = |pod: &Value| broken(&nodes(), &there, &[], pod, "a1");
    assert_eq!(at(&new("1", "matchLabelKeys")), ["anti-affinity"]);
    assert_eq!(at(&new("2", "matchLabelKeys")), FINE);
    assert_eq!(at(&new("1", "mismatchLabelKeys")), FINE);
    assert_eq!(at(&new("2", "mismatchLabelKeys")), ["anti-affinity"]);
}

#[test]
fn an_absent_selector_matches_nothing_and_an_empty_one_everything() {
    let there = [pod_on("a1", "any", &json!({}))];
    let new = |term: Value| pod("new", &rule("podAntiAffinity", &json!([term])));
    let none = new(json!({"topologyKey": ZONE}));
    assert_eq!(broken(&nodes(), &there, &[], &none, "a1"), FINE);
    let all = new(json!({"topologyKey": ZONE, "labelSelector": {}}));
    assert_eq!(broken(&nodes(), &there, &[], &all, "a1"), ["anti-affinity"]);
}

#[test]
fn terminating_pods_still_count() {
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let there = [patched(pod_on("a1", "web", &json!({"app": "web"})), &going)];
    let away = pod("new", &rule("podAntiAffinity", &json!([web()])));
    assert_eq!(broken(&nodes(), &there, &[], &away, "a1"), ["anti-affinity"]);
    let with_affinity = pod("new", &rule("podAffinity", &json!([web()])));
    assert_eq!(broken(&nodes(), &there, &[], &with_affinity, "a1"), FINE);
}

#[test]
fn the_final_state_shows_pods_that_should_be_apart_or_together() {
    let rules = |pods: &[Value]| -> Vec<&'static str> {
        check_final(&nodes(), pods, &[]).iter().map(|it| it.rule).collect()
    };
    let away = rule("podAntiAffinity", &json!([web()]));
    let on = |node: &str, name: &str| patched(pod_on(node, name, &json!({"app": "web"})), &away);
    assert_eq!(rules(&[on("a1", "x"), on("b1", "y")]), FINE);
    let both = ["anti-affinity", "anti-affinity-of-others"];
    assert_eq!(rules(&[on("a1", "x"), on("a2", "y")]), [both, both].concat());
    let with_affinity = rule("podAffinity", &json!([web()]));
    let lone = patched(pod_on("a1", "lone", &json!({})), &with_affinity);
    assert_eq!(rules(std::slice::from_ref(&lone)), ["affinity"]);
    assert_eq!(rules(&[lone, pod_on("a2", "web", &json!({"app": "web"}))]), FINE);
}
