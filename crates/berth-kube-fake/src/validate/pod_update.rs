//! Which fields of an existing pod may change: very few.

use serde_json::{Value, json};

use super::pod::deletion_cost;
use crate::failure::Cause;
use crate::object;

const REFUSAL: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn check(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if object::annotation(old, "controller.kubernetes.io/pod-deletion-cost")
        != object::annotation(new, "controller.kubernetes.io/pod-deletion-cost")
    {
        deletion_cost(new, causes);
    }
    let (old, new) = (&old["spec"], &new["spec"]);
    if old == new {
        return;
    }
    let before = causes.len();
    tolerations(old, new, causes);
    gates(old, new, causes);
    deadline(old, new, causes);
    for list in ["containers", "initContainers"] {
        let count = |spec: &Value| spec[list].as_array().map_or(0, Vec::len);
        if count(old) != count(new) {
            let text = "pod updates may not add or remove containers";
            causes.push(Cause::forbidden(format!("spec.{list}"), text));
            return;
        }
    }
    let gated = object::items(&old["schedulingGates"]).next().is_some();
    if gated && !is_only_restricted(old, new) {
        let text = "pod updates may only add to the node selector and node affinity of a gated pod";
        causes.push(Cause::invalid("spec.affinity", &new["affinity"], text));
    }
    if causes.len() == before && reset_mutable_fields(old, new, gated) != *old {
        causes.push(Cause::forbidden("spec", REFUSAL));
    }
}

/// The new spec with all mutable fields reset: the rest must equal the old one.
fn reset_mutable_fields(old: &Value, new: &Value, gated: bool) -> Value {
    let mut level = new.clone();
    for list in ["containers", "initContainers"] {
        for (at, container) in object::items(&old[list]).enumerate() {
            if level[list][at].is_object() {
                level[list][at]["image"] = container["image"].clone();
            }
        }
    }
    let mut fields = vec!["tolerations", "schedulingGates", "activeDeadlineSeconds"];
    let was_negative = old["terminationGracePeriodSeconds"].as_i64().is_some_and(|s| s < 0);
    if was_negative && new["terminationGracePeriodSeconds"] == 1 {
        fields.push("terminationGracePeriodSeconds");
    }
    if gated {
        fields.extend(["nodeSelector", "affinity"]);
    }
    for field in fields {
        match old.get(field) {
            Some(value) => level[field] = value.clone(),
            None => object::remove(&mut level, field),
        }
    }
    level
}

fn tolerations(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let mut kept = object::items(&old["tolerations"]).all(|one| {
        object::items(&new["tolerations"]).any(|other| {
            let same = |field: &str| one[field] == other[field];
            same("key") && same("operator") && same("value") && same("effect")
        })
    });
    kept &= old["tolerations"].as_array().map_or(0, Vec::len)
        <= new["tolerations"].as_array().map_or(0, Vec::len);
    if !kept {
        let text = "existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden("spec.tolerations", text));
    }
}

fn gates(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    for gate in object::items(&new["schedulingGates"]) {
        if !object::items(&old["schedulingGates"]).any(|one| one["name"] == gate["name"]) {
            let name = gate["name"].as_str().unwrap_or_default();
            let text = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            causes.push(Cause::forbidden("spec.schedulingGates", &text));
        }
    }
}

fn deadline(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let (before, after) =
        (old["activeDeadlineSeconds"].as_i64(), new["activeDeadlineSeconds"].as_i64());
    if let Some(before) = before
        && after.is_none_or(|after| after > before)
    {
        let text = "must be less than or equal to previous value";
        causes.push(Cause::invalid("spec.activeDeadlineSeconds", &json!(after), text));
    }
}

/// Whether a gated pod only became more restricted: no requirement was removed.
fn is_only_restricted(old: &Value, new: &Value) -> bool {
    let selector_kept = old["nodeSelector"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| new["nodeSelector"][key] == *value);
    let others_same = ["podAffinity", "podAntiAffinity"]
        .iter()
        .all(|kind| old["affinity"][*kind] == new["affinity"][*kind]);
    let required = |spec: &Value| {
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"]
            .as_array()
            .cloned()
    };
    let terms_kept = match (required(old), required(new)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(before), Some(after)) => {
            before.len() == after.len()
                && before.iter().zip(&after).all(|(before, after)| {
                    ["matchExpressions", "matchFields"].iter().all(|part| {
                        object::items(&before[*part])
                            .all(|one| object::items(&after[*part]).any(|other| one == other))
                    })
                })
        }
    };
    selector_kept && others_same && terms_kept
}
