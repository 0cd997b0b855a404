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
