//! Sample objects for tests.

use serde_json::{Value, json};

fn definition(group: &str, kind: &str, plural: &str, subresources: &Value) -> Value {
    definition_of((group, "v1"), kind, plural, subresources)
}

fn definition_of(
    (group, version): (&str, &str),
    kind: &str,
    plural: &str,
    subresources: &Value,
) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {
                "kind": kind, "plural": plural, "singular": kind.to_lowercase(),
                "listKind": format!("{kind}List"),
            },
            "versions": [{
                "name": version, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } },
                "subresources": subresources,
            }],
        },
    })
}

/// The definition of `virtualmachines.vm.neon.tech`: with a status, without a scale.
#[must_use]
pub fn virtual_machine_definition() -> Value {
    definition("vm.neon.tech", "VirtualMachine", "virtualmachines", &json!({ "status": {} }))
}

/// The definition of `virtualmachinemigrations.vm.neon.tech`: with a status.
#[must_use]
pub fn virtual_machine_migration_definition() -> Value {
    let (kind, plural) = ("VirtualMachineMigration", "virtualmachinemigrations");
    definition("vm.neon.tech", kind, plural, &json!({ "status": {} }))
}

/// `podgroups.scheduling.k8s.io` as Kubernetes 1.36 serves them: with a status.
#[must_use]
pub fn pod_group_definition() -> Value {
    let group = ("scheduling.k8s.io", "v1alpha2");
    definition_of(group, "PodGroup", "podgroups", &json!({ "status": {} }))
}

/// `workloads.scheduling.k8s.io` as Kubernetes 1.35 serves them.
#[must_use]
pub fn workload_definition() -> Value {
    let group = ("scheduling.k8s.io", "v1alpha1");
    definition_of(group, "Workload", "workloads", &json!({}))
}

/// The definition of `rollouts.example.dev`: a custom controller with a scale.
#[must_use]
pub fn rollout_definition() -> Value {
    let subresources = json!({
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    });
    definition("example.dev", "Rollout", "rollouts", &subresources)
}

/// A ready node with this many millicores and MiB.
#[must_use]
pub fn node(name: &str, cpu_milli: u64, memory_mib: u64) -> Value {
    let amounts = json!({
        "cpu": format!("{cpu_milli}m"), "memory": format!("{memory_mib}Mi"), "pods": "110",
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
        },
    })
}

/// A pod with one container for this scheduler.
#[must_use]
pub fn pod(namespace: &str, name: &str, scheduler: &str, cpu_milli: u64, memory_mib: u64) -> Value {
    let requests = json!({
        "cpu": format!("{cpu_milli}m"), "memory": format!("{memory_mib}Mi"),
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "schedulerName": scheduler,
            "containers": [{
                "name": "main", "image": "example.invalid/app:1",
                "resources": { "requests": requests },
            }],
        },
    })
}

/// A deployment of plain pods, labelled `app: NAME`.
#[must_use]
pub fn deployment(namespace: &str, name: &str, replicas: u32) -> Value {
    workload("Deployment", namespace, name, replicas)
}

/// A stateful set of plain pods, labelled `app: NAME`.
#[must_use]
pub fn stateful_set(namespace: &str, name: &str, replicas: u32) -> Value {
    let mut set = workload("StatefulSet", namespace, name, replicas);
    set["spec"]["serviceName"] = json!(name);
    set
}

/// A replica set of plain pods, labelled `app: NAME`.
#[must_use]
pub fn replica_set(namespace: &str, name: &str, replicas: u32) -> Value {
    workload("ReplicaSet", namespace, name, replicas)
}

fn workload(kind: &str, namespace: &str, name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": "example.invalid/app:1" }] },
            },
        },
    })
}
