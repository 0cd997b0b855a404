//! Topology spread constraints.

use serde_json::{Value, json};

use crate::broken;
use crate::objects::{node, node_in, patched, pod, pod_on};

const FINE: [&str; 0] = [];
const ZONE: &str = "topology.kubernetes.io/zone";

fn spread(more: &Value) -> Value {
    let constraint = json!({
        "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"foo": "bar"}},
    });
    let constraint = patched(constraint, more);
    let patch = json!({
        "metadata": {"labels": {"foo": "bar"}},
        "spec": {"topologySpreadConstraints": [constraint]},
    });
    pod("new", &patch)
}

/// Two zones of two nodes; two pods in the first, one in the second.
fn nodes() -> Vec<Value> {
    vec![node_in("a", "a1"), node_in("a", "a2"), node_in("b", "b1"), node_in("b", "b2")]
}

fn three() -> Vec<Value> {
    let bar = json!({"foo": "bar"});
    vec![pod_on("a1", "x", &bar), pod_on("a2", "y", &bar), pod_on("b1", "z", &bar)]
}

#[test]
fn a_domain_is_at_most_max_skew_ahead() {
    assert_eq!(broken(&nodes(), &three(), &[], &spread(&json!({})), "a1"), ["spread"]);
    assert_eq!(broken(&nodes(), &three(), &[], &spread(&json!({})), "b2"), FINE);
    assert_eq!(broken(&nodes(), &three(), &[], &spread(&json!({"maxSkew": 2})), "a1"), FINE);
    let soft = spread(&json!({"whenUnsatisfiable": "ScheduleAnyway"}));
    assert_eq!(broken(&nodes(), &three(), &[], &soft, "a1"), FINE);
    let unlike = patched(spread(&json!({})), &json!({"metadata": {"labels": {"foo": "other"}}}));
    assert_eq!(broken(&nodes(), &three(), &[], &unlike, "a1"), FINE);
}

#[test]
fn with_fewer_domains_than_min_domains_the_emptiest_counts_as_empty() {
    let bar = json!({"foo": "bar"});
    let even = [pod_on("a1", "x", &bar), pod_on("b1", "y", &bar)];
    assert_eq!(broken(&nodes(), &even, &[], &spread(&json!({"minDomains": 2})), "a1"), FINE);
    assert_eq!(broken(&nodes(), &even, &[], &spread(&json!({"minDomains": 3})), "a1"), ["spread"]);
}

#[test]
fn terminating_pods_ended_or_of_other_namespaces_do_not_count() {
    let others = [
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"metadata": {"namespace": "other"}}),
    ];
    for other in others {
        let mut pods = three();
        pods[1] = patched(pods[1].clone(), &other);
        assert_eq!(broken(&nodes(), &pods, &[], &spread(&json!({})), "a1"), FINE, "{other}");
    }
}

#[test]
fn nodes_without_the_label_are_no_domain() {
    let mut nodes = nodes();
    nodes.push(node("nowhere", &json!({})));
    assert_eq!(broken(&nodes, &three(), &[], &spread(&json!({})), "nowhere"), ["spread"]);
    assert_eq!(broken(&nodes, &three(), &[], &spread(&json!({})), "b1"), FINE);
}

#[test]
fn which_nodes_count_follows_the_inclusion_policies() {
    // A third, empty zone that the pod does not ask for, or does not tolerate.
    let mut nodes = nodes();
    nodes.push(node_in("c", "c1"));
    let wanted = json!({"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["c"]}]}
        ]}
    }}}});
    let at = |nodes: &[Value], pod: &Value| broken(nodes, &three(), &[], pod, "b1");
    assert_eq!(at(&nodes, &patched(spread(&json!({})), &wanted)), FINE);
    let ignoring = spread(&json!({"nodeAffinityPolicy": "Ignore"}));
    assert_eq!(at(&nodes, &patched(ignoring, &wanted)), ["spread"]);
    let taints = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    nodes[4] = patched(nodes[4].clone(), &taints);
    assert_eq!(at(&nodes, &spread(&json!({}))), ["spread"]);
    assert_eq!(at(&nodes, &spread(&json!({"nodeTaintsPolicy": "Honor"}))), FINE);
}

#[test]
fn match_label_keys_count_only_pods_of_the_same_revision() {
    let mut pods = three();
    for pod in &mut pods {
        pod["metadata"]["labels"]["pod-template-hash"] = "old".into();
    }
    let new = spread(&json!({"matchLabelKeys": ["pod-template-hash"]}));
    let of = |hash: &str| {
        patched(new.clone(), &json!({"metadata": {"labels": {"pod-template-hash": hash}}}))
    };
    assert_eq!(broken(&nodes(), &pods, &[], &of("old"), "a1"), ["spread"]);
    assert_eq!(broken(&nodes(), &pods, &[], &of("new"), "a1"), FINE);
}

#[test]
fn several_constraints_must_all_hold() {
    let two = json!([
        {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"foo": "bar"}}},
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"foo": "bar"}}},
    ]);
    let new = patched(spread(&json!({})), &json!({"spec": {"topologySpreadConstraints": two}}));
    assert_eq!(broken(&nodes(), &three(), &[], &new, "b2"), FINE);
    assert_eq!(broken(&nodes(), &three(), &[], &new, "b1"), ["spread"]);
    assert_eq!(broken(&nodes(), &three(), &[], &new, "a1"), ["spread"]);
}
