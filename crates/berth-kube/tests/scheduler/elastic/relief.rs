//! Nodes above their watermark: machines are migrated, pods are evicted where the policy allows it.

use std::time::Duration;

use berth_kube_fake::{FakeApi, samples};
use serde_json::{Value, json};

use super::support::{ElasticReplica, cluster, policy, run_vm, runner};
use crate::support::{add, add_nodes, bound, events, eventually, has_event, metric, until_metric};

const MIGRATIONS: &str = "virtualmachinemigrations.vm.neon.tech";

fn migrates() -> Value {
    json!({"autoscaling.neon.tech/auto-migration-enabled": "true"})
}

/// A pod that is resized in place, with a controller.
async fn run_resizable(fake: &FakeApi, name: &str, cpu_milli: u64) {
    let mut pod = samples::pod("default", name, "berth", cpu_milli, 1024);
    pod["metadata"]["labels"] = json!({"app": name});
    pod["metadata"]["annotations"] =
        json!({"berth.dev/elastic-min": "1,1Gi", "berth.dev/elastic-max": "8,8Gi"});
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "r-1", "controller": true,
    }]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    add(fake, pod).await;
    bound(fake, name).await;
}

#[tokio::test]
async fn a_node_above_its_watermark_sheds_a_machine_that_may_move_and_it_is_frozen() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    run_vm(&fake, "stays", 1, json!({})).await;
    run_vm(&fake, "moves", 1, migrates()).await;
    berth.granted("stays", 3, 3).await;
    berth.granted("moves", 3, 3).await;
    add_nodes(&fake, &["n2"], 8_000).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(fake.count(MIGRATIONS), 0, "6 of 8 are below the watermark");
    berth.granted("stays", 5, 5).await;
    eventually("a migration", || fake.count(MIGRATIONS) == 1).await;
    let migration = fake.list(MIGRATIONS).remove(0);
    assert_eq!(migration["spec"]["vmName"], json!("moves"));
    assert_eq!(migration["spec"]["completionTimeout"], json!(3600));
    let annotations = &migration["metadata"]["annotations"];
    assert_eq!(annotations["berth.dev/source-node"], json!("n1"));
    assert_eq!(annotations["berth.dev/target-node"], json!("n2"));
    eventually("an event says so", || has_event(&fake, "moves", "MigratingForPressure")).await;
    let state = berth.until("it counts", |it| it["migrations"] != json!({})).await;
    let account = &state["nodes"]["n1"]["account"]["cpu"];
    assert_eq!(account["pressure_accounted_for"], json!(3000), "{account}");
    // Its agent is told to freeze, and may repeat its size only.
    let (code, answer) = berth.ask("moves", 3).await;
    assert_eq!((code, &answer["migrate"]), (200, &json!({})), "{answer}");
    assert_eq!(berth.ask("moves", 2).await.0, 400);
    // The controller makes the target, which goes where the plan says; then it ends.
    let name = migration["metadata"]["name"].as_str().unwrap();
    let status = json!({"status": {"phase": "Pending", "targetPodName": "target"}});
    fake.merge_status(MIGRATIONS, "default", name, status).await.unwrap();
    add_nodes(&fake, &["n3"], 8_000).await;
    berth
        .until("the target is known", |it| {
            it["migrations"][format!("default/{name}")]["target_pod"] == json!("target")
        })
        .await;
    add(&fake, runner("moves", "target")).await;
    assert_eq!(bound(&fake, "target").await, "n2");
    let done = json!({"status": {"phase": "Succeeded", "conditions": [
        {"type": "Available", "lastTransitionTime": jiff_now()},
    ]}});
    fake.merge_status(MIGRATIONS, "default", name, done).await.unwrap();
    fake.delete("pods", "default", "moves").await.unwrap();
    berth
        .until("the node is relieved", |it| {
            it["nodes"]["n1"]["must_shed"] == json!(false)
                && it["nodes"]["n1"]["account"]["cpu"]["reserved"] == json!(5000)
        })
        .await;
    let (code, answer) = berth.ask("target", 3).await;
    assert_eq!((code, answer), (200, json!({"permit": {"vCPUs": 3, "mem": "3Gi"}})));
    assert_eq!(fake.count(MIGRATIONS), 1, "nothing else had to move");
    berth.replica.stop().await;
}

fn jiff_now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[tokio::test]
async fn no_machine_moves_where_the_policy_forbids_it_or_no_node_stays_below_its_watermark() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let forbidden = policy("enabled = false\n");
    let berth = ElasticReplica::start(&fake, |options| options.settings.policy = forbidden).await;
    run_vm(&fake, "db", 1, migrates()).await;
    berth.granted("db", 8, 8).await;
    add_nodes(&fake, &["n2"], 8_000).await;
    berth.until("pressure", |it| it["nodes"]["n1"]["must_shed"] == json!(true)).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(fake.count(MIGRATIONS), 0);
    berth.replica.stop().await;
    // With the same size everywhere, the machine would only take the pressure along.
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    berth.granted("db", 8, 8).await;
    berth.until("pressure", |it| it["nodes"]["n1"]["must_shed"] == json!(true)).await;
    eventually("it is said", || has_event(&fake, "n1", "PressureStays")).await;
    let (_, note) =
        events(&fake, "n1").into_iter().find(|(reason, _)| reason == "PressureStays").unwrap();
    assert!(
        note.starts_with("it is above its watermark by ")
            && note.ends_with(
                "pods that would help: 1, and no other node can take them below its watermark"
            ),
        "{note}"
    );
    let homeless = "berth_scheduler_pods_without_relief_target";
    assert_eq!(metric(&berth.replica, homeless).await, Some(1.0));
    assert_eq!(fake.count(MIGRATIONS), 0);
    add_nodes(&fake, &["n3"], 16_000).await;
    eventually("a migration", || fake.count(MIGRATIONS) == 1).await;
    let target = &fake.list(MIGRATIONS)[0]["metadata"]["annotations"]["berth.dev/target-node"];
    assert_eq!(*target, json!("n3"));
    until_metric(&berth.replica, homeless, 0.0).await;
    berth.replica.stop().await;
}

#[tokio::test]
async fn resizable_pods_are_evicted_only_if_the_policy_and_their_budgets_allow_it() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let berth = ElasticReplica::start(&fake, |options| {
        options.settings.policy = policy("evict = true\n");
        options.settings.scheduler = "berth".to_owned();
    })
    .await;
    run_resizable(&fake, "guarded", 1_000).await;
    run_resizable(&fake, "free", 3_000).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    });
    fake.create(budget).await.unwrap();
    eventually("the budget was counted", || {
        let budget = fake.get("poddisruptionbudgets.policy", "default", "guard").unwrap();
        budget["status"]["disruptionsAllowed"] == json!(0)
    })
    .await;
    add_nodes(&fake, &["n2"], 8_000).await;
    // The one that is guarded would be the cheaper one.
    berth.granted("guarded", 5, 5).await;
    eventually("one is evicted", || fake.get("pods", "default", "free").is_none()).await;
    assert!(has_event(&fake, "free", "EvictedForPressure"));
    assert!(fake.get("pods", "default", "guarded").is_some());
    berth.replica.stop().await;
}

#[tokio::test]
async fn resizable_pods_stay_by_default() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let policy = policy("");
    let berth = ElasticReplica::start(&fake, |options| options.settings.policy = policy).await;
    run_resizable(&fake, "web", 4_000).await;
    add_nodes(&fake, &["n2"], 8_000).await;
    berth.until("pressure", |it| it["nodes"]["n1"]["must_shed"] == json!(true)).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(fake.get("pods", "default", "web").is_some());
    berth.replica.stop().await;
}
