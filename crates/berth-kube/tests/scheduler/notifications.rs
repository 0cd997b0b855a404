//! What pods and people are told.

use serde_json::{Value, json};

use berth_kube::cluster::pod::Key;
use berth_kube::scheduler::{as_text, explain_once};

use crate::support::{
    Replica, add_nodes, add_pod, bound, client, condition, events, eventually, has_event, settings,
    start,
};

#[tokio::test]
async fn an_unschedulable_pod_is_notified_once() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "huge", 5_000).await;
    eventually("it is told", || has_event(&fake, "huge", "FailedScheduling")).await;
    let told = condition(&fake, "huge", "PodScheduled").unwrap();
    assert_eq!((&told["status"], &told["reason"]), (&json!("False"), &json!("Unschedulable")));
    let message = told["message"].as_str().unwrap();
    let first = message.lines().next().unwrap();
    assert!(first.starts_with("0/2 nodes are available"), "{message}");
    assert_eq!(events(&fake, "huge")[0].1, message);
    // Whatever changes elsewhere, the same is not told again.
    for index in 0..3 {
        add_pod(&fake, &format!("p{index}"), 100).await;
        bound(&fake, &format!("p{index}")).await;
    }
    let failed = events(&fake, "huge").iter().filter(|(it, _)| it == "FailedScheduling").count();
    assert_eq!(failed, 1);
    replica.stop().await;
}

/// An API server that has just started forbids everything until it has read the roles. What it refused then was
/// lost, and the same reason is not published again for five minutes.
#[tokio::test]
async fn a_condition_and_an_event_that_were_forbidden_for_a_moment_are_written_after_it() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "first", 100).await;
    bound(&fake, "first").await;
    for only in ["pods/status", "events.events.k8s.io"] {
        let only = Some(only.to_owned());
        fake.set_faults(berth_kube_fake::Faults { forbid: true, only, ..Default::default() });
        let name = format!("huge-{}", fake.list("pods").len());
        add_pod(&fake, &name, 5_000).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        fake.clear_faults();
        eventually("its condition", || condition(&fake, &name, "PodScheduled").is_some()).await;
        eventually("its event", || has_event(&fake, &name, "FailedScheduling")).await;
    }
    replica.stop().await;
}

#[tokio::test]
async fn the_probe_server_serves_health_state_metrics_and_explanations() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "a", 100).await;
    add_pod(&fake, "huge", 5_000).await;
    let node = bound(&fake, "a").await;
    eventually("it is told", || has_event(&fake, "huge", "FailedScheduling")).await;
    assert_eq!(replica.get("/readyz", "*/*").await.0, 200);
    let counts = replica.counts().await;
    assert_eq!((&counts["nodes"], &counts["leader"]), (&json!(2), &json!(true)));
    let (code, text) = replica.get("/v1/pods/default/huge/explain", "text/plain").await;
    assert_eq!(code, 200);
    assert!(text.starts_with("default/huge is unschedulable: 0/2 nodes"), "{text}");
    let (_, body) = replica.get("/v1/pods/default/a/explain", "application/json").await;
    let found: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(found["node"], json!(node));
    assert_eq!(found["table"].as_array().unwrap().len(), 2);
    assert_eq!(replica.get("/v1/pods/default/none/explain", "*/*").await.0, 404);
    assert_eq!(replica.get("/v1/pods/default", "*/*").await.0, 404);
    let (_, metrics) = replica.get("/metrics", "*/*").await;
    assert!(metrics.contains("berth_scheduler_pods_scheduled_total 1"), "{metrics}");
    assert!(metrics.contains("berth_scheduler_leader 1"), "{metrics}");
    replica.stop().await;
}

#[tokio::test]
async fn nothing_is_scheduled_or_ready_before_all_kinds_are_listed() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    add_pod(&fake, "a", 100).await;
    fake.set_faults(berth_kube_fake::Faults {
        error_rate_permille: 1_000,
        only: Some("persistentvolumes".to_owned()),
        ..berth_kube_fake::Faults::default()
    });
    let replica = Replica::start(&fake, |_| {}).await;
    let mut missing = String::new();
    for _ in 0..6000 {
        missing = replica.get("/readyz", "*/*").await.1;
        if missing == "not listed yet: persistentvolumes\n" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(missing, "not listed yet: persistentvolumes\n");
    assert!(fake.bindings().is_empty());
    fake.clear_faults();
    bound(&fake, "a").await;
    assert_eq!(replica.get("/readyz", "*/*").await.0, 200);
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_is_explained_without_a_running_scheduler() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    add_pod(&fake, "a", 100).await;
    add_pod(&fake, "huge", 5_000).await;
    let client = client(&fake);
    let found = explain_once(&client, settings(), &Key::new("default", "a")).await.unwrap();
    assert!(found.best.is_some());
    let found = explain_once(&client, settings(), &Key::new("default", "huge")).await.unwrap();
    assert!(as_text(&found).contains("n2"), "{}", as_text(&found));
    let none = explain_once(&client, settings(), &Key::new("default", "none")).await;
    assert_eq!(none.unwrap_err().to_string(), "pod default/none not found");
}
