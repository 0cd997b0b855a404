//! The schemas of built-in kinds. Wrong types are rejected; unknown fields are dropped, as by a server that
//! was not asked for strict validation.

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, batch::v1 as batch,
    coordination::v1 as coordination, core::v1 as core, events::v1 as events, policy::v1 as policy,
    resource::v1 as devices, scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::quantity;
use crate::resource::Resource;

/// Decodes an object as its kind and encodes it again.
fn through<K: Serialize + DeserializeOwned>(value: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<K>(value)?)
}

/// The object as the server decodes it, or what is wrong with its types. Further fields of a pod's spec are
/// kept as they are.
pub(crate) fn normalize(
    resource: &Resource,
    mut value: Value,
    further_pod_fields: &[String],
) -> Result<Value, Failure> {
    if !value.is_object() {
        return Err(cannot_be_handled(
            resource,
            "json: cannot unmarshal a value that is no object",
        ));
    }
    if resource.custom {
        return Ok(value);
    }
    let mut amounts = quantity::normalize_all(&mut value);
    if resource.kind == "CSIStorageCapacity" && value["capacity"].is_string() {
        amounts = amounts.and_then(|()| quantity::normalize(&mut value["capacity"]));
    }
    amounts.map_err(|text| cannot_be_handled(resource, &text))?;
    let api_version = resource.api_version();
    value["apiVersion"] = json!(api_version);
    value["kind"] = json!(resource.kind);
    let is_pod = resource.group.is_empty() && resource.kind == "Pod";
    let further: Vec<(&String, Value)> = further_pod_fields
        .iter()
        .filter(|_| is_pod)
        .filter_map(|field| Some((field, value.get("spec")?.get(field)?.clone())))
        .collect();
    let mut value = typed(&resource.group, &resource.kind, value)
        .map_err(|error| cannot_be_handled(resource, &error.to_string()))?;
    for (field, content) in further {
        value["spec"][field] = content;
    }
    Ok(value)
}

fn typed(group: &str, kind: &str, value: Value) -> Result<Value, serde_json::Error> {
    match (group, kind) {
        ("", "Pod") => through::<core::Pod>(value),
        ("", "Node") => through::<core::Node>(value),
        ("", "Namespace") => through::<core::Namespace>(value),
        ("", "Event") => through::<core::Event>(value),
        ("", "PersistentVolume") => through::<core::PersistentVolume>(value),
        ("", "PersistentVolumeClaim") => through::<core::PersistentVolumeClaim>(value),
        ("", "Service") => through::<core::Service>(value),
        ("", "ConfigMap") => through::<core::ConfigMap>(value),
        ("", "Secret") => through::<core::Secret>(value),
        ("", "ServiceAccount") => through::<core::ServiceAccount>(value),
        ("", "ReplicationController") => through::<core::ReplicationController>(value),
        ("apps", "Deployment") => through::<apps::Deployment>(value),
        ("apps", "ReplicaSet") => through::<apps::ReplicaSet>(value),
        ("apps", "StatefulSet") => through::<apps::StatefulSet>(value),
        ("apps", "DaemonSet") => through::<apps::DaemonSet>(value),
        ("batch", "Job") => through::<batch::Job>(value),
        ("storage.k8s.io", "StorageClass") => through::<storage::StorageClass>(value),
        ("storage.k8s.io", "CSINode") => through::<storage::CSINode>(value),
        ("storage.k8s.io", "CSIDriver") => through::<storage::CSIDriver>(value),
        ("storage.k8s.io", "CSIStorageCapacity") => through::<storage::CSIStorageCapacity>(value),
        ("storage.k8s.io", "VolumeAttachment") => through::<storage::VolumeAttachment>(value),
        ("resource.k8s.io", "ResourceClaim") => through::<devices::ResourceClaim>(value),
        ("resource.k8s.io", "ResourceClaimTemplate") => {
            through::<devices::ResourceClaimTemplate>(value)
        }
        ("resource.k8s.io", "ResourceSlice") => through::<devices::ResourceSlice>(value),
        ("resource.k8s.io", "DeviceClass") => through::<devices::DeviceClass>(value),
        ("resource.k8s.io", "DeviceTaintRule") => through::<devices::DeviceTaintRule>(value),
        ("policy", "PodDisruptionBudget") => through::<policy::PodDisruptionBudget>(value),
        ("scheduling.k8s.io", "PriorityClass") => through::<scheduling::PriorityClass>(value),
        ("coordination.k8s.io", "Lease") => through::<coordination::Lease>(value),
        ("events.k8s.io", "Event") => through::<events::Event>(value),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => {
            through::<admission::MutatingWebhookConfiguration>(value)
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            through::<extensions::CustomResourceDefinition>(value)
        }
        _ => Ok(value),
    }
}

fn cannot_be_handled(resource: &Resource, why: &str) -> Failure {
    let kind = &resource.kind;
    let version = &resource.version;
    Failure::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
    ))
}

/// Rejects an object of another kind than the path.
pub(crate) fn check_kind(resource: &Resource, value: &Value) -> Result<(), Failure> {
    let kind = value["kind"].as_str().unwrap_or_default();
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    // The server infers the kind; only custom resources must state it.
    let optional = !resource.custom;
    let kind_fits = kind == resource.kind || (optional && kind.is_empty());
    let version_fits =
        api_version == resource.api_version() || (optional && api_version.is_empty());
    if kind_fits && version_fits {
        return Ok(());
    }
    if kind.is_empty() {
        return Err(Failure::bad_request("Object 'Kind' is missing"));
    }
    Err(Failure::bad_request(format!(
        "the API version in the data ({api_version}) and kind {kind:?} do not match the expected \
         API version ({}) and kind {:?}",
        resource.api_version(),
        resource.kind,
    )))
}
