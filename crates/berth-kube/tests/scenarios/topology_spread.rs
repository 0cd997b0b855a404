//! Topology spread, by the examples of the page "Pod Topology Spread Constraints" and of the API.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{node, node_in, patched, pod, pod_on};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

fn bar() -> Value {
    json!({"foo": "bar"})
}

fn constraint(key: &str) -> Value {
    json!({
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"foo": "bar"}},
    })
}

fn mypod(constraints: &[Value]) -> Value {
    let patch = json!({
        "metadata": {"labels": bar()}, "spec": {"topologySpreadConstraints": constraints}
    });
    pod("mypod", &patch)
}

/// Zones A and B with two nodes each; two pods in the first, one in the second.
fn four_nodes_three_pods() -> Vec<Value> {
    vec![
        node_in("zoneA", "node1"),
        node_in("zoneA", "node2"),
        node_in("zoneB", "node3"),
        node_in("zoneB", "node4"),
        pod_on("node1", "p1", &bar()),
        pod_on("node2", "p2", &bar()),
        pod_on("node3", "p3", &bar()),
    ]
}

fn nodes_for(objects: &[Value], pod: &Value) -> Vec<String> {
    let mut core = Core::of(objects);
    core.tell(pod);
    core.nodes_for("mypod")
}

#[test]
fn example_one_constraint_places_the_pod_in_the_zone_with_fewer() {
    let pods = four_nodes_three_pods();
    assert_eq!(nodes_for(&pods, &mypod(&[constraint(ZONE)])), ["node3", "node4"]);
    let two = patched(constraint(ZONE), &json!({"maxSkew": 2}));
    assert_eq!(nodes_for(&pods, &mypod(&[two])), ["node1", "node2", "node3", "node4"]);
}

#[test]
fn example_two_constraints_leave_only_node4() {
    let both = [constraint(ZONE), constraint(HOST)];
    assert_eq!(nodes_for(&four_nodes_three_pods(), &mypod(&both)), ["node4"]);
}

#[test]
fn example_conflicting_constraints_leave_no_node() {
    let objects = [
        node_in("zoneA", "node1"),
        node_in("zoneA", "node2"),
        node_in("zoneB", "node3"),
        pod_on("node1", "p1", &bar()),
        pod_on("node1", "p2", &bar()),
        pod_on("node2", "p3", &bar()),
        pod_on("node3", "p4", &bar()),
        pod_on("node3", "p5", &bar()),
    ];
    assert_eq!(nodes_for(&objects, &mypod(&[constraint(ZONE)])), ["node3"]);
    assert_eq!(nodes_for(&objects, &mypod(&[constraint(HOST)])), ["node2"]);
    assert!(nodes_for(&objects, &mypod(&[constraint(ZONE), constraint(HOST)])).is_empty());
}

#[test]
fn example_a_zone_that_node_affinity_excludes_does_not_count() {
    let mut objects = four_nodes_three_pods();
    objects.push(node_in("zoneC", "node5"));
    let not_c = json!({"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["zoneC"]}]}
        ]}
    }}}});
    let pod = patched(mypod(&[constraint(ZONE)]), &not_c);
    assert_eq!(nodes_for(&objects, &pod), ["node3", "node4"]);
    // Told to ignore the affinity, it counts the empty zone, which it cannot go to.
    let ignore = patched(constraint(ZONE), &json!({"nodeAffinityPolicy": "Ignore"}));
    assert!(nodes_for(&objects, &patched(mypod(&[ignore]), &not_c)).is_empty());
    assert_eq!(nodes_for(&objects, &mypod(&[constraint(ZONE)])), ["node5"]);
}

#[test]
fn example_of_max_skew_two_two_one() {
    let objects: Vec<Value> = [("zone1", "n1", 2), ("zone2", "n2", 2), ("zone3", "n3", 1)]
        .iter()
        .flat_map(|(zone, node, count)| {
            let pods = (0..*count).map(|it| pod_on(node, &format!("{node}-{it}"), &bar()));
            std::iter::once(node_in(zone, node)).chain(pods).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(nodes_for(&objects, &mypod(&[constraint(ZONE)])), ["n3"]);
    let two = patched(constraint(ZONE), &json!({"maxSkew": 2}));
    assert_eq!(nodes_for(&objects, &mypod(&[two])), ["n1", "n2", "n3"]);
}

#[test]
fn example_of_min_domains_two_two_two_with_five_wanted() {
    let mut objects = Vec::new();
    for number in 1..=3 {
        let name = format!("n{number}");
        objects.push(node_in(&format!("zone{number}"), &name));
        objects.push(pod_on(&name, &format!("{name}-a"), &bar()));
        objects.push(pod_on(&name, &format!("{name}-b"), &bar()));
    }
    let skewed = patched(constraint(ZONE), &json!({"maxSkew": 2}));
    assert_eq!(nodes_for(&objects, &mypod(std::slice::from_ref(&skewed))), ["n1", "n2", "n3"]);
    let five = patched(skewed, &json!({"minDomains": 5}));
    assert!(nodes_for(&objects, &mypod(&[five])).is_empty());
}

#[test]
fn a_roll_out_spreads_each_revision_by_itself_with_match_label_keys() {
    let mut objects = four_nodes_three_pods();
    for object in objects.iter_mut().filter(|it| it["kind"] == "Pod") {
        object["metadata"]["labels"]["pod-template-hash"] = "old".into();
    }
    let by_hash = patched(constraint(ZONE), &json!({"matchLabelKeys": ["pod-template-hash"]}));
    let of = |hash: &str| {
        let labels = json!({"metadata": {"labels": {"pod-template-hash": hash}}});
        patched(mypod(std::slice::from_ref(&by_hash)), &labels)
    };
    assert_eq!(nodes_for(&objects, &of("old")), ["node3", "node4"]);
    assert_eq!(nodes_for(&objects, &of("new")), ["node1", "node2", "node3", "node4"]);
}

#[test]
fn nodes_with_taints_count_unless_the_constraint_honours_them() {
    let mut objects = four_nodes_three_pods();
    let taint = json!({"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}});
    objects.push(patched(node_in("zoneC", "node5"), &taint));
    assert!(nodes_for(&objects, &mypod(&[constraint(ZONE)])).is_empty());
    let honour = patched(constraint(ZONE), &json!({"nodeTaintsPolicy": "Honor"}));
    assert_eq!(nodes_for(&objects, &mypod(&[honour])), ["node3", "node4"]);
}

#[test]
fn a_cordoned_node_still_makes_a_domain() {
    let mut objects = four_nodes_three_pods();
    objects.push(patched(node_in("zoneC", "node5"), &json!({"spec": {"unschedulable": true}})));
    assert!(nodes_for(&objects, &mypod(&[constraint(ZONE)])).is_empty());
}

#[test]
fn terminating_pods_ended_or_of_another_namespace_do_not_count() {
    let unlike = [
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"metadata": {"namespace": "other"}}),
        json!({"metadata": {"labels": {"foo": "other"}}}),
    ];
    for patch in unlike {
        let mut objects = four_nodes_three_pods();
        objects[5] = patched(objects[5].clone(), &patch);
        let nodes = nodes_for(&objects, &mypod(&[constraint(ZONE)]));
        assert_eq!(nodes, ["node1", "node2", "node3", "node4"], "{patch}");
    }
}

#[test]
fn a_node_without_the_label_is_no_domain_and_takes_no_such_pod() {
    let mut objects = four_nodes_three_pods();
    objects.push(node("nowhere", &json!({})));
    assert_eq!(nodes_for(&objects, &mypod(&[constraint(ZONE)])), ["node3", "node4"]);
}

#[test]
fn schedule_anyway_prefers_the_emptier_zone() {
    let anyway = patched(constraint(ZONE), &json!({"whenUnsatisfiable": "ScheduleAnyway"}));
    let mut core = Core::of(&four_nodes_three_pods());
    core.tell(&mypod(std::slice::from_ref(&anyway)));
    let node = core.node_of("mypod");
    assert!(["node3", "node4"].contains(&node.as_str()), "{node}");
    let mut core = Core::of(&four_nodes_three_pods()[..3]);
    core.tell(&patched(node_in("zoneB", "node3"), &json!({"spec": {"unschedulable": true}})));
    core.tell(&mypod(&[anyway]));
    core.node_of("mypod");
}

#[test]
fn a_node_that_loses_its_label_leaves_its_domain_with_its_pods() {
    let mut core = Core::of(&four_nodes_three_pods());
    core.tell(&mypod(&[constraint(ZONE)]));
    assert_eq!(core.nodes_for("mypod"), ["node3", "node4"]);
    core.tell(&node("node2", &json!({})));
    assert_eq!(core.nodes_for("mypod"), ["node1", "node3", "node4"]);
    core.tell(&node_in("zoneB", "node2"));
    assert_eq!(core.nodes_for("mypod"), ["node1"]);
}

#[test]
fn a_node_that_loses_a_label_of_any_kind_while_its_pods_are_counted_does_no_harm() {
    let in_rack = |name: &str, rack: Option<&str>| {
        node(name, &json!({"metadata": {"labels": {"rack": rack}}}))
    };
    let mut core = Core::of(&[in_rack("n1", Some("r1")), in_rack("n2", Some("r2"))]);
    core.tell(&pod_on("n1", "p1", &bar()));
    core.tell(&mypod(&[constraint("rack")]));
    assert_eq!(core.nodes_for("mypod"), ["n2"]);
    core.tell(&in_rack("n1", None));
    assert_eq!(core.nodes_for("mypod"), ["n2"]);
    core.tell(&pod_on("n1", "p2", &bar()));
    core.tell(&in_rack("n1", Some("r2")));
    assert_eq!(core.nodes_for("mypod"), ["n1", "n2"]);
}

#[test]
fn pods_on_a_deleted_node_count_nowhere_until_it_is_back() {
    let mut core = Core::of(&four_nodes_three_pods());
    core.tell(&mypod(&[constraint(ZONE)]));
    core.cluster.remove_node("node2");
    assert_eq!(core.nodes_for("mypod"), ["node1", "node3", "node4"]);
    core.tell(&node_in("zoneA", "node2"));
    assert_eq!(core.nodes_for("mypod"), ["node3", "node4"]);
}
