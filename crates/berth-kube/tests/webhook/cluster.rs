//! A cluster that lives: controllers make pods, a hand binds them to a node of the right kind, a
//! kubelet makes them ready.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_kube_fake::{FakeApi, samples};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fixture::{Fixture, PATIENCE, client, kind};

/// Binds pods, until it is dropped.
pub(crate) struct Binder(#[expect(dead_code, reason = "ends with it")] DropGuard);

/// Nodes of both kinds, and somebody who binds pods to them. A pod that may be on both goes to the
/// given one.
pub(crate) async fn binder(fake: &FakeApi, otherwise: &'static str) -> Binder {
    for (name, kind) in [("n-on-demand", "on-demand"), ("n-spot", "spot")] {
        if fake.get("nodes", "", name).is_some() {
            continue;
        }
        let mut node = samples::node(name, 1_000_000, 1_000_000);
        node["metadata"]["labels"]["node.kubernetes.io/capacity"] = json!(kind);
        fake.create(node).await.unwrap();
    }
    let (api, stop) = (kube::Api::all(client(fake)), CancellationToken::new());
    let client = client(fake);
    let stopped = stop.clone();
    tokio::spawn(async move {
        while !stopped.is_cancelled() {
            bind_all(&api, &client, otherwise).await;
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    });
    Binder(stop.drop_guard())
}

async fn bind_all(
    api: &kube::Api<k8s_openapi::api::core::v1::Pod>,
    client: &kube::Client,
    otherwise: &str,
) {
    // Faults are injected here too: the next round finds what is left.
    let Ok(pods) = api.list(&kube::api::ListParams::default()).await else { return };
    for pod in pods {
        let spec = pod.spec.as_ref().unwrap();
        if spec.node_name.is_some() || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (namespace, name) =
            (pod.metadata.namespace.clone().unwrap(), pod.metadata.name.clone());
        let name = name.unwrap();
        let node = match kind(&serde_json::to_value(&pod).unwrap()).as_str() {
            "-" => otherwise.to_owned(),
            kind => format!("n-{kind}"),
        };
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(binding.to_string().into_bytes())
            .unwrap();
        // Another round may have bound it, or it is gone.
        let _ = client.request::<Value>(request).await;
    }
}

/// Pods of the namespace that live: not terminating, not ended.
pub(crate) fn pods(fake: &FakeApi) -> Vec<Value> {
    let lives = |pod: &Value| {
        pod["metadata"]["namespace"] == "shop"
            && pod["metadata"]["deletionTimestamp"].is_null()
            && !["Failed", "Succeeded"].contains(&pod["status"]["phase"].as_str().unwrap_or(""))
    };
    fake.list("pods").into_iter().filter(lives).collect()
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// The kind of each slot, by the nodes that pods are on: `0:O 1:O 2:S`. Pods without a slot come
/// last. Pods that are not ready are marked.
pub(crate) fn slots(fake: &FakeApi, app: &str) -> String {
    let mut slots: BTreeMap<(i64, String), String> = BTreeMap::new();
    for pod in pods(fake) {
        if pod["metadata"]["labels"]["app"] != app {
            continue;
        }
        let slot = pod["metadata"]["annotations"]["berth.dev/slot"].as_str();
        let kind = match pod["spec"]["nodeName"].as_str() {
            Some("n-on-demand") => "O",
            Some("n-spot") => "S",
            _ => "?",
        };
        let mark = if is_ready(&pod) { "" } else { "!" };
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let number = slot.map_or(i64::MAX, |slot| slot.parse().unwrap());
        let shown = format!("{}:{kind}{mark}", slot.unwrap_or("-"));
        slots.insert((number, name), shown);
    }
    slots.into_values().collect::<Vec<_>>().join(" ")
}

/// Waits until the pods of an app are so.
pub(crate) async fn until(fixture: &Fixture, app: &str, expected: &str) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while slots(&fixture.fake, app) != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "expected {expected}, found {}", slots(&fixture.fake, app));
}

/// Uids of the pods of an app by slot.
pub(crate) fn uids(fake: &FakeApi, app: &str) -> BTreeMap<String, String> {
    let of = pods(fake).into_iter().filter(|pod| pod["metadata"]["labels"]["app"] == app);
    of.map(|pod| {
        let slot = pod["metadata"]["annotations"]["berth.dev/slot"].as_str().unwrap_or("-");
        (slot.to_owned(), pod["metadata"]["uid"].as_str().unwrap().to_owned())
    })
    .collect()
}

/// How many evictions were asked for and granted.
pub(crate) fn evictions(fake: &FakeApi) -> usize {
    let granted = |code: u16| (200..300).contains(&code);
    fake.audit().iter().filter(|it| it.subresource == "eviction" && granted(it.code)).count()
}

/// Changes annotations of a workload.
pub(crate) async fn annotate(fixture: &Fixture, kind: &str, name: &str, annotations: Value) {
    let fields = json!({ "metadata": { "annotations": annotations } });
    fixture.fake.merge(kind, "shop", name, fields).await.unwrap();
}

/// Another count.
pub(crate) fn count(max_on_demand: u32) -> Value {
    json!({
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": max_on_demand.to_string(),
    })
}
