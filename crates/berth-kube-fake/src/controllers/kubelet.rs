//! The kubelets of all nodes: bound pods run after a moment, terminating pods are deleted after a moment. A pod
//! bound to a missing node stays as it is.

use std::collections::BinaryHeap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{TableFollower, pause};
use crate::api::Api;
use crate::object::{self, Key};
use crate::store::Store;

/// How often a pod is checked again whose node is missing.
const NODE_MISSING: std::time::Duration = std::time::Duration::from_millis(200);

/// A pod to handle, soonest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DuePod(std::cmp::Reverse<Instant>, Key, String);

pub(super) async fn run(api: Arc<Api>) {
    let Some(mut pods) = TableFollower::new(&api, "", "pods") else { return };
    let mut waiting = BinaryHeap::new();
    loop {
        let due = Instant::now() + api.options.kubelet_delay;
        for event in pods.take_changes() {
            let pod = &event.object.value;
            if !event.gone && needs_work(pod) {
                let uid = object::uid(pod).to_owned();
                waiting.push(DuePod(std::cmp::Reverse(due), Key::of(pod), uid));
            }
        }
        let now = Instant::now();
        while waiting.peek().is_some_and(|DuePod(at, _, _)| at.0 <= now) {
            let Some(DuePod(_, key, uid)) = waiting.pop() else { break };
            if !handle_due_pod(&mut api.store(), &key, &uid) {
                waiting.push(DuePod(std::cmp::Reverse(now + NODE_MISSING), key, uid));
            }
        }
        pause().await;
    }
}

fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

fn needs_work(pod: &Value) -> bool {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    !node_of(pod).is_empty() && (object::is_terminating(pod) || phase == "Pending")
}

/// Does what is due for one pod. `false`: its node does not exist yet.
fn handle_due_pod(store: &mut Store, key: &Key, uid: &str) -> bool {
    let (Some(pods), Some(nodes)) = (store.find("", "pods"), store.find("", "nodes")) else {
        return true;
    };
    let Some(pod) = store.get(pods, key).filter(|pod| object::uid(&pod.value) == uid) else {
        return true;
    };
    let pod = pod.value.clone();
    if !needs_work(&pod) {
        return true;
    }
    if object::is_terminating(&pod) {
        if object::finalizers(&pod).is_empty() {
            store.remove(pods, key);
        } else if pod["metadata"]["deletionGracePeriodSeconds"] != 0 {
            let mut stopped = pod;
            stopped["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            store.put(pods, stopped);
        }
        return true;
    }
    if store.get(nodes, &Key::new("", node_of(&pod))).is_none() {
        return false;
    }
    let number = store.version();
    store.put(pods, running(pod, number));
    true
}

fn running(mut pod: Value, number: u64) -> Value {
    let now = object::now();
    let address = format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
    let statuses: Vec<Value> = object::items(&pod["spec"]["containers"])
        .map(|container| {
            json!({
                "name": container["name"], "image": container["image"], "imageID": "",
                "ready": true, "started": true, "restartCount": 0,
                "state": { "running": { "startedAt": now } }, "lastState": {},
            })
        })
        .collect();
    let status = &mut pod["status"];
    status["phase"] = json!("Running");
    status["startTime"] = json!(now);
    status["hostIP"] = json!("127.0.0.1");
    status["podIP"] = json!(address);
    status["podIPs"] = json!([{ "ip": address }]);
    status["containerStatuses"] = Value::Array(statuses);
    object::remove(status, "nominatedNodeName");
    for kind in ["Initialized", "ContainersReady", "Ready", "PodScheduled"] {
        object::set_condition(&mut pod, kind, "True", &Value::Null);
    }
    pod
}
