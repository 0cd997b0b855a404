//! What depends on the node alone: selectors, affinity, taints, cordons, gates.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{node, patched, pod};
use berth_kube::cluster::PodState;
use berth_kube::cluster::outcome::Outcome;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn nodes_for(objects: &[Value], spec: &Value) -> Vec<String> {
    let mut core = Core::of(objects);
    core.tell(&pod("new", &json!({ "spec": spec })));
    core.nodes_for("new")
}

fn labelled(name: &str, labels: &Value) -> Value {
    node(name, &json!({"metadata": {"labels": labels}}))
}

fn tainted(name: &str, taints: &[(&str, &str, &str)]) -> Value {
    let taints: Vec<Value> = taints
        .iter()
        .map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
        .collect();
    node(name, &json!({"spec": {"taints": taints}}))
}

#[test]
fn example_with_node_affinity_must_be_in_antarctica_and_prefers_a_label() {
    let zone = "topology.kubernetes.io/zone";
    let objects = [
        labelled("east", &json!({zone: "antarctica-east1"})),
        labelled(
            "west",
            &json!({zone: "antarctica-west1", "another-node-label-key": "another-node-label-value"}),
        ),
        labelled(
            "north",
            &json!({zone: "arctic", "another-node-label-key": "another-node-label-value"}),
        ),
    ];
    let places = json!([{"matchExpressions": [
        {"key": zone, "operator": "In", "values": ["antarctica-east1", "antarctica-west1"]}
    ]}]);
    let likes = json!([{"weight": 1, "preference": {"matchExpressions": [
        {"key": "another-node-label-key", "operator": "In", "values": ["another-node-label-value"]}
    ]}}]);
    let spec = json!({"affinity": {"nodeAffinity": {
        REQUIRED: {"nodeSelectorTerms": places}, PREFERRED: likes,
    }}});
    assert_eq!(nodes_for(&objects, &spec), ["east", "west"]);
    let mut core = Core::of(&objects);
    core.tell(&pod("new", &json!({ "spec": spec })));
    assert_eq!(core.node_of("new"), "west");
}

#[test]
fn node_selector_and_affinity_must_both_hold_and_terms_are_alternatives() {
    let objects = [
        labelled("a", &json!({"disk": "ssd", "cores": "8"})),
        labelled("b", &json!({"disk": "ssd", "cores": "64"})),
        labelled("c", &json!({"disk": "hdd", "cores": "64"})),
    ];
    let term = |key: &str, operator: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]});
    let by = |terms: Value| json!({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}});
    let large = by(json!([term("cores", "Gt", "8")]));
    assert_eq!(nodes_for(&objects, &large), ["b", "c"]);
    assert_eq!(
        nodes_for(&objects, &patched(large, &json!({"nodeSelector": {"disk": "ssd"}}))),
        ["b"]
    );
    assert_eq!(
        nodes_for(&objects, &by(json!([term("cores", "Lt", "9"), term("disk", "In", "hdd")]))),
        ["a", "c"]
    );
    let named =
        json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]);
    assert_eq!(nodes_for(&objects, &by(named)), ["b"]);
    assert!(nodes_for(&objects, &by(json!([{}]))).is_empty());
}

#[test]
fn example_a_pod_that_tolerates_two_of_three_taints_stays_away() {
    let three = [
        ("key1", "value1", "NoSchedule"),
        ("key1", "value1", "NoExecute"),
        ("key2", "value2", "NoSchedule"),
    ];
    let two = json!({"tolerations": [
        {"key": "key1", "operator": "Equal", "value": "value1", "effect": "NoSchedule"},
        {"key": "key1", "operator": "Equal", "value": "value1", "effect": "NoExecute"},
    ]});
    assert!(nodes_for(&[tainted("n1", &three)], &two).is_empty());
    assert_eq!(nodes_for(&[tainted("n1", &three[..2])], &two), ["n1"]);
}

#[test]
fn toleration_operators_keys_and_effects() {
    let objects = [
        tainted("a", &[("gpu", "a100", "NoSchedule")]),
        tainted("b", &[("gpu", "h100", "NoSchedule")]),
        tainted("c", &[("gpu", "a100", "NoExecute")]),
        tainted("d", &[("spare", "", "NoSchedule")]),
        tainted("e", &[("gpu", "a100", "PreferNoSchedule")]),
    ];
    let cases: [(Value, &[&str]); 7] = [
        (json!([]), &["e"]),
        (json!([{"operator": "Exists"}]), &["a", "b", "c", "d", "e"]),
        (json!([{"key": "gpu", "operator": "Exists"}]), &["a", "b", "c", "e"]),
        (json!([{"key": "gpu", "value": "a100"}]), &["a", "c", "e"]),
        (
            json!([{"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}]),
            &["a", "e"],
        ),
        (json!([{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]), &["c", "e"]),
        (json!([{"key": "spare", "operator": "Equal"}]), &["d", "e"]),
    ];
    for (tolerations, expected) in cases {
        let spec = json!({ "tolerations": tolerations });
        assert_eq!(nodes_for(&objects, &spec), expected, "{spec}");
    }
    // A node that would rather not have it is the last choice.
    let mut core = Core::of(&[objects[4].clone(), node("f", &json!({}))]);
    core.tell(&pod("new", &json!({})));
    assert_eq!(core.node_of("new"), "f");
}

#[test]
fn a_cordoned_node_takes_only_pods_that_tolerate_the_cordon() {
    let cordoned = node("n1", &json!({"spec": {"unschedulable": true}}));
    assert!(nodes_for(std::slice::from_ref(&cordoned), &json!({})).is_empty());
    let daemon = json!({"tolerations": [
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    ]});
    assert_eq!(nodes_for(&[cordoned], &daemon), ["n1"]);
}

#[test]
fn a_cordon_is_seen_with_another_taint_of_the_same_key() {
    let key = "node.kubernetes.io/unschedulable";
    let taints = json!([
        {"key": key, "effect": "PreferNoSchedule"}, {"key": key, "effect": "NoSchedule"}
    ]);
    let mut core =
        Core::of(&[node("n1", &json!({"spec": {"taints": taints, "unschedulable": true}}))]);
    core.tell(&pod("new", &json!({})));
    assert_eq!(core.refusal("new").code, "node_cordoned");
    // The one that tolerates the cordon need not tolerate what is worse.
    let worse = json!([{"key": key, "effect": "NoExecute"}]);
    let objects = [node("n1", &json!({"spec": {"taints": worse}}))];
    let spec = json!({"tolerations": [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]});
    let mut core = Core::of(&objects);
    core.tell(&pod("new", &json!({ "spec": spec })));
    assert_eq!(core.refusal("new").code, "taint_not_tolerated");
}

#[test]
fn gated_pods_and_pods_of_other_schedulers_are_not_placed() {
    let mut core = Core::of(&[node("n1", &json!({}))]);
    let gate = json!({"spec": {"schedulingGates": [{"name": "wait"}]}});
    assert_eq!(core.pod(&pod("gated", &gate)), PodState::Gated);
    assert_eq!(core.schedule("gated"), Outcome::NotPending);
    assert_eq!(core.pod(&pod("gated", &json!({}))), PodState::Pending);
    assert_eq!(core.node_of("gated"), "n1");
    let foreign = json!({"spec": {"schedulerName": "default-scheduler"}});
    assert_eq!(core.pod(&pod("foreign", &foreign)), PodState::Foreign);
    assert_eq!(core.schedule("foreign"), Outcome::NotPending);
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    core.pod(&pod("going", &going));
    assert_eq!(core.schedule("going"), Outcome::NotPending);
    assert_eq!(core.schedule("gated"), Outcome::NotPending, "a place is held for it");
}

#[test]
fn numeric_taints_are_tolerated_by_comparison() {
    let objects = [
        tainted("low", &[("sla", "900", "NoSchedule")]),
        tainted("high", &[("sla", "950", "NoSchedule")]),
        tainted("text", &[("sla", "best", "NoSchedule")]),
    ];
    let by = |operator: &str, value: &str| {
        let toleration = json!({"key": "sla", "operator": operator, "value": value});
        nodes_for(&objects, &json!({"tolerations": [toleration]}))
    };
    assert_eq!(by("Gt", "900"), ["high"]);
    assert_eq!(by("Lt", "950"), ["low"]);
    assert_eq!(by("Gt", "0"), ["high", "low"]);
    assert!(by("Gt", "none").is_empty());
}

#[test]
fn a_pod_that_needs_a_feature_goes_only_to_nodes_that_declare_it() {
    let declaring = |name: &str, features: &[&str]| {
        node(name, &json!({"status": {"declaredFeatures": features}}))
    };
    let objects = [
        declaring("old", &[]),
        declaring("restarts", &["RestartAllContainersOnContainerExits"]),
        declaring("users", &["InPlacePodVerticalScaling", "UserNamespacesHostNetworkSupport"]),
    ];
    let with_action = |containers: &str, action: &str| {
        let exit = json!({"operator": "In", "values": [42]});
        let rules = json!([{"action": action, "exitCodes": exit}]);
        let more = json!({"name": "main", "restartPolicyRules": rules});
        json!({"containers": [{"name": "main"}], containers: [more]})
    };
    let restarts_all = with_action("containers", "RestartAllContainers");
    assert_eq!(nodes_for(&objects, &restarts_all), ["restarts"]);
    assert_eq!(
        nodes_for(&objects, &with_action("initContainers", "RestartAllContainers")),
        ["restarts"]
    );
    assert_eq!(nodes_for(&objects, &with_action("containers", "Restart")).len(), 3);
    let users = json!({"hostNetwork": true, "hostUsers": false});
    assert_eq!(nodes_for(&objects, &users), ["users"]);
    assert_eq!(nodes_for(&objects, &json!({"hostNetwork": true})).len(), 3);
    assert_eq!(nodes_for(&objects, &json!({"hostUsers": false})).len(), 3);
    let mount = json!({"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]});
    let mounts = json!({"containers": [{"name": "main", "volumeMounts": [mount]}]});

    // Nothing is ever bound to a node without it, and the refusal names it.
    let mut core = Core::of(&objects);
    core.tell(&pod("new", &json!({ "spec": mounts })));
    let refusal = core.refusal("new");
    assert_eq!(refusal.code, "node_feature_missing");
    assert!(refusal.line.contains("VolumeBindMountOptions"), "{}", refusal.line);
    // A kubelet that is upgraded makes room for it.
    core.tell(&declaring("old", &["VolumeBindMountOptions"]));
    assert_eq!(core.node_of("new"), "old");
}
