//! Requests, capacity, ports and the number of pods.

use serde_json::{Value, json};

use berth_kube::cluster::MissingRequests;
use berth_kube::cluster::outcome::Outcome;

use crate::core::Core;
use crate::objects::{container, node, patched, pod, pod_on};

fn has(allocatable: &Value) -> Value {
    node("n1", &json!({"status": {"allocatable": allocatable}}))
}

fn asking(name: &str, cpu: &str, memory: &str) -> Value {
    pod(name, &json!({"spec": {"containers": [container("main", cpu, memory)]}}))
}

fn fits(objects: &[Value], pod: &Value) -> bool {
    let mut core = Core::of(objects);
    core.tell(pod);
    !core.nodes_for(pod["metadata"]["name"].as_str().unwrap()).is_empty()
}

#[test]
fn a_node_is_filled_to_the_last_byte_and_thousandth_and_no_further() {
    let objects = [has(&json!({"cpu": "1", "memory": "1000000001", "ephemeral-storage": "1000"}))];
    let mut core = Core::of(&objects);
    for (name, cpu, memory) in
        [("a", "333m", "333333333"), ("b", "333m", "333333334"), ("c", "334m", "333333334")]
    {
        core.tell(&asking(name, cpu, memory));
        assert_eq!(core.node_of(name), "n1");
    }
    core.tell(&asking("one-byte", "0", "1"));
    assert_eq!(core.refusal("one-byte").code, "no_capacity_memory");
    core.tell(&asking("one-thousandth", "1m", "0"));
    assert_eq!(core.refusal("one-thousandth").code, "no_capacity_cpu");
    core.tell(&asking("nothing", "0", "0"));
    assert_eq!(core.node_of("nothing"), "n1");
}

#[test]
fn pods_of_others_bare_pods_and_terminating_pods_are_accounted() {
    let node = has(&json!({"cpu": "1"}));
    for patch in [
        json!({"spec": {"schedulerName": "default-scheduler"}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"metadata": {"namespace": "kube-system", "ownerReferences": null}}),
    ] {
        let there = patched(asking("there", "600m", "1"), &json!({"spec": {"nodeName": "n1"}}));
        let there = patched(there, &patch);
        assert!(!fits(&[node.clone(), there.clone()], &asking("new", "500m", "1")), "{patch}");
        // The order in which they are told does not matter.
        assert!(!fits(&[there.clone(), node.clone()], &asking("new", "500m", "1")), "{patch}");
        let ended = patched(there, &json!({"status": {"phase": "Succeeded"}}));
        assert!(fits(&[node.clone(), ended], &asking("new", "500m", "1")), "{patch}");
    }
}

#[test]
fn init_containers_sidecars_overhead_and_the_whole_pods_requests_count() {
    let sidecar = patched(container("proxy", "200m", "1"), &json!({"restartPolicy": "Always"}));
    let cases = [
        (json!({"initContainers": [sidecar, container("then", "2", "1")]}), 2200),
        (json!({"initContainers": [container("first", "2", "1"), sidecar]}), 2000),
        (json!({"initContainers": [sidecar]}), 700),
        (json!({"overhead": {"cpu": "50m"}}), 550),
        (json!({"resources": {"requests": {"cpu": "900m"}}, "overhead": {"cpu": "50m"}}), 950),
        (json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "3"}}}]}), 3000),
    ];
    for (spec, milli) in cases {
        let new = patched(asking("new", "500m", "1"), &json!({ "spec": spec }));
        assert!(fits(&[has(&json!({"cpu": format!("{milli}m")}))], &new), "{spec}");
        assert!(!fits(&[has(&json!({"cpu": format!("{}m", milli - 1)}))], &new), "{spec}");
    }
}

#[test]
fn a_pod_that_is_resized_in_place_holds_what_it_still_has() {
    let resized = json!({
        "spec": {"nodeName": "n1"},
        "status": {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
    });
    let node = has(&json!({"cpu": "2"}));
    let shrinking = patched(asking("there", "100m", "1"), &resized);
    assert!(fits(&[node.clone(), shrinking.clone()], &asking("new", "1", "1")));
    assert!(!fits(&[node.clone(), shrinking], &asking("new", "1001m", "1")));
    // What the node can never give is not held.
    let never = json!({"status": {"conditions": [
        {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    ]}});
    let growing = patched(patched(asking("there", "64", "1"), &resized), &never);
    assert!(fits(&[node, growing], &asking("new", "1", "1")));
}

#[test]
fn host_ports_clash_by_number_protocol_and_address() {
    let with = |name: &str, ports: &Value| {
        pod(name, &json!({"spec": {"containers": [{"name": "main", "ports": ports}]}}))
    };
    let there = json!([{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}]);
    let there = patched(with("there", &there), &json!({"spec": {"nodeName": "n1"}}));
    let objects = [node("n1", &json!({})), there];
    let cases = [
        (json!([{"hostPort": 8080}]), false),
        (json!([{"hostPort": 8080, "hostIP": "0.0.0.0"}]), false),
        (json!([{"hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "TCP"}]), false),
        (json!([{"hostPort": 8080, "hostIP": "10.0.0.2"}]), true),
        (json!([{"hostPort": 8080, "protocol": "UDP"}]), true),
        (json!([{"hostPort": 8081}, {"hostPort": 8080, "hostIP": "10.0.0.1"}]), false),
        (json!([{"containerPort": 8080}]), true),
        // As in kube-scheduler, `::` is one address, not all.
        (json!([{"hostPort": 8080, "hostIP": "::"}]), true),
    ];
    for (ports, free) in cases {
        assert_eq!(fits(&objects, &with("new", &ports)), free, "{ports}");
    }
}

#[test]
fn a_port_is_free_again_when_its_pod_is_gone_though_another_shares_the_number() {
    let with = |name: &str, ip: &str| {
        let ports = json!([{"containerPort": 80, "hostPort": 80, "hostIP": ip}]);
        pod(name, &json!({"spec": {"containers": [{"name": "main", "ports": ports}]}}))
    };
    let mut core = Core::of(&[node("n1", &json!({}))]);
    for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        core.tell(&with(name, ip));
        core.node_of(name);
    }
    core.remove("a");
    core.tell(&with("c", "10.0.0.1"));
    assert_eq!(core.nodes_for("c"), ["n1"]);
    core.tell(&with("d", "10.0.0.2"));
    assert!(core.nodes_for("d").is_empty());
}

#[test]
fn the_number_of_pods_is_limited() {
    let mut core = Core::of(&[has(&json!({"pods": "2"})), pod_on("n1", "a", &json!({}))]);
    core.tell(&pod("b", &json!({})));
    assert_eq!(core.node_of("b"), "n1");
    core.tell(&pod("c", &json!({})));
    assert_eq!(core.refusal("c").code, "no_capacity_pods");
}

#[test]
fn extended_resources_must_be_there_and_are_counted() {
    let gpu = |name: &str, count: &str| {
        let resources = json!({"requests": {"nvidia.com/gpu": count}});
        pod(name, &json!({"spec": {"containers": [{"name": "main", "resources": resources}]}}))
    };
    let mut core = Core::of(&[has(&json!({"nvidia.com/gpu": "2"})), node("n2", &json!({}))]);
    core.tell(&gpu("a", "1"));
    assert_eq!(core.node_of("a"), "n1");
    core.tell(&gpu("b", "2"));
    assert_eq!(core.refusal("b").code, "no_capacity_extended");
    core.tell(&gpu("none", "0"));
    assert_eq!(core.nodes_for("none"), ["n1", "n2"]);
}

#[test]
fn a_pod_without_requests_fits_on_a_full_node() {
    // More is used than there is: the node has shrunk, or somebody was bound by force.
    let there = patched(asking("there", "2", "2Gi"), &json!({"spec": {"nodeName": "n1"}}));
    let small = has(&json!({"cpu": "1", "memory": "1Gi", "pods": "10"}));
    assert!(fits(&[small.clone(), there.clone()], &asking("nothing", "0", "0")));
    let over_in_memory =
        patched(there, &json!({"spec": {"containers": [container("main", "0", "2Gi")]}}));
    assert!(fits(&[small.clone(), over_in_memory.clone()], &asking("cpu-only", "1", "0")));
    assert!(!fits(&[small, over_in_memory], &asking("memory", "1", "1")));
    assert!(fits(&[has(&json!({"cpu": "0", "memory": "0"}))], &asking("nothing", "0", "0")));
}

#[test]
fn pods_without_requests_are_refused_if_configured() {
    let bare = pod("bare", &json!({"spec": {"containers": [{"name": "main"}]}}));
    let mut core = Core::with(&[node("n1", &json!({})), bare.clone()], MissingRequests::Refuse);
    let refusal = core.refusal("bare");
    assert_eq!(refusal.code, "requests_missing");
    assert!(refusal.line.contains("container main"), "{}", refusal.line);
    assert_eq!(Core::of(&[node("n1", &json!({})), bare]).node_of("bare"), "n1");
}

#[test]
fn a_reservation_on_a_deleted_node_stays_until_its_outcome_is_known() {
    let mut core = Core::of(&[has(&json!({"cpu": "1"})), asking("held", "1", "1")]);
    core.node_of("held");
    core.cluster.remove_node("n1");
    core.change("held", &json!({"metadata": {"labels": {"more": "labels"}}}));
    assert_eq!(core.schedule("held"), Outcome::NotPending);
    core.tell(&has(&json!({"cpu": "1"})));
    core.tell(&asking("other", "1", "1"));
    assert!(core.nodes_for("other").is_empty());
    core.cluster.remove_node("n1");
    let uid = core.uid("held");
    core.cluster.unreserve(&uid);
    assert_eq!(core.refusal("held").code, "no_nodes");
    assert_eq!(core.cluster.counts().0, 0);
}

#[test]
fn a_node_that_joins_moves_zone_or_grows_is_used_at_once() {
    let mut core = Core::of(&[has(&json!({"cpu": "1"}))]);
    core.tell(&asking("large", "3", "1"));
    assert!(core.nodes_for("large").is_empty());
    core.tell(&has(&json!({"cpu": "4"})));
    assert_eq!(core.nodes_for("large"), ["n1"]);
    let moved = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}});
    core.tell(&node("n1", &moved));
    assert_eq!(core.node_of("large"), "n1");
    core.tell(&asking("second", "2", "1"));
    assert!(core.nodes_for("second").is_empty());
    core.tell(&node("n2", &moved));
    assert_eq!(core.nodes_for("second"), ["n2"]);
}

#[test]
fn the_unspecified_address_of_ipv6_clashes_with_itself_and_with_all_addresses() {
    let with = |name: &str, ip: &str| {
        let ports = json!([{"hostPort": 8080, "hostIP": ip}]);
        pod(name, &json!({"spec": {"containers": [{"name": "main", "ports": ports}]}}))
    };
    let there = patched(with("there", "::"), &json!({"spec": {"nodeName": "n1"}}));
    let objects = [node("n1", &json!({})), there];
    for (ip, free) in
        [("::", false), ("0.0.0.0", false), ("", false), ("::1", true), ("10.0.0.1", true)]
    {
        assert_eq!(fits(&objects, &with("new", ip)), free, "{ip:?}");
    }
}

/// Where eight bare pods of half a core go, on four nodes of four cores.
fn spread_of_bare_pods(memory: &str) -> Vec<usize> {
    let names = ["n1", "n2", "n3", "n4"];
    let mut core = Core::by_policy("balanced", &names.map(|name| node(name, &json!({}))));
    let mut counts = [0; 4];
    for number in 0..8 {
        let name = format!("p{number}");
        let container = container("main", "500m", memory);
        core.tell(&pod(&name, &json!({"spec": {"containers": [container]}})));
        let node = core.node_of(&name);
        counts[names.iter().position(|it| *it == node).expect("a node")] += 1;
    }
    counts.to_vec()
}

#[test]
fn bare_pods_are_spread_over_nodes_of_one_size() {
    for memory in ["1Mi", "256Mi", "1Gi"] {
        assert_eq!(spread_of_bare_pods(memory), [2, 2, 2, 2], "{memory}");
    }
}

#[test]
fn pods_without_requests_are_spread_like_others() {
    let names = ["n1", "n2", "n3", "n4"];
    let mut core = Core::by_policy("balanced", &names.map(|name| node(name, &json!({}))));
    let mut counts = [0; 4];
    for number in 0..8 {
        let name = format!("p{number}");
        core.tell(&pod(&name, &json!({"spec": {"containers": [{"name": "main"}]}})));
        let node = core.node_of(&name);
        counts[names.iter().position(|it| *it == node).expect("a node")] += 1;
    }
    assert_eq!(counts, [2, 2, 2, 2]);
}

#[test]
fn pods_without_requests_count_for_the_balance_as_in_kube_scheduler() {
    let there = json!({"spec": {"containers": [container("main", "400m", "800Mi")]}});
    let there = patched(pod_on("n2", "there", &json!({})), &there);
    let mut core =
        Core::by_policy("balanced", &[node("n1", &json!({})), node("n2", &json!({})), there]);
    let mut nodes = Vec::new();
    for number in 0..12 {
        let name = format!("p{number}");
        core.tell(&pod(&name, &json!({"spec": {"containers": [{"name": "main"}]}})));
        nodes.push(core.node_of(&name));
    }
    // Each counts as 100m and 200Mi: four make up for what is on the other node.
    assert_eq!(nodes.iter().filter(|it| *it == "n2").count(), 4, "{nodes:?}");
    // They keep other pods away, too: two of them more than one that requests 100m and 100Mi.
    let without = json!({"spec": {"containers": [{"name": "main"}]}});
    let objects = [
        node("n1", &json!({})),
        node("n2", &json!({})),
        patched(pod_on("n1", "a", &json!({})), &without),
        patched(pod_on("n1", "b", &json!({})), &without),
        pod_on("n2", "c", &json!({})),
        pod("new", &json!({})),
    ];
    assert_eq!(Core::by_policy("balanced", &objects).node_of("new"), "n2");
}

#[test]
fn balanced_fills_the_largest_gap_first_and_pack_does_not() {
    let busy = |name: &str, cpu: &str, memory: &str| {
        let patch =
            json!({"spec": {"nodeName": name, "containers": [container("main", cpu, memory)]}});
        pod(&format!("on-{name}"), &patch)
    };
    let objects = [
        node("n1", &json!({})),
        node("n2", &json!({})),
        busy("n1", "1", "4Gi"),
        pod("new", &json!({})),
    ];
    assert_eq!(Core::by_policy("balanced", &objects).node_of("new"), "n2");
    assert_eq!(Core::by_policy("pack", &objects).node_of("new"), "n1");
}
