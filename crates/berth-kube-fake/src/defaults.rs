//! Default values that the server sets.

use serde_json::{Map, Value, json};

use crate::object;
use crate::resource::Resource;

/// Sets a field that is absent or null.
pub(crate) fn absent(value: &mut Value, field: &str, default: Value) {
    if !value.is_object() {
        return;
    }
    if value[field].is_null() {
        value[field] = default;
    }
}

/// Applies the defaults of a kind. Idempotent.
pub(crate) fn apply(resource: &Resource, value: &mut Value) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => {
            pod_spec(&mut value["spec"]);
            requests_from_limits(&mut value["spec"]);
        }
        ("", "Node") => node(value),
        ("", "Namespace") => namespace(value),
        ("", "PersistentVolume") => {
            absent(&mut value["spec"], "persistentVolumeReclaimPolicy", json!("Retain"));
            absent(&mut value["spec"], "volumeMode", json!("Filesystem"));
        }
        ("", "PersistentVolumeClaim") => claim(&mut value["spec"]),
        ("", "Service") => {
            absent(&mut value["spec"], "type", json!("ClusterIP"));
            absent(&mut value["spec"], "sessionAffinity", json!("None"));
        }
        ("", "Secret") => absent(value, "type", json!("Opaque")),
        ("apps", "Deployment") => deployment(&mut value["spec"]),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            absent(&mut value["spec"], "replicas", json!(1));
            pod_spec(&mut value["spec"]["template"]["spec"]);
        }
        ("apps", "StatefulSet") => stateful_set(&mut value["spec"]),
        ("batch", "Job") => {
            absent(&mut value["spec"], "backoffLimit", json!(6));
            absent(&mut value["spec"], "completionMode", json!("NonIndexed"));
            absent(&mut value["spec"], "suspend", json!(false));
            pod_spec(&mut value["spec"]["template"]["spec"]);
        }
        ("storage.k8s.io", "StorageClass") => {
            absent(value, "reclaimPolicy", json!("Delete"));
            absent(value, "volumeBindingMode", json!("Immediate"));
        }
        ("scheduling.k8s.io", "PriorityClass") => {
            absent(value, "preemptionPolicy", json!("PreemptLowerPriority"));
        }
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => {
            for webhook in value["webhooks"].as_array_mut().into_iter().flatten() {
                webhook_defaults(webhook);
            }
        }
        _ => {}
    }
}

/// The defaults of a pod spec, also within a template.
fn pod_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    absent(spec, "restartPolicy", json!("Always"));
    absent(spec, "dnsPolicy", json!("ClusterFirst"));
    absent(spec, "schedulerName", json!("default-scheduler"));
    absent(spec, "terminationGracePeriodSeconds", json!(30));
    absent(spec, "securityContext", json!({}));
    let host_network = spec["hostNetwork"] == true;
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            absent(container, "terminationMessagePath", json!("/dev/termination-log"));
            absent(container, "terminationMessagePolicy", json!("File"));
            absent(container, "resources", json!({}));
            let image = container["image"].as_str().unwrap_or_default();
            let tag = image.rsplit('/').next().unwrap_or_default().split_once(':');
            let latest = tag.is_none_or(|(_, tag)| tag == "latest");
            let policy = if latest { "Always" } else { "IfNotPresent" };
            absent(container, "imagePullPolicy", json!(policy));
            for port in container["ports"].as_array_mut().into_iter().flatten() {
                absent(port, "protocol", json!("TCP"));
                if host_network {
                    let number = port["containerPort"].clone();
                    absent(port, "hostPort", number);
                }
            }
        }
    }
}

/// Missing requests default to the limits. Only for pods, not for templates.
fn requests_from_limits(spec: &mut Value) {
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let limits: Map<String, Value> =
                container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (name, amount) in limits {
                if container["resources"]["requests"].is_null() {
                    container["resources"]["requests"] = json!({});
                }
                absent(&mut container["resources"]["requests"], &name, amount);
            }
        }
    }
}

fn node(value: &mut Value) {
    absent(value, "spec", json!({}));
    absent(value, "status", json!({}));
    let capacity = value["status"]["capacity"].clone();
    if capacity.is_object() {
        absent(&mut value["status"], "allocatable", capacity);
    }
}

fn namespace(value: &mut Value) {
    let name = object::name(value).to_owned();
    if !name.is_empty() {
        if value["metadata"]["labels"].is_null() {
            value["metadata"]["labels"] = json!({});
        }
        value["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(name);
    }
    absent(value, "spec", json!({}));
}

fn claim(spec: &mut Value) {
    absent(spec, "volumeMode", json!("Filesystem"));
}

fn deployment(spec: &mut Value) {
    absent(spec, "replicas", json!(1));
    absent(spec, "revisionHistoryLimit", json!(10));
    absent(spec, "progressDeadlineSeconds", json!(600));
    absent(spec, "strategy", json!({}));
    absent(&mut spec["strategy"], "type", json!("RollingUpdate"));
    if spec["strategy"]["type"] == "RollingUpdate" {
        absent(&mut spec["strategy"], "rollingUpdate", json!({}));
        absent(&mut spec["strategy"]["rollingUpdate"], "maxSurge", json!("25%"));
        absent(&mut spec["strategy"]["rollingUpdate"], "maxUnavailable", json!("25%"));
    }
    pod_spec(&mut spec["template"]["spec"]);
}

fn stateful_set(spec: &mut Value) {
    absent(spec, "replicas", json!(1));
    absent(spec, "revisionHistoryLimit", json!(10));
    absent(spec, "podManagementPolicy", json!("OrderedReady"));
    absent(spec, "updateStrategy", json!({}));
    absent(&mut spec["updateStrategy"], "type", json!("RollingUpdate"));
    if spec["updateStrategy"]["type"] == "RollingUpdate" {
        absent(&mut spec["updateStrategy"], "rollingUpdate", json!({}));
        absent(&mut spec["updateStrategy"]["rollingUpdate"], "partition", json!(0));
    }
    for template in spec["volumeClaimTemplates"].as_array_mut().into_iter().flatten() {
        claim(&mut template["spec"]);
    }
    pod_spec(&mut spec["template"]["spec"]);
}

fn webhook_defaults(webhook: &mut Value) {
    absent(webhook, "failurePolicy", json!("Fail"));
    absent(webhook, "matchPolicy", json!("Equivalent"));
    absent(webhook, "reinvocationPolicy", json!("Never"));
    absent(webhook, "timeoutSeconds", json!(10));
    absent(webhook, "namespaceSelector", json!({}));
    absent(webhook, "objectSelector", json!({}));
    for rule in webhook["rules"].as_array_mut().into_iter().flatten() {
        absent(rule, "scope", json!("*"));
    }
    let service = &mut webhook["clientConfig"]["service"];
    if service.is_object() {
        absent(service, "port", json!(443));
    } else if let Some(client) = webhook["clientConfig"].as_object_mut() {
        client.remove("service");
    }
}

/// The initial status of an object, whatever the client sent.
pub(crate) fn first_status(resource: &Resource, value: &mut Value) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => {
            let class = quality_of_service(&value["spec"]);
            value["status"] = json!({ "phase": "Pending", "qosClass": class });
        }
        ("", "Node") => {}
        ("", "Namespace") => {
            value["spec"]["finalizers"] = json!(["kubernetes"]);
            value["status"] = json!({ "phase": "Active" });
        }
        ("", "PersistentVolume" | "PersistentVolumeClaim") => {
            value["status"] = json!({ "phase": "Pending" });
        }
        ("policy", "PodDisruptionBudget") => {
            value["status"] = json!({
                "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0,
                "expectedPods": 0,
            });
        }
        ("apps", "Deployment") => value["status"] = json!({}),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            value["status"] = json!({ "replicas": 0 });
        }
        ("apps", "StatefulSet") => {
            value["status"] = json!({ "replicas": 0, "availableReplicas": 0 });
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition_status(value),
        _ if resource.status && resource.custom => object::remove(value, "status"),
        _ if resource.status => value["status"] = json!({}),
        _ => {}
    }
}

/// A definition is accepted and served at once: its controller is not imitated.
fn definition_status(value: &mut Value) {
    let names = value["spec"]["names"].clone();
    let stored: Vec<Value> = object::items(&value["spec"]["versions"])
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    value["status"] = json!({ "acceptedNames": names, "storedVersions": stored });
    object::set_condition(value, "NamesAccepted", "True", &json!({ "reason": "NoConflicts" }));
    object::set_condition(
        value,
        "Established",
        "True",
        &json!({ "reason": "InitialNamesAccepted" }),
    );
}

fn quality_of_service(spec: &Value) -> &'static str {
    let containers =
        || object::items(&spec["containers"]).chain(object::items(&spec["initContainers"]));
    let amounts = |container: &Value, part: &str| {
        container["resources"][part]
            .as_object()
            .is_some_and(|amounts| amounts.keys().any(|name| name == "cpu" || name == "memory"))
    };
    if !containers().any(|one| amounts(one, "requests") || amounts(one, "limits")) {
        return "BestEffort";
    }
    let guaranteed = containers().all(|one| {
        ["cpu", "memory"].iter().all(|name| {
            let limit = &one["resources"]["limits"][*name];
            limit.is_string() && *limit == one["resources"]["requests"][*name]
        })
    });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}
