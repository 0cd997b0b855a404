//! Gangs are bound all or none.

use berth_kube::cluster::pod::Key;
use berth_kube::scheduler::explain_once;
use berth_kube_fake::{FakeApi, samples};
use serde_json::{Value, json};

use crate::support::{
    Replica, add, add_nodes, add_pod, bound, client, condition, eventually, is_bound, settings,
    start, start_with,
};

async fn add_member(fake: &FakeApi, name: &str, size: usize, cpu_milli: u64) {
    let mut pod = samples::pod("default", name, "berth", cpu_milli, 64);
    pod["metadata"]["labels"] =
        json!({"berth.dev/gang": "training", "berth.dev/gang-size": size.to_string()});
    add(fake, pod).await;
}

fn message(fake: &FakeApi, name: &str) -> String {
    let condition = condition(fake, name, "PodScheduled").unwrap_or_default();
    condition["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_gang_waits_until_it_is_complete_and_then_all_are_bound() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2"], 2_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for name in ["g1", "g2"] {
        add_member(&fake, name, 3, 1_000).await;
    }
    eventually("it is told what is missing", || message(&fake, "g1").contains("2 of 3")).await;
    assert!(!is_bound(&fake, "g1") && !is_bound(&fake, "g2"));
    add_member(&fake, "g3", 3, 1_000).await;
    for name in ["g1", "g2", "g3"] {
        bound(&fake, name).await;
    }
    replica.stop().await;
}

#[tokio::test]
async fn a_gang_that_does_not_fit_as_a_whole_is_not_bound() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for name in ["g1", "g2", "g3"] {
        add_member(&fake, name, 3, 1_000).await;
    }
    eventually("it is refused", || message(&fake, "g3").contains("all together")).await;
    for name in ["a", "b"] {
        add_pod(&fake, name, 1_000).await;
        bound(&fake, name).await;
    }
    add_nodes(&fake, &["n3", "n4", "n5"], 1_000).await;
    for name in ["g1", "g2", "g3"] {
        bound(&fake, name).await;
    }
    replica.stop().await;
}

#[tokio::test]
async fn a_gang_is_bound_through_failures_without_a_part_of_it_staying_behind() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2", "n3"], 4_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    fake.set_faults(berth_kube_fake::Faults {
        error_rate_permille: 300,
        lost_reply_permille: 300,
        only: Some("pods/binding".to_owned()),
        ..berth_kube_fake::Faults::default()
    });
    for index in 0..12 {
        add_member(&fake, &format!("g{index}"), 12, 1_000).await;
    }
    for index in 0..12 {
        bound(&fake, &format!("g{index}")).await;
    }
    crate::support::check_books(&fake);
    replica.stop().await;
}

fn grouped(name: &str, group: &str, cpu_milli: u64) -> Value {
    let mut pod = samples::pod("default", name, "berth", cpu_milli, 64);
    pod["spec"]["schedulingGroup"] = json!({ "podGroupName": group });
    pod
}

fn pod_group(name: &str, min_count: u32) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}},
    })
}

#[tokio::test]
async fn a_pod_group_is_bound_by_its_minimum_where_the_cluster_serves_it() {
    let fake = start().await;
    fake.create(samples::pod_group_definition()).await.unwrap();
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for name in ["g1", "g2", "g3"] {
        add(&fake, grouped(name, "train", 1_000)).await;
    }
    // Without its object no pod is bound alone.
    eventually("it is told", || message(&fake, "g1").contains("does not exist")).await;
    fake.create(pod_group("train", 3)).await.unwrap();
    eventually("it is told", || message(&fake, "g1").contains("at least 3 pods at once")).await;
    assert!(["g1", "g2", "g3"].iter().all(|name| !is_bound(&fake, name)));
    add_nodes(&fake, &["n3"], 1_000).await;
    for name in ["g1", "g2", "g3"] {
        bound(&fake, name).await;
    }
    // More than the minimum may come later, and alone.
    for name in ["g4", "g5"] {
        add(&fake, grouped(name, "train", 1_000)).await;
    }
    add_nodes(&fake, &["n4"], 1_000).await;
    eventually("one is bound", || is_bound(&fake, "g4") || is_bound(&fake, "g5")).await;
    assert!(!(is_bound(&fake, "g4") && is_bound(&fake, "g5")));
    let found = explain_once(&client(&fake), settings(), &Key::new("default", "g1")).await.unwrap();
    assert!(found.refusal.is_none() && found.node.is_some(), "{found:?}");
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_of_a_group_is_refused_where_the_cluster_does_not_serve_groups() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add(&fake, grouped("g1", "train", 100)).await;
    eventually("it is told", || message(&fake, "g1").contains("the cluster does not serve it"))
        .await;
    assert!(!is_bound(&fake, "g1"));
    replica.stop().await;
}

#[tokio::test]
async fn a_workload_of_kubernetes_1_35_is_bound_by_the_minimum_of_its_group() {
    let further_pod_fields = vec!["workloadRef".to_owned()];
    let options = berth_kube_fake::Options { further_pod_fields, ..Default::default() };
    let fake = start_with(options).await;
    fake.create(samples::workload_definition()).await.unwrap();
    add_nodes(&fake, &["n1", "n2"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let workload = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload",
        "metadata": {"namespace": "default", "name": "job"},
        "spec": {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 2}}}]},
    });
    fake.create(workload).await.unwrap();
    let member = |name: &str| {
        let mut pod = samples::pod("default", name, "berth", 1_000, 64);
        pod["spec"]["workloadRef"] = json!({"name": "job", "podGroup": "workers"});
        pod
    };
    add(&fake, member("w1")).await;
    eventually("it waits", || message(&fake, "w1").contains("1 of 2 pods")).await;
    add(&fake, member("w2")).await;
    bound(&fake, "w1").await;
    bound(&fake, "w2").await;
    replica.stop().await;
}
