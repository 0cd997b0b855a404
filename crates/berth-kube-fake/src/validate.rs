//! Validation: what the server rejects as invalid, with the field.

mod event;
mod pod;
mod pod_update;
mod resource_claim;
mod webhook;
mod workload;

use serde_json::{Value, json};

use crate::failure::{Cause, Failure};
use crate::object;
use crate::resource::Resource;
use crate::selector::{is_label_key, is_label_value};

/// Checks a new object, after defaults.
pub(crate) fn create(resource: &Resource, value: &Value) -> Result<(), Failure> {
    let mut causes = Vec::new();
    metadata(resource, value, &mut causes);
    content(resource, value, &mut causes);
    if resource.kind == "Pod" {
        pod::only_at_creation(value, &mut causes);
    }
    finish(resource, value, &causes)
}

/// Checks a new version of an object against the old one.
pub(crate) fn update(resource: &Resource, old: &Value, new: &Value) -> Result<(), Failure> {
    let mut causes = Vec::new();
    metadata(resource, new, &mut causes);
    if object::is_terminating(old) {
        let before = object::finalizers(old);
        let mut added: Vec<String> = object::finalizers(new);
        added.retain(|one| !before.contains(one));
        if !added.is_empty() {
            let text = format!(
                "no new finalizers can be added if the object is being deleted, found new \
                 finalizers {added:?}"
            );
            causes.push(Cause::forbidden("metadata.finalizers", &text));
        }
    }
    content(resource, new, &mut causes);
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pod_update::check(old, new, &mut causes),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet") => {
            workload::update(resource, old, new, &mut causes);
        }
        ("", "PersistentVolumeClaim") => workload::claim_update(old, new, &mut causes),
        ("resource.k8s.io", "ResourceClaim") => resource_claim::update(old, new, &mut causes),
        _ => {}
    }
    finish(resource, new, &causes)
}

fn finish(resource: &Resource, value: &Value, causes: &[Cause]) -> Result<(), Failure> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid(resource, object::name(value), causes))
}

fn content(resource: &Resource, value: &Value, causes: &mut Vec<Cause>) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pod::spec(&value["spec"], "spec", causes),
        ("apps", _) => workload::check(resource, value, causes),
        ("policy", "PodDisruptionBudget") => workload::budget(value, causes),
        ("coordination.k8s.io", "Lease") => workload::lease(value, causes),
        ("", "Event") => event::check(value, causes),
        ("", "PersistentVolumeClaim") => workload::claim(value, causes),
        ("", "PersistentVolume") => workload::volume(value, causes),
        ("storage.k8s.io", "StorageClass")
            if value["provisioner"].as_str().is_none_or(str::is_empty) =>
        {
            causes.push(Cause::required("provisioner", ""));
        }
        ("admissionregistration.k8s.io", _) => webhook::check(value, causes),
        ("apiextensions.k8s.io", _) => workload::definition(value, causes),
        _ => {}
    }
}

fn metadata(resource: &Resource, value: &Value, causes: &mut Vec<Cause>) {
    let metadata = &value["metadata"];
    causes.extend(crate::names::check(resource, object::name(value)));
    labels(&metadata["labels"], "metadata.labels", causes);
    for key in metadata["annotations"].as_object().into_iter().flat_map(|map| map.keys()) {
        if !is_label_key(&key.to_lowercase()) {
            let text = "name part must consist of alphanumeric characters, '-', '_' or '.'";
            causes.push(Cause::invalid("metadata.annotations", &json!(key), text));
        }
    }
    for (at, owner) in object::owners(value).enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                let path = format!("metadata.ownerReferences[{at}].{field}");
                causes.push(Cause::required(path, "must not be empty"));
            }
        }
    }
    if object::owners(value).filter(|owner| owner["controller"] == true).count() > 1 {
        let text = "Only one reference can have Controller set to true";
        causes.push(Cause::invalid("metadata.ownerReferences", &metadata["ownerReferences"], text));
    }
    for (at, finalizer) in object::finalizers(value).iter().enumerate() {
        let bare = ["foregroundDeletion", "orphan"].contains(&finalizer.as_str());
        if !bare && !is_label_key(finalizer) {
            let path = format!("metadata.finalizers[{at}]");
            causes.push(Cause::invalid(path, &json!(finalizer), "name is malformed"));
        }
    }
}

/// Checks a map of labels.
fn labels(labels: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if !is_label_key(key) {
            let text = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
                        must start and end with an alphanumeric character";
            causes.push(Cause::invalid(path, &json!(key), text));
        }
        if !value.as_str().is_some_and(is_label_value) {
            let text = "a valid label must be an empty string or consist of alphanumeric \
                        characters, '-', '_' or '.', and must start and end with an alphanumeric \
                        character";
            causes.push(Cause::invalid(path, value, text));
        }
    }
}

/// Checks a label selector.
fn label_selector(selector: &Value, path: &str, causes: &mut Vec<Cause>) {
    labels(&selector["matchLabels"], &format!("{path}.matchLabels"), causes);
    for (at, term) in object::items(&selector["matchExpressions"]).enumerate() {
        let here = format!("{path}.matchExpressions[{at}]");
        check_operator(term, &here, &["In", "NotIn", "Exists", "DoesNotExist"], causes);
        if !term["key"].as_str().is_some_and(is_label_key) {
            causes.push(Cause::invalid(format!("{here}.key"), &term["key"], "malformed"));
        }
    }
}

/// Checks the operator of a requirement, and that it has as many values as it needs.
fn check_operator(requirement: &Value, path: &str, accepted: &[&str], causes: &mut Vec<Cause>) {
    let values = requirement["values"].as_array().map_or(0, Vec::len);
    match requirement["operator"].as_str().unwrap_or_default() {
        "In" | "NotIn" if values == 0 => {
            let text = "must be specified when `operator` is 'In' or 'NotIn'";
            causes.push(Cause::required(format!("{path}.values"), text));
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.push(Cause::forbidden(format!("{path}.values"), text));
        }
        "Gt" | "Lt" if accepted.contains(&"Gt") && values != 1 => {
            let text = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            causes.push(Cause::required(format!("{path}.values"), text));
        }
        operator if accepted.contains(&operator) => {}
        other => {
            let text = "not a valid selector operator";
            causes.push(Cause::invalid(format!("{path}.operator"), &json!(other), text));
        }
    }
}
