//! Nodes that several schedulers filled together.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{container, node, patched, pod};

/// A pod with CPU and a priority; on a node if one is named.
fn with(name: &str, cpu: &str, priority: i32, node: Option<&str>) -> Value {
    let spec = json!({
        "priority": priority, "nodeName": node, "containers": [container("main", cpu, "1Mi")],
    });
    pod(name, &json!({ "spec": spec }))
}

#[test]
fn a_reservation_that_another_scheduler_made_impossible_is_given_up() {
    let mut core = Core::of(&[node("n1", &json!({}))]);
    for name in ["first", "second"] {
        core.tell(&with(name, "1500m", 0, None));
        assert_eq!(core.node_of(name), "n1");
    }
    core.tell(&with("small", "500m", 0, Some("n1")));
    assert_eq!(core.cluster.take_displaced(), Vec::<std::sync::Arc<str>>::new(), "it is full");
    core.tell(&with("theirs", "1", 0, Some("n1")));
    // Only as many as need be, and the node is not overfull with what is bound.
    assert_eq!(core.cluster.take_displaced().len(), 1);
    assert_eq!(core.cluster.take_overfull(), []);
}

#[test]
fn an_overfull_node_names_what_it_is_short_of_and_the_least_important_pod() {
    let mut core = Core::of(&[node("n1", &json!({})), node("n2", &json!({}))]);
    core.tell(&with("low", "2", 1, Some("n1")));
    core.tell(&with("mid", "1", 5, Some("n1")));
    assert_eq!(core.cluster.take_overfull(), []);
    core.tell(&with("high", "1500m", 9, Some("n1")));
    let found = core.cluster.take_overfull();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (&*found[0].node, found[0].text.as_str()),
        ("n1", "its pods request 4500m of 4 cpu")
    );
    let victim = found[0].victim.as_ref().map(|it| it.0.name.to_string());
    assert_eq!(victim.as_deref(), Some("low"));
    assert_eq!(core.cluster.take_overfull(), [], "it is reported once");
    assert_eq!(core.cluster.refresh_overfull(), 1);
    core.remove("low");
    assert_eq!(core.cluster.refresh_overfull(), 0);
    // Pods of one priority are left to the kubelet, and a resize of a running pod too.
    core.tell(&with("a", "3", 5, Some("n2")));
    let resized = json!({"spec": {"containers": [container("main", "5", "1Mi")]}});
    core.tell(&patched(with("a", "3", 5, Some("n2")), &resized));
    assert_eq!(core.cluster.take_overfull(), []);
    core.change("a", &json!({"spec": {"containers": [container("main", "3", "1Mi")]}}));
    core.tell(&with("b", "2", 5, Some("n2")));
    assert_eq!(core.cluster.take_overfull().first().map(|it| it.victim.is_none()), Some(true));
}

#[test]
fn a_node_with_too_many_pods_or_one_host_port_twice_is_overfull() {
    let few = json!({"status": {"allocatable": {"pods": "2"}}});
    let mut core = Core::of(&[node("n1", &few), node("n2", &json!({}))]);
    for name in ["a", "b", "c"] {
        core.tell(&with(name, "100m", i32::from(name == "a"), Some("n1")));
    }
    let port = json!({"spec": {"containers": [{
        "name": "main", "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
    }]}});
    for (name, priority) in [("d", 1), ("e", 5)] {
        core.tell(&patched(with(name, "100m", priority, Some("n2")), &port));
    }
    let found = core.cluster.take_overfull();
    let texts: Vec<(&str, &str)> = found.iter().map(|it| (&*it.node, it.text.as_str())).collect();
    assert_eq!(texts, [("n1", "it has 3 of 2 pods"), ("n2", "two pods have host port 8080/TCP")]);
    let victims = found.iter().map(|it| it.victim.as_ref().map(|it| it.0.name.to_string()));
    let victims: Vec<Option<String>> = victims.collect();
    assert!(matches!(victims[0].as_deref(), Some("b" | "c")), "{victims:?}");
    assert_eq!(victims[1].as_deref(), Some("d"));
    core.remove("c");
    core.remove("e");
    assert_eq!(core.cluster.refresh_overfull(), 0);
}

#[test]
fn a_reservation_whose_host_port_another_scheduler_took_is_given_up() {
    let mut core = Core::of(&[node("n1", &json!({}))]);
    let port = json!({"spec": {"containers": [{
        "name": "main", "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
    }]}});
    core.tell(&patched(with("ours", "100m", 0, None), &port));
    core.tell(&with("other", "100m", 0, None));
    for name in ["ours", "other"] {
        assert_eq!(core.node_of(name), "n1");
    }
    core.tell(&patched(with("theirs", "100m", 0, Some("n1")), &port));
    let displaced: Vec<String> =
        core.cluster.take_displaced().iter().map(ToString::to_string).collect();
    assert_eq!(displaced, [core.uid("ours")]);
    assert_eq!(core.cluster.take_overfull(), []);
}
