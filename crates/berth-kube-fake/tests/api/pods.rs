//! Making, binding, changing, evicting and deleting pods.

use berth_kube_fake::{Options, samples};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use crate::support::{code, eventually, patch, plain, post, start, start_with};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MERGE: &str = "application/merge-patch+json";

fn pod(name: &str) -> Value {
    samples::pod("default", name, "berth", 100, 64)
}

#[tokio::test]
async fn a_generated_name_is_the_prefix_and_five_letters() {
    let (_fake, client) = start().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let mut wanted = pod("x");
    wanted["metadata"] = json!({ "generateName": "web-" });
    let wanted: Pod = serde_json::from_value(wanted).unwrap();
    let made = pods.create(&PostParams::default(), &wanted).await.unwrap();
    let name = made.metadata.name.unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    assert!(made.metadata.uid.is_some());
    assert!(made.metadata.creation_timestamp.is_some());
    assert!(made.metadata.resource_version.is_some());
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Pending"));
}

#[tokio::test]
async fn what_the_server_fills_in_is_there() {
    let (fake, _client) = start().await;
    let mut wanted = pod("a");
    wanted["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "cpu": "1000m", "memory": "1024Mi" } });
    let made = fake.create(wanted).await.unwrap();
    assert_eq!(
        made["spec"]["containers"][0]["resources"]["requests"],
        json!({ "cpu": "1", "memory": "1Gi" })
    );
    assert_eq!(made["spec"]["priority"], 0);
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(made["status"]["qosClass"], "Guaranteed");
    let mut plain = pod("b");
    plain["spec"].as_object_mut().unwrap().remove("schedulerName");
    assert_eq!(fake.create(plain).await.unwrap()["spec"]["schedulerName"], "default-scheduler");
}

#[tokio::test]
async fn bad_pods_are_refused_with_the_field_that_is_wrong() {
    let (fake, _client) = start().await;
    let affinity = |terms: Value| {
        json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } })
    };
    let table: Vec<(&str, Value, u16, &str)> = vec![
        ("/metadata/name", json!("Upper"), 422, "metadata.name"),
        ("/metadata/resourceVersion", json!("1"), 400, ""),
        ("/spec/containers", json!([]), 422, "spec.containers"),
        ("/spec/containers/0/image", json!(""), 422, "spec.containers[0].image"),
        ("/spec/affinity", affinity(json!([])), 422, "nodeSelectorTerms"),
        (
            "/spec/affinity",
            affinity(json!([{ "matchExpressions": [{ "key": "a", "operator": "In" }] }])),
            422,
            "nodeSelectorTerms[0].matchExpressions[0].values",
        ),
        ("/spec/priorityClassName", json!("none"), 403, ""),
        ("/spec/containers/0/resources/requests/cpu", json!("1 core"), 400, ""),
        ("/spec/containers/0/resources/limits", json!({ "cpu": "1m" }), 422, "resources.requests"),
        (
            "/metadata/annotations",
            json!({ "controller.kubernetes.io/pod-deletion-cost": "+1" }),
            422,
            "pod-deletion-cost",
        ),
        ("/spec/containers", json!("none"), 400, ""),
        ("/metadata/labels", json!({ "a": "-b-" }), 422, "metadata.labels"),
        ("/metadata/namespace", json!("other"), 400, ""),
    ];
    for (place, value, expected, field) in table {
        let mut wanted = pod("a");
        let (parent, last) = place.rsplit_once('/').unwrap();
        wanted.pointer_mut(parent).unwrap()[last] = value;
        let answer = post(&fake, PODS, &wanted).await;
        assert_eq!(answer.code, expected, "{place}: {}", answer.text);
        let causes = answer.json()["details"]["causes"].to_string();
        assert!(causes.contains(field), "{place}: {causes}");
    }
    let missing = post(&fake, "/api/v1/namespaces/nowhere/pods", &pod("a")).await;
    assert_eq!(missing.code, 400, "the body names another namespace");
    let mut wanted = pod("a");
    wanted["metadata"]["namespace"] = json!("nowhere");
    assert_eq!(post(&fake, "/api/v1/namespaces/nowhere/pods", &wanted).await.code, 404);
    let broken = plain(&fake, "POST", PODS, &[("content-type", "application/json")], "{").await;
    assert_eq!(broken.code, 400);
    assert_eq!(fake.count("pods"), 0);
}

#[tokio::test]
async fn a_dry_run_keeps_nothing() {
    let (fake, client) = start().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let wanted: Pod = serde_json::from_value(pod("a")).unwrap();
    let before = fake.version();
    assert!(pods.create(&dry, &wanted).await.unwrap().metadata.uid.is_some());
    assert_eq!((fake.count("pods"), fake.version()), (0, before));
    fake.create(pod("a")).await.unwrap();
    let before = fake.version();
    let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
    pods.delete("a", &params).await.unwrap();
    let bound = json!({ "metadata": { "name": "a" }, "target": { "name": "n" } });
    assert_eq!(post(&fake, &format!("{PODS}/a/binding?dryRun=All"), &bound).await.code, 201);
    assert_eq!((fake.count("pods"), fake.version()), (1, before));
    assert_eq!(fake.get("Pod", "default", "a").unwrap()["spec"]["nodeName"], Value::Null);
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let (fake, _client) = start().await;
    let uid = fake.create(pod("a")).await.unwrap()["metadata"]["uid"].clone();
    let bind = |node: &str, uid: &Value| {
        json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "a", "uid": uid },
                "target": { "apiVersion": "v1", "kind": "Node", "name": node } })
    };
    let path = format!("{PODS}/a/binding");
    let wrong = post(&fake, &path, &bind("n1", &json!("another"))).await;
    assert_eq!((wrong.code, wrong.json()["reason"].clone()), (409, json!("Conflict")));
    assert_eq!(post(&fake, &path, &bind("n1", &uid)).await.code, 201);
    let again = post(&fake, &path, &bind("n2", &uid)).await;
    assert_eq!(again.code, 409);
    assert!(again.text.contains(r#"pod a is already assigned to node \"n1\""#), "{}", again.text);
    assert_eq!(
        post(&fake, &format!("{PODS}/b/binding"), &json!({ "target": { "name": "n" } })).await.code,
        404
    );
    let bound = fake.get("Pod", "default", "a").unwrap();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    let bindings = fake.bindings();
    assert_eq!(bindings.len(), 1);
    assert_eq!((bindings[0].pod.as_str(), bindings[0].node.as_str()), ("default/a", "n1"));
}

#[tokio::test]
async fn gated_and_terminating_pods_are_not_bound() {
    let (fake, _client) = start().await;
    let mut gated = pod("gated");
    gated["spec"]["schedulingGates"] = json!([{ "name": "example.dev/wait" }]);
    fake.create(gated).await.unwrap();
    let target = json!({ "target": { "kind": "Node", "name": "n" } });
    let refused = post(&fake, &format!("{PODS}/gated/binding"), &target).await;
    assert_eq!(refused.code, 409);
    assert!(refused.text.contains("schedulingGates"));
    let opened = json!([{ "op": "remove", "path": "/spec/schedulingGates" }]);
    let kind = "application/json-patch+json";
    assert_eq!(patch(&fake, &format!("{PODS}/gated"), kind, &opened).await.code, 200);
    assert_eq!(post(&fake, &format!("{PODS}/gated/binding"), &target).await.code, 201);

    let mut held = pod("held");
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    fake.create(held).await.unwrap();
    fake.delete("Pod", "default", "held").await.unwrap();
    let refused = post(&fake, &format!("{PODS}/held/binding"), &target).await;
    assert_eq!(refused.code, 409);
    assert!(refused.text.contains("being deleted"));
    let released = json!({ "metadata": { "finalizers": null } });
    assert_eq!(patch(&fake, &format!("{PODS}/held"), MERGE, &released).await.code, 200);
    assert!(fake.get("Pod", "default", "held").is_none());
}

#[tokio::test]
async fn a_pods_specification_stays_as_it_is() {
    let (fake, client) = start().await;
    fake.create(pod("a")).await.unwrap();
    let path = format!("{PODS}/a");
    let table = [
        (json!({ "spec": { "nodeName": "n" } }), 422),
        (json!({ "spec": { "affinity": { "nodeAffinity": {} } } }), 422),
        (json!({ "spec": { "schedulerName": "other" } }), 422),
        (json!({ "spec": { "schedulingGates": [{ "name": "a" }] } }), 422),
        (json!({ "spec": { "tolerations": [] } }), 422),
        (json!({ "metadata": { "labels": { "a": "b" } } }), 200),
        (
            json!({ "metadata": { "annotations": { "controller.kubernetes.io/pod-deletion-cost": "7" } } }),
            200,
        ),
        (json!({ "spec": { "activeDeadlineSeconds": 5 } }), 200),
        (json!({ "spec": { "activeDeadlineSeconds": 6 } }), 422),
    ];
    for (change, expected) in table {
        let answer = patch(&fake, &path, MERGE, &change).await;
        assert_eq!(answer.code, expected, "{change}: {}", answer.text);
    }
    let pods: Api<Pod> = Api::default_namespaced(client);
    let image = json!({ "spec": { "containers": [{ "name": "main", "image": "other:2" }] } });
    let changed = pods.patch("a", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
    let container = &changed.spec.unwrap().containers[0];
    assert_eq!(container.image.as_deref(), Some("other:2"));
    assert!(container.resources.is_some(), "the rest of the container is kept");
}

#[tokio::test]
async fn status_and_specification_are_written_apart() {
    let (fake, client) = start().await;
    fake.create(pod("a")).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let both = json!({ "spec": { "schedulerName": "other" }, "status": { "phase": "Running" } });
    let changed =
        pods.patch_status("a", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!(changed.spec.unwrap().scheduler_name.as_deref(), Some("berth"));
    assert_eq!(changed.status.unwrap().phase.as_deref(), Some("Running"));
    let mut read = pods.get("a").await.unwrap();
    read.status.as_mut().unwrap().phase = Some("Failed".into());
    read.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    let replaced = pods.replace("a", &PostParams::default(), &read).await.unwrap();
    assert_eq!(replaced.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    let stale = pods.replace("a", &PostParams::default(), &read).await.unwrap_err();
    assert_eq!(code(&stale), 409);
    let condition = json!({ "status": { "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable" } ] } });
    let params = PatchParams::default();
    let first = pods.patch_status("a", &params, &Patch::Strategic(&condition)).await.unwrap();
    let second = pods.patch_status("a", &params, &Patch::Strategic(&condition)).await.unwrap();
    assert_eq!(
        first.metadata.resource_version, second.metadata.resource_version,
        "a change that changes nothing makes no version"
    );
}

#[tokio::test]
async fn deletion_asks_for_uid_and_version_and_grants_grace() {
    let options = Options { kubelet: true, ..Options::default() };
    let (fake, client) = start_with(options).await;
    fake.create(samples::node("n", 4000, 4096)).await.unwrap();
    fake.create(pod("free")).await.unwrap();
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = json!("n");
    fake.create(bound).await.unwrap();
    eventually("the pod runs", || {
        fake.get("Pod", "default", "bound").unwrap()["status"]["phase"] == "Running"
    })
    .await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let by_uid = Preconditions { uid: Some("x".into()), resource_version: None };
    let by_version = Preconditions { uid: None, resource_version: Some("1".into()) };
    for conditions in [by_uid, by_version] {
        let params = DeleteParams { preconditions: Some(conditions), ..DeleteParams::default() };
        assert_eq!(code(&pods.delete("free", &params).await.unwrap_err()), 409);
    }
    pods.delete("free", &DeleteParams::default()).await.unwrap();
    assert!(fake.get("Pod", "default", "free").is_none(), "what does not run goes at once");
    let answer = pods.delete("bound", &DeleteParams::default()).await.unwrap();
    let going = answer.left().unwrap();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    assert!(going.metadata.deletion_timestamp.is_some());
    eventually("the pod is gone", || fake.get("Pod", "default", "bound").is_none()).await;
}
