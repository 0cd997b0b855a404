//! Another scheduler works on the same nodes, and together they fill one beyond what it has.

use std::time::Duration;

use berth_kube_fake::{FakeApi, Faults, Options, samples};
use serde_json::{Value, json};

use crate::support::{
    Replica, add, add_nodes, add_pod, bound, check_books, events, eventually, metric, start_with,
    until_metric,
};

/// A pod that another scheduler has bound.
async fn add_foreign(fake: &FakeApi, name: &str, node: &str, cpu_milli: u64) -> String {
    let mut pod = samples::pod("default", name, "default-scheduler", cpu_milli, 64);
    pod["spec"]["nodeName"] = json!(node);
    add(fake, pod).await
}

#[tokio::test]
async fn an_overfull_node_is_reported_until_it_is_not() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "ours", 600).await;
    bound(&fake, "ours").await;
    until_metric(&replica, "berth_scheduler_overfull_nodes", 0.0).await;
    add_foreign(&fake, "theirs", "n1", 700).await;
    let told = || events(&fake, "n1").into_iter().find(|(reason, _)| reason == "NodeOverfull");
    eventually("an event", || told().is_some()).await;
    assert_eq!(
        told().unwrap().1,
        "its pods request 1300m of 1 cpu; another scheduler works on the same nodes"
    );
    until_metric(&replica, "berth_scheduler_overfull_nodes", 1.0).await;
    assert_eq!(metric(&replica, "berth_scheduler_overfull_node_reports_total").await, Some(1.0));
    fake.delete("pods", "default", "theirs").await.unwrap();
    until_metric(&replica, "berth_scheduler_overfull_nodes", 0.0).await;
    // Nothing is evicted unless that is allowed.
    assert!(fake.get("pods", "default", "ours").is_some());
    replica.stop().await;
}

#[tokio::test]
async fn if_allowed_a_pod_of_lower_priority_is_evicted_from_an_overfull_node() {
    let fake = start_with(Options { kubelet: true, audit: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "high"}, "value": 100,
    });
    fake.create(class).await.unwrap();
    let replica = Replica::start(&fake, |options| options.evict_overfull = true).await;
    add_pod(&fake, "low", 600).await;
    bound(&fake, "low").await;
    let mut high = samples::pod("default", "high", "default-scheduler", 700, 64);
    high["spec"]["nodeName"] = json!("n1");
    high["spec"]["priorityClassName"] = json!("high");
    add(&fake, high).await;
    eventually("it goes", || fake.get("pods", "default", "low").is_none()).await;
    let evictions: Vec<Value> = fake
        .audit()
        .iter()
        .filter(|it| it.subresource == "eviction")
        .map(|it| json!([it.name, it.code / 100]))
        .collect();
    assert_eq!(evictions, [json!(["low", 2])]);
    until_metric(&replica, "berth_scheduler_overfull_nodes", 0.0).await;
    replica.stop().await;
}

#[tokio::test]
async fn a_binding_that_was_not_sent_is_recalled_when_another_scheduler_fills_the_node() {
    let fake = start_with(Options::default()).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    // Bindings are sent one after the other, and each takes a while.
    let replica = Replica::start(&fake, |options| options.bind_concurrency = 1).await;
    until_metric(&replica, "berth_scheduler_leader", 1.0).await;
    fake.set_faults(Faults { latency: Some(Duration::from_secs(1)), ..Faults::default() });
    for name in ["first", "second"] {
        add_pod(&fake, name, 300).await;
    }
    let mut reserved = 0;
    while reserved < 2 {
        reserved = replica.counts().await["reserved"].as_u64().unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    add_foreign(&fake, "theirs", "n1", 600).await;
    bound(&fake, "first").await;
    until_metric(&replica, "berth_scheduler_bindings_total{result=\"recalled\"}", 1.0).await;
    fake.clear_faults();
    add_nodes(&fake, &["n2"], 1_000).await;
    assert_eq!(bound(&fake, "second").await, "n2");
    check_books(&fake);
    let reports = metric(&replica, "berth_scheduler_overfull_node_reports_total").await;
    assert_eq!(reports, Some(0.0));
    replica.stop().await;
}
