//! The count changes while pods run: exactly the misplaced ones are replaced, one at a time, within
//! disruption budgets.

use std::time::Duration;

use berth_kube_fake::samples;
use serde_json::{Value, json};

use crate::cluster::{annotate, binder, count, evictions, is_ready, pods, slots, uids, until};
use crate::fixture::{Fixture, eventually, shared};

async fn web(fixture: &Fixture, replicas: u32, marks: Value) {
    let mut deployment = samples::deployment("shop", "web", replicas);
    deployment["metadata"]["annotations"] = marks;
    fixture.fake.create(deployment).await.unwrap();
}

/// Slots whose pod is another than before.
fn replaced(
    before: &std::collections::BTreeMap<String, String>,
    after: &std::collections::BTreeMap<String, String>,
) -> Vec<String> {
    before.keys().filter(|slot| before.get(*slot) != after.get(*slot)).cloned().collect()
}

#[tokio::test]
async fn s11_s12_exactly_the_misplaced_pods_are_replaced() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 5, shared(3)).await;
    until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    let first = uids(&fixture.fake, "web");
    // S11: one more.
    annotate(&fixture, "deployments", "web", count(4)).await;
    until(&fixture, "web", "0:O 1:O 2:O 3:O 4:S").await;
    let second = uids(&fixture.fake, "web");
    assert_eq!(replaced(&first, &second), ["3"]);
    // S12: fewer.
    annotate(&fixture, "deployments", "web", count(1)).await;
    until(&fixture, "web", "0:O 1:S 2:S 3:S 4:S").await;
    assert_eq!(replaced(&second, &uids(&fixture.fake, "web")), ["1", "2", "3"]);
    assert_eq!(evictions(&fixture.fake), 4);
    // All on-demand: the count is taken away.
    let all = json!({ "cloudpilot.ai/webhook-scheduler-max-on-demand-count": null });
    annotate(&fixture, "deployments", "web", all).await;
    until(&fixture, "web", "0:O 1:O 2:O 3:O 4:O").await;
    let events = fixture.fake.list("events.events.k8s.io");
    assert!(events.iter().any(|it| it["reason"] == "RebuildingPod"), "{events:?}");
}

#[tokio::test]
async fn one_pod_is_evicted_at_a_time_and_the_next_when_the_replacement_is_ready() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 6, shared(0)).await;
    until(&fixture, "web", "0:S 1:S 2:S 3:S 4:S 5:S").await;
    annotate(&fixture, "deployments", "web", count(6)).await;
    let mut least = 6;
    let watched = tokio::time::timeout(Duration::from_secs(90), async {
        loop {
            let ready = pods(&fixture.fake).iter().filter(|pod| is_ready(pod)).count();
            least = least.min(ready);
            if slots(&fixture.fake, "web") == "0:O 1:O 2:O 3:O 4:O 5:O" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    watched.await.expect("all are replaced");
    assert!(least >= 5, "{least} were ready at one moment");
    assert_eq!(evictions(&fixture.fake), 6);
}

#[tokio::test]
async fn a_budget_that_allows_no_disruption_is_respected_until_it_does() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 3, shared(3)).await;
    until(&fixture, "web", "0:O 1:O 2:O").await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "minAvailable": 3, "selector": { "matchLabels": { "app": "web" } } },
    });
    fixture.fake.create(budget).await.unwrap();
    let observed = || {
        let budget = fixture.fake.get("poddisruptionbudgets", "shop", "web").unwrap();
        budget["status"]["expectedPods"] == 3
    };
    eventually("the budget is known", observed).await;
    annotate(&fixture, "deployments", "web", count(2)).await;
    let refused =
        || fixture.fake.audit().iter().any(|it| it.subresource == "eviction" && it.code == 429);
    eventually("an eviction is refused", refused).await;
    assert_eq!(slots(&fixture.fake, "web"), "0:O 1:O 2:O");
    let looser = json!({ "spec": { "minAvailable": 2 } });
    fixture.fake.merge("poddisruptionbudgets", "shop", "web", looser).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:S").await;
    assert_eq!(evictions(&fixture.fake), 1);
}

#[tokio::test]
async fn lazy_workloads_keep_their_pods_and_delete_the_misplaced_first() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    let mut marks = shared(3);
    marks["berth.dev/webhook-scheduler-on-change"] = json!("lazy");
    web(&fixture, 5, marks).await;
    until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    annotate(&fixture, "deployments", "web", count(1)).await;
    let costs = || {
        let mut costs: Vec<(String, String)> = pods(&fixture.fake)
            .iter()
            .map(|pod| {
                let annotations = &pod["metadata"]["annotations"];
                let text = |key: &str| annotations[key].as_str().unwrap_or("-").to_owned();
                (text("berth.dev/slot"), text("controller.kubernetes.io/pod-deletion-cost"))
            })
            .collect();
        costs.sort();
        costs.into_iter().map(|(_, cost)| cost).collect::<Vec<_>>()
    };
    eventually("the misplaced are cheapest", || costs() == ["100", "-1", "-1", "1", "1"]).await;
    assert_eq!(evictions(&fixture.fake), 0);
    fixture.fake.scale("deployments", "shop", "web", 3).await.unwrap();
    until(&fixture, "web", "0:O 3:S 4:S").await;
    // Back again: what is left costs what its kind costs.
    annotate(&fixture, "deployments", "web", count(3)).await;
    fixture.fake.scale("deployments", "shop", "web", 5).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    eventually("the costs are back", || costs() == ["100", "100", "100", "1", "1"]).await;
}

#[tokio::test]
async fn enabling_a_workload_replaces_only_what_is_misplaced() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-on-demand").await;
    web(&fixture, 5, Value::Null).await;
    until(&fixture, "web", "-:O -:O -:O -:O -:O").await;
    annotate(&fixture, "deployments", "web", shared(3)).await;
    until(&fixture, "web", "3:S 4:S -:O -:O -:O").await;
    assert_eq!(evictions(&fixture.fake), 2);
}

#[tokio::test]
async fn pods_whose_replacements_bypass_the_webhook_are_not_evicted_forever() {
    // Nobody has made the entry, so the API server does not call.
    let alive = |fake: &mut berth_kube_fake::Options| {
        fake.controllers = true;
        fake.kubelet = true;
        fake.audit = true;
    };
    let quick = |options: &mut berth_kube::webhook::Options| {
        options.rebuild.every = Duration::from_millis(100);
        options.install = None;
    };
    let fixture = Fixture::with(alive, quick).await;
    let _binder = binder(&fixture.fake, "n-on-demand").await;
    web(&fixture, 4, shared(1)).await;
    let warned = || {
        let events = fixture.fake.list("events.events.k8s.io");
        events.iter().any(|it| it["reason"] == "RebuildIneffective")
    };
    eventually("a warning", warned).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(evictions(&fixture.fake), 1, "one was tried, and showed that it is of no use");
}

#[tokio::test]
async fn pods_that_opt_out_are_not_counted_and_not_evicted() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-on-demand").await;
    let mut deployment = samples::deployment("shop", "web", 4);
    deployment["metadata"]["annotations"] = shared(1);
    deployment["spec"]["template"]["metadata"]["labels"]["cloudpilot.ai/webhook-scheduler"] =
        json!("false");
    fixture.fake.create(deployment).await.unwrap();
    until(&fixture, "web", "-:O -:O -:O -:O").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(evictions(&fixture.fake), 0);
}

#[tokio::test]
async fn pods_that_never_were_ready_are_replaced_too() {
    // No kubelet: nothing ever becomes ready, and nothing is lost by an eviction.
    let alive = |fake: &mut berth_kube_fake::Options| {
        fake.controllers = true;
        fake.audit = true;
    };
    let quick = |options: &mut berth_kube::webhook::Options| {
        options.rebuild.every = Duration::from_millis(100);
    };
    let fixture = Fixture::with(alive, quick).await;
    web(&fixture, 5, shared(3)).await;
    let told = |expected: &str| {
        let mut kinds: Vec<String> = pods(&fixture.fake)
            .iter()
            .map(|pod| {
                let slot = pod["metadata"]["annotations"]["berth.dev/slot"].as_str().unwrap();
                format!("{slot}:{}", &crate::fixture::kind(pod)[..1])
            })
            .collect();
        kinds.sort();
        kinds.join(" ") == expected
    };
    eventually("all are there", || told("0:o 1:o 2:o 3:s 4:s")).await;
    annotate(&fixture, "deployments", "web", count(1)).await;
    eventually("two are replaced", || told("0:o 1:s 2:s 3:s 4:s")).await;
    assert_eq!(evictions(&fixture.fake), 2);
}

#[tokio::test]
async fn a_pod_that_chose_its_kind_is_never_evicted_for_it() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    let mut deployment = samples::deployment("shop", "web", 3);
    deployment["metadata"]["annotations"] = shared(2);
    deployment["spec"]["template"]["spec"]["nodeSelector"] =
        json!({ "node.kubernetes.io/capacity": "spot" });
    fixture.fake.create(deployment).await.unwrap();
    until(&fixture, "web", "2:S 3:S 4:S").await;
    annotate(&fixture, "deployments", "web", count(3)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(evictions(&fixture.fake), 0);
}
