//! Limits of relief: how many leave at once, and how long what was moved is left alone.

use std::time::Duration;

use berth_engine::Policy;
use berth_kube_fake::FakeApi;
use serde_json::{Value, json};

use super::support::{ElasticReplica, cluster, run_vm};
use crate::support::{add_nodes, eventually};

const MIGRATIONS: &str = "virtualmachinemigrations.vm.neon.tech";

/// Pressure begins at half of a node's CPU.
fn policy(migration: &str) -> Policy {
    let text = format!(
        "name = \"test\"\n[elastic.watermark]\ncpu_permille = 500\nmemory_permille = 900\n\
         [elastic.migration]\n{migration}"
    );
    Policy::from_toml(&text).unwrap()
}

fn migrates() -> Value {
    json!({"autoscaling.neon.tech/auto-migration-enabled": "true"})
}

/// Eight machines of one CPU on a node of eight, and an empty node of sixteen.
async fn pressed(limits: &str) -> (FakeApi, ElasticReplica) {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let policy = policy(limits);
    let berth = ElasticReplica::start(&fake, |options| options.settings.policy = policy).await;
    for index in 0..8 {
        let name = format!("vm-{index}");
        run_vm(&fake, &name, 1, migrates()).await;
        berth.granted(&name, 1, 1).await;
    }
    berth.until("pressure", |it| it["nodes"]["n1"]["must_shed"] == json!(true)).await;
    add_nodes(&fake, &["n2"], 16_000).await;
    (fake, berth)
}

/// Several passes later.
async fn settled(fake: &FakeApi) -> usize {
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    fake.count(MIGRATIONS)
}

#[tokio::test]
async fn at_most_per_node_machines_leave_a_node_at_once_and_the_next_follows_when_one_is_done() {
    // Four should leave. Two is the default.
    let (fake, berth) = pressed("cooldown_s = 0\n").await;
    assert_eq!(settled(&fake).await, 2);
    let state = berth.state().await;
    let account = &state["nodes"]["n1"]["account"]["cpu"];
    assert_eq!(account["pressure_accounted_for"], json!(2000), "{account}");
    let first = fake.list(MIGRATIONS).remove(0);
    let name = first["metadata"]["name"].as_str().unwrap();
    let failed = json!({"status": {"phase": "Failed"}});
    fake.merge_status(MIGRATIONS, "default", name, failed).await.unwrap();
    eventually("another one leaves", || fake.count(MIGRATIONS) == 3).await;
    assert_eq!(settled(&fake).await, 3);
    let machines: std::collections::BTreeSet<String> =
        fake.list(MIGRATIONS).iter().map(|it| it["spec"]["vmName"].to_string()).collect();
    assert_eq!(machines.len(), 3, "the one that failed is left alone: {machines:?}");
    berth.replica.stop().await;
}

#[tokio::test]
async fn at_most_fleet_machines_move_at_once_and_with_room_no_more_than_need_be() {
    let (fake, berth) = pressed("cooldown_s = 0\nper_node = 10\nfleet = 3\n").await;
    assert_eq!(settled(&fake).await, 3);
    berth.replica.stop().await;
    let wide = policy("cooldown_s = 0\nper_node = 10\n");
    let berth = ElasticReplica::start(&fake, |options| options.settings.policy = wide).await;
    eventually("the fourth leaves", || fake.count(MIGRATIONS) == 4).await;
    assert_eq!(settled(&fake).await, 4, "the node is at its watermark then");
    berth.replica.stop().await;
}

#[tokio::test]
async fn a_machine_that_was_moved_is_left_alone_until_its_cooldown_is_over() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let usual = policy("");
    let berth = ElasticReplica::start(&fake, |options| options.settings.policy = usual).await;
    run_vm(&fake, "vm", 1, migrates()).await;
    let moved = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
        "metadata": {"name": "earlier", "namespace": "default"},
        "spec": {"vmName": "vm"},
    });
    fake.create(moved).await.unwrap();
    let done = json!({"status": {"phase": "Succeeded"}});
    fake.merge_status(MIGRATIONS, "default", "earlier", done).await.unwrap();
    berth
        .until("it is known", |it| it["migrations"]["default/earlier"]["phase"] == json!("done"))
        .await;
    berth.granted("vm", 5, 5).await;
    berth.until("pressure", |it| it["nodes"]["n1"]["must_shed"] == json!(true)).await;
    add_nodes(&fake, &["n2"], 16_000).await;
    // Ten minutes are the default.
    assert_eq!(settled(&fake).await, 1, "only the earlier one");
    berth.replica.stop().await;
    let short = policy("cooldown_s = 1\n");
    let berth = ElasticReplica::start(&fake, |options| options.settings.policy = short).await;
    eventually("it is moved", || fake.count(MIGRATIONS) == 2).await;
    berth.replica.stop().await;
}
