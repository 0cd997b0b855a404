//! Gangs are bound all or none.

use berth_kube_fake::{FakeApi, samples};
use serde_json::json;

use crate::support::{
    Replica, add, add_nodes, add_pod, bound, condition, eventually, is_bound, start,
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
