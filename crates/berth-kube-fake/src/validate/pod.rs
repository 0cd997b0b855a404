//! Validation of pods.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{check_operator, label_selector, labels};
use crate::failure::Cause;
use crate::object;
use crate::quantity::Quantity;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub(super) fn spec(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let containers = spec["containers"].as_array().map_or(0, Vec::len);
    if containers == 0 {
        causes.push(Cause::required(format!("{path}.containers"), ""));
    }
    let mut names = BTreeSet::new();
    let volumes: BTreeSet<&str> =
        object::items(&spec["volumes"]).filter_map(|volume| volume["name"].as_str()).collect();
    for list in ["containers", "initContainers"] {
        for (at, one) in object::items(&spec[list]).enumerate() {
            let here = format!("{path}.{list}[{at}]");
            container(one, &here, &volumes, causes);
            let name = one["name"].as_str().unwrap_or_default();
            if !name.is_empty() && !names.insert(name) {
                causes.push(Cause::duplicate(format!("{here}.name"), name));
            }
        }
    }
    let known = ["Always", "OnFailure", "Never"];
    check_one_of(&spec["restartPolicy"], format!("{path}.restartPolicy"), &known, causes);
    labels(&spec["nodeSelector"], &format!("{path}.nodeSelector"), causes);
    affinity(&spec["affinity"], &format!("{path}.affinity"), causes);
    tolerations(&spec["tolerations"], &format!("{path}.tolerations"), causes);
    spread(
        &spec["topologySpreadConstraints"],
        &format!("{path}.topologySpreadConstraints"),
        causes,
    );
    for (at, gate) in object::items(&spec["schedulingGates"]).enumerate() {
        if !gate["name"].as_str().is_some_and(crate::selector::is_label_key) {
            let here = format!("{path}.schedulingGates[{at}].name");
            causes.push(Cause::invalid(here, &gate["name"], "must be a qualified name"));
        }
    }
    for (at, volume) in object::items(&spec["volumes"]).enumerate() {
        if !volume["name"].as_str().is_some_and(crate::names::is_label) {
            let here = format!("{path}.volumes[{at}].name");
            causes.push(Cause::invalid(here, &volume["name"], "must be a DNS label"));
        }
    }
}

/// What is checked at creation, and must not become invalid later.
pub(super) fn only_at_creation(pod: &Value, causes: &mut Vec<Cause>) {
    let gated = object::items(&pod["spec"]["schedulingGates"]).next().is_some();
    if gated && pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty()) {
        let text = "cannot be set until all schedulingGates have been cleared";
        causes.push(Cause::forbidden("spec.nodeName", text));
    }
    deletion_cost(pod, causes);
}

/// The deletion cost is a 32-bit integer without leading zeros or a plus sign.
pub(super) fn deletion_cost(pod: &Value, causes: &mut Vec<Cause>) {
    let Some(text) = object::annotation(pod, DELETION_COST) else { return };
    let exact = text.parse::<i32>().is_ok_and(|number| number.to_string() == text);
    if !exact {
        let path = format!("metadata.annotations[{DELETION_COST}]");
        causes.push(Cause::invalid(path, &json!(text), "must be a 32bit integer"));
    }
}

fn check_one_of(value: &Value, path: String, known: &[&str], causes: &mut Vec<Cause>) {
    let text = value.as_str().unwrap_or_default();
    if !known.contains(&text) {
        causes.push(Cause::unsupported(path, text, known));
    }
}

fn container(one: &Value, path: &str, volumes: &BTreeSet<&str>, causes: &mut Vec<Cause>) {
    match one["name"].as_str().unwrap_or_default() {
        "" => causes.push(Cause::required(format!("{path}.name"), "")),
        name if !crate::names::is_label(name) => {
            let text = "a lowercase RFC 1123 label is needed";
            causes.push(Cause::invalid(format!("{path}.name"), &json!(name), text));
        }
        _ => {}
    }
    if one["image"].as_str().is_none_or(|image| image.trim().is_empty()) {
        causes.push(Cause::required(format!("{path}.image"), ""));
    }
    for (name, request) in one["resources"]["requests"].as_object().into_iter().flatten() {
        let amount = |value: &Value| value.as_str().and_then(Quantity::parse).map(|q| q.nanos);
        let here = format!("{path}.resources.requests[{name}]");
        if amount(request).is_some_and(|amount| amount < 0) {
            let text = "must be greater than or equal to 0";
            causes.push(Cause::invalid(here.clone(), request, text));
        }
        let limit = &one["resources"]["limits"][name];
        if let (Some(request_nanos), Some(limit_nanos)) = (amount(request), amount(limit))
            && request_nanos > limit_nanos
        {
            let limit = limit.as_str().unwrap_or_default();
            let text = format!("must be less than or equal to {name} limit of {limit}");
            causes.push(Cause::invalid(format!("{path}.resources.requests"), request, &text));
        }
        let extended = name.contains('/') && !name.starts_with("kubernetes.io/");
        if extended && limit.is_null() {
            let text = "Limit must be set for non overcommitable resources";
            causes.push(Cause::required(format!("{path}.resources.limits[{name}]"), text));
        } else if extended && *limit != *request {
            let text = format!("must be equal to {name} limit of {limit}");
            causes.push(Cause::invalid(here, request, &text));
        }
    }
    for (at, mount) in object::items(&one["volumeMounts"]).enumerate() {
        if !mount["name"].as_str().is_some_and(|name| volumes.contains(name)) {
            let here = format!("{path}.volumeMounts[{at}].name");
            causes.push(Cause::invalid(here, &mount["name"], "Not found"));
        }
    }
}

fn affinity(affinity: &Value, path: &str, causes: &mut Vec<Cause>) {
    let node = &affinity["nodeAffinity"];
    let required = &node["requiredDuringSchedulingIgnoredDuringExecution"];
    if required.is_object() {
        let here = format!(
            "{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        );
        let terms = &required["nodeSelectorTerms"];
        if object::items(terms).next().is_none() {
            let text = "must have at least one node selector term";
            causes.push(Cause::required(here.clone(), text));
        }
        for (at, term) in object::items(terms).enumerate() {
            node_term(term, &format!("{here}[{at}]"), causes);
        }
    }
    let preferred = &node["preferredDuringSchedulingIgnoredDuringExecution"];
    for (at, term) in object::items(preferred).enumerate() {
        let here =
            format!("{path}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{at}]");
        weight(term, &here, causes);
        node_term(&term["preference"], &format!("{here}.preference"), causes);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required = &affinity[kind]["requiredDuringSchedulingIgnoredDuringExecution"];
        for (at, term) in object::items(required).enumerate() {
            let here =
                format!("{path}.{kind}.requiredDuringSchedulingIgnoredDuringExecution[{at}]");
            pod_term(term, &here, causes);
        }
        let preferred = &affinity[kind]["preferredDuringSchedulingIgnoredDuringExecution"];
        for (at, term) in object::items(preferred).enumerate() {
            let here =
                format!("{path}.{kind}.preferredDuringSchedulingIgnoredDuringExecution[{at}]");
            weight(term, &here, causes);
            pod_term(&term["podAffinityTerm"], &format!("{here}.podAffinityTerm"), causes);
        }
    }
}

fn weight(term: &Value, path: &str, causes: &mut Vec<Cause>) {
    if !term["weight"].as_i64().is_some_and(|weight| (1..=100).contains(&weight)) {
        let text = "must be in the range 1-100";
        causes.push(Cause::invalid(format!("{path}.weight"), &term["weight"], text));
    }
}

pub(super) fn node_term(term: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (at, wanted) in object::items(&term["matchExpressions"]).enumerate() {
        let here = format!("{path}.matchExpressions[{at}]");
        let operators = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
        check_operator(wanted, &here, &operators, causes);
        if !wanted["key"].as_str().is_some_and(crate::selector::is_label_key) {
            causes.push(Cause::invalid(format!("{here}.key"), &wanted["key"], "malformed"));
        }
        for (at, value) in object::items(&wanted["values"]).enumerate() {
            if !value.as_str().is_some_and(crate::selector::is_label_value) {
                let text = "a valid label value is needed";
                causes.push(Cause::invalid(format!("{here}.values[{at}]"), value, text));
            }
        }
    }
    for (at, wanted) in object::items(&term["matchFields"]).enumerate() {
        let here = format!("{path}.matchFields[{at}]");
        if wanted["key"] != "metadata.name" {
            let text = "not a valid field selector key";
            causes.push(Cause::invalid(format!("{here}.key"), &wanted["key"], text));
        }
        let known = ["In", "NotIn"];
        check_one_of(&wanted["operator"], format!("{here}.operator"), &known, causes);
    }
}

fn pod_term(term: &Value, path: &str, causes: &mut Vec<Cause>) {
    if !term["topologyKey"].as_str().is_some_and(crate::selector::is_label_key) {
        let text = "can not be empty";
        causes.push(Cause::required(format!("{path}.topologyKey"), text));
    }
    label_selector(&term["labelSelector"], &format!("{path}.labelSelector"), causes);
}

fn tolerations(tolerations: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (at, one) in object::items(tolerations).enumerate() {
        let here = format!("{path}[{at}]");
        let operator = one["operator"].as_str().unwrap_or_default();
        if !["", "Equal", "Exists"].contains(&operator) {
            let known = ["Equal", "Exists"];
            causes.push(Cause::unsupported(format!("{here}.operator"), operator, &known));
        }
        let has = |field: &str| one[field].as_str().is_some_and(|text| !text.is_empty());
        if operator == "Exists" && has("value") {
            let text = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid(format!("{here}.operator"), &one["value"], text));
        }
        if !has("key") && operator != "Exists" {
            let text = "operator must be Exists when `key` is empty, which means \"match all \
                        values and all keys\"";
            causes.push(Cause::invalid(format!("{here}.operator"), &json!(operator), text));
        }
        let effect = one["effect"].as_str().unwrap_or_default();
        let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.is_empty() && !known.contains(&effect) {
            causes.push(Cause::unsupported(format!("{here}.effect"), effect, &known));
        }
        if !one["tolerationSeconds"].is_null() && effect != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            causes.push(Cause::invalid(format!("{here}.effect"), &json!(effect), text));
        }
    }
}

fn spread(constraints: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (at, one) in object::items(constraints).enumerate() {
        let here = format!("{path}[{at}]");
        if one["maxSkew"].as_i64().is_none_or(|skew| skew <= 0) {
            let text = "must be greater than zero";
            causes.push(Cause::invalid(format!("{here}.maxSkew"), &one["maxSkew"], text));
        }
        let key = one["topologyKey"].as_str().unwrap_or_default();
        if key.is_empty() {
            causes.push(Cause::required(format!("{here}.topologyKey"), "can not be empty"));
        }
        let known = ["DoNotSchedule", "ScheduleAnyway"];
        let when = one["whenUnsatisfiable"].as_str().unwrap_or_default();
        check_one_of(
            &one["whenUnsatisfiable"],
            format!("{here}.whenUnsatisfiable"),
            &known,
            causes,
        );
        if !seen.insert((key, when)) {
            let pair = format!("{{{key}, {when}}}");
            let field = format!("{here}.{{topologyKey, whenUnsatisfiable}}");
            causes.push(Cause::duplicate(field, &pair));
        }
        let domains = &one["minDomains"];
        if !domains.is_null()
            && (domains.as_i64().is_none_or(|n| n <= 0) || when != "DoNotSchedule")
        {
            let text = "can only use minDomains greater than zero, and only if \
                        whenUnsatisfiable=DoNotSchedule";
            causes.push(Cause::invalid(format!("{here}.minDomains"), domains, text));
        }
        if one["matchLabelKeys"].is_array() && one["labelSelector"].is_null() {
            let text = "must not be specified when labelSelector is not set";
            causes.push(Cause::forbidden(format!("{here}.matchLabelKeys"), text));
        }
        label_selector(&one["labelSelector"], &format!("{here}.labelSelector"), causes);
    }
}
