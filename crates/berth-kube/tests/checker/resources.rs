//! Requests, capacity, ports and the number of pods.

use serde_json::{Value, json};

use crate::broken;
use crate::checker::check_final;
use crate::objects::{container, node, patched, pod, pod_on};

const FINE: [&str; 0] = [];

fn asking(cpu: &str, memory: &str) -> Value {
    pod("asking", &json!({"spec": {"containers": [container("main", cpu, memory)]}}))
}

#[test]
fn a_node_takes_its_last_byte_and_thousandth_and_no_more() {
    let nodes = [node("n1", &json!({"status": {"allocatable": {"cpu": "1", "memory": "1000"}}}))];
    let there = [patched(
        asking("400m", "0.3k"),
        &json!({"spec": {"nodeName": "n1"}, "metadata": {"name": "a"}}),
    )];
    assert_eq!(broken(&nodes, &there, &[], &asking("600m", "700"), "n1"), FINE);
    assert_eq!(broken(&nodes, &there, &[], &asking("601m", "700"), "n1"), ["resources"]);
    assert_eq!(broken(&nodes, &there, &[], &asking("600m", "701"), "n1"), ["resources"]);
    // What a pod does not ask for is not its fault.
    let over = [patched(
        there[0].clone(),
        &json!({"spec": {"containers": [container("main", "2", "1")]}}),
    )];
    assert_eq!(broken(&nodes, &over, &[], &asking("0", "700"), "n1"), FINE);
}

#[test]
fn quantities_of_every_notation_are_the_same_amounts() {
    let has = |memory: &str| [node("n1", &json!({"status": {"allocatable": {"memory": memory}}}))];
    for same in ["1Ki", "1024", "1.024k", "1024e0", "1.024E3", "1024000m", "+1024", "1024.0"] {
        assert_eq!(broken(&has("1024"), &[], &[], &asking("1m", same), "n1"), FINE, "{same}");
        assert_eq!(
            broken(&has("1023"), &[], &[], &asking("1m", same), "n1"),
            ["resources"],
            "{same}"
        );
        assert_eq!(
            broken(&has(same), &[], &[], &asking("1m", "1025"), "n1"),
            ["resources"],
            "{same}"
        );
    }
    assert_eq!(broken(&has("1Ti"), &[], &[], &asking("1m", "1GiB"), "n1"), ["unreadable"]);
    assert_eq!(broken(&has("1Ti"), &[], &[], &asking("", "1Gi"), "n1"), ["unreadable"]);
}

#[test]
fn init_containers_sidecars_overhead_and_pod_level_requests_count_as_documented() {
    let sidecar = patched(container("proxy", "200m", "10Mi"), &json!({"restartPolicy": "Always"}));
    let cases = [
        // The step next to the sidecar is larger than what runs: 2 + 0.2.
        (json!({"initContainers": [sidecar, container("then", "2", "1")]}), 2200),
        // The step before the sidecar is alone.
        (json!({"initContainers": [container("first", "2", "1"), sidecar]}), 2000),
        (json!({"initContainers": [sidecar]}), 700),
        (json!({"overhead": {"cpu": "50m"}}), 550),
        (json!({"resources": {"requests": {"cpu": "900m"}}}), 900),
        (json!({"resources": {"requests": {"cpu": "900m"}}, "overhead": {"cpu": "50m"}}), 950),
        (json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "3"}}}]}), 3000),
    ];
    for (spec, milli) in cases {
        let pod = patched(asking("500m", "1"), &json!({ "spec": spec }));
        let has = |milli: i64| {
            let cpu = format!("{milli}m");
            [node("n1", &json!({"status": {"allocatable": {"cpu": cpu}}}))]
        };
        assert_eq!(broken(&has(milli), &[], &[], &pod, "n1"), FINE, "{spec}");
        assert_eq!(broken(&has(milli - 1), &[], &[], &pod, "n1"), ["resources"], "{spec}");
    }
}

#[test]
fn a_pod_that_is_resized_in_place_counts_what_it_still_has() {
    let nodes = [node("n1", &json!({"status": {"allocatable": {"cpu": "2"}}}))];
    let resized = json!({
        "spec": {"nodeName": "n1"},
        "status": {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
    });
    let shrinking = pod("shrinking", &resized);
    assert_eq!(
        broken(&nodes, std::slice::from_ref(&shrinking), &[], &asking("1", "1"), "n1"),
        FINE
    );
    assert_eq!(broken(&nodes, &[shrinking], &[], &asking("1001m", "1"), "n1"), ["resources"]);
    let never = json!({
        "spec": {"containers": [container("main", "64", "1")]},
        "status": {"conditions": [{"type": "PodResizePending", "reason": "Infeasible", "status": "True"}]},
    });
    let never = patched(pod("never", &resized), &never);
    assert_eq!(broken(&nodes, &[never], &[], &asking("1", "1"), "n1"), FINE);
}

#[test]
fn extended_resources_must_be_there() {
    let gpu = |count: &str| {
        let resources = json!({"requests": {"nvidia.com/gpu": count}});
        pod("gpu", &json!({"spec": {"containers": [{"name": "main", "resources": resources}]}}))
    };
    let with = [node("n1", &json!({"status": {"allocatable": {"nvidia.com/gpu": "2"}}}))];
    assert_eq!(broken(&with, &[], &[], &gpu("2"), "n1"), FINE);
    assert_eq!(broken(&with, &[], &[], &gpu("3"), "n1"), ["resources"]);
    let without = [node("n1", &json!({}))];
    assert_eq!(broken(&without, &[], &[], &gpu("1"), "n1"), ["resources"]);
    assert_eq!(broken(&without, &[], &[], &gpu("0"), "n1"), FINE);
}

#[test]
fn the_number_of_pods_is_limited_and_ended_pods_do_not_count() {
    let nodes = [node("n1", &json!({"status": {"allocatable": {"pods": "1"}}}))];
    let ended = patched(pod_on("n1", "a", &json!({})), &json!({"status": {"phase": "Succeeded"}}));
    assert_eq!(broken(&nodes, &[ended], &[], &asking("1m", "1"), "n1"), FINE);
    let running = pod_on("n1", "a", &json!({}));
    assert_eq!(
        broken(&nodes, std::slice::from_ref(&running), &[], &asking("1m", "1"), "n1"),
        ["pods"]
    );
    let going =
        patched(running, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(broken(&nodes, &[going], &[], &asking("1m", "1"), "n1"), ["pods"]);
}

#[test]
fn host_ports_clash_by_number_protocol_and_address() {
    let with = |name: &str, port: Value| {
        pod(name, &json!({"spec": {"containers": [{"name": "main", "ports": [port]}]}}))
    };
    let nodes = [node("n1", &json!({}))];
    let there =
        json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "TCP"});
    let there = patched(with("there", there), &json!({"spec": {"nodeName": "n1"}}));
    let cases = [
        (json!({"hostPort": 8080}), true),
        (json!({"hostPort": 8080, "hostIP": "0.0.0.0", "protocol": "TCP"}), true),
        (json!({"hostPort": 8080, "hostIP": "10.0.0.1"}), true),
        (json!({"hostPort": 8080, "hostIP": "10.0.0.2"}), false),
        (json!({"hostPort": 8080, "hostIP": "::"}), false),
        (json!({"hostPort": 8080, "protocol": "UDP"}), false),
        (json!({"hostPort": 8081}), false),
        (json!({"containerPort": 8080}), false),
    ];
    for (port, clashes) in cases {
        let expected: &[&str] = if clashes { &["ports"] } else { &[] };
        let there = std::slice::from_ref(&there);
        assert_eq!(
            broken(&nodes, there, &[], &with("new", port.clone()), "n1"),
            expected,
            "{port}"
        );
    }
}

#[test]
fn nominations_hold_against_pods_of_equal_or_lower_priority() {
    let nodes = [node("n1", &json!({"status": {"allocatable": {"cpu": "1"}}}))];
    let nominated = json!({
        "metadata": {"name": "waiting"}, "spec": {"priority": 5}, "status": {"nominatedNodeName": "n1"}
    });
    let waiting = [patched(asking("600m", "1"), &nominated)];
    let of = |priority: i64| patched(asking("600m", "1"), &json!({"spec": {"priority": priority}}));
    assert_eq!(broken(&nodes, &waiting, &[], &of(5), "n1"), ["resources"]);
    assert_eq!(broken(&nodes, &waiting, &[], &of(6), "n1"), FINE);
    assert_eq!(broken(&nodes, &waiting, &[], &waiting[0], "n1"), FINE);
}

#[test]
fn the_final_state_shows_what_is_over_capacity_or_clashes() {
    let rules = |nodes: &[Value], pods: &[Value]| -> Vec<&'static str> {
        check_final(nodes, pods, &[]).iter().map(|it| it.rule).collect()
    };
    let small = [node("n1", &json!({"status": {"allocatable": {"cpu": "200m", "pods": "2"}}}))];
    let on = |name: &str| pod_on("n1", name, &json!({}));
    assert_eq!(rules(&small, &[on("a"), on("b")]), FINE);
    assert_eq!(rules(&small, &[on("a"), on("b"), on("c")]), ["resources", "pods"]);
    assert_eq!(rules(&[], &[on("a")]), ["node"]);
    let port = json!({"spec": {"containers": [{"name": "main", "ports": [{"hostPort": 80}]}]}});
    assert_eq!(rules(&small, &[patched(on("a"), &port), patched(on("b"), &port)]), ["ports"]);
}
