//! Gangs, bindings, and the replay of a sequence.

use serde_json::{Value, json};

use crate::checker::{Binding, World, check_bindings, check_final, check_gangs, check_placement};
use crate::objects::{node, node_in, patched, pod, pod_on};

fn member(name: &str, node: Option<&str>) -> Value {
    let labels =
        json!({"metadata": {"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "2"}}});
    patched(pod(name, &labels), &json!({"spec": {"nodeName": node}}))
}

#[test]
fn half_a_gang_is_noticed() {
    let nodes = [node("n1", &json!({}))];
    let rules = |pods: &[Value]| -> Vec<&'static str> {
        check_final(&nodes, pods, &[]).iter().map(|it| it.rule).collect()
    };
    assert!(rules(&[member("a", None), member("b", None)]).is_empty());
    assert!(rules(&[member("a", Some("n1")), member("b", Some("n1"))]).is_empty());
    assert_eq!(rules(&[member("a", Some("n1")), member("b", None)]), ["gang"]);
    // A gang may be named by annotations as well.
    let mut annotated = member("a", Some("n1"));
    let labels = annotated["metadata"]["labels"].take();
    annotated["metadata"]["annotations"] = labels;
    assert_eq!(check_gangs(&[annotated], &[]).len(), 1);
}

#[test]
fn a_pod_that_was_bound_twice_or_elsewhere_is_noticed() {
    let bound = |uid: &str, node: &str| Binding { uid: uid.to_owned(), node: node.to_owned() };
    let pods = [pod_on("n1", "a", &json!({}))];
    assert!(check_bindings(&[bound("uid-a", "n1")], &pods).is_empty());
    assert_eq!(check_bindings(&[bound("uid-a", "n1"), bound("uid-a", "n1")], &pods).len(), 1);
    assert_eq!(check_bindings(&[bound("uid-a", "n2")], &pods).len(), 1);
}

#[test]
fn a_sequence_is_replayed_in_order() {
    let zone = "topology.kubernetes.io/zone";
    let spread = json!({"spec": {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }]}, "metadata": {"labels": {"app": "web"}}});
    let pods: Vec<Value> = ["p1", "p2", "p3"].iter().map(|it| pod(it, &spread)).collect();
    let mut world = World::new(&[node_in("a", "n1"), node_in("b", "n2")], &pods, &[]);
    for (pod, node) in pods.iter().zip(["n1", "n2", "n1"]) {
        assert!(check_placement(&world, pod, node).is_empty());
        let name = pod["metadata"]["name"].as_str().unwrap();
        world.bind(&format!("default/{name}"), node);
    }
    // In another order, the second would have been wrong.
    let mut world = World::new(&[node_in("a", "n1"), node_in("b", "n2")], &pods, &[]);
    world.bind("default/p1", "n1");
    assert_eq!(check_placement(&world, &pods[2], "n1").len(), 1);
    // A pod that is there already is judged as if it were not.
    assert!(check_placement(&world, &pods[0], "n1").is_empty());
    world.remove_pod("default/p1");
    assert!(check_placement(&world, &pods[2], "n1").is_empty());
    world.remove_node("n1");
    assert_eq!(check_placement(&world, &pods[2], "n1")[0].rule, "node");
}

#[test]
fn a_group_of_kubernetes_has_its_minimum_bound_or_nothing() {
    let of = |spec: Value| {
        let bound = json!({"spec": {"nodeName": "n1"}});
        patched(pod("a", &json!({ "spec": spec })), &bound)
    };
    let minimum = |count: u32| json!({"gang": {"minCount": count}});
    let group = |policy: Value| {
        json!({
            "kind": "PodGroup", "metadata": {"namespace": "default", "name": "train"},
            "spec": {"schedulingPolicy": policy},
        })
    };
    let grouped = of(json!({"schedulingGroup": {"podGroupName": "train"}}));
    let broken =
        |pod: &Value, others: &[Value]| !check_gangs(std::slice::from_ref(pod), others).is_empty();
    assert!(broken(&grouped, &[]), "its group does not exist");
    assert!(broken(&grouped, &[group(minimum(2))]));
    assert!(!broken(&grouped, &[group(minimum(1))]));
    assert!(!broken(&grouped, &[group(json!({"basic": {}}))]));
    let workload = |count: u32| {
        json!({
            "kind": "Workload", "metadata": {"namespace": "default", "name": "job"},
            "spec": {"podGroups": [{"name": "w", "policy": minimum(count)}]},
        })
    };
    let of_workload = of(json!({"workloadRef": {"name": "job", "podGroup": "w"}}));
    assert!(broken(&of_workload, &[workload(2)]) && !broken(&of_workload, &[workload(1)]));
}
