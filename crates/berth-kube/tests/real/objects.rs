//! Objects that cases create.

use serde_json::{Value, json};

use crate::cluster::POOL;

/// The template of a pod for Berth on the nodes of a pool, with this many millicores and MiB.
pub(crate) fn template(pool: &str, app: &str, cpu_milli: u64, memory_mib: u64) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": {
            "schedulerName": "berth",
            "nodeSelector": { POOL: pool },
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "registry.k8s.io/pause:3.10",
                "resources": { "requests": {
                    "cpu": format!("{cpu_milli}m"), "memory": format!("{memory_mib}Mi"),
                } },
            }],
        },
    })
}

/// A pod of a template.
pub(crate) fn pod(namespace: &str, name: &str, template: &Value) -> Value {
    let mut pod = template.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["namespace"] = namespace.into();
    pod
}

/// A Deployment of a template; its name is the template's label `app`.
pub(crate) fn deployment(namespace: &str, replicas: usize, template: &Value) -> Value {
    let app = &template["metadata"]["labels"]["app"];
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": app, "namespace": namespace },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": app } },
            "template": template,
        },
    })
}

/// A StatefulSet of a template.
pub(crate) fn stateful_set(namespace: &str, replicas: usize, template: &Value) -> Value {
    let mut set = deployment(namespace, replicas, template);
    set["kind"] = "StatefulSet".into();
    set["spec"]["serviceName"] = template["metadata"]["labels"]["app"].clone();
    set
}

/// A Job of a template.
pub(crate) fn job(namespace: &str, completions: usize, parallelism: usize, of: &Value) -> Value {
    let mut template = of.clone();
    template["spec"]["restartPolicy"] = "Never".into();
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": of["metadata"]["labels"]["app"], "namespace": namespace },
        "spec": { "completions": completions, "parallelism": parallelism, "template": template },
    })
}

/// A budget over the pods of an app.
pub(crate) fn budget(namespace: &str, app: &str, min_available: usize) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": app, "namespace": namespace },
        "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": app } } },
    })
}

/// A priority class.
pub(crate) fn priority_class(name: &str, value: i64) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": { "name": name }, "value": value,
    })
}

/// Annotations that split a workload: this many pods on on-demand nodes.
pub(crate) fn split(max_on_demand: usize) -> Value {
    json!({
        "cloudpilot.ai/webhook-scheduler": "true",
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": max_on_demand.to_string(),
    })
}
