//! Pods that come and go: lost ones, restarts, pods that nobody admitted.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Fixture, Owned, probe, review, review_id, shared};

/// Creates pods for good, and returns their names by slot.
pub(crate) async fn create(fixture: &Fixture, owned: &Owned, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    for expected in 0..count {
        let pod = owned.pod();
        let (answer, name) = fixture.create(&pod).await;
        let slot = answer.slot(&pod);
        assert!(slot.starts_with(&format!("{expected} ")), "{slot}");
        names.push(name);
    }
    names
}

/// What the next pod would get.
pub(crate) async fn preview(fixture: &Fixture, pod: &Value) -> String {
    let mut dry = review(&review_id(), pod);
    dry["request"]["dryRun"] = json!(true);
    fixture.send(&dry).await.slot(pod)
}

/// Waits until the next pod would get this slot.
pub(crate) async fn until_next_is(fixture: &Fixture, pod: &Value, slot: &str) {
    let waited = tokio::time::timeout(Duration::from_secs(90), async {
        while preview(fixture, pod).await != slot {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "next is {}, not {slot}", preview(fixture, pod).await);
}

#[tokio::test]
async fn s6_s7_s8_lost_slots_are_given_again_the_lowest_first() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(3)).await;
    let names = create(&fixture, &owned, 5).await;
    let pod = owned.pod();
    let gone = json!({ "gracePeriodSeconds": 0 });

    // S6: a spot pod is reclaimed.
    fixture.fake.delete_with("pods", "shop", &names[3], gone.clone()).await.unwrap();
    until_next_is(&fixture, &pod, "3 spot").await;
    let (answer, three) = fixture.create(&pod).await;
    assert_eq!(answer.slot(&pod), "3 spot");

    // S7: an on-demand pod ends by itself.
    fixture.fake.set_phase("shop", &names[1], "Failed").await.unwrap();
    until_next_is(&fixture, &pod, "1 on-demand").await;
    assert_eq!(fixture.create(&pod).await.0.slot(&pod), "1 on-demand");

    // S8: two are lost and three come.
    fixture.fake.scale("replicasets", "shop", "web-abc", 6).await.unwrap();
    for name in [&names[4], &names[0]] {
        fixture.fake.delete_with("pods", "shop", name, gone.clone()).await.unwrap();
    }
    until_next_is(&fixture, &pod, "0 on-demand").await;
    let mut slots = Vec::new();
    for _ in 0..3 {
        slots.push(fixture.create(&pod).await.0.slot(&pod));
    }
    assert_eq!(slots, ["0 on-demand", "4 spot", "5 spot"]);
    assert!(fixture.fake.get("pods", "shop", &three).is_some());
}

#[tokio::test]
async fn a_deletion_that_the_watch_has_not_reported_is_found_by_a_list() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 3, &shared(1)).await;
    let names = create(&fixture, &owned, 3).await;
    let pod = owned.pod();
    for _ in 0..20 {
        fixture.all_bound().await;
        // At once, as a controller would: the creation races with the watch.
        let gone = json!({ "gracePeriodSeconds": 0 });
        let first: Vec<Value> = fixture.fake.list("pods");
        let slot_0 = first
            .iter()
            .find(|it| it["metadata"]["annotations"]["berth.dev/slot"] == "0")
            .map_or(names[0].clone(), |it| it["metadata"]["name"].as_str().unwrap().to_owned());
        fixture.fake.delete_with("pods", "shop", &slot_0, gone).await.unwrap();
        let (answer, _) = fixture.create(&pod).await;
        assert_eq!(answer.slot(&pod), "0 on-demand");
    }
}

#[tokio::test]
async fn s21_a_restart_rebuilds_from_the_pods_before_it_answers() {
    let mut fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(3)).await;
    let names = create(&fixture, &owned, 5).await;
    fixture.halt().await;
    let gone = json!({ "gracePeriodSeconds": 0 });
    // While it is away, an on-demand pod and a spot pod go: 2 O and 1 S are left.
    for name in [&names[1], &names[4]] {
        fixture.fake.delete_with("pods", "shop", name, gone.clone()).await.unwrap();
    }
    for fresh in [false, true] {
        if fresh {
            // With nothing kept, the tokens of the pods are all there is.
            let file = tempfile::tempdir().unwrap();
            fixture.options.ledger = berth_ledger::Backend::Sqlite(file.keep().join("other.db"));
        }
        fixture.resume().await;
        let pod = owned.pod();
        assert_eq!(preview(&fixture, &pod).await, "1 on-demand", "fresh: {fresh}");
        fixture.halt().await;
    }
    fixture.resume().await;
    let pod = owned.pod();
    let mut slots = Vec::new();
    for _ in 0..2 {
        slots.push(fixture.create(&pod).await.0.slot(&pod));
    }
    assert_eq!(slots, ["1 on-demand", "4 spot"]);
}

#[tokio::test]
async fn pods_that_were_not_admitted_get_a_slot_by_their_node() {
    let mut fixture = Fixture::new().await;
    for (name, kind) in [("n1", "on-demand"), ("n2", "spot")] {
        let mut node = berth_kube_fake::samples::node(name, 8000, 8192);
        node["metadata"]["labels"]["node.kubernetes.io/capacity"] = json!(kind);
        fixture.fake.create(node).await.unwrap();
    }
    let owned = fixture.deployment("web", 5, &Value::Null).await;
    for (name, node) in [("a", "n2"), ("b", "n1"), ("c", "n2")] {
        let mut pod = owned.pod();
        pod["metadata"]["name"] = json!(name);
        pod["spec"]["nodeName"] = json!(node);
        fixture.fake.create(pod).await.unwrap();
    }
    let on = json!({ "metadata": { "annotations": shared(3) } });
    fixture.fake.merge("deployments", "shop", "web", on).await.unwrap();
    let pod = owned.pod();
    // One on-demand pod sits in slot 0, two spot pods in 3 and 4.
    until_next_is(&fixture, &pod, "1 on-demand").await;
    fixture.halt().await;
    fixture.resume().await;
    let mut slots = Vec::new();
    for _ in 0..3 {
        slots.push(fixture.review(&pod).await.slot(&pod));
    }
    assert_eq!(slots, ["1 on-demand", "2 on-demand", "5 spot"]);
}

#[tokio::test]
async fn the_api_server_calls_it_by_its_own_registration() {
    let fixture = Fixture::new().await;
    let entry = fixture.fake.get("mutatingwebhookconfigurations", "", "berth-webhook").unwrap();
    let webhook = &entry["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Ignore");
    assert_eq!(webhook["sideEffects"], "NoneOnDryRun");
    assert_eq!(webhook["timeoutSeconds"], 5);
    assert_eq!(webhook["reinvocationPolicy"], "IfNeeded");
    let excluded = &webhook["namespaceSelector"]["matchExpressions"][0];
    assert_eq!(excluded["operator"], "NotIn");
    let expected = json!(["berth", "kube-node-lease", "kube-public", "kube-system"]);
    assert_eq!(excluded["values"], expected);

    let owned = fixture.deployment("web", 2, &shared(1)).await;
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let created = fixture.fake.create(owned.pod()).await.unwrap();
        kinds.push(crate::fixture::kind(&created));
    }
    assert_eq!(kinds, ["on-demand", "spot"]);
}

#[tokio::test]
async fn probes_report_readiness_and_metrics() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 2, &shared(1)).await;
    fixture.review(&owned.pod()).await;
    let get = async |path: &str| probe(fixture.webhook(), path).await;
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(get(path).await, (200, "ok\n".to_owned()), "{path}");
    }
    let (status, text) = get("/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("berth_webhook_admissions_total{result=\"on_demand\"} 1"), "{text}");
    assert!(text.contains("berth_webhook_certificate_expiration_timestamp_seconds "), "{text}");
    assert_eq!(get("/other").await.0, 404);
}

#[tokio::test]
async fn pods_on_nodes_without_a_capacity_type_are_ignored() {
    let fixture = Fixture::new().await;
    let plain = berth_kube_fake::samples::node("plain", 8000, 8192);
    fixture.fake.create(plain).await.unwrap();
    let owned = fixture.deployment("web", 5, &shared(1)).await;
    let mut there = owned.pod();
    there["spec"]["nodeName"] = json!("plain");
    fixture.fake.create(there).await.unwrap();
    let pod = owned.pod();
    assert_eq!(fixture.create(&pod).await.0.slot(&pod), "0 on-demand");
    assert_eq!(fixture.create(&pod).await.0.slot(&pod), "1 spot");
}

#[tokio::test]
async fn it_is_not_ready_before_the_pods_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = crate::fixture::options(&folder, crate::fixture::free_port());
    options.install = None;
    let fake = berth_kube_fake::FakeApi::start(berth_kube_fake::Options::default()).await.unwrap();
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "berth" },
    });
    fake.create(namespace).await.unwrap();
    let only = Some("pods".to_owned());
    let faults = berth_kube_fake::Faults { error_rate_permille: 1000, only, ..Default::default() };
    fake.set_faults(faults);
    let stop = tokio_util::sync::CancellationToken::new();
    let client = crate::fixture::client(&fake);
    let webhook = berth_kube::webhook::Webhook::start(client, options, stop.clone()).await.unwrap();
    let ready = || tokio::time::timeout(Duration::from_secs(1), webhook.ready());
    assert!(ready().await.is_err(), "pods cannot be listed");
    fake.clear_faults();
    let ready = tokio::time::timeout(Duration::from_secs(60), webhook.ready()).await;
    assert_eq!(ready, Ok(true));
    stop.cancel();
    webhook.wait().await.unwrap();
}
