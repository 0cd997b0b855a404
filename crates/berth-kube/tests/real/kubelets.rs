//! The kubelets of all nodes but the one that Berth's own pods run on: heartbeats by Leases, bound pods run after
//! a moment and end when they are told to, deleted pods go.
//!
//! Also what stands for kube-scheduler: pods of `default-scheduler` in Berth's namespace are bound to its node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

use crate::api::{ApiServer, key, node_of, text};
use crate::cluster::{CONTROL_NODE, NAMESPACE};
use crate::recorder::Change;

/// How long a pod takes to run, and to go.
const DELAY: Duration = Duration::from_millis(300);
/// How often a node shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Requests at once.
const CONCURRENCY: usize = 24;
/// An annotation: the pod's containers end well after this many milliseconds.
pub(crate) const RUNS_FOR: &str = "real.berth.dev/runs-for-ms";
/// An annotation: the pod never becomes ready.
pub(crate) const NEVER_READY: &str = "real.berth.dev/never-ready";

/// A node, ready, with this many millicores and MiB.
pub(crate) fn node(name: &str, cpu_milli: u64, memory_mib: u64, labels: &Value) -> Value {
    let amounts = json!({
        "cpu": format!("{cpu_milli}m"), "memory": format!("{memory_mib}Mi"), "pods": "110",
        "ephemeral-storage": "100Gi",
    });
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        } },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
                "lastHeartbeatTime": now(), "lastTransitionTime": now(),
            }],
            "nodeInfo": {
                "kubeletVersion": "v1.36.0", "kubeProxyVersion": "", "osImage": "", "kernelVersion": "",
                "containerRuntimeVersion": "none://", "machineID": "", "systemUUID": "", "bootID": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    });
    for (key, value) in labels.as_object().into_iter().flatten() {
        node["metadata"]["labels"][key] = value.clone();
    }
    node
}

/// This moment, as the API server reads it.
pub(crate) fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

/// The kubelets.
pub(crate) struct Kubelets {
    api: ApiServer,
    slots: Semaphore,
}

impl Kubelets {
    /// Starts them.
    pub(crate) fn start(api: &ApiServer, changes: mpsc::UnboundedReceiver<Change>) {
        let kubelets = Arc::new(Self { api: api.clone(), slots: Semaphore::new(CONCURRENCY) });
        tokio::spawn(Arc::clone(&kubelets).follow(changes));
        tokio::spawn(kubelets.send_heartbeats());
    }

    async fn send_heartbeats(self: Arc<Self>) {
        loop {
            let nodes = self.api.list("Node", "").await;
            stream::iter(nodes).for_each_concurrent(CONCURRENCY, |it| self.renew(it)).await;
            sleep(HEARTBEAT).await;
        }
    }

    async fn renew(&self, node: Value) {
        let name = text(&node, "/metadata/name");
        let renewed = format!("{:.6}", Timestamp::now());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": "kube-node-lease" },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed },
        });
        // The next one will do, if this fails.
        let _ = self.api.apply(&lease).await;
    }

    async fn follow(self: Arc<Self>, mut changes: mpsc::UnboundedReceiver<Change>) {
        // What was begun for a pod is begun once; a resize, once for each generation of its spec.
        let mut begun: BTreeSet<(String, &str, i64)> = BTreeSet::new();
        while let Some(Change { gone, object: pod, .. }) = changes.recv().await {
            let uid = text(&pod, "/metadata/uid").to_owned();
            if gone {
                begun.retain(|(it, ..)| *it != uid);
                continue;
            }
            let Some(work) = work_for(&pod) else { continue };
            let generation = pod["metadata"]["generation"].as_i64().filter(|_| work == "resize");
            if begun.insert((uid, work, generation.unwrap_or(0))) {
                let kubelets = Arc::clone(&self);
                tokio::spawn(async move { kubelets.work(work, &pod).await });
            }
        }
    }

    async fn work(&self, work: &str, pod: &Value) {
        let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        let Ok(_slot) = self.slots.acquire().await else { return };
        match work {
            "bind" => {
                let body = json!({
                    "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
                    "target": { "apiVersion": "v1", "kind": "Node", "name": CONTROL_NODE },
                });
                // It may be gone.
                let _ = self.api.post("Pod", (namespace, name), "binding", &body).await;
            }
            "stop" => {
                sleep(DELAY).await;
                let options = json!({
                    "gracePeriodSeconds": 0,
                    "preconditions": { "uid": pod["metadata"]["uid"] },
                });
                self.api.delete("Pod", namespace, name, &options).await;
            }
            "resize" => {
                sleep(DELAY).await;
                let is_ready = crate::api::is_ready(pod);
                self.report(pod, &running(pod, is_ready)).await;
            }
            _ => self.run(pod).await,
        }
    }

    async fn run(&self, pod: &Value) {
        sleep(DELAY).await;
        let annotation = |name: &str| pod["metadata"]["annotations"][name].as_str();
        let is_ready = annotation(NEVER_READY).is_none();
        self.report(pod, &running(pod, is_ready)).await;
        if let Some(after) = annotation(RUNS_FOR) {
            sleep(Duration::from_millis(after.parse().unwrap())).await;
            self.report(pod, &succeeded(pod)).await;
        }
    }

    async fn report(&self, pod: &Value, status: &Value) {
        let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        let fields = json!({ "metadata": { "uid": pod["metadata"]["uid"] }, "status": status });
        if let Err(error) = self.api.merge("Pod", (namespace, name), "/status", &fields).await {
            assert!(
                matches!(&error, kube::Error::Api(it) if matches!(it.code, 404 | 409)),
                "the status of {} was refused: {error}",
                key(pod)
            );
        }
    }
}

/// What a kubelet has to do for a pod.
fn work_for(pod: &Value) -> Option<&'static str> {
    let node = node_of(pod);
    if node.is_empty() {
        let is_ours = text(pod, "/metadata/namespace") == NAMESPACE
            && text(pod, "/spec/schedulerName") == "default-scheduler"
            && pod["metadata"]["deletionTimestamp"].is_null();
        return is_ours.then_some("bind");
    }
    if node == CONTROL_NODE {
        return None;
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return Some("stop");
    }
    match text(pod, "/status/phase") {
        "Pending" => Some("run"),
        "Running" if is_resized(pod) => Some("resize"),
        _ => None,
    }
}

/// Whether the containers of a running pod have other resources than their spec says.
fn is_resized(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
    let mut containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers.any(|container| {
        let status = statuses.iter().find(|it| it["name"] == container["name"]);
        status.is_some_and(|it| it["resources"] != container["resources"])
    })
}

fn conditions(is_ready: bool) -> Value {
    let one = |kind: &str, value: bool| {
        let status = if value { "True" } else { "False" };
        json!({ "type": kind, "status": status, "lastTransitionTime": now() })
    };
    json!([
        one("PodScheduled", true),
        one("Initialized", true),
        one("ContainersReady", is_ready),
        one("Ready", is_ready),
    ])
}

fn containers(pod: &Value, is_ready: bool, state: &Value, restarts: u32) -> Value {
    let all = pod["spec"]["containers"].as_array().into_iter().flatten();
    let statuses = all.map(|it| {
        let mut status = json!({
            "name": it["name"], "image": it["image"], "imageID": "", "ready": is_ready,
            "started": is_ready, "restartCount": restarts, "state": state,
            "resources": it["resources"],
        });
        if !it["resources"]["requests"].is_null() {
            status["allocatedResources"] = it["resources"]["requests"].clone();
        }
        status
    });
    Value::Array(statuses.collect())
}

/// The status of a pod that runs.
pub(crate) fn running(pod: &Value, is_ready: bool) -> Value {
    running_since_restarts(pod, is_ready, 0)
}

/// The status of a pod that runs and was restarted so often.
pub(crate) fn running_since_restarts(pod: &Value, is_ready: bool, restarts: u32) -> Value {
    let state = json!({ "running": { "startedAt": now() } });
    json!({
        "phase": "Running", "startTime": now(), "conditions": conditions(is_ready),
        "containerStatuses": containers(pod, is_ready, &state, restarts),
    })
}

fn succeeded(pod: &Value) -> Value {
    let state = json!({ "terminated": {
        "exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now(),
    } });
    json!({
        "phase": "Succeeded", "conditions": conditions(false),
        "containerStatuses": containers(pod, false, &state, 0),
    })
}
