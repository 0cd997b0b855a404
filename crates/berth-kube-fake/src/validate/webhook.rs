//! Webhook configurations. What this server cannot imitate is rejected instead of ignored.

use serde_json::{Value, json};

use super::label_selector;
use crate::failure::Cause;
use crate::object;

pub(super) fn check(value: &Value, causes: &mut Vec<Cause>) {
    let mut names = std::collections::BTreeSet::new();
    for (at, webhook) in object::items(&value["webhooks"]).enumerate() {
        let here = format!("webhooks[{at}]");
        let name = webhook["name"].as_str().unwrap_or_default();
        if name.split('.').count() < 3 || !crate::names::is_subdomain(name) {
            let text = "should be a domain with at least three segments separated by dots";
            causes.push(Cause::invalid(format!("{here}.name"), &json!(name), text));
        }
        if !names.insert(name) {
            causes.push(Cause::duplicate(format!("{here}.name"), name));
        }
        check_webhook(webhook, &here, causes);
    }
}

fn check_webhook(webhook: &Value, here: &str, causes: &mut Vec<Cause>) {
    let versions = &webhook["admissionReviewVersions"];
    if object::items(versions).next().is_none() {
        let text = "must specify one of v1, v1beta1";
        causes.push(Cause::required(format!("{here}.admissionReviewVersions"), text));
    } else if !object::items(versions).any(|version| version == "v1") {
        let text = "must include at least one of v1, v1beta1";
        causes.push(Cause::invalid(format!("{here}.admissionReviewVersions"), versions, text));
    }
    let effects = webhook["sideEffects"].as_str().unwrap_or_default();
    let known = ["None", "NoneOnDryRun"];
    if !known.contains(&effects) {
        causes.push(Cause::unsupported(format!("{here}.sideEffects"), effects, &known));
    }
    let policy = webhook["failurePolicy"].as_str().unwrap_or_default();
    if !["Ignore", "Fail"].contains(&policy) {
        let known = ["Fail", "Ignore"];
        causes.push(Cause::unsupported(format!("{here}.failurePolicy"), policy, &known));
    }
    if !webhook["timeoutSeconds"].as_i64().is_some_and(|seconds| (1..=30).contains(&seconds)) {
        let text = "the timeout value must be between 1 and 30 seconds";
        let value = &webhook["timeoutSeconds"];
        causes.push(Cause::invalid(format!("{here}.timeoutSeconds"), value, text));
    }
    let client = &webhook["clientConfig"];
    if client["url"].is_string() == client["service"].is_object() {
        let text = "exactly one of url or service is required";
        causes.push(Cause::required(format!("{here}.clientConfig"), text));
    }
    if client["url"].as_str().is_some_and(|url| !url.starts_with("https://")) {
        let text = "'https' is the only allowed URL scheme";
        causes.push(Cause::invalid(format!("{here}.clientConfig.url"), &client["url"], text));
    }
    label_selector(&webhook["namespaceSelector"], &format!("{here}.namespaceSelector"), causes);
    label_selector(&webhook["objectSelector"], &format!("{here}.objectSelector"), causes);
    if object::items(&webhook["matchConditions"]).next().is_some() {
        let text = "match conditions are not imitated by this server";
        causes.push(Cause::forbidden(format!("{here}.matchConditions"), text));
    }
    for (at, rule) in object::items(&webhook["rules"]).enumerate() {
        for field in ["apiGroups", "apiVersions", "operations", "resources"] {
            if object::items(&rule[field]).next().is_none() {
                causes.push(Cause::required(format!("{here}.rules[{at}].{field}"), ""));
            }
        }
    }
}
