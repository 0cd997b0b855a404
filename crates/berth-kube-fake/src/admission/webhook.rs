//! Which webhooks are called for a request, in which order, and the effects of their responses.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::admission_state::AdmissionCall;
use crate::api::{Api, Writer};
use crate::failure::Failure;
use crate::json_patch;
use crate::object::{self, Key};
use crate::selector::LabelSelector;
use crate::store::lock;

/// A webhook to call.
pub(super) type Hook = Value;

fn contains(list: &Value, wanted: &str) -> bool {
    object::items(list).any(|one| one == "*" || one == wanted)
}

fn rule_matches(rule: &Value, attributes: &Attributes) -> bool {
    let resource = &attributes.resource;
    let scope = rule["scope"].as_str().unwrap_or("*");
    let scope_fits = match scope {
        "Cluster" => !resource.namespaced,
        "Namespaced" => resource.namespaced,
        _ => true,
    };
    let path = if attributes.subresource.is_empty() {
        resource.plural.clone()
    } else {
        format!("{}/{}", resource.plural, attributes.subresource)
    };
    let resource_fits = object::items(&rule["resources"]).filter_map(Value::as_str).any(|wanted| {
        match wanted.split_once('/') {
            // A bare star is all resources, but no subresources.
            None => wanted == path || (wanted == "*" && attributes.subresource.is_empty()),
            Some((left, right)) => {
                (left == "*" || left == resource.plural)
                    && (right == "*" || right == attributes.subresource)
            }
        }
    });
    scope_fits
        && resource_fits
        && contains(&rule["apiGroups"], &resource.group)
        && contains(&rule["apiVersions"], &resource.version)
        && contains(&rule["operations"], attributes.operation.name())
}

impl Api {
    /// The webhooks for a request: configurations by name, webhooks in the order that they have.
    pub(super) fn matching_webhooks(
        &self,
        attributes: &Attributes,
        value: &Value,
        old: Option<&Value>,
    ) -> Vec<Hook> {
        // Webhooks are never called for webhook configurations.
        if attributes.resource.group == "admissionregistration.k8s.io" {
            return Vec::new();
        }
        let store = self.store();
        let Some(table) =
            store.find("admissionregistration.k8s.io", "mutatingwebhookconfigurations")
        else {
            return Vec::new();
        };
        if store.len(table) == 0 {
            return Vec::new();
        }
        let labels = self.namespace_labels(&store, attributes, value);
        let mut hooks = Vec::new();
        for (_, configuration) in store.iter(table, None) {
            for hook in object::items(&configuration.value["webhooks"]) {
                let by_rule =
                    object::items(&hook["rules"]).any(|rule| rule_matches(rule, attributes));
                let by_namespace = labels.as_ref().is_none_or(|labels| {
                    LabelSelector::from_object(&hook["namespaceSelector"])
                        .is_none_or(|selector| selector.match_labels(labels))
                });
                let by_object =
                    LabelSelector::from_object(&hook["objectSelector"]).is_none_or(|selector| {
                        let new = !value.is_null() && selector.matches(value);
                        selector.is_empty() || new || old.is_some_and(|old| selector.matches(old))
                    });
                if by_rule && by_namespace && by_object {
                    hooks.push(hook.clone());
                }
            }
        }
        hooks
    }

    /// The labels of the namespace of a request; empty for cluster-scoped resources.
    fn namespace_labels(
        &self,
        store: &crate::store::Store,
        attributes: &Attributes,
        value: &Value,
    ) -> Option<Value> {
        if attributes.resource.kind == "Namespace" && !attributes.resource.custom {
            return Some(value["metadata"]["labels"].clone());
        }
        if !attributes.resource.namespaced {
            return None;
        }
        let namespaces = store.find("", "namespaces")?;
        let namespace = store.get(namespaces, &Key::new("", &attributes.namespace))?;
        Some(namespace.value["metadata"]["labels"].clone())
    }

    /// Calls webhooks one after the other, and once more those with a reinvocation policy.
    pub(super) async fn call_webhooks(
        &self,
        writer: &Writer,
        attributes: &Attributes,
        hooks: &[Hook],
        value: Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<Value, Failure> {
        let mut value = value;
        let mut left_behind = Vec::new();
        for hook in hooks {
            value = self.call_one(writer, attributes, hook, value, old, warnings, 0).await?;
            left_behind.push(value.clone());
        }
        for (hook, seen) in hooks.iter().zip(&left_behind) {
            if hook["reinvocationPolicy"] == "IfNeeded" && *seen != value {
                value = self.call_one(writer, attributes, hook, value, old, warnings, 1).await?;
            }
        }
        Ok(value)
    }

    #[allow(clippy::too_many_arguments, reason = "all of it goes into one review")]
    async fn call_one(
        &self,
        writer: &Writer,
        attributes: &Attributes,
        hook: &Hook,
        value: Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
        round: u32,
    ) -> Result<Value, Failure> {
        let name = hook["name"].as_str().unwrap_or_default().to_owned();
        let effects = hook["sideEffects"].as_str().unwrap_or_default();
        if writer.dry_run && !["None", "NoneOnDryRun"].contains(&effects) {
            let text = format!("admission webhook {name:?} does not support dry run");
            return Err(Failure::bad_request(text));
        }
        let request = review_request(writer, attributes, &value, old);
        let timeout = Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10));
        let review = json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request,
        });
        let answer = super::call::post(&self.options, hook, &review, timeout).await;
        let answer = answer.and_then(|answer| read_response(&answer, &request));
        let mut call = AdmissionCall {
            webhook: name.clone(),
            request,
            response: Value::Null,
            error: None,
            round,
        };
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                call.error = Some(error.clone());
                lock(&self.admission.calls).push(call);
                if hook["failurePolicy"] == "Ignore" {
                    return Ok(value);
                }
                let text = format!("failed calling webhook {name:?}: {error}");
                return Err(Failure::internal(text));
            }
        };
        call.response = response.clone();
        lock(&self.admission.calls).push(call);
        let said = object::items(&response["warnings"]).filter_map(Value::as_str);
        warnings.extend(said.map(str::to_owned));
        if response["allowed"] != true {
            return Err(denial(&name, &response["status"]));
        }
        self.patched(hook, &name, value, &response)
    }

    fn patched(
        &self,
        hook: &Hook,
        name: &str,
        value: Value,
        response: &Value,
    ) -> Result<Value, Failure> {
        if response["patch"].is_null() {
            return Ok(value);
        }
        let ignore = hook["failurePolicy"] == "Ignore";
        let patch = serde_json::from_value::<k8s_openapi::ByteString>(response["patch"].clone())
            .map_err(|error| error.to_string())
            .and_then(|bytes| serde_json::from_slice(&bytes.0).map_err(|error| error.to_string()));
        let result = match patch {
            Ok(patch) => json_patch::apply(&value, &patch).map_err(|failure| failure.message),
            Err(error) => Err(error),
        };
        match result {
            Ok(new) => Ok(new),
            Err(_) if ignore => Ok(value),
            Err(error) => {
                Err(Failure::internal(format!("failed calling webhook {name:?}: {error}")))
            }
        }
    }
}

/// The `request` of a review: everything that the real server sends.
fn review_request(
    writer: &Writer,
    attributes: &Attributes,
    value: &Value,
    old: Option<&Value>,
) -> Value {
    let Attributes { resource, subresource, operation, namespace, name, options } = attributes;
    let kind =
        json!({ "group": resource.group, "version": resource.version, "kind": resource.kind });
    let plural = json!({ "group": resource.group, "version": resource.version, "resource": resource.plural });
    let mut options = options.clone();
    if writer.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    if let Some(manager) = &writer.field_manager {
        options["fieldManager"] = json!(manager);
    }
    let mut request = json!({
        "uid": uuid::Uuid::now_v7().to_string(),
        "kind": kind, "resource": plural, "requestKind": kind, "requestResource": plural,
        "operation": operation.name(),
        "userInfo": { "username": writer.user.name, "groups": writer.user.groups },
        "object": value,
        "oldObject": old.filter(|_| *operation != Operation::Create),
        "dryRun": writer.dry_run,
        "options": options,
    });
    for (field, text) in [("name", name), ("namespace", namespace)] {
        if !text.is_empty() {
            request[field] = json!(text);
        }
    }
    if !subresource.is_empty() {
        request["subResource"] = json!(subresource);
        request["requestSubResource"] = json!(subresource);
    }
    request
}

/// The `response` of a review, if it is one to this request.
fn read_response(answer: &Value, request: &Value) -> Result<Value, String> {
    if answer["kind"] != "AdmissionReview" || answer["apiVersion"] != "admission.k8s.io/v1" {
        return Err(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {}, \
             Kind={}",
            answer["apiVersion"], answer["kind"]
        ));
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err("webhook response was absent".into());
    }
    if response["uid"] != request["uid"] {
        return Err(format!("expected response.uid={}, got {}", request["uid"], response["uid"]));
    }
    if !response["allowed"].is_boolean() {
        return Err("response.allowed is missing".into());
    }
    match (response["patch"].is_null(), response["patchType"].as_str()) {
        (false, Some("JSONPatch")) | (true, None) => Ok(response.clone()),
        (false, other) => Err(format!("invalid patch type: {other:?}, expected JSONPatch")),
        (true, Some(_)) => Err("response.patchType was given without a patch".into()),
    }
}

fn denial(name: &str, status: &Value) -> Failure {
    let by = format!("admission webhook {name:?} denied the request");
    let text = match (status["message"].as_str(), status["reason"].as_str()) {
        (Some(message), _) if !message.is_empty() => format!("{by}: {message}"),
        (_, Some(reason)) if !reason.is_empty() => format!("{by}: {reason}"),
        _ => format!("{by} without explanation"),
    };
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
    let reason = status["reason"].as_str().unwrap_or_default();
    Failure::denied(if code < 400 { 400 } else { code }, reason, text)
}
