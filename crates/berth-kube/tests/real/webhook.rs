//! The webhook with real controllers: what ReplicaSets and StatefulSets create, delete and replace.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::api::{node_of, text};
use crate::cluster::{Cluster, NAMESPACE, eventually, wait_for_api};
use crate::kubelets::node;
use crate::objects::{budget, deployment, split, stateful_set, template};

/// Two nodes of each capacity type.
async fn add_nodes(cluster: &Cluster, pool: &str) {
    let mut nodes = Vec::new();
    for kind in ["on-demand", "spot"] {
        for number in 0..2 {
            let labels = json!({ "node.kubernetes.io/capacity": kind });
            nodes.push(node(&format!("{pool}-{kind}-{number}"), 16_000, 32_768, &labels));
        }
    }
    cluster.add_nodes(pool, nodes).await;
}

/// Whether a pod is on an on-demand node, by the node's name.
fn letter(pod: &Value) -> char {
    match node_of(pod) {
        it if it.contains("on-demand") => 'O',
        it if it.contains("spot") => 'S',
        _ => '?',
    }
}

/// How many live pods of an app are on each capacity type, such as `OOOSS`.
fn kinds(cluster: &Cluster, namespace: &str, app: &str) -> String {
    let pods = cluster.live_pods(namespace);
    let mut found: Vec<char> =
        pods.iter().filter(|it| it["metadata"]["labels"]["app"] == app).map(letter).collect();
    found.sort_unstable();
    found.into_iter().collect()
}

/// Waits until the live pods of an app are so, and checks that no two have one slot.
async fn until(cluster: &Cluster, namespace: &str, app: &str, expected: &str) {
    let found = || kinds(cluster, namespace, app);
    let waited = tokio::time::timeout(std::time::Duration::from_secs(90), async {
        while found() != expected {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    assert!(waited.await.is_ok(), "{app} should be {expected} and is {}", found());
    let mut slots = BTreeSet::new();
    for pod in cluster.live_pods(namespace) {
        let annotations = &pod["metadata"]["annotations"];
        let slot = (
            text(annotations, "/berth.dev~1workload").to_owned(),
            annotations["berth.dev/slot"].to_string(),
        );
        assert!(slots.insert(slot.clone()), "two pods of {app} have slot {slot:?}");
    }
}

fn split_deployment(namespace: &str, pool: &str, replicas: usize, on_demand: usize) -> Value {
    let mut object = deployment(namespace, replicas, &template(pool, "web", 100, 64));
    object["metadata"]["annotations"] = split(on_demand);
    object
}

/// Uids of live pods, with the capacity type.
fn uids(cluster: &Cluster, namespace: &str) -> BTreeMap<String, char> {
    let pods = cluster.live_pods(namespace);
    pods.iter().map(|it| (text(it, "/metadata/uid").to_owned(), letter(it))).collect()
}

async fn prepare(cluster: &Cluster, name: &str) {
    cluster.add_namespace(name).await;
    add_nodes(cluster, name).await;
}

/// Up, down and up again: the counts are exact each time, and spot pods go first.
pub(crate) async fn a_deployment_is_split_while_it_is_scaled(cluster: &Cluster) {
    let name = "split";
    prepare(cluster, name).await;
    cluster.api.create(split_deployment(name, name, 5, 3)).await;
    for (replicas, expected) in
        [(5, "OOOSS"), (9, "OOOSSSSSS"), (4, "OOOS"), (2, "OO"), (6, "OOOSSS")]
    {
        cluster.api.scale("Deployment", name, "web", replicas).await;
        cluster.rolled_out("Deployment", name, "web", replicas).await;
        until(cluster, name, "web", expected).await;
    }
    cluster.finish(name, name).await;
}

/// A roll-out: the pods of the new template are split as those of the old one were.
pub(crate) async fn a_roll_out_is_split_like_the_revision_before(cluster: &Cluster) {
    let name = "rollout";
    prepare(cluster, name).await;
    cluster.api.create(split_deployment(name, name, 6, 2)).await;
    cluster.rolled_out("Deployment", name, "web", 6).await;
    until(cluster, name, "web", "OOSSSS").await;
    for round in 0..3 {
        let change = json!({ "spec": { "template": { "metadata": {
            "annotations": { "round": round.to_string() },
        } } } });
        cluster.api.merge("Deployment", (name, "web"), "", &change).await.unwrap();
        cluster.rolled_out("Deployment", name, "web", 6).await;
        until(cluster, name, "web", "OOSSSS").await;
    }
    cluster.finish(name, name).await;
}

/// Pods that are deleted are replaced on the same capacity type.
pub(crate) async fn a_lost_pod_is_replaced_on_its_capacity_type(cluster: &Cluster) {
    let name = "lost";
    prepare(cluster, name).await;
    cluster.api.create(split_deployment(name, name, 6, 3)).await;
    cluster.rolled_out("Deployment", name, "web", 6).await;
    until(cluster, name, "web", "OOOSSS").await;
    for round in 0..6 {
        let wanted = if round % 2 == 0 { 'O' } else { 'S' };
        let pods = cluster.live_pods(name);
        let pod = pods.iter().find(|it| letter(it) == wanted).unwrap();
        let pod = text(pod, "/metadata/name");
        cluster.api.delete("Pod", name, pod, &json!({ "gracePeriodSeconds": 0 })).await;
        eventually("it is gone", async || cluster.recorder.pod(name, pod).is_none().then_some(()))
            .await;
        cluster.rolled_out("Deployment", name, "web", 6).await;
        until(cluster, name, "web", "OOOSSS").await;
    }
    cluster.finish(name, name).await;
}

/// Ordinals below the count are on-demand, whatever is deleted.
pub(crate) async fn ordinals_of_a_stateful_set_decide(cluster: &Cluster) {
    let name = "ordinals";
    prepare(cluster, name).await;
    let mut set = stateful_set(name, 5, &template(name, "db", 100, 64));
    set["metadata"]["annotations"] = split(2);
    set["spec"]["podManagementPolicy"] = "Parallel".into();
    cluster.api.create(set).await;
    let expect = async |count: usize| {
        cluster.rolled_out("StatefulSet", name, "db", count).await;
        for pod in cluster.live_pods(name) {
            let pod_name = text(&pod, "/metadata/name");
            let ordinal: usize = pod_name.rsplit('-').next().unwrap().parse().unwrap();
            let expected = if ordinal < 2 { 'O' } else { 'S' };
            assert_eq!(letter(&pod), expected, "{pod_name} is on {}", node_of(&pod));
        }
    };
    expect(5).await;
    for lost in ["db-0", "db-3", "db-1"] {
        let before = cluster.recorder.pod(name, lost).unwrap()["metadata"]["uid"].clone();
        cluster.api.delete("Pod", name, lost, &json!({})).await;
        eventually("it is replaced", async || {
            let pod = cluster.recorder.pod(name, lost)?;
            (pod["metadata"]["uid"] != before).then_some(())
        })
        .await;
        expect(5).await;
    }
    for count in [1, 7] {
        cluster.api.scale("StatefulSet", name, "db", count).await;
        expect(count).await;
    }
    cluster.finish(name, name).await;
}

/// Another count: misplaced pods are evicted within the budget, and the others stay.
pub(crate) async fn another_count_rebuilds_within_the_budget(cluster: &Cluster) {
    let name = "rebuild";
    prepare(cluster, name).await;
    cluster.api.create(budget(name, "web", 5)).await;
    cluster.api.create(split_deployment(name, name, 6, 2)).await;
    cluster.rolled_out("Deployment", name, "web", 6).await;
    until(cluster, name, "web", "OOSSSS").await;
    let before = uids(cluster, name);
    for (count, expected) in [(5, "OOOOOS"), (1, "OSSSSS")] {
        let change = json!({ "metadata": { "annotations": split(count) } });
        cluster.api.merge("Deployment", (name, "web"), "", &change).await.unwrap();
        until(cluster, name, "web", expected).await;
        cluster.rolled_out("Deployment", name, "web", 6).await;
        if count == 5 {
            let after = uids(cluster, name);
            let kept = before.iter().filter(|(uid, _)| after.contains_key(*uid)).count();
            assert_eq!(kept, 3, "three had to go: {before:?}, then {after:?}");
        }
    }
    until(cluster, name, "web", "OSSSSS").await;
    cluster.finish(name, name).await;
}

/// The webhook is killed: pods are created meanwhile, and nothing is counted twice after it.
pub(crate) async fn a_killed_webhook_continues_where_it_was(cluster: &Cluster) {
    let name = "killed";
    prepare(cluster, name).await;
    cluster.api.create(split_deployment(name, name, 4, 3)).await;
    cluster.rolled_out("Deployment", name, "web", 4).await;
    until(cluster, name, "web", "OOOS").await;
    let pods = cluster.recorder.pods(NAMESPACE);
    let webhook = pods.iter().find(|it| text(it, "/metadata/name").starts_with("berth-webhook"));
    cluster.parts.kill(text(webhook.unwrap(), "/metadata/name"));
    let restarted = async || {
        let pods = cluster.recorder.pods(NAMESPACE);
        let pod = pods.iter().find(|it| text(it, "/metadata/name").starts_with("berth-webhook"))?;
        let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64()?;
        (restarts > 0 && crate::api::is_ready(pod)).then_some(())
    };
    eventually("the webhook is ready again", restarted).await;
    for (replicas, expected) in [(8, "OOOSSSSS"), (3, "OOO"), (5, "OOOSS")] {
        cluster.api.scale("Deployment", name, "web", replicas).await;
        cluster.rolled_out("Deployment", name, "web", replicas).await;
        until(cluster, name, "web", expected).await;
    }
    cluster.finish(name, name).await;
}

/// The API server is killed while pods are created and deleted: afterwards the counts are exact.
pub(crate) async fn counts_are_exact_while_the_api_server_restarts(cluster: &Cluster) {
    let name = "restarted";
    prepare(cluster, name).await;
    cluster.api.create(split_deployment(name, name, 4, 3)).await;
    cluster.rolled_out("Deployment", name, "web", 4).await;
    until(cluster, name, "web", "OOOS").await;
    for (replicas, expected) in [(10, "OOOSSSSSSS"), (2, "OO"), (7, "OOOSSSS")] {
        cluster.api.scale("Deployment", name, "web", replicas).await;
        cluster.plane.restart_api_server();
        wait_for_api(&cluster.api, &cluster.plane).await;
        cluster.rolled_out("Deployment", name, "web", replicas).await;
        until(cluster, name, "web", expected).await;
    }
    cluster.finish(name, name).await;
}

/// A controller of a kind that the webhook does not watch: the manifest lets it read ReplicationControllers.
pub(crate) async fn a_replication_controller_is_split_too(cluster: &Cluster) {
    let name = "other";
    prepare(cluster, name).await;
    let controller = json!({
        "apiVersion": "v1", "kind": "ReplicationController",
        "metadata": { "name": "web", "namespace": name, "annotations": split(2) },
        "spec": {
            "replicas": 5, "selector": { "app": "web" }, "template": template(name, "web", 100, 64),
        },
    });
    cluster.api.create(controller).await;
    until(cluster, name, "web", "OOSSS").await;
    cluster.api.scale("ReplicationController", name, "web", 7).await;
    until(cluster, name, "web", "OOSSSSS").await;
    cluster.finish(name, name).await;
}

/// What is only tried takes no slot; an invalid count is reported on the workload, and its pods are not changed.
pub(crate) async fn a_dry_run_takes_no_slot_and_a_wrong_count_is_reported(cluster: &Cluster) {
    let name = "tried";
    prepare(cluster, name).await;
    cluster.api.create(split_deployment(name, name, 2, 3)).await;
    cluster.rolled_out("Deployment", name, "web", 2).await;
    until(cluster, name, "web", "OO").await;
    let owners = cluster.live_pods(name)[0]["metadata"]["ownerReferences"].clone();
    let mut tried = crate::objects::pod(name, "tried", &template(name, "web", 100, 64));
    tried["metadata"]["ownerReferences"] = owners;
    let hash = &cluster.live_pods(name)[0]["metadata"]["labels"]["pod-template-hash"];
    tried["metadata"]["labels"]["pod-template-hash"] = hash.clone();
    let path = format!("{}?dryRun=All", crate::api::path_of("Pod", name));
    for _ in 0..5 {
        let body = ("application/json", &tried);
        let answer = cluster.api.request(&http::Method::POST, &path, body).await.unwrap();
        assert_eq!(answer["metadata"]["labels"]["berth.dev/capacity"], json!("on-demand"));
    }
    cluster.api.scale("Deployment", name, "web", 4).await;
    cluster.rolled_out("Deployment", name, "web", 4).await;
    until(cluster, name, "web", "OOOS").await;
    let wrong = json!({ "metadata": { "annotations": {
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": "three",
    } } });
    cluster.api.merge("Deployment", (name, "web"), "", &wrong).await.unwrap();
    cluster.api.scale("Deployment", name, "web", 5).await;
    cluster.rolled_out("Deployment", name, "web", 5).await;
    let notes = eventually("the Deployment has an event", async || {
        let notes = cluster.notes(name, "web", "InvalidMaxOnDemandCount").await;
        Some(notes).filter(|it| !it.is_empty())
    })
    .await;
    assert!(notes[0].contains("three"), "{notes:?}");
    let pods = cluster.live_pods(name);
    let unchanged =
        pods.iter().filter(|it| it["metadata"]["labels"]["berth.dev/capacity"].is_null()).count();
    assert_eq!(unchanged, 1);
    cluster.finish(name, name).await;
}
