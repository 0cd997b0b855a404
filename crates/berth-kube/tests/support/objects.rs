//! Objects as `kubectl get -o json` prints them, from a few words and a patch.

#![allow(dead_code, reason = "every test binary uses some of it")]

use serde_json::{Map, Value, json};

/// A patch put over a value: objects are merged, everything else is replaced, null takes away.
pub(crate) fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Value::Object(fields) = value {
        for (name, patch) in patch {
            if patch.is_null() {
                fields.remove(name);
            } else {
                merge(fields.entry(name).or_insert(Value::Null), patch);
            }
        }
    }
}

/// A value with a patch put over it.
pub(crate) fn patched(mut value: Value, patch: &Value) -> Value {
    merge(&mut value, patch);
    value
}

/// A node of 4 cores and 8 GiB for 110 pods, with its name as its hostname, and a patch.
pub(crate) fn node(name: &str, patch: &Value) -> Value {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {
            "cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"
        }},
    });
    patched(node, patch)
}

/// The same in a zone.
pub(crate) fn node_in(zone: &str, name: &str) -> Value {
    node(name, &json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}}))
}

/// A pod in `default` that asks for 100m and 100 MiB and waits for Berth, and a patch.
pub(crate) fn pod(name: &str, patch: &Value) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {
            "schedulerName": "berth", "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "containers": [container("main", "100m", "100Mi")],
        },
        "status": {"phase": "Pending"},
    });
    patched(pod, patch)
}

/// A pod that is on a node, with labels.
pub(crate) fn pod_on(node: &str, name: &str, labels: &Value) -> Value {
    let patch = json!({
        "metadata": {"labels": labels}, "spec": {"nodeName": node}, "status": {"phase": "Running"}
    });
    pod(name, &patch)
}

/// A container that asks for these.
pub(crate) fn container(name: &str, cpu: &str, memory: &str) -> Value {
    json!({
        "name": name, "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    })
}

/// A namespace with labels.
pub(crate) fn namespace(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}
