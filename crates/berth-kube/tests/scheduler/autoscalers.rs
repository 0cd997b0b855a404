//! What cluster autoscalers go by: a pod without a node that needs a larger cluster says so in its status, and
//! one that waits for something else does not.

use berth_kube_fake::{FakeApi, Options, samples};
use serde_json::{Value, json};

use crate::support::{
    Replica, add, add_nodes, add_pod, bound, condition, eventually, has_event, is_bound, start_with,
};

/// Whether an autoscaler adds a node for a pod: it has no node and none is nominated for it, and
/// `PodScheduled` is `False` for the reason `Unschedulable`.
fn asks_for_a_node(fake: &FakeApi, name: &str) -> bool {
    let pod = fake.get("pods", "default", name).unwrap_or_default();
    let told = condition(fake, name, "PodScheduled").unwrap_or_default();
    !is_bound(fake, name)
        && pod["status"]["nominatedNodeName"].is_null()
        && told["status"] == json!("False")
        && told["reason"] == json!("Unschedulable")
}

fn event_of(fake: &FakeApi, pod: &Value) -> Option<Value> {
    let all = fake.list("events.events.k8s.io");
    all.into_iter().find(|it| {
        it["regarding"]["uid"] == pod["metadata"]["uid"]
            && it["reason"] == json!("FailedScheduling")
    })
}

#[tokio::test]
async fn a_pod_that_needs_another_node_says_so_until_it_has_one() {
    let fake = start_with(Options::default()).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "large", 2_000).await;
    let mut selecting = samples::pod("default", "selecting", "berth", 100, 64);
    selecting["spec"]["nodeSelector"] = json!({"pool": "gpu"});
    add(&fake, selecting).await;
    for name in ["large", "selecting"] {
        eventually("it asks for a node", || asks_for_a_node(&fake, name)).await;
        let told = condition(&fake, name, "PodScheduled").unwrap();
        assert!(told["lastTransitionTime"].is_string(), "{told}");
        assert!(told["message"].as_str().unwrap().starts_with("0/1 nodes are available"), "{told}");
        eventually("there is an event", || has_event(&fake, name, "FailedScheduling")).await;
        let pod = fake.get("pods", "default", name).unwrap();
        let event = event_of(&fake, &pod).unwrap();
        assert_eq!(event["type"], json!("Warning"));
        assert_eq!(event["regarding"]["kind"], json!("Pod"));
        assert_eq!(event["note"], told["message"]);
    }
    // The node that it makes takes the pod, and the condition is true from then on.
    add_nodes(&fake, &["n2"], 4_000).await;
    assert_eq!(bound(&fake, "large").await, "n2");
    let told = condition(&fake, "large", "PodScheduled").unwrap();
    assert_eq!(told["status"], json!("True"), "{told}");
    assert!(asks_for_a_node(&fake, "selecting"), "no node of its pool has come");
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_whose_binding_fails_asks_for_no_node() {
    // Everything is permitted, except bindings: the API server refuses them.
    let manifest = include_str!("../../../../deploy/kubernetes/scheduler/10-rbac.yaml");
    let mut rules = berth_kube_fake::Rule::from_yaml(manifest, "berth-system").unwrap();
    rules.retain(|rule| !rule.resources.iter().any(|it| it == "pods/binding"));
    let fake = start_with(Options { rbac: Some(rules), ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "fits", 500).await;
    eventually("it says why", || condition(&fake, "fits", "PodScheduled").is_some()).await;
    let told = condition(&fake, "fits", "PodScheduled").unwrap();
    assert_eq!((&told["status"], &told["reason"]), (&json!("False"), &json!("SchedulerError")));
    assert!(told["message"].as_str().unwrap().starts_with("binding to n1 was refused"), "{told}");
    assert!(!asks_for_a_node(&fake, "fits"), "another node would not help");
    eventually("there is an event", || has_event(&fake, "fits", "FailedScheduling")).await;
    replica.stop().await;
}

#[tokio::test]
async fn the_message_says_which_node_would_help() {
    let fake = start_with(Options::default()).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let mut large = samples::pod("default", "large", "berth", 4_000, 2_048);
    large["spec"]["nodeSelector"] = json!({"pool": "gpu"});
    add(&fake, large).await;
    eventually("it asks for a node", || asks_for_a_node(&fake, "large")).await;
    let told = condition(&fake, "large", "PodScheduled").unwrap();
    let last = told["message"].as_str().unwrap().lines().last().unwrap();
    assert_eq!(last, "A new node would help with 4 cpu and 2Gi memory free, and label pool=gpu.");
    let hint = condition(&fake, "large", "berth.dev/WouldFit").unwrap();
    assert_eq!((&hint["status"], &hint["reason"]), (&json!("True"), &json!("NodeWouldHelp")));
    assert!(hint["lastTransitionTime"].is_string(), "{hint}");
    let shape: Value = serde_json::from_str(hint["message"].as_str().unwrap()).unwrap();
    let expected = json!({
        "free": {"cpu": "4", "memory": "2Gi"}, "labels": {"pool": "gpu"}, "requiredNodeAffinity": false,
    });
    assert_eq!(shape, expected);
    // A node of this shape does take it.
    let mut node = samples::node("n2", 4_000, 2_048);
    node["metadata"]["labels"]["pool"] = json!("gpu");
    add(&fake, node).await;
    assert_eq!(bound(&fake, "large").await, "n2");
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_that_no_new_node_would_take_says_so() {
    let fake = start_with(Options::default()).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let mut alone = samples::pod("default", "alone", "berth", 100, 64);
    alone["metadata"]["annotations"] =
        json!({"berth.dev/gang": "train", "berth.dev/gang-size": "2"});
    add(&fake, alone).await;
    eventually("it is refused", || condition(&fake, "alone", "PodScheduled").is_some()).await;
    let hint = condition(&fake, "alone", "berth.dev/WouldFit").unwrap();
    assert_eq!((&hint["status"], &hint["reason"]), (&json!("False"), &json!("NodeWouldNotHelp")));
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_that_is_gated_or_makes_room_asks_for_no_node() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "high"}, "value": 100,
    });
    fake.create(class).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    let mut gated = samples::pod("default", "gated", "berth", 100, 64);
    gated["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/admission"}]);
    add(&fake, gated).await;
    let mut low = samples::pod("default", "low", "berth", 1_000, 64);
    // It takes its time to go.
    low["metadata"]["finalizers"] = json!(["example.com/slow"]);
    add(&fake, low).await;
    bound(&fake, "low").await;
    let mut high = samples::pod("default", "high", "berth", 1_000, 64);
    high["spec"]["priorityClassName"] = json!("high");
    add(&fake, high).await;
    eventually("a node is nominated for it", || {
        let pod = fake.get("pods", "default", "high").unwrap_or_default();
        pod["status"]["nominatedNodeName"] == json!("n1")
    })
    .await;
    assert!(!asks_for_a_node(&fake, "high") && !asks_for_a_node(&fake, "gated"));
    // Kueue admits the pod by removing the gate.
    fake.merge("pods", "default", "gated", json!({"spec": {"schedulingGates": null}}))
        .await
        .unwrap();
    eventually("it asks for a node", || asks_for_a_node(&fake, "gated")).await;
    replica.stop().await;
}
