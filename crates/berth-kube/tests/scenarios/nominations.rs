//! Nodes that pods were nominated for.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{container, node, node_in, patched, pod};

fn one_core(name: &str) -> Value {
    node(name, &json!({"status": {"allocatable": {"cpu": "1"}}}))
}

fn cpu(name: &str, priority: i64, nominated: Option<&str>) -> Value {
    pod(
        name,
        &json!({
            "spec": {"containers": [container("main", "600m", "1")], "priority": priority},
            "status": {"nominatedNodeName": nominated},
        }),
    )
}

#[test]
fn a_nomination_holds_against_pods_of_equal_or_lower_priority() {
    let waiting = cpu("waiting", 5, Some("n1"));
    for (priority, gets_it) in [(0, false), (5, false), (6, true)] {
        let mut core = Core::of(&[one_core("n1"), waiting.clone(), cpu("new", priority, None)]);
        assert_eq!(!core.nodes_for("new").is_empty(), gets_it, "priority {priority}");
    }
    let mut core = Core::of(&[one_core("n1"), waiting]);
    assert_eq!(core.node_of("waiting"), "n1");
}

#[test]
fn a_nominated_node_is_preferred_to_a_better_one() {
    let mut core = Core::of(&[one_core("n1"), one_core("n2"), cpu("waiting", 5, Some("n2"))]);
    core.tell(&patched(cpu("peer", 5, None), &json!({})));
    assert_eq!(core.node_of("waiting"), "n2");
    // And to another if its own is taken.
    let mut core = Core::of(&[one_core("n1"), one_core("n2"), cpu("waiting", 5, Some("n2"))]);
    core.tell(&patched(cpu("there", 5, None), &json!({"spec": {"nodeName": "n2"}})));
    assert_eq!(core.node_of("waiting"), "n1");
}

#[test]
fn a_cleared_or_changed_nomination_does_not_hold() {
    let mut core = Core::of(&[one_core("n1"), one_core("n2"), cpu("waiting", 5, Some("n1"))]);
    core.tell(&cpu("new", 0, None));
    assert_eq!(core.nodes_for("new"), ["n2"]);
    core.tell(&cpu("waiting", 5, Some("n2")));
    assert_eq!(core.nodes_for("new"), ["n1"]);
    core.tell(&cpu("waiting", 5, None));
    assert_eq!(core.nodes_for("new"), ["n1", "n2"]);
}

#[test]
fn terminating_and_deleted_pods_hold_nothing() {
    let mut core = Core::of(&[one_core("n1"), cpu("waiting", 5, Some("n1")), cpu("new", 0, None)]);
    core.change("waiting", &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(core.nodes_for("new"), ["n1"]);
    let mut core = Core::of(&[one_core("n1"), cpu("waiting", 5, Some("n1")), cpu("new", 0, None)]);
    core.remove("waiting");
    assert_eq!(core.nodes_for("new"), ["n1"]);
}

#[test]
fn an_unreserved_pod_gets_its_nomination_back() {
    let mut core = Core::of(&[one_core("n1"), cpu("waiting", 5, Some("n1")), cpu("new", 0, None)]);
    core.node_of("waiting");
    let uid = core.uid("waiting");
    core.cluster.unreserve(&uid);
    assert!(core.nodes_for("new").is_empty());
    assert_eq!(core.node_of("waiting"), "n1");
}

#[test]
fn a_nomination_survives_an_update_of_the_pod_that_does_not_show_it_yet() {
    let low = patched(cpu("low", 0, None), &json!({"spec": {"nodeName": "n1"}}));
    let mut core = Core::of(&[one_core("n1"), low, cpu("high", 5, None), cpu("peer", 5, None)]);
    core.preemption("high");
    // Its condition is written before its nomination is.
    core.change(
        "high",
        &json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}),
    );
    core.remove("low");
    assert!(core.nodes_for("peer").is_empty());
    core.change("high", &json!({"status": {"nominatedNodeName": "n1"}}));
    assert!(core.nodes_for("peer").is_empty());
}

#[test]
fn the_anti_affinity_of_a_nominated_pod_holds() {
    let away = json!({"spec": {"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }}}});
    let small = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container("main", "1m", "1")]}});
    let objects = [one_core("n1"), one_core("n2")];
    let mut core = Core::of(&objects);
    core.tell(&patched(cpu("waiting", 5, Some("n1")), &away));
    core.tell(&pod("noisy", &small));
    assert_eq!(core.nodes_for("noisy"), ["n2"]);
    // The other way round.
    let mut core = Core::of(&objects);
    core.tell(&patched(cpu("waiting", 5, Some("n1")), &small));
    core.tell(&patched(pod("lonely", &small), &away));
    assert_eq!(core.nodes_for("lonely"), ["n2"]);
}

#[test]
fn a_nominated_pod_counts_for_topology_spread() {
    let zone = "topology.kubernetes.io/zone";
    let spread = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }]}});
    let mut core = Core::of(&[node_in("a", "n1"), node_in("b", "n2")]);
    core.tell(&patched(cpu("waiting", 5, Some("n1")), &spread));
    core.tell(&pod("new", &spread));
    assert_eq!(core.nodes_for("new"), ["n2"]);
}
