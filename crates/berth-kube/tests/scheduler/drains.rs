//! Nodes that are being emptied.

use berth_kube_fake::{FakeApi, Options, samples};
use serde_json::{Value, json};

use crate::support::{Replica, add, add_nodes, bound, eventually, has_event, node_of, start_with};

fn status(fake: &FakeApi, node: &str) -> Value {
    let node = fake.get("nodes", "", node).unwrap();
    let text = node["metadata"]["annotations"]["berth.dev/drain-status"].as_str();
    text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

async fn drain(fake: &FakeApi, node: &str) {
    let wish = json!({"metadata": {"annotations": {"berth.dev/drain": ""}}});
    fake.merge("nodes", "", node, wish).await.unwrap();
}

async fn add_to(fake: &FakeApi, name: &str, app: &str, cpu_milli: u64) {
    let mut pod = samples::pod("default", name, "berth", cpu_milli, 64);
    pod["metadata"]["labels"] = json!({"app": app});
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": "r-1", "controller": true,
    }]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    add(fake, pod).await;
}

#[tokio::test]
async fn a_node_is_cordoned_and_drained_except_for_its_own_pods() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for index in 0..3 {
        add_to(&fake, &format!("p{index}"), "a", 500).await;
        bound(&fake, &format!("p{index}")).await;
    }
    let mut daemon = samples::pod("default", "daemon", "berth", 100, 64);
    daemon["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": "d-1",
        "controller": true,
    }]);
    add(&fake, daemon).await;
    bound(&fake, "daemon").await;
    add_nodes(&fake, &["n2", "n3", "n4", "n5"], 4_000).await;
    drain(&fake, "n1").await;
    eventually("it is empty", || status(&fake, "n1")["state"] == json!("done")).await;
    let node = fake.get("nodes", "", "n1").unwrap();
    assert_eq!(node["spec"]["unschedulable"], json!(true));
    assert_eq!(node_of(&fake, "daemon"), "n1");
    for index in 0..3 {
        assert!(fake.get("pods", "default", &format!("p{index}")).is_none());
    }
    eventually("an event tells of it", || has_event(&fake, "n1", "Drained")).await;
    let gone = json!({"metadata": {"annotations": {"berth.dev/drain": null}}});
    fake.merge("nodes", "", "n1", gone).await.unwrap();
    eventually("its status is gone", || status(&fake, "n1").is_null()).await;
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_that_no_other_node_can_take_stays_and_the_status_says_why() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_to(&fake, "large", "a", 3_000).await;
    bound(&fake, "large").await;
    add_nodes(&fake, &["n2"], 1_000).await;
    drain(&fake, "n1").await;
    eventually("it is blocked", || status(&fake, "n1")["state"] == json!("blocked")).await;
    assert_eq!(node_of(&fake, "large"), "n1");
    add_nodes(&fake, &["n3"], 4_000).await;
    eventually("it is empty", || status(&fake, "n1")["state"] == json!("done")).await;
    replica.stop().await;
}

#[tokio::test]
async fn a_drain_respects_disruption_budgets() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    });
    fake.create(budget).await.unwrap();
    for index in 0..2 {
        add_to(&fake, &format!("p{index}"), "a", 500).await;
        bound(&fake, &format!("p{index}")).await;
    }
    eventually("the budget was counted", || {
        let budget = fake.get("poddisruptionbudgets.policy", "default", "guard").unwrap();
        budget["status"]["disruptionsAllowed"] == json!(1)
    })
    .await;
    add_nodes(&fake, &["n2", "n3", "n4"], 4_000).await;
    drain(&fake, "n1").await;
    eventually("it is blocked by the budget", || {
        let status = status(&fake, "n1");
        status["state"] == json!("blocked") && status["left"] == json!(1)
    })
    .await;
    // Another that is ready elsewhere lets the last one go.
    add_to(&fake, "other", "a", 500).await;
    eventually("it is empty", || status(&fake, "n1")["state"] == json!("done")).await;
    assert_ne!(node_of(&fake, "other"), "n1");
    replica.stop().await;
}

#[tokio::test]
async fn an_invalid_value_evicts_nothing_and_a_pod_without_a_controller_stays() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_to(&fake, "kept", "a", 500).await;
    bound(&fake, "kept").await;
    add(&fake, samples::pod("default", "bare", "berth", 100, 64)).await;
    bound(&fake, "bare").await;
    add_nodes(&fake, &["n2", "n3"], 4_000).await;
    let told = |value: &str| json!({"metadata": {"annotations": {"berth.dev/drain": value}}});
    fake.merge("nodes", "", "n1", told("soon")).await.unwrap();
    eventually("it says what is accepted", || {
        let status = status(&fake, "n1");
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        status["state"] == json!("blocked") && message.contains("\"soon\"")
    })
    .await;
    fake.merge("nodes", "", "n1", told("false")).await.unwrap();
    eventually("its status is gone", || status(&fake, "n1").is_null()).await;
    let node = fake.get("nodes", "", "n1").unwrap();
    assert_ne!(node["spec"]["unschedulable"], json!(true));
    assert_eq!((node_of(&fake, "kept"), node_of(&fake, "bare")), ("n1".into(), "n1".into()));
    fake.merge("nodes", "", "n1", told("true")).await.unwrap();
    eventually("only the bare one is left", || {
        let status = status(&fake, "n1");
        status["state"] == json!("blocked") && status["left"] == json!(1)
    })
    .await;
    let message = status(&fake, "n1")["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("default/bare has no controller"), "{message}");
    assert_eq!(node_of(&fake, "bare"), "n1");
    replica.stop().await;
}

#[tokio::test]
async fn each_scheduler_drains_the_pods_of_its_name_and_reports_on_its_own() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let first = Replica::start(&fake, |_| {}).await;
    let second = Replica::start(&fake, |it| it.settings.scheduler = "batch".to_owned()).await;
    for (name, scheduler) in [("a", "berth"), ("b", "batch")] {
        add(&fake, samples::pod("default", name, scheduler, 100, 64)).await;
        bound(&fake, name).await;
    }
    add_nodes(&fake, &["n2"], 4_000).await;
    drain(&fake, "n1").await;
    let status = |key: &str| -> Value {
        let node = fake.get("nodes", "", "n1").unwrap();
        let text = node["metadata"]["annotations"][key].as_str().unwrap_or("null").to_owned();
        serde_json::from_str(&text).unwrap()
    };
    let (berth, batch) = ("berth.dev/drain-status", "berth.dev/drain-status.batch");
    // Neither pod has a controller, so both stay, each told by its own scheduler.
    let told = |key: &str, pod: &str| {
        let status = status(key);
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        status["left"] == json!(1) && message.contains(&format!("default/{pod} has no controller"))
    };
    eventually("both are told", || told(berth, "a") && told(batch, "b")).await;
    fake.delete("pods", "default", "a").await.unwrap();
    eventually("one is done", || status(berth)["state"] == json!("done")).await;
    assert_eq!(status(berth)["message"], json!("no pods of scheduler berth remain"));
    assert!(told(batch, "b"), "the other one is not");
    first.stop().await;
    second.stop().await;
}
