//! Pods of lower priority go so that others can come.

use berth_kube_fake::{FakeApi, Options, samples};
use serde_json::{Value, json};

use crate::support::{Replica, add, add_nodes, bound, eventually, has_event, node_of, start_with};

async fn add_class(fake: &FakeApi, name: &str, value: i32) {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": name}, "value": value,
    });
    fake.create(class).await.unwrap();
}

fn prioritized(name: &str, class: &str, cpu_milli: u64) -> Value {
    let mut pod = samples::pod("default", name, "berth", cpu_milli, 64);
    pod["metadata"]["labels"] = json!({"app": name});
    pod["spec"]["priorityClassName"] = json!(class);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod
}

#[tokio::test]
async fn a_victim_gets_a_condition_and_an_event_and_the_preemptor_is_bound() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    add_class(&fake, "low", 1).await;
    add_class(&fake, "middle", 10).await;
    add_class(&fake, "high", 100).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add(&fake, prioritized("cheap", "low", 1_000)).await;
    let node = bound(&fake, "cheap").await;
    add(&fake, prioritized("dear", "middle", 1_000)).await;
    bound(&fake, "dear").await;
    add(&fake, prioritized("important", "high", 1_000)).await;
    assert_eq!(bound(&fake, "important").await, node);
    eventually("the victim's event", || has_event(&fake, "cheap", "Preempted")).await;
    assert!(fake.get("pods", "default", "cheap").is_none());
    assert_ne!(node_of(&fake, "dear"), "");
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_that_a_budget_protects_stays_when_another_can_go() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    add_class(&fake, "low", 1).await;
    add_class(&fake, "high", 100).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for name in ["guarded", "free"] {
        add(&fake, prioritized(name, "low", 1_000)).await;
        bound(&fake, name).await;
    }
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    });
    fake.create(budget).await.unwrap();
    eventually("the budget was counted", || {
        let budget = fake.get("poddisruptionbudgets.policy", "default", "guard").unwrap();
        budget["status"]["currentHealthy"] == json!(1)
    })
    .await;
    let node = node_of(&fake, "free");
    add(&fake, prioritized("important", "high", 1_000)).await;
    assert_eq!(bound(&fake, "important").await, node);
    assert_ne!(node_of(&fake, "guarded"), "");
    replica.stop().await;
}
