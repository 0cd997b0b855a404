//! Controllers of pods, budgets, leases, volumes and definitions.

use serde_json::Value;

use super::{label_selector, pod};
use crate::failure::Cause;
use crate::object;
use crate::resource::Resource;
use crate::selector::LabelSelector;

/// Deployments, replica sets and stateful sets.
pub(super) fn check(_resource: &Resource, value: &Value, causes: &mut Vec<Cause>) {
    let spec = &value["spec"];
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas < 0) {
        let text = "must be greater than or equal to 0";
        causes.push(Cause::invalid("spec.replicas", &spec["replicas"], text));
    }
    label_selector(&spec["selector"], "spec.selector", causes);
    match LabelSelector::from_object(&spec["selector"]) {
        None => causes.push(Cause::required("spec.selector", "")),
        Some(selector) if selector.is_empty() => {
            let text = "empty selector is invalid for deployment";
            causes.push(Cause::invalid("spec.selector", &spec["selector"], text));
        }
        Some(selector) => {
            let labels = &spec["template"]["metadata"]["labels"];
            if !selector.match_labels(labels) {
                let text = "`selector` does not match template `labels`";
                causes.push(Cause::invalid("spec.template.metadata.labels", labels, text));
            }
        }
    }
    pod::spec(&spec["template"]["spec"], "spec.template.spec", causes);
    if spec["template"]["spec"]["restartPolicy"] != "Always" {
        let given = spec["template"]["spec"]["restartPolicy"].as_str().unwrap_or_default();
        let path = "spec.template.spec.restartPolicy";
        causes.push(Cause::unsupported(path, given, &["Always"]));
    }
}

/// Immutable fields of such a controller.
pub(super) fn update(resource: &Resource, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let (old, new) = (&old["spec"], &new["spec"]);
    if resource.kind != "StatefulSet" {
        if old["selector"] != new["selector"] {
            let text = "field is immutable";
            causes.push(Cause::invalid("spec.selector", &new["selector"], text));
        }
        return;
    }
    let mut level = new.clone();
    for field in [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ] {
        match old.get(field) {
            Some(value) => level[field] = value.clone(),
            None => object::remove(&mut level, field),
        }
    }
    if level != *old {
        let text = "updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                    'template', 'updateStrategy', 'revisionHistoryLimit', \
                    'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        causes.push(Cause::forbidden("spec", text));
    }
}

pub(super) fn budget(value: &Value, causes: &mut Vec<Cause>) {
    let spec = &value["spec"];
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        let text = "minAvailable and maxUnavailable cannot be both set";
        causes.push(Cause::invalid("spec", spec, text));
    }
    label_selector(&spec["selector"], "spec.selector", causes);
    let policy = spec["unhealthyPodEvictionPolicy"].as_str();
    let known = ["IfHealthyBudget", "AlwaysAllow"];
    if let Some(policy) = policy
        && !known.contains(&policy)
    {
        causes.push(Cause::unsupported("spec.unhealthyPodEvictionPolicy", policy, &known));
    }
}

pub(super) fn lease(value: &Value, causes: &mut Vec<Cause>) {
    let spec = &value["spec"];
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        let given = &spec["leaseDurationSeconds"];
        causes.push(Cause::invalid("spec.leaseDurationSeconds", given, "must be greater than 0"));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|count| count < 0) {
        let text = "must be greater than or equal to 0";
        causes.push(Cause::invalid("spec.leaseTransitions", &spec["leaseTransitions"], text));
    }
    if spec["holderIdentity"].as_str().is_some_and(str::is_empty) {
        let text = "must not be empty";
        causes.push(Cause::invalid("spec.holderIdentity", &spec["holderIdentity"], text));
    }
}

pub(super) fn claim(value: &Value, causes: &mut Vec<Cause>) {
    if object::items(&value["spec"]["accessModes"]).next().is_none() {
        let text = "at least 1 access mode is required";
        causes.push(Cause::required("spec.accessModes", text));
    }
    if !value["spec"]["resources"]["requests"]["storage"].is_string() {
        causes.push(Cause::required("spec.resources[storage]", ""));
    }
}

/// Once a claim is bound, only its requests may grow; before, only its volume may be set.
pub(super) fn claim_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let mut level = new["spec"].clone();
    for field in ["resources", "volumeAttributesClassName"] {
        match old["spec"].get(field) {
            Some(value) => level[field] = value.clone(),
            None => object::remove(&mut level, field),
        }
    }
    if old["spec"]["volumeName"].is_null() {
        object::remove(&mut level, "volumeName");
    }
    if level != old["spec"] {
        let text = "spec is immutable after creation except resources.requests and \
                    volumeAttributesClassName for bound claims";
        causes.push(Cause::forbidden("spec", text));
    }
}

pub(super) fn volume(value: &Value, causes: &mut Vec<Cause>) {
    if object::items(&value["spec"]["accessModes"]).next().is_none() {
        causes.push(Cause::required("spec.accessModes", ""));
    }
    if !value["spec"]["capacity"]["storage"].is_string() {
        causes.push(Cause::required("spec.capacity", ""));
    }
    let terms = &value["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    for (at, term) in object::items(terms).enumerate() {
        let path = format!("spec.nodeAffinity.required.nodeSelectorTerms[{at}]");
        pod::node_term(term, &path, causes);
    }
}

pub(super) fn definition(value: &Value, causes: &mut Vec<Cause>) {
    let spec = &value["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let wanted = format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"]));
    if object::name(value) != wanted {
        let why = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &value["metadata"]["name"], why));
    }
    let stored = object::items(&spec["versions"]).filter(|one| one["storage"] == true).count();
    if stored != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], why));
    }
    for (at, version) in object::items(&spec["versions"]).enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let path = format!("spec.versions[{at}].schema.openAPIV3Schema");
            causes.push(Cause::required(path, "schemas are required"));
        }
    }
}
