//! Bindings to nodes that another scheduler fills while the watch is behind.

use std::time::Duration;

use berth_kube_fake::{FakeApi, Faults, Options, samples};
use serde_json::{Value, json};

use crate::support::{Replica, add, add_nodes, add_pod, bound, metric, start_with, until_metric};

/// A pod that another scheduler has bound.
async fn add_foreign(fake: &FakeApi, name: &str, node: &str, cpu_milli: u64) -> String {
    let mut pod = samples::pod("default", name, "default-scheduler", cpu_milli, 64);
    pod["spec"]["nodeName"] = json!(node);
    add(fake, pod).await
}

fn delay_watches(fake: &FakeApi, millis: u64) {
    let watch_delay = Some(Duration::from_millis(millis));
    fake.set_faults(Faults { watch_delay, ..Faults::default() });
}

fn cpu_on(fake: &FakeApi, node: &str) -> u64 {
    let milli = |pod: &Value| {
        let cpu = &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"];
        cpu.as_str().and_then(|it| it.strip_suffix('m')).map_or(0, |it| it.parse().unwrap())
    };
    let pods = fake.list("pods");
    pods.iter().filter(|it| it["spec"]["nodeName"] == json!(node)).map(milli).sum()
}

/// Both schedulers see room for one pod on n1, and the other one is first. What is on n1 afterwards.
async fn race(checks: bool) -> (u64, FakeApi, Replica) {
    let fake = start_with(Options::default()).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |options| options.check_shared_nodes = checks).await;
    until_metric(&replica, "berth_scheduler_leader", 1.0).await;
    let seen = replica.counts().await["pods"].as_u64().unwrap();
    add_foreign(&fake, "active", "n1", 100).await;
    while replica.counts().await["pods"].as_u64().unwrap() == seen {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    delay_watches(&fake, 1_000);
    add_pod(&fake, "ours", 700).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The watch shows it after it has shown ours, and after ours was decided.
    add_foreign(&fake, "theirs", "n1", 600).await;
    if checks {
        until_metric(&replica, "berth_scheduler_node_checks_total{result=\"recalled\"}", 1.0).await;
    } else {
        bound(&fake, "ours").await;
    }
    (cpu_on(&fake, "n1"), fake, replica)
}

#[tokio::test]
async fn a_binding_is_recalled_if_the_api_server_has_a_pod_that_the_watch_has_not_shown() {
    let (used, fake, replica) = race(true).await;
    assert_eq!(used, 700, "only theirs");
    assert_eq!(metric(&replica, "berth_scheduler_overfull_node_reports_total").await, Some(0.0));
    fake.clear_faults();
    add_nodes(&fake, &["n2"], 1_000).await;
    assert_eq!(bound(&fake, "ours").await, "n2");
    replica.stop().await;
}

#[tokio::test]
async fn without_the_check_both_pods_are_bound_to_the_node() {
    let (used, fake, replica) = race(false).await;
    assert_eq!(used, 1_400, "of 1000");
    fake.clear_faults();
    until_metric(&replica, "berth_scheduler_overfull_node_reports_total", 1.0).await;
    replica.stop().await;
}

/// Over-full nodes after both schedulers filled ten nodes at the same time, the watch a little behind.
async fn overfull_after_storm(checks: bool) -> (usize, usize) {
    let fake = start_with(Options::default()).await;
    let names: Vec<String> = (0..10).map(|it| format!("n{it}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    add_nodes(&fake, &nodes, 2_000).await;
    let replica = Replica::start(&fake, |options| options.check_shared_nodes = checks).await;
    until_metric(&replica, "berth_scheduler_leader", 1.0).await;
    add_foreign(&fake, "first", "n0", 100).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    delay_watches(&fake, 100);
    // The other scheduler sees everything, and takes the emptiest node, as ours does.
    for index in 0..40 {
        for part in 0..2 {
            add_pod(&fake, &format!("ours-{index}-{part}"), 230).await;
        }
        let emptiest = names.iter().min_by_key(|it| (cpu_on(&fake, it), (*it).clone())).unwrap();
        if cpu_on(&fake, emptiest) + 230 <= 2_000 {
            add_foreign(&fake, &format!("theirs-{index}"), emptiest, 230).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fake.clear_faults();
    tokio::time::sleep(Duration::from_secs(2)).await;
    replica.stop().await;
    let overfull = names.iter().filter(|it| cpu_on(&fake, it) > 2_000).count();
    (overfull, fake.bindings().len())
}

#[tokio::test]
async fn in_a_storm_of_two_schedulers_fewer_nodes_are_overfull_with_the_check() {
    let (with, bound_with) = overfull_after_storm(true).await;
    let (without, bound_without) = overfull_after_storm(false).await;
    println!(
        "overfull nodes: {with} ({bound_with} bindings), unchecked {without} ({bound_without})"
    );
    assert!(without > 0, "the storm must overfill nodes, or it shows nothing");
    // Not none: the other scheduler looks first and binds then, too, and ours may come in between.
    assert!(with < without, "{with} with the check, {without} without it");
}

#[tokio::test]
async fn no_node_is_checked_while_no_other_scheduler_is_active_or_there_is_plenty_of_room() {
    let fake = start_with(Options { audit: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    // The node is nearly full, and nobody else is there.
    add_pod(&fake, "alone", 900).await;
    bound(&fake, "alone").await;
    add_nodes(&fake, &["n2"], 4_000).await;
    let known = replica.counts().await["pods"].as_u64().unwrap();
    add_foreign(&fake, "active", "n2", 100).await;
    while replica.counts().await["pods"].as_u64().unwrap() == known {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    add_pod(&fake, "small", 200).await;
    bound(&fake, "small").await;
    for result in ["clear", "recalled", "failed"] {
        let name = format!("berth_scheduler_node_checks_total{{result=\"{result}\"}}");
        assert_eq!(metric(&replica, &name).await, None, "{result}");
    }
    // This one leaves little.
    add_pod(&fake, "large", 3_500).await;
    bound(&fake, "large").await;
    until_metric(&replica, "berth_scheduler_node_checks_total{result=\"clear\"}", 1.0).await;
    replica.stop().await;
}
