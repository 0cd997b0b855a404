//! What is news: whatever may let a pod fit that was refused, and nothing else.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{container, namespace, node, node_in, patched, pod, pod_on};

const ZONE: &str = "topology.kubernetes.io/zone";

fn large(name: &str) -> Value {
    pod(name, &json!({"spec": {"containers": [container("main", "4", "1")]}}))
}

#[test]
fn a_node_that_is_added_changed_or_deleted_is_a_change_and_a_repeated_update_is_not() {
    let mut core = Core::of(&[node_in("a", "n1")]);
    assert!(core.cluster.take_changed());
    core.tell(&node_in("a", "n1"));
    assert!(!core.cluster.take_changed());
    core.tell(&node_in("b", "n1"));
    assert!(core.cluster.take_changed());
    core.cluster.remove_node("n1");
    assert!(core.cluster.take_changed(), "a domain may have gone with it");
    core.cluster.remove_node("n1");
    assert!(!core.cluster.take_changed());
}

#[test]
fn a_pod_that_is_deleted_ends_or_is_unreserved_is_a_change() {
    for how in ["gone", "ended", "given up"] {
        let mut core = Core::of(&[node("n1", &json!({})), large("a"), large("b")]);
        core.node_of("a");
        core.refusal("b");
        core.cluster.take_changed();
        let uid = core.uid("a");
        match how {
            "gone" => core.remove("a"),
            "ended" => core.change("a", &json!({"status": {"phase": "Failed"}})),
            _ => core.cluster.unreserve(&uid),
        }
        assert!(core.cluster.take_changed(), "{how}");
        assert_eq!(core.node_of("b"), "n1", "{how}");
    }
}

#[test]
fn a_new_pod_is_a_change_for_pods_with_affinity_to_it() {
    let with_affinity = json!({"spec": {"affinity": {"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE}
        ]
    }}}});
    let mut core = Core::of(&[node_in("a", "n1"), pod("waits", &with_affinity)]);
    core.refusal("waits");
    core.cluster.take_changed();
    core.tell(&pod_on("n1", "unlike", &json!({"app": "db"})));
    assert!(!core.cluster.take_changed(), "nobody waits for that one");
    core.tell(&pod("web", &json!({"metadata": {"labels": {"app": "web"}}})));
    core.refusal("waits");
    core.cluster.take_changed();
    core.refusal("waits");
    core.node_of("web");
    assert!(core.cluster.take_changed());
    assert_eq!(core.node_of("waits"), "n1");
}

#[test]
fn a_pod_in_the_least_loaded_domain_is_a_change_for_pods_that_spread() {
    let spread = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "nodeSelector": {"only": "a"},
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
            "nodeAffinityPolicy": "Ignore", "labelSelector": {"matchLabels": {"app": "web"}},
        }],
    }});
    let only = patched(node_in("a", "n1"), &json!({"metadata": {"labels": {"only": "a"}}}));
    let mut core =
        Core::of(&[only, node_in("b", "n2"), pod_on("n1", "one", &json!({"app": "web"}))]);
    core.tell(&pod("waits", &spread));
    core.refusal("waits");
    core.cluster.take_changed();
    core.refusal("waits");
    core.tell(&pod_on("n2", "two", &json!({"app": "web"})));
    assert!(core.cluster.take_changed());
    assert_eq!(core.node_of("waits"), "n1");
}

#[test]
fn new_pods_are_no_change_if_no_pod_waits_for_others() {
    let mut core = Core::of(&[node("n1", &json!({})), large("a"), large("b")]);
    core.node_of("a");
    core.refusal("b");
    core.cluster.take_changed();
    core.tell(&pod_on("n1", "more", &json!({})));
    assert!(!core.cluster.take_changed());
}

#[test]
fn a_namespace_is_a_change_when_its_labels_change_or_it_is_deleted() {
    let mut core = Core::of(&[namespace("blue", &json!({"team": "x"}))]);
    core.cluster.take_changed();
    core.tell(&namespace("blue", &json!({"team": "x"})));
    assert!(!core.cluster.take_changed());
    core.tell(&namespace("blue", &json!({"team": "y"})));
    assert!(core.cluster.take_changed());
    core.cluster.remove_namespace("blue");
    assert!(core.cluster.take_changed());
}

#[test]
fn a_refusal_is_computed_again_after_a_change() {
    // Pods of one template share a refusal; it must not outlive its reasons.
    let away = json!({"spec": {"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE,
            "namespaceSelector": {"matchLabels": {"team": "x"}},
        }]
    }}, "containers": [container("main", "5", "1")]}});
    let mut core = Core::of(&[node_in("a", "n1"), namespace("blue", &json!({"team": "x"}))]);
    let there = json!({"metadata": {"namespace": "blue"}});
    core.tell(&patched(pod_on("n1", "web", &json!({"app": "web"})), &there));
    core.tell(&pod("new", &away));
    assert_eq!(core.refusal("new").code, "pod_anti_affinity");
    core.tell(&namespace("blue", &json!({})));
    assert_eq!(core.refusal("new").code, "no_capacity_cpu");
}

#[test]
fn explaining_and_probing_are_no_change() {
    let mut core = Core::of(&[node("n1", &json!({})), large("a"), large("b")]);
    core.node_of("a");
    core.refusal("b");
    core.cluster.take_changed();
    core.explain("a");
    core.explain("b");
    assert!(!core.cluster.take_changed());
}
