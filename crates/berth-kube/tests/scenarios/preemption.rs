//! Pods of higher priority make room by letting others go.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{container, node, node_in, patched, pod, pod_on};

const GOING: &str = "2026-01-01T00:00:00Z";

fn one_core(name: &str) -> Value {
    node(name, &json!({"status": {"allocatable": {"cpu": "1"}}}))
}

fn cpu(name: &str, cpu: &str, priority: i64) -> Value {
    let spec = json!({"containers": [container("main", cpu, "1")], "priority": priority});
    pod(name, &json!({ "spec": spec }))
}

fn cpu_on(node: &str, name: &str, milli: &str, priority: i64) -> Value {
    patched(cpu(name, milli, priority), &json!({"spec": {"nodeName": node}}))
}

#[test]
fn a_pod_of_higher_priority_preempts_one_of_lower_priority() {
    let mut core =
        Core::of(&[one_core("n1"), cpu_on("n1", "low", "600m", 0), cpu("high", "600m", 10)]);
    let preemption = core.preemption("high");
    assert_eq!(&*preemption.node, "n1");
    assert_eq!(preemption.victims[0].pod.to_string(), "default/low");
    assert_eq!(preemption.victims[0].priority, 0);
    // Until it has gone, the pod waits, and nobody else is told to go.
    core.change("low", &json!({"metadata": {"deletionTimestamp": GOING}}));
    core.refusal("high");
    core.remove("low");
    assert_eq!(core.node_of("high"), "n1");
}

#[test]
fn pods_of_equal_priority_are_never_preempted() {
    let mut core =
        Core::of(&[one_core("n1"), cpu_on("n1", "peer", "600m", 10), cpu("new", "600m", 10)]);
    assert_eq!(core.refusal("new").code, "no_capacity_cpu");
}

#[test]
fn a_pod_whose_policy_is_never_waits() {
    let mut core = Core::of(&[one_core("n1"), cpu_on("n1", "low", "600m", 0)]);
    core.tell(&patched(cpu("high", "600m", 10), &json!({"spec": {"preemptionPolicy": "Never"}})));
    core.refusal("high");
}

#[test]
fn only_as_many_victims_as_necessary_are_chosen_the_least_important_first() {
    let mut core = Core::of(&[
        one_core("n1"),
        cpu_on("n1", "a", "300m", 5),
        cpu_on("n1", "b", "300m", 1),
        cpu_on("n1", "c", "300m", 3),
        cpu("high", "400m", 10),
    ]);
    assert_eq!(core.victims("high"), ("n1".to_owned(), vec!["b".to_owned()]));
}

#[test]
fn the_node_with_the_least_important_victims_is_chosen() {
    let mut core = Core::of(&[
        one_core("n1"),
        one_core("n2"),
        one_core("n3"),
        cpu_on("n1", "a", "900m", 5),
        cpu_on("n2", "b", "900m", 1),
        cpu_on("n3", "c1", "450m", 1),
        cpu_on("n3", "c2", "450m", 1),
        cpu("high", "900m", 10),
    ]);
    assert_eq!(core.victims("high"), ("n2".to_owned(), vec!["b".to_owned()]));
}

#[test]
fn terminating_pods_are_waited_for_before_others_are_preempted() {
    let going = patched(
        cpu_on("n1", "going", "500m", 5),
        &json!({"metadata": {"deletionTimestamp": GOING}}),
    );
    let mut core = Core::of(&[
        one_core("n1"),
        going,
        cpu_on("n1", "stays", "500m", 1),
        cpu("high", "500m", 10),
    ]);
    core.refusal("high");
    core.remove("going");
    assert_eq!(core.node_of("high"), "n1");
    // Where that is not enough, only those go who have to.
    let going = patched(
        cpu_on("n1", "going", "500m", 5),
        &json!({"metadata": {"deletionTimestamp": GOING}}),
    );
    let mut core = Core::of(&[
        one_core("n1"),
        going,
        cpu_on("n1", "stays", "500m", 1),
        cpu("high", "800m", 10),
    ]);
    assert_eq!(core.victims("high").1, ["stays"]);
}

#[test]
fn preemption_also_helps_against_ports_affinity_and_the_number_of_pods() {
    let port = json!({"spec": {"containers": [{"name": "main", "ports": [{"hostPort": 80}]}]}});
    let high = json!({"spec": {"priority": 10}});
    let on = patched(pod_on("n1", "low", &json!({"app": "a"})), &port);
    let mut core = Core::of(&[node("n1", &json!({})), on.clone()]);
    core.tell(&patched(patched(pod("high", &high), &port), &json!({})));
    assert_eq!(core.victims("high").1, ["low"]);

    let away = json!({"spec": {"priority": 10, "affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }}}});
    let mut core = Core::of(&[node("n1", &json!({})), on.clone()]);
    core.tell(&pod("high", &away));
    assert_eq!(core.victims("high").1, ["low"]);

    let mut core = Core::of(&[node("n1", &json!({"status": {"allocatable": {"pods": "1"}}})), on]);
    core.tell(&pod("high", &high));
    assert_eq!(core.victims("high").1, ["low"]);
}

#[test]
fn no_pod_is_preempted_where_that_does_not_help() {
    let cordoned = patched(one_core("n1"), &json!({"spec": {"unschedulable": true}}));
    let mut core = Core::of(&[cordoned, cpu_on("n1", "low", "600m", 0), cpu("high", "600m", 10)]);
    assert_eq!(core.refusal("high").code, "node_cordoned");
    let mut core =
        Core::of(&[one_core("n1"), cpu_on("n1", "low", "600m", 0), cpu("high", "1001m", 10)]);
    core.refusal("high");
    // Those in its way are in the same zone, but on another node.
    let zone = "topology.kubernetes.io/zone";
    let away = json!({"spec": {"priority": 10, "affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": zone}
        ]
    }}}});
    let both = [("n1", "x"), ("n2", "y")];
    let mut core = Core::of(&[node_in("a", "n1"), node_in("a", "n2")]);
    both.iter().for_each(|(node, name)| core.tell(&pod_on(node, name, &json!({"app": "a"}))));
    core.tell(&pod("high", &away));
    core.refusal("high");
}

#[test]
fn a_pod_does_not_preempt_one_that_it_has_affinity_to() {
    let with_affinity = json!({"spec": {"affinity": {"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }}}});
    let friend =
        patched(cpu_on("n1", "friend", "600m", 0), &json!({"metadata": {"labels": {"app": "a"}}}));
    let mut core =
        Core::of(&[one_core("n1"), friend, patched(cpu("high", "600m", 10), &with_affinity)]);
    core.refusal("high");
}

#[test]
fn a_reservation_is_not_preempted() {
    let mut core = Core::of(&[one_core("n1"), cpu("low", "600m", 0), cpu("high", "600m", 10)]);
    core.node_of("low");
    core.refusal("high");
    core.change("low", &json!({"spec": {"nodeName": "n1"}}));
    assert_eq!(core.victims("high").1, ["low"]);
}

#[test]
fn a_dry_run_leaves_no_trace() {
    let mut core =
        Core::of(&[one_core("n1"), cpu_on("n1", "low", "600m", 0), cpu("other", "500m", 0)]);
    let before = core.explain("other");
    core.cluster.take_changed();
    core.tell(&cpu("high", "600m", 10));
    core.preemption("high");
    let uid = core.uid("high");
    core.cluster.clear_nomination(&uid);
    core.remove("high");
    assert_eq!(core.explain("other"), before);
}

#[test]
fn a_gang_is_preempted_as_a_whole_or_not_at_all() {
    let sized =
        |name: &str, cpu: &str| node(name, &json!({"status": {"allocatable": {"cpu": cpu}}}));
    let on = |name: &str, node: &str, priority: i32, gang: &Value| {
        let container = json!({"name": "main", "resources": {"requests": {"cpu": "2"}}});
        let spec = json!({"nodeName": node, "priority": priority, "containers": [container]});
        let mut made = pod(name, &json!({"spec": spec, "status": {"phase": "Running"}}));
        crate::objects::merge(&mut made, gang);
        made
    };
    let gang = json!({"metadata": {"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "2"}}});
    let high = json!({"spec": {"priority": 100, "containers": [
        {"name": "main", "resources": {"requests": {"cpu": "2"}}}
    ]}});
    let nodes = [sized("n1", "2"), sized("n2", "2")];
    let mut core = Core::of(&nodes);
    core.tell(&on("g1", "n1", 0, &gang));
    core.tell(&on("g2", "n2", 0, &gang));
    core.tell(&pod("high", &high));
    let (_, mut victims) = core.victims("high");
    victims.sort_unstable();
    assert_eq!(victims, ["g1", "g2"]);

    // One pod of another gang may not go, so none may.
    let mut core = Core::of(&nodes);
    core.tell(&on("g1", "n1", 0, &gang));
    core.tell(&on("g2", "n2", 100, &gang));
    core.tell(&pod("high", &high));
    assert_eq!(core.refusal("high").code, "no_capacity_cpu");

    // A pod of its own is preferred to two of a gang.
    let mut core = Core::of(&[sized("n1", "2"), sized("n2", "2"), sized("n3", "2")]);
    core.tell(&on("g1", "n1", 0, &gang));
    core.tell(&on("g2", "n2", 0, &gang));
    core.tell(&on("single", "n3", 0, &json!({})));
    core.tell(&pod("high", &high));
    assert_eq!(core.victims("high"), ("n3".to_owned(), vec!["single".to_owned()]));
}

#[test]
fn the_pods_of_a_basic_group_are_preempted_one_by_one_unless_it_is_a_unit() {
    let sized = |name: &str| node(name, &json!({"status": {"allocatable": {"cpu": "2"}}}));
    let on = |name: &str, node: &str| {
        let container = json!({"name": "main", "resources": {"requests": {"cpu": "2"}}});
        let group = json!({"podGroupName": "web"});
        let spec = json!({"nodeName": node, "schedulingGroup": group, "containers": [container]});
        pod(name, &json!({"spec": spec, "status": {"phase": "Running"}}))
    };
    let high = json!({"spec": {"priority": 100, "containers": [
        {"name": "main", "resources": {"requests": {"cpu": "2"}}}
    ]}});
    for (spec, expected) in [
        (json!({"schedulingPolicy": {"basic": {}}}), 1),
        (json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}), 2),
        (json!({"schedulingPolicy": {"gang": {"minCount": 1}}}), 2),
    ] {
        let metadata = json!({"namespace": "default", "name": "web"});
        let group = json!({"kind": "PodGroup", "metadata": metadata, "spec": spec});
        let mut core = Core::of(&[sized("n1"), sized("n2"), group]);
        core.tell(&on("a", "n1"));
        core.tell(&on("b", "n2"));
        core.tell(&pod("high", &high));
        assert_eq!(core.victims("high").1.len(), expected, "{spec}");
    }
}
