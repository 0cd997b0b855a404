//! Dynamic resource allocation: claims that Kubernetes' own controller creates and frees, and whose allocation the
//! API server checks.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::{condition, node_of, text};
use crate::cluster::{Cluster, eventually};
use crate::kubelets::{RUNS_FOR, node};
use crate::objects::{job, pod, template};

const DRIVER: &str = "gpu.real.berth.dev";

/// A class of the devices of one case: classes are not in namespaces.
fn class(case: &str) -> Value {
    let expression =
        format!("device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].real == '{case}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": case },
        "spec": { "selectors": [{ "cel": { "expression": expression } }] },
    })
}

/// A device of a case with so much memory.
fn device(case: &str, name: &str, memory_gib: u32) -> Value {
    json!({
        "name": name,
        "attributes": { "real": { "string": case }, "version": { "version": "1.4.0" } },
        "capacity": { "memory": { "value": format!("{memory_gib}Gi") } },
    })
}

fn slice(node: &str, devices: &[Value]) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": { "name": format!("{node}-gpus") },
        "spec": {
            "driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
        },
    })
}

/// What a claim asks for: one device of the case, and more.
fn request(case: &str, more: &Value) -> Value {
    let mut exactly = json!({ "deviceClassName": case });
    for (key, value) in more.as_object().into_iter().flatten() {
        exactly[key] = value.clone();
    }
    json!({ "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } })
}

fn claim(case: &str, name: &str, more: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": name, "namespace": case }, "spec": request(case, more),
    })
}

/// A template of pods that use a claim.
fn user(case: &str, app: &str, claim: Value) -> Value {
    let mut made = template(case, app, 100, 64);
    made["spec"]["resourceClaims"] = json!([claim]);
    made["spec"]["resourceClaims"][0]["name"] = "gpu".into();
    made["spec"]["containers"][0]["resources"]["claims"] = json!([{ "name": "gpu" }]);
    made
}

/// The namespace, the class, and nodes with these devices.
async fn prepare(cluster: &Cluster, case: &str, nodes: &[(&str, &[Value])]) {
    cluster.add_namespace(case).await;
    let made = nodes.iter().map(|(name, _)| node(name, 4_000, 8_192, &json!({})));
    cluster.add_nodes(case, made.collect()).await;
    cluster.api.create(class(case)).await;
    for (name, devices) in nodes.iter().filter(|(_, devices)| !devices.is_empty()) {
        cluster.api.create(slice(name, devices)).await;
    }
}

async fn finish(cluster: &Cluster, case: &str) {
    cluster.finish(case, case).await;
    for slice in cluster.api.list("ResourceSlice", "").await {
        let name = text(&slice, "/metadata/name");
        cluster.api.delete("ResourceSlice", "", name, &json!({})).await;
    }
    cluster.api.delete("DeviceClass", "", case, &json!({})).await;
}

/// The device of an allocated claim, with its node.
fn device_of(claim: &Value) -> (&str, &str) {
    let result = "/status/allocation/devices/results/0";
    (text(claim, &format!("{result}/pool")), text(claim, &format!("{result}/device")))
}

/// Waits until a pod is refused with a text.
async fn refused(cluster: &Cluster, case: &str, name: &str, expected: &str) {
    eventually(&format!("{case}/{name} is refused: {expected}"), async || {
        let pod = cluster.recorder.pod(case, name)?;
        let found = condition(&pod, "PodScheduled")?;
        text(found, "/message").contains(expected).then_some(())
    })
    .await;
}

/// Selectors on attributes and amounts: each pod goes where its device is, and what nobody has is named.
pub(crate) async fn claims_are_allocated_by_their_selectors(cluster: &Cluster) {
    let case = "selectors";
    let small = [device(case, "small-0", 16), device(case, "small-1", 16)];
    let large = [device(case, "large-0", 80)];
    let nodes: [(&str, &[Value]); 3] =
        [("selectors-0", &[]), ("selectors-1", &small), ("selectors-2", &large)];
    prepare(cluster, case, &nodes).await;
    let selector =
        |expression: String| json!({ "selectors": [{ "cel": { "expression": expression } }] });
    let memory = |gib: u32| {
        selector(format!(
            "device.capacity['{DRIVER}'].memory.compareTo(quantity('{gib}Gi')) >= 0 && \
             device.attributes['{DRIVER}'].version.isGreaterThan(semver('1.3.9'))"
        ))
    };
    for (name, more) in [
        ("any", json!({ "allocationMode": "All" })),
        ("large", memory(40)),
        ("huge", memory(200)),
        ("admin", json!({ "allocationMode": "ExactCount", "count": 3 })),
    ] {
        cluster.api.create(claim(case, name, &more)).await;
        let made = user(case, name, json!({ "resourceClaimName": name }));
        if name == "any" {
            // All devices of the smaller node, before others take one of them.
            let mut pinned = pod(case, name, &made);
            pinned["spec"]["nodeSelector"]["kubernetes.io/hostname"] = "selectors-1".into();
            cluster.api.create(pinned).await;
            assert_eq!(cluster.bound(case, name).await, "selectors-1");
            continue;
        }
        cluster.api.create(pod(case, name, &made)).await;
    }
    assert_eq!(cluster.bound(case, "large").await, "selectors-2");
    refused(cluster, case, "huge", "matches class selectors and its selectors").await;
    refused(cluster, case, "admin", "3 requested").await;
    let claim = cluster.api.get("ResourceClaim", case, "large").await.unwrap();
    assert_eq!(device_of(&claim), ("selectors-2", "large-0"), "{claim}");
    let uid = &cluster.recorder.pod(case, "large").unwrap()["metadata"]["uid"];
    assert_eq!(claim["status"]["reservedFor"][0]["uid"], *uid, "{claim}");
    let all = cluster.api.get("ResourceClaim", case, "any").await.unwrap();
    let results = all["status"]["allocation"]["devices"]["results"].as_array().map(Vec::len);
    assert_eq!(results, Some(2), "{all}");
    // What the message says is enough, is enough.
    cluster.add_nodes(case, vec![node("selectors-3", 4_000, 8_192, &json!({}))]).await;
    cluster.api.create(slice("selectors-3", &[device(case, "huge-0", 256)])).await;
    assert_eq!(cluster.bound(case, "huge").await, "selectors-3");
    finish(cluster, case).await;
}

/// A Job whose pods have claims of a template: as many run at once as there are devices, and each device is used by
/// one after the other.
pub(crate) async fn pods_of_a_job_take_turns_with_devices_of_a_template(cluster: &Cluster) {
    let case = "turns-of-devices";
    let of = |node: &str| {
        [device(case, &format!("{node}-a"), 16), device(case, &format!("{node}-b"), 16)]
    };
    let (first, second) = (of("one"), of("two"));
    prepare(cluster, case, &[("device-turns-0", &first), ("device-turns-1", &second)]).await;
    let made = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": { "name": "gpus", "namespace": case },
        "spec": { "spec": request(case, &Value::Null) },
    });
    cluster.api.create(made).await;
    let mut worker = user(case, "worker", json!({ "resourceClaimTemplateName": "gpus" }));
    worker["metadata"]["annotations"] = json!({ RUNS_FOR: "400" });
    cluster.api.create(job(case, 16, 8, &worker)).await;
    let mut used = BTreeSet::new();
    eventually("the Job is complete", async || {
        let claims = cluster.api.list("ResourceClaim", case).await;
        let held: Vec<(&str, &str)> =
            claims.iter().map(device_of).filter(|(_, device)| !device.is_empty()).collect();
        let distinct: BTreeSet<&(&str, &str)> = held.iter().collect();
        assert_eq!(distinct.len(), held.len(), "a device has two claims: {held:?}");
        used.extend(held.iter().map(|(_, device)| (*device).to_owned()));
        let job = cluster.api.get("Job", case, "worker").await?;
        (job["status"]["succeeded"] == json!(16)).then_some(())
    })
    .await;
    assert_eq!(used.len(), 4, "{used:?}");
    finish(cluster, case).await;
}

/// Pods that share a claim run where its devices are, and the claim is free when the last one is gone.
pub(crate) async fn pods_that_share_a_claim_stay_together(cluster: &Cluster) {
    let case = "shared";
    let devices = [device(case, "only", 16)];
    prepare(cluster, case, &[("shared-0", &[]), ("shared-1", &devices), ("shared-2", &[])]).await;
    cluster.api.create(claim(case, "one", &Value::Null)).await;
    let made = user(case, "share", json!({ "resourceClaimName": "one" }));
    for number in 0..4 {
        cluster.api.create(pod(case, &format!("share-{number}"), &made)).await;
    }
    cluster.all_bound(case, 4).await;
    let pods = cluster.live_pods(case);
    assert!(pods.iter().all(|it| node_of(it) == "shared-1"), "{pods:?}");
    let consumers = async || {
        let claim = cluster.api.get("ResourceClaim", case, "one").await?;
        Some(claim["status"]["reservedFor"].as_array().map_or(0, Vec::len))
    };
    assert_eq!(consumers().await, Some(4));
    // Another claim waits for the device.
    cluster.api.create(claim(case, "two", &Value::Null)).await;
    let next = user(case, "next", json!({ "resourceClaimName": "two" }));
    cluster.api.create(pod(case, "next", &next)).await;
    refused(cluster, case, "next", "0 of 1 matching devices of class shared free").await;
    for number in 0..4 {
        cluster.api.delete("Pod", case, &format!("share-{number}"), &json!({})).await;
    }
    assert_eq!(cluster.bound(case, "next").await, "shared-1");
    finish(cluster, case).await;
}

/// A tainted device is not allocated without a toleration, and neither is one that a rule taints.
pub(crate) async fn tainted_devices_are_left_alone(cluster: &Cluster) {
    let case = "tainted";
    let mut broken = device(case, "broken", 16);
    broken["taints"] = json!([{ "key": "health", "value": "bad", "effect": "NoSchedule" }]);
    let devices = [broken];
    prepare(cluster, case, &[("tainted-0", &devices)]).await;
    cluster.api.create(claim(case, "careful", &Value::Null)).await;
    let careful = user(case, "careful", json!({ "resourceClaimName": "careful" }));
    cluster.api.create(pod(case, "careful", &careful)).await;
    refused(cluster, case, "careful", "class tainted").await;
    let tolerant = json!({ "tolerations": [{ "key": "health", "operator": "Exists" }] });
    cluster.api.create(claim(case, "bold", &tolerant)).await;
    let bold = user(case, "bold", json!({ "resourceClaimName": "bold" }));
    cluster.api.create(pod(case, "bold", &bold)).await;
    assert_eq!(cluster.bound(case, "bold").await, "tainted-0");
    // A rule that taints all devices of the pool is in force before they are published.
    let rule = json!({
        "apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule",
        "metadata": { "name": "maintenance" },
        "spec": {
            "deviceSelector": { "driver": DRIVER, "pool": "tainted-1" },
            "taint": { "key": "maintenance", "value": "now", "effect": "NoSchedule" },
        },
    });
    cluster.api.create(rule).await;
    cluster.add_nodes(case, vec![node("tainted-1", 4_000, 8_192, &json!({}))]).await;
    cluster.api.create(slice("tainted-1", &[device(case, "maintained", 16)])).await;
    refused(cluster, case, "careful", "0/").await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let waiting = cluster.recorder.pod(case, "careful").unwrap();
    assert_eq!(node_of(&waiting), "", "it went to a device that a rule taints");
    cluster.api.delete("DeviceTaintRule", "", "maintenance", &json!({})).await;
    assert_eq!(cluster.bound(case, "careful").await, "tainted-1");
    finish(cluster, case).await;
}
