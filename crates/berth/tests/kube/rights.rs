//! The rights of the manifests suffice for everything that each part does, and none of them is spare.

use berth_kube_fake::{AuditEntry, FakeApi, Faults, Options, samples};
use serde_json::{Value, json};

use crate::commands::{as_installed, assert_rights_sufficed, cluster, free_port, until_ready};
use crate::stage::{Running, Stage, documents, of_kind, until};

/// Rights for elastic pods, which need agents. `make kube-real` tries most of them on a real API server, and
/// prints those that nothing made use of.
const OF_ELASTIC_PODS: [&str; 7] = [
    "get virtualmachines",
    "patch virtualmachines",
    "list virtualmachinemigrations",
    "watch virtualmachinemigrations",
    "create virtualmachinemigrations",
    "delete virtualmachinemigrations",
    "patch pods/resize",
];

/// Rights that no request made use of.
fn spare(part: &str, audit: &[AuditEntry]) -> Vec<String> {
    let roles = documents(&format!("deploy/kubernetes/{part}/10-rbac.yaml"));
    let rules = roles.iter().filter_map(|role| role["rules"].as_array()).flatten();
    let words = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut spare = Vec::new();
    for rule in rules {
        let group = words(&rule["apiGroups"]).remove(0);
        for resource in words(&rule["resources"]) {
            let (name, below) = resource.split_once('/').unwrap_or((&resource, ""));
            let name = if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") };
            for verb in words(&rule["verbs"]) {
                // The API server asks for this one together with the status.
                let is_binding = name == "resourceclaims.resource.k8s.io" && below == "binding";
                let asked = if is_binding { "status" } else { below };
                let used = |it: &AuditEntry| {
                    it.resource == name && it.subresource == asked && it.verb == verb
                };
                // A right is of use where the answer was not just that there is nothing.
                let right = format!("{verb} {resource}");
                let is_tried_elsewhere = OF_ELASTIC_PODS.contains(&right.as_str());
                if !is_tried_elsewhere && !audit.iter().any(|it| used(it) && it.code < 500) {
                    spare.push(right);
                }
            }
        }
    }
    spare
}

async fn assert_none_is_spare(part: &str, fake: &FakeApi) {
    until(&format!("all rights used, but {:?}", spare(part, &fake.audit())), async || {
        spare(part, &fake.audit()).is_empty()
    })
    .await;
}

fn on_node(fake: &FakeApi, pod: &str) -> Option<String> {
    let pod = fake.get("Pod", "default", pod)?;
    pod["spec"]["nodeName"].as_str().filter(|it| !it.is_empty()).map(str::to_owned)
}

async fn until_bound(fake: &FakeApi, running: &Running, pod: &str) {
    let what = format!("{pod} is bound\n{}", running.log());
    until(&what, async || on_node(fake, pod).is_some()).await;
}

fn with_claim(mut pod: Value, claim: &str) -> Value {
    pod["spec"]["volumes"] =
        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    pod
}

/// A claim that waits for its first consumer, and its class.
async fn claim(fake: &FakeApi, name: &str, provisioner: &str) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": name }, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    fake.create(class).await.unwrap();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "storageClassName": name, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    fake.create(claim).await.unwrap();
}

/// A pod with a claim of a device, which the node has.
async fn device_user(fake: &FakeApi, name: &str, node: &str) {
    let kind = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": { "name": name }, "spec": spec,
        })
    };
    let selector = json!({ "cel": { "expression": "device.driver == 'gpu.example.com'" } });
    let pool = json!({ "name": node, "generation": 1, "resourceSliceCount": 1 });
    let devices = json!({
        "driver": "gpu.example.com", "nodeName": node, "pool": pool, "devices": [{ "name": "gpu-0" }],
    });
    let request = json!({ "name": "gpu", "exactly": { "deviceClassName": "gpu" } });
    let claim = json!({ "devices": { "requests": [request] } });
    fake.create(kind("DeviceClass", "gpu", json!({ "selectors": [selector] }))).await.unwrap();
    fake.create(kind("ResourceSlice", node, devices)).await.unwrap();
    fake.create(kind("ResourceClaim", name, claim)).await.unwrap();
    let mut pod = samples::pod("default", name, "berth", 10, 64);
    pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": name }]);
    fake.create(pod).await.unwrap();
}

async fn scheduler(fake: &FakeApi, stage: &Stage) -> Running {
    let kubeconfig = stage.write("kubeconfig", &fake.kubeconfig());
    let replaced = [
        ("--kubeconfig", kubeconfig.as_str()),
        ("--namespace", "berth-system"),
        ("--identity", "one"),
        ("--probes", "127.0.0.1:0"),
    ];
    let running = stage.start(&as_installed("scheduler", &replaced)).await;
    until_ready(&running).await;
    running
}

#[tokio::test]
async fn the_scheduler_has_the_rights_it_needs_and_no_other() {
    let options = Options { kubelet: true, volume_binder: true, ..Options::default() };
    let fake = cluster("scheduler", options).await;
    fake.create(samples::virtual_machine_definition()).await.unwrap();
    fake.create(samples::pod_group_definition()).await.unwrap();
    fake.create(samples::workload_definition()).await.unwrap();
    for name in ["n1", "n2"] {
        fake.create(samples::node(name, 4000, 8192)).await.unwrap();
    }
    let stage = Stage::new();
    let running = scheduler(&fake, &stage).await;

    // A binding whose answer is lost is looked up.
    let lost = Faults { lost_reply_permille: 1000, ..Faults::default() };
    fake.set_faults(Faults { only: Some("pods/binding".to_owned()), ..lost });
    fake.create(samples::pod("default", "plain", "berth", 500, 64)).await.unwrap();
    until_bound(&fake, &running, "plain").await;
    fake.clear_faults();

    // A volume that is made for the pod, and one that is there.
    claim(&fake, "made", "example.invalid/disks").await;
    let pod = samples::pod("default", "writer", "berth", 500, 64);
    fake.create(with_claim(pod, "made")).await.unwrap();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "disk-1" },
        "spec": {
            "storageClassName": "there", "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" }, "hostPath": { "path": "/disk" },
        },
        "status": { "phase": "Available" },
    });
    fake.create(volume.clone()).await.unwrap();
    fake.update_status(volume).await.unwrap();
    claim(&fake, "there", "kubernetes.io/no-provisioner").await;
    let pod = samples::pod("default", "keeper", "berth", 500, 64);
    fake.create(with_claim(pod, "there")).await.unwrap();
    until_bound(&fake, &running, "writer").await;
    until_bound(&fake, &running, "keeper").await;

    // A device.
    device_user(&fake, "trainer", "n1").await;
    until_bound(&fake, &running, "trainer").await;

    // Somebody has to go for one that is more important.
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": { "name": "high" }, "value": 1000,
    });
    fake.create(class).await.unwrap();
    for (name, cpu) in [("low-1", 2500), ("low-2", 2500)] {
        fake.create(samples::pod("default", name, "berth", cpu, 64)).await.unwrap();
        until_bound(&fake, &running, name).await;
    }
    let mut urgent = samples::pod("default", "urgent", "berth", 2000, 64);
    urgent["spec"]["priorityClassName"] = json!("high");
    fake.create(urgent).await.unwrap();
    until_bound(&fake, &running, "urgent").await;

    // A node is emptied.
    let node = on_node(&fake, "plain").unwrap();
    let drain = json!({ "metadata": { "annotations": { "berth.dev/drain": "1s" } } });
    fake.merge("Node", "", &node, drain).await.unwrap();
    until("plain leaves", async || on_node(&fake, "plain").is_none()).await;

    assert_none_is_spare("scheduler", &fake).await;
    assert_eq!(running.stop().await.code(), Some(0));
    assert_rights_sufficed(&fake);
}

async fn webhook(fake: &FakeApi, stage: &Stage, listen: &str) -> Running {
    let kubeconfig = stage.write("kubeconfig", &fake.kubeconfig());
    let (probes, folder) = (free_port().to_string(), stage.path("data"));
    let replaced = [
        ("--kubeconfig", kubeconfig.as_str()),
        ("--namespace", "berth-system"),
        ("--identity", "one"),
        ("--listen", listen),
        ("--probes", &probes),
        ("--data-dir", &folder),
    ];
    let running = stage.start(&as_installed("webhook", &replaced)).await;
    until_ready(&running).await;
    running
}

fn asks(mut workload: Value, count: &str, on_change: &str) -> Value {
    workload["metadata"]["annotations"] = json!({
        "berth.dev/webhook-scheduler": "true",
        "berth.dev/webhook-scheduler-max-on-demand-count": count,
        "berth.dev/webhook-scheduler-on-change": on_change,
    });
    workload
}

async fn set_count(fake: &FakeApi, kind: &str, name: &str, count: &str) {
    let annotations = json!({ "berth.dev/webhook-scheduler-max-on-demand-count": count });
    let fields = json!({ "metadata": { "annotations": annotations } });
    fake.merge(kind, "default", name, fields).await.unwrap();
}

/// A pod of a controller of a kind that nothing here runs.
fn of_controller(kind: &str, owner: &Value) -> Value {
    let mut pod = samples::pod("default", "odd-1", "default-scheduler", 100, 64);
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": kind, "controller": true,
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }]);
    pod
}

#[tokio::test]
async fn the_webhook_has_the_rights_it_needs_and_no_other() {
    let listen = free_port();
    let services = [("berth-system/berth-webhook".to_owned(), listen)].into();
    let options = Options { services, controllers: true, kubelet: true, ..Options::default() };
    let fake = cluster("webhook", options).await;
    let entry = "deploy/kubernetes/webhook/50-configuration.yaml";
    let entry = of_kind(&documents(entry), "MutatingWebhookConfiguration");
    fake.create(entry).await.unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": "berth-webhook-tls", "namespace": "berth-system" },
    });
    fake.create(secret).await.unwrap();
    let stage = Stage::new();
    let running = webhook(&fake, &stage, &listen.to_string()).await;

    fake.create(asks(samples::deployment("default", "web", 4), "3", "rebuild")).await.unwrap();
    fake.create(asks(samples::deployment("default", "slow", 2), "2", "lazy")).await.unwrap();
    fake.create(asks(samples::stateful_set("default", "db", 1), "1", "lazy")).await.unwrap();
    let controller = json!({
        "apiVersion": "v1", "kind": "ReplicationController",
        "metadata": { "name": "odd", "namespace": "default" },
        "spec": { "replicas": 1, "selector": { "app": "odd" }, "template": {
            "metadata": { "labels": { "app": "odd" } },
            "spec": { "containers": [{ "name": "main", "image": "example.invalid/app:1" }] },
        } },
    });
    fake.create(asks(controller, "1", "lazy")).await.unwrap();
    let odd = fake.get("ReplicationController", "default", "odd").unwrap();
    fake.create(of_controller("ReplicationController", &odd)).await.unwrap();
    until("all pods", async || fake.count("Pod") >= 8).await;

    // Two are evicted, one after the other, of which events tell; others become cheap to delete.
    set_count(&fake, "Deployment", "web", "1").await;
    set_count(&fake, "Deployment", "slow", "1").await;
    let mut left = Vec::new();
    for _ in 0..600 {
        for pod in fake.list("Pod") {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let _ = fake.set_ready("default", name, true).await;
        }
        left = spare("webhook", &fake.audit());
        // The Secret was there in this test; in another it is not.
        left.retain(|right| right != "create secrets");
        // An event is patched when the same is told again, which takes minutes.
        left.retain(|right| right != "patch events");
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(left.is_empty(), "never used: {left:?}\n{}", running.log());
    assert_eq!(running.stop().await.code(), Some(0));
    assert_rights_sufficed(&fake);
}
