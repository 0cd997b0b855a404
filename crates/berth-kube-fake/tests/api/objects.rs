//! Leases, events, custom resources, scales and patches.

use berth_kube_fake::samples;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::support::{code, get, patch, plain, post, start};

#[tokio::test]
async fn a_lease_has_one_winner() {
    let (fake, client) = start().await;
    let leases: Api<Lease> = Api::default_namespaced(client);
    let lease: Lease = serde_json::from_value(json!({
        "metadata": { "name": "leader" },
        "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15,
                  "renewTime": "2025-01-01T00:00:00.000000Z" } }))
    .unwrap();
    let made = leases.create(&PostParams::default(), &lease).await.unwrap();
    let again = leases.create(&PostParams::default(), &lease).await.unwrap_err();
    assert_eq!(code(&again), 409);
    let taken = |holder: &str| {
        let mut lease = made.clone();
        lease.spec.as_mut().unwrap().holder_identity = Some(holder.into());
        lease
    };
    let params = PostParams::default();
    let (b, c) = (taken("b"), taken("c"));
    let (first, second) =
        tokio::join!(leases.replace("leader", &params, &b), leases.replace("leader", &params, &c));
    assert_eq!(usize::from(first.is_ok()) + usize::from(second.is_ok()), 1);
    let loser = first.err().or(second.err()).unwrap();
    assert_eq!(code(&loser), 409);
    let blind = leases.replace("leader", &params, &lease).await.unwrap_err();
    assert_eq!(code(&blind), 422, "a lease is never replaced blindly");
    assert_eq!(fake.count("leases"), 1);
}

#[tokio::test]
async fn an_event_is_the_same_in_both_groups() {
    let (fake, _client) = start().await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "generateName": "a." },
        "eventTime": "2025-01-01T00:00:00.000000Z", "reportingController": "berth.dev/scheduler",
        "reportingInstance": "one", "action": "Scheduling", "reason": "FailedScheduling",
        "type": "Warning", "note": "no node is large enough",
        "regarding": { "kind": "Pod", "namespace": "default", "name": "a" },
    });
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let made = post(&fake, path, &event).await;
    assert_eq!(made.code, 201, "{}", made.text);
    assert_eq!(made.json()["note"], "no node is large enough");
    let query = "?fieldSelector=involvedObject.name%3Da";
    let core = get(&fake, &format!("/api/v1/namespaces/default/events{query}")).await.json();
    assert_eq!(core["items"][0]["message"], "no node is large enough");
    assert_eq!(core["items"][0]["involvedObject"]["name"], "a");
    let name = core["items"][0]["metadata"]["name"].as_str().unwrap();
    let series =
        json!({ "series": { "count": 2, "lastObservedTime": "2025-01-01T00:00:00.000000Z" } });
    let changed =
        patch(&fake, &format!("{path}/{name}"), "application/merge-patch+json", &series).await;
    assert_eq!((changed.code, changed.json()["series"]["count"].clone()), (200, json!(2)));
    for (field, bad) in [
        ("action", json!("")),
        ("reportingInstance", json!(null)),
        ("note", json!("x".repeat(1025))),
        ("type", json!("Bad")),
        ("regarding", json!({ "kind": "Pod", "namespace": "other", "name": "a" })),
        ("regarding", json!(7)),
    ] {
        let mut wrong = event.clone();
        wrong[field] = bad;
        let refused = post(&fake, path, &wrong).await;
        assert!(matches!(refused.code, 400 | 422), "{field}: {}", refused.text);
    }
}

#[tokio::test]
async fn custom_resources_are_served_while_they_are_defined() {
    let (fake, client) = start().await;
    let path = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines";
    assert_eq!(get(&fake, path).await.code, 404);
    fake.create(samples::virtual_machine_definition()).await.unwrap();
    let kind = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
    let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachines");
    let machines: Api<DynamicObject> = Api::default_namespaced_with(client, &resource);
    let machine = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": { "name": "a" },
        "spec": { "guest": { "cpus": { "min": 1, "use": 2, "max": 4 } } },
        "status": { "phase": "Running" } });
    let machine: DynamicObject = serde_json::from_value(machine).unwrap();
    let made = machines.create(&PostParams::default(), &machine).await.unwrap();
    assert_eq!(made.data["status"], Value::Null, "a status is written apart");
    assert_eq!(made.data["spec"]["guest"]["cpus"]["use"], 2);
    let status = json!({ "status": { "phase": "Running" }, "spec": null });
    let params = PatchParams::default();
    let changed = machines.patch_status("a", &params, &Patch::Merge(&status)).await.unwrap();
    assert_eq!(changed.data["status"]["phase"], "Running");
    assert_eq!(changed.data["spec"]["guest"]["cpus"]["use"], 2);
    assert_eq!(changed.metadata.generation, Some(1));
    let strategic = machines.patch("a", &params, &Patch::Strategic(&status)).await.unwrap_err();
    assert_eq!(code(&strategic), 415);
    let list = machines.list(&ListParams::default()).await.unwrap();
    assert_eq!(
        list.items[0].types.as_ref().map(|types| types.kind.as_str()),
        Some("VirtualMachine")
    );
    assert_eq!(get(&fake, &format!("{path}/a/scale")).await.code, 404);
    fake.delete("customresourcedefinitions", "", "virtualmachines.vm.neon.tech").await.unwrap();
    assert_eq!(get(&fake, path).await.code, 404);
}

#[tokio::test]
async fn a_scale_changes_the_replicas_and_nothing_else() {
    let (fake, client) = start().await;
    fake.create(samples::deployment("default", "web", 3)).await.unwrap();
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    let scale = deployments.get_scale("web").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("app=web"));
    let five = json!({ "spec": { "replicas": 5 } });
    let params = PatchParams::default();
    deployments.patch_scale("web", &params, &Patch::Merge(&five)).await.unwrap();
    let web = fake.get("Deployment", "default", "web").unwrap();
    assert_eq!((&web["spec"]["replicas"], &web["metadata"]["generation"]), (&json!(5), &json!(2)));
    fake.create(samples::rollout_definition()).await.unwrap();
    let rollout = json!({
        "apiVersion": "example.dev/v1", "kind": "Rollout", "metadata": { "name": "r" },
        "spec": { "replicas": 2 } });
    fake.create(rollout).await.unwrap();
    let path = "/apis/example.dev/v1/namespaces/default/rollouts/r/scale";
    let scale = get(&fake, path).await.json();
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    let mut wanted = scale;
    wanted["spec"]["replicas"] = json!(7);
    let body = wanted.to_string();
    let json_body = [("content-type", "application/json")];
    assert_eq!(plain(&fake, "PUT", path, &json_body, &body).await.code, 200);
    assert_eq!(fake.get("Rollout", "default", "r").unwrap()["spec"]["replicas"], 7);
    assert_eq!(plain(&fake, "PUT", path, &json_body, &body).await.code, 409, "it is stale now");
}

#[tokio::test]
async fn patches_are_told_apart_by_their_type() {
    let (fake, client) = start().await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" },
                      "data": { "a": "1", "b": "2" } });
    fake.create(map.clone()).await.unwrap();
    let path = "/api/v1/namespaces/default/configmaps/m";
    let stale = json!({ "metadata": { "resourceVersion": "1" }, "data": { "a": "x" } });
    let table = [
        (
            "application/json-patch+json",
            json!([{ "op": "test", "path": "/data/a", "value": "9" }]),
            422,
        ),
        (
            "application/json-patch+json",
            json!([{ "op": "replace", "path": "/data/a", "value": "3" }]),
            200,
        ),
        ("application/merge-patch+json", json!({ "data": { "b": null } }), 200),
        ("application/merge-patch+json", json!({ "metadata": { "name": "x" } }), 400),
        ("application/merge-patch+json", stale, 409),
        ("application/strategic-merge-patch+json", json!({ "data": { "c": "4" } }), 200),
        ("application/json", json!({ "data": { "c": "5" } }), 415),
        ("application/merge-patch+json", json!({ "data": 5 }), 400),
    ];
    for (kind, body, expected) in table {
        let answer = patch(&fake, path, kind, &body).await;
        assert_eq!(answer.code, expected, "{kind} {body}: {}", answer.text);
    }
    assert_eq!(
        fake.get("ConfigMap", "default", "m").unwrap()["data"],
        json!({ "a": "3", "c": "4" })
    );
    let refused = patch(&fake, path, "application/apply-patch+yaml", &map).await;
    assert_eq!(refused.code, 422, "an apply needs a field manager");
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::default_namespaced(client);
    let mut other = map;
    other["metadata"]["name"] = json!("n");
    let applied =
        maps.patch("n", &PatchParams::apply("test"), &Patch::Apply(&other)).await.unwrap();
    assert_eq!(applied.data.unwrap().len(), 2);
}

#[tokio::test]
async fn objects_with_finalizers_wait() {
    let (fake, _client) = start().await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
                      "metadata": { "name": "m", "finalizers": ["example.dev/hold"] } });
    fake.create(map).await.unwrap();
    fake.delete("ConfigMap", "default", "m").await.unwrap();
    let held = fake.get("ConfigMap", "default", "m").unwrap();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    let more = json!({ "metadata": { "finalizers": ["example.dev/hold", "example.dev/more"] } });
    assert_eq!(fake.merge("ConfigMap", "default", "m", more).await.unwrap_err().code, 422);
    let none = json!({ "metadata": { "finalizers": [] } });
    fake.merge("ConfigMap", "default", "m", none).await.unwrap();
    assert!(fake.get("ConfigMap", "default", "m").is_none());
}

#[tokio::test]
async fn priorities_come_from_their_class() {
    let (fake, _client) = start().await;
    let class = |name: &str, value: i32, default: bool, policy: &str| {
        json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": { "name": name }, "value": value, "globalDefault": default,
                "preemptionPolicy": policy })
    };
    fake.create(class("high", 1000, false, "Never")).await.unwrap();
    let mut pod = samples::pod("default", "a", "berth", 1, 1);
    pod["spec"]["priorityClassName"] = json!("high");
    let made = fake.create(pod.clone()).await.unwrap();
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]),
        (&json!(1000), &json!("Never"))
    );
    pod["metadata"]["name"] = json!("b");
    pod["spec"]["priority"] = json!(5);
    assert_eq!(fake.create(pod).await.unwrap_err().code, 403);
    fake.create(class("usual", 10, true, "PreemptLowerPriority")).await.unwrap();
    let plain = fake.create(samples::pod("default", "c", "berth", 1, 1)).await.unwrap();
    assert_eq!(plain["spec"]["priority"], 10);
}

#[tokio::test]
async fn many_objects_are_made_at_once() {
    let (fake, _client) = start().await;
    let pod = samples::pod("default", "p", "berth", 1, 1);
    let name = |at: usize, pod: &mut Value| pod["metadata"]["name"] = json!(format!("p{at}"));
    fake.create_many(pod.clone(), 100, name).await.unwrap();
    let uids: std::collections::BTreeSet<String> =
        fake.list("pods").iter().map(|pod| pod["metadata"]["uid"].to_string()).collect();
    assert_eq!((fake.count("pods"), uids.len()), (100, 100));
    assert_eq!(fake.get("Pod", "default", "p99").unwrap()["spec"]["priority"], 0);
    assert_eq!(fake.create_many(pod, 2, name).await.unwrap_err().code, 409);
    assert_eq!(fake.count_where("pods", |pod| pod["spec"]["schedulerName"] == "berth"), 100);
}
