//! What depends on the node alone: cordons, taints, selectors, affinity; and volumes.

use serde_json::{Value, json};

use crate::broken;
use crate::checker::check_final;
use crate::objects::{node, node_in, patched, pod};

const FINE: [&str; 0] = [];

fn with(spec: &Value) -> Value {
    pod("asking", &json!({ "spec": spec }))
}

#[test]
fn a_missing_node_takes_no_pod() {
    assert_eq!(broken(&[], &[], &[], &with(&json!({})), "n1"), ["node"]);
}

#[test]
fn gates_keep_a_pod_off_every_node() {
    let gated = with(&json!({"schedulingGates": [{"name": "berth.dev/wait"}]}));
    assert_eq!(broken(&[node("n1", &json!({}))], &[], &[], &gated, "n1"), ["gates"]);
}

#[test]
fn a_cordon_holds_for_pods_that_do_not_tolerate_it() {
    let nodes = [node("n1", &json!({"spec": {"unschedulable": true}}))];
    assert_eq!(broken(&nodes, &[], &[], &with(&json!({})), "n1"), ["cordon"]);
    let daemon = json!({"tolerations": [
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    ]});
    assert_eq!(broken(&nodes, &[], &[], &with(&daemon), "n1"), FINE);
}

#[test]
fn taints_are_tolerated_by_key_value_and_effect() {
    let tainted = |effect: &str| {
        let taints = json!([{"key": "gpu", "value": "a100", "effect": effect}]);
        [node("n1", &json!({"spec": {"taints": taints}}))]
    };
    let by = |toleration: Value| with(&json!({"tolerations": [toleration]}));
    let cases = [
        (json!({"operator": "Exists"}), true),
        (json!({"key": "gpu", "operator": "Exists"}), true),
        (json!({"key": "gpu", "value": "a100"}), true),
        (json!({"key": "gpu", "operator": "Equal", "value": "h100"}), false),
        (json!({"key": "cpu", "operator": "Exists"}), false),
        (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), false),
        (json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}), true),
    ];
    for (toleration, tolerated) in cases {
        let expected: &[&str] = if tolerated { &[] } else { &["taints"] };
        let pod = by(toleration.clone());
        assert_eq!(broken(&tainted("NoSchedule"), &[], &[], &pod, "n1"), expected, "{toleration}");
    }
    let numeric = |value: &str| {
        let taints = json!([{"key": "sla", "value": value, "effect": "NoSchedule"}]);
        [node("n1", &json!({"spec": {"taints": taints}}))]
    };
    let than = |operator: &str| by(json!({"key": "sla", "operator": operator, "value": "900"}));
    for (operator, value, tolerated) in [
        ("Gt", "901", true),
        ("Gt", "900", false),
        ("Lt", "899", true),
        ("Lt", "-1", true),
        ("Lt", "900", false),
        ("Gt", "0901", false),
        ("Gt", "a", false),
    ] {
        let expected: &[&str] = if tolerated { &[] } else { &["taints"] };
        let found = broken(&numeric(value), &[], &[], &than(operator), "n1");
        assert_eq!(found, expected, "{operator} {value}");
    }
    assert_eq!(broken(&tainted("NoExecute"), &[], &[], &with(&json!({})), "n1"), ["taints"]);
    assert_eq!(broken(&tainted("PreferNoSchedule"), &[], &[], &with(&json!({})), "n1"), FINE);
}

#[test]
fn node_selectors_and_the_terms_of_node_affinity_are_judged_as_written() {
    let labels = json!({"metadata": {"labels": {"zone": "a", "cores": "16"}}});
    let nodes = [node("n1", &labels)];
    let terms = |terms: Value| {
        let key = "requiredDuringSchedulingIgnoredDuringExecution";
        json!({"affinity": {"nodeAffinity": {key: {"nodeSelectorTerms": terms}}}})
    };
    let is = |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
    let zone = |zone: &str| json!({"matchExpressions": [is("zone", "In", json!([zone]))]});
    let expression = |it: Value| terms(json!([{"matchExpressions": [it]}]));
    let cases = [
        (json!({"nodeSelector": {"zone": "a"}}), true),
        (json!({"nodeSelector": {"zone": "b"}}), false),
        (json!({"nodeSelector": {"other": "a"}}), false),
        (terms(json!([zone("a")])), true),
        (terms(json!([zone("b")])), false),
        (terms(json!([zone("b"), zone("a")])), true),
        (terms(json!([{}])), false),
        (terms(json!([])), false),
        (expression(is("cores", "Gt", json!(["15"]))), true),
        (expression(is("cores", "Gt", json!(["16"]))), false),
        (expression(is("cores", "Lt", json!(["17"]))), true),
        (expression(is("cores", "Lt", json!(["16"]))), false),
        (expression(is("zone", "Gt", json!(["1"]))), false),
        (expression(is("rack", "NotIn", json!(["1"]))), true),
        (expression(is("zone", "NotIn", json!(["a"]))), false),
        (expression(is("zone", "Exists", json!([]))), true),
        (expression(is("zone", "DoesNotExist", json!([]))), false),
        (terms(json!([{"matchFields": [is("metadata.name", "In", json!(["n1"]))]}])), true),
        (terms(json!([{"matchFields": [is("metadata.name", "NotIn", json!(["n1"]))]}])), false),
        (terms(json!([{"matchFields": [is("metadata.uid", "In", json!(["n1"]))]}])), false),
    ];
    for (spec, matches) in cases {
        let expected: &[&str] = if matches { &[] } else { &["node-affinity"] };
        assert_eq!(broken(&nodes, &[], &[], &with(&spec), "n1"), expected, "{spec}");
        let bound = [patched(with(&spec), &json!({"spec": {"nodeName": "n1"}}))];
        let last: Vec<_> = check_final(&nodes, &bound, &[]).iter().map(|it| it.rule).collect();
        assert_eq!(last, expected, "{spec} in the end");
    }
}

#[test]
fn volumes_must_be_reachable_and_claims_must_exist() {
    let nodes = [node_in("a", "n1"), node_in("b", "n2")];
    let uses =
        with(&json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}));
    let claim = |spec: Value| {
        let metadata = json!({"name": "data", "namespace": "default"});
        json!({"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    };
    let key = "topology.kubernetes.io/zone";
    let terms = json!([{"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]}]);
    let volume = json!({
        "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    });
    let class = json!({
        "kind": "StorageClass", "metadata": {"name": "late"}, "volumeBindingMode": "WaitForFirstConsumer"
    });
    let bound = [claim(json!({"volumeName": "pv"})), volume];
    assert_eq!(broken(&nodes, &[], &bound, &uses, "n1"), FINE);
    assert_eq!(broken(&nodes, &[], &bound, &uses, "n2"), ["volumes"]);
    assert_eq!(broken(&nodes, &[], &[], &uses, "n1"), ["volumes"]);
    let late = [claim(json!({"storageClassName": "late"})), class];
    assert_eq!(broken(&nodes, &[], &late, &uses, "n1"), FINE);
    let never = [claim(json!({"storageClassName": "now"}))];
    assert_eq!(broken(&nodes, &[], &never, &uses, "n1"), ["volumes"]);
    let mut alone = bound.clone();
    alone[0]["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    let other =
        patched(uses.clone(), &json!({"metadata": {"name": "b"}, "spec": {"nodeName": "n1"}}));
    assert_eq!(broken(&nodes, std::slice::from_ref(&other), &bound, &uses, "n1"), FINE);
    assert_eq!(broken(&nodes, &[other], &alone, &uses, "n1"), ["volumes"]);
}

#[test]
fn features_that_follow_from_the_spec_must_be_declared() {
    let rules = json!([{"action": "RestartAllContainers"}]);
    let mount = json!({"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]});
    let cases = [
        (
            json!({"initContainers": [{"name": "a", "restartPolicyRules": rules}]}),
            "RestartAllContainersOnContainerExits",
        ),
        (json!({"hostNetwork": true, "hostUsers": false}), "UserNamespacesHostNetworkSupport"),
        (
            json!({"containers": [{"name": "main", "volumeMounts": [mount]}]}),
            "VolumeBindMountOptions",
        ),
    ];
    for (spec, feature) in cases {
        let declaring =
            |it: &str| [node("n1", &json!({"status": {"declaredFeatures": ["Other", it]}}))];
        assert_eq!(broken(&declaring(feature), &[], &[], &with(&spec), "n1"), FINE, "{spec}");
        let found = broken(&declaring("Another"), &[], &[], &with(&spec), "n1");
        assert_eq!(found, ["features"], "{spec}");
    }
}
