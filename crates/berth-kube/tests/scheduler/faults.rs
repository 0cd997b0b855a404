//! The API server fails, forgets and lies: every pod is bound once, and no node has more than it has.

use std::time::Duration;

use berth_kube_fake::{Faults, samples};
use serde_json::json;

use crate::support::{
    Replica, add_nodes, add_pod, bound, check_books, eventually, is_bound, start,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

async fn all_bound(fake: &berth_kube_fake::FakeApi, count: usize) {
    eventually("all are bound", || (0..count).all(|index| is_bound(fake, &format!("p{index}"))))
        .await;
}

#[tokio::test]
async fn bindings_with_a_lost_answer_are_found_by_reading_the_pod() {
    let fake = start().await;
    add_nodes(&fake, &NODES, 2_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let only = Some("pods/binding".to_owned());
    fake.set_faults(Faults { lost_reply_permille: 500, only, ..Faults::default() });
    for index in 0..40 {
        add_pod(&fake, &format!("p{index}"), 200).await;
    }
    all_bound(&fake, 40).await;
    check_books(&fake);
    let counts = replica.counts().await;
    assert_eq!((&counts["pending"], &counts["pods"]), (&json!(0), &json!(40)));
    replica.stop().await;
}

#[tokio::test]
async fn failed_bindings_are_retried_until_they_succeed() {
    let fake = start().await;
    add_nodes(&fake, &NODES, 2_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let only = Some("pods/binding".to_owned());
    fake.set_faults(Faults { error_rate_permille: 400, only, ..Faults::default() });
    for index in 0..40 {
        add_pod(&fake, &format!("p{index}"), 200).await;
    }
    all_bound(&fake, 40).await;
    check_books(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_that_another_bound_first_is_left_where_it_is() {
    let fake = start().await;
    add_nodes(&fake, &NODES, 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    // Every request of ours is slow enough for the other to be faster.
    fake.set_faults(Faults { latency: Some(Duration::from_millis(100)), ..Faults::default() });
    for index in 0..8 {
        let name = format!("p{index}");
        add_pod(&fake, &name, 400).await;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        });
        if index < 2 {
            let other = crate::support::client(&fake);
            let api: kube::Api<k8s_openapi::api::core::v1::Pod> =
                kube::Api::namespaced(other, "default");
            // The first one wins.
            let _ = api
                .create_subresource::<_, serde_json::Value>(
                    "binding",
                    &name,
                    &kube::api::PostParams::default(),
                    &binding,
                )
                .await;
        }
    }
    all_bound(&fake, 8).await;
    check_books(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn watches_that_are_cut_and_history_that_is_lost_change_nothing() {
    let fake = start().await;
    add_nodes(&fake, &NODES, 4_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    let drops = Some(Duration::from_millis(300));
    fake.set_faults(Faults { drop_watches_every: drops, ..Faults::default() });
    for index in 0..60 {
        add_pod(&fake, &format!("p{index}"), 200).await;
        if index % 20 == 10 {
            fake.compact();
        }
        if index % 10 == 5 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    all_bound(&fake, 60).await;
    check_books(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn objects_deleted_while_a_watch_was_down_are_noticed() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "gone", 1_000).await;
    bound(&fake, "gone").await;
    // Watches cannot be begun for a while, and when they can, history is lost.
    let drops = Some(Duration::from_millis(50));
    let faults =
        Faults { error_rate_permille: 1_000, drop_watches_every: drops, ..Faults::default() };
    fake.set_faults(faults);
    tokio::time::sleep(Duration::from_millis(500)).await;
    fake.delete_with("pods", "default", "gone", json!({"gracePeriodSeconds": 0})).await.unwrap();
    fake.create(samples::pod("default", "next", "berth", 1_000, 64)).await.unwrap();
    fake.compact();
    fake.clear_faults();
    bound(&fake, "next").await;
    replica.stop().await;
}
