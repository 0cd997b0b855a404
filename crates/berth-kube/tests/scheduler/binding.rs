//! Plain pods: placed, bound, accounted.

use berth_kube_fake::samples;
use serde_json::json;

use crate::support::{
    Replica, add, add_nodes, add_pod, bound, check_books, eventually, is_bound, node_of, start,
};

#[tokio::test]
async fn a_pod_is_bound_where_there_is_room_and_gets_an_event() {
    let fake = start().await;
    add_nodes(&fake, &["small", "large"], 1_000).await;
    add(&fake, samples::pod("default", "theirs", "other", 900, 64)).await;
    fake.merge("pods", "default", "theirs", json!({})).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    for name in ["a", "b"] {
        add_pod(&fake, name, 800).await;
    }
    let (first, second) = (bound(&fake, "a").await, bound(&fake, "b").await);
    assert_ne!(first, second);
    assert!(!is_bound(&fake, "theirs"));
    eventually("an event tells of it", || crate::support::has_event(&fake, "a", "Scheduled")).await;
    let note = crate::support::events(&fake, "a")[0].1.clone();
    assert_eq!(note, format!("Successfully assigned default/a to {first}"));
    check_books(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn a_gated_pod_waits_until_its_gates_are_open() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let mut gated = samples::pod("default", "gated", "berth", 100, 64);
    gated["spec"]["schedulingGates"] = json!([{"name": "example.dev/wait"}]);
    add(&fake, gated).await;
    add_pod(&fake, "plain", 100).await;
    bound(&fake, "plain").await;
    assert!(!is_bound(&fake, "gated"));
    fake.merge("pods", "default", "gated", json!({"spec": {"schedulingGates": null}}))
        .await
        .unwrap();
    bound(&fake, "gated").await;
    replica.stop().await;
}

#[tokio::test]
async fn an_unschedulable_pod_is_bound_when_a_node_joins_or_another_pod_ends() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "first", 1_000).await;
    bound(&fake, "first").await;
    add_pod(&fake, "second", 1_000).await;
    add_pod(&fake, "third", 1_000).await;
    eventually("second has no place", || {
        crate::support::condition(&fake, "second", "PodScheduled").is_some()
    })
    .await;
    fake.set_phase("default", "first", "Succeeded").await.unwrap();
    bound(&fake, "second").await;
    assert!(!is_bound(&fake, "third"));
    add_nodes(&fake, &["n2"], 1_000).await;
    assert_eq!(bound(&fake, "third").await, "n2");
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_that_was_deleted_before_it_was_bound_leaves_its_node_to_others() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for round in 0..10 {
        let name = format!("short-{round}");
        add_pod(&fake, &name, 1_000).await;
        fake.delete_with("pods", "default", &name, json!({"gracePeriodSeconds": 0})).await.unwrap();
    }
    add_pod(&fake, "last", 1_000).await;
    bound(&fake, "last").await;
    replica.stop().await;
}

#[tokio::test]
async fn a_restart_continues_with_what_the_api_server_knows() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for name in ["a", "b", "c"] {
        add_pod(&fake, name, 400).await;
        bound(&fake, name).await;
    }
    replica.stop().await;
    add_pod(&fake, "d", 500).await;
    add_pod(&fake, "e", 100).await;
    let replica = Replica::start(&fake, |_| {}).await;
    bound(&fake, "d").await;
    bound(&fake, "e").await;
    check_books(&fake);
    assert_eq!(fake.bindings().len(), 5);
    replica.stop().await;
}

#[tokio::test]
async fn of_two_pods_the_more_important_is_placed_first() {
    let fake = start().await;
    for (name, value) in [("high", 1_000), ("low", 1)] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value, "preemptionPolicy": "Never",
        });
        fake.create(class).await.unwrap();
    }
    for (name, class) in [("unimportant", "low"), ("important", "high")] {
        let mut pod = samples::pod("default", name, "berth", 1_000, 64);
        pod["spec"]["priorityClassName"] = json!(class);
        add(&fake, pod).await;
    }
    let replica = Replica::start(&fake, |_| {}).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    assert_eq!(bound(&fake, "important").await, "n1");
    assert_eq!(node_of(&fake, "unimportant"), "");
    replica.stop().await;
}

#[tokio::test]
async fn bindings_of_another_scheduler_are_accepted_and_accounted() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let mut bare = samples::pod("default", "bare", "other", 800, 64);
    bare["spec"]["nodeName"] = json!("n1");
    add(&fake, bare).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "large", 300).await;
    add_pod(&fake, "small", 200).await;
    bound(&fake, "small").await;
    eventually("large has no place", || {
        crate::support::condition(&fake, "large", "PodScheduled").is_some()
    })
    .await;
    assert!(!is_bound(&fake, "large"));
    replica.stop().await;
}
