//! Slots follow the pods: when a controller loses or takes over pods, when ordinals are renumbered, when a watch
//! falls silent; and workloads without pods are forgotten.

use std::time::Duration;

use berth_kube_fake::samples;
use berth_ledger::{Ledger, Options as LedgerOptions};
use serde_json::{Value, json};

use crate::cluster::{annotate, binder, until};
use crate::fixture::{Fixture, Owned, eventually, metric, review, review_id, shared};
use crate::live::{create, until_next_is};

async fn node(fixture: &Fixture, name: &str, kind: &str) {
    let mut node = samples::node(name, 1_000_000, 1_000_000);
    node["metadata"]["labels"]["node.kubernetes.io/capacity"] = json!(kind);
    fixture.fake.create(node).await.unwrap();
}

#[tokio::test]
async fn an_orphaned_pod_leaves_its_slot_and_an_adopted_one_moves_to_another_workload() {
    let fixture = Fixture::new().await;
    let web = fixture.deployment("web", 5, &shared(2)).await;
    let other = fixture.deployment("other", 5, &shared(2)).await;
    let names = create(&fixture, &web, 3).await;
    fixture.all_bound().await;
    let (pod, others) = (web.pod(), other.pod());

    // Its labels were changed by hand: the ReplicaSet lets go of it, and makes another pod.
    let orphan = json!({ "metadata": { "ownerReferences": null } });
    fixture.fake.merge("pods", "shop", &names[0], orphan).await.unwrap();
    until_next_is(&fixture, &pod, "0 on-demand").await;

    // Another ReplicaSet takes one.
    let adopted =
        json!({ "metadata": { "ownerReferences": others["metadata"]["ownerReferences"] } });
    fixture.fake.merge("pods", "shop", &names[1], adopted).await.unwrap();
    until_next_is(&fixture, &others, "0 on-demand").await;
    assert_eq!(fixture.create(&pod).await.0.slot(&pod), "0 on-demand");
    until_next_is(&fixture, &pod, "1 on-demand").await;
    let taken = fixture.create(&others).await.0.slot(&others);
    assert_eq!(taken, "0 on-demand");
    // The adopted pod kept its number there.
    until_next_is(&fixture, &others, "2 spot").await;
}

#[tokio::test]
async fn the_pods_of_a_replica_set_without_its_deployment_keep_their_slots() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(2)).await;
    create(&fixture, &owned, 3).await;
    fixture.all_bound().await;
    // The Deployment is deleted, its ReplicaSet stays, with the annotations that it was given.
    let gone = json!({ "propagationPolicy": "Orphan" });
    fixture.fake.delete_with("deployments", "shop", "web", gone).await.unwrap();
    let alone = json!({ "metadata": { "ownerReferences": null, "annotations": shared(2) } });
    fixture.fake.merge("replicasets", "shop", "web-abc", alone).await.unwrap();
    until_next_is(&fixture, &owned.pod(), "3 spot").await;
}

#[tokio::test]
async fn a_changed_first_ordinal_renumbers_the_slots() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    let mut set = samples::stateful_set("shop", "db", 3);
    set["metadata"]["annotations"] = shared(1);
    fixture.fake.create(set).await.unwrap();
    until(&fixture, "db", "0:O 1:S 2:S").await;
    fixture.all_bound().await;
    // Ordinals 1 to 3: the pod of ordinal 1 has slot 0 now, and has to be on-demand.
    let later = json!({ "spec": { "ordinals": { "start": 1 } } });
    fixture.fake.merge("statefulsets", "shop", "db", later).await.unwrap();
    let kinds = || {
        let pods = crate::cluster::pods(&fixture.fake);
        let mut kinds: Vec<String> = pods
            .iter()
            .map(|pod| {
                let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
                let (name, node) = (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]));
                let ready = if crate::cluster::is_ready(pod) { "" } else { "!" };
                format!("{name}:{node}{ready}")
            })
            .collect();
        kinds.sort();
        kinds.join(" ")
    };
    let right = "db-1:n-on-demand db-2:n-spot db-3:n-spot";
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while kinds() != right {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "expected {right}, found {}", kinds());
    // Every pod has its slot for good, under the new numbers.
    let backend = fixture.options.ledger.clone();
    let slots = move || {
        let ledger = Ledger::open(backend.clone(), LedgerOptions::default()).unwrap();
        let claims = ledger.claims_page(None, 100).unwrap();
        let mut slots: Vec<i64> = claims.iter().filter_map(|it| Some(it.slot()?.slot)).collect();
        slots.sort_unstable();
        slots
    };
    let numbered = tokio::task::spawn_blocking(move || {
        for _ in 0..600 {
            if slots() == [0, 1, 2] {
                return slots();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        slots()
    });
    assert_eq!(numbered.await.unwrap(), [0, 1, 2]);
}

#[tokio::test]
async fn pods_that_a_silent_watch_does_not_report_keep_their_slots() {
    let quick = |options: &mut berth_kube::webhook::Options| {
        options.reserve_for = Duration::from_secs(4);
    };
    let fixture = Fixture::with(|_| {}, quick).await;
    let owned = fixture.deployment("web", 5, &shared(2)).await;
    let pod = owned.pod();
    fixture.fake.silence_watches();
    let (answer, _) = fixture.create(&pod).await;
    assert_eq!(answer.slot(&pod), "0 on-demand");
    // Well after the end of the lease.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(fixture.review(&pod).await.slot(&pod), "1 on-demand");
    let restarts = metric(fixture.webhook(), "berth_webhook_silent_watches_total").await;
    assert_eq!(restarts, Some(1.0));
    // The watch that was started again reports what happens next.
    let (answer, name) = fixture.create(&pod).await;
    let slot = answer.slot(&pod);
    fixture.bound(&answer.token(&pod)).await;
    let gone = json!({ "gracePeriodSeconds": 0 });
    fixture.fake.delete_with("pods", "shop", &name, gone).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let mut dry = review(&review_id(), &pod);
            dry["request"]["dryRun"] = json!(true);
            let next = fixture.send(&dry).await.slot(&pod);
            if next <= slot {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "the slot of a deleted pod was not released");
}

#[tokio::test]
async fn revisions_of_unwatched_kinds_are_forgotten_some_time_after_their_last_pod() {
    let quick = |options: &mut berth_kube::webhook::Options| {
        options.rebuild.every = Duration::from_millis(20);
    };
    let fixture = Fixture::with(|_| {}, quick).await;
    let set = json!({
        "apiVersion": "v1", "kind": "ReplicationController",
        "metadata": { "name": "old", "namespace": "shop", "annotations": shared(1) },
        "spec": { "replicas": 2, "selector": { "app": "old" }, "template": {
            "metadata": { "labels": { "app": "old" } },
            "spec": { "containers": [{ "name": "main", "image": "example.invalid/app:1" }] },
        } },
    });
    let owner = fixture.fake.create(set).await.unwrap().object.clone();
    let owned = Owned { owner, labels: json!({ "app": "old" }) };
    let names = create(&fixture, &owned, 1).await;
    fixture.all_bound().await;
    let backend = fixture.options.ledger.clone();
    let workloads = move || {
        let ledger = Ledger::open(backend.clone(), LedgerOptions::default()).unwrap();
        let all = ledger.workloads().unwrap();
        all.into_iter().map(|it| it.name).collect::<Vec<_>>()
    };
    let first = workloads.clone();
    let known = tokio::task::spawn_blocking(first).await.unwrap();
    assert_eq!(known, ["ReplicationController/old"]);
    let gone = json!({ "gracePeriodSeconds": 0 });
    fixture.fake.delete_with("pods", "shop", &names[0], gone).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let next = workloads.clone();
            if tokio::task::spawn_blocking(next).await.unwrap().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(waited.await.is_ok(), "it is stored for ever");
    // Its next pod is counted as before.
    let pod = owned.pod();
    assert_eq!(fixture.review(&pod).await.slot(&pod), "0 on-demand");
}

#[tokio::test]
async fn a_workload_can_ask_for_at_least_one_of_each_kind() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    let mut deployment = samples::deployment("shop", "web", 3);
    deployment["metadata"]["annotations"] = json!({
        "berth.dev/webhook-scheduler": "true",
        "berth.dev/webhook-scheduler-at-least-one-of-each": "true",
    });
    fixture.fake.create(deployment).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:S").await;
    annotate(&fixture, "deployments", "web", crate::cluster::count(0)).await;
    until(&fixture, "web", "0:O 1:S 2:S").await;
}

#[tokio::test]
async fn a_capacity_type_that_no_node_has_is_reported() {
    let quick = |options: &mut berth_kube::webhook::Options| {
        options.rebuild.every = Duration::from_millis(50);
    };
    let fixture = Fixture::with(|_| {}, quick).await;
    node(&fixture, "n-on-demand", "on-demand").await;
    let owned = fixture.deployment("web", 3, &shared(1)).await;
    create(&fixture, &owned, 3).await;
    let events = || fixture.fake.list("events.events.k8s.io");
    let reported = || events().iter().any(|it| it["reason"] == "NoNodesOfCapacityType");
    eventually("an event", reported).await;
    let event = events().into_iter().find(|it| it["reason"] == "NoNodesOfCapacityType").unwrap();
    assert_eq!(
        event["note"],
        "no node has node.kubernetes.io/capacity=spot; pods of spot slots stay pending until there is one"
    );
    assert_eq!(event["regarding"]["name"], "web");
    let pods = "berth_webhook_pods_without_nodes{capacity=\"spot\"}";
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while metric(fixture.webhook(), pods).await != Some(2.0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok());
    node(&fixture, "n-spot", "spot").await;
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while metric(fixture.webhook(), pods).await != Some(0.0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok());
    let nodes = metric(fixture.webhook(), "berth_webhook_nodes{capacity=\"spot\"}").await;
    assert_eq!(nodes, Some(1.0));
}
