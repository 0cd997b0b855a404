//! Discovery: version, health, and resources.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::answer::Answer;
use crate::api::Api;
use crate::failure::Failure;
use crate::resource::Resource;

pub(super) fn answer(api: &Api, path: &str) -> Answer {
    match path.trim_end_matches('/') {
        "/healthz" | "/readyz" | "/livez" => Answer::text("ok"),
        "/version" => Answer::json(
            200,
            &json!({
                "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "imitation",
                "gitTreeState": "clean", "buildDate": "2025-01-01T00:00:00Z",
                "goVersion": "none", "compiler": "none", "platform": "linux/amd64",
            }),
        ),
        "/api" => Answer::json(
            200,
            &json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            }),
        ),
        "/apis" => Answer::json(200, &groups(api)),
        "/api/v1" => resources(api, "", "v1"),
        other => match other.strip_prefix("/apis/").and_then(|rest| rest.split_once('/')) {
            Some((group, version)) => resources(api, group, version),
            None => match other.strip_prefix("/apis/") {
                Some(group) => describe_group(api, group),
                None => Answer::from(Failure::no_such_path()),
            },
        },
    }
}

/// The versions of each named group, in order; stable ones come first.
fn versions(api: &Api) -> BTreeMap<String, BTreeSet<String>> {
    let store = api.store();
    let named = store.resources().filter(|(_, resource)| !resource.group.is_empty());
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, resource) in named {
        groups.entry(resource.group.clone()).or_default().insert(resource.version.clone());
    }
    groups
}

fn group_json(group: &str, versions: &BTreeSet<String>) -> Value {
    let entry =
        |version| json!({ "groupVersion": format!("{group}/{version}"), "version": version });
    let entries: Vec<Value> = versions.iter().map(entry).collect();
    json!({ "name": group, "versions": entries, "preferredVersion": entries[0] })
}

fn groups(api: &Api) -> Value {
    let all: Vec<Value> = versions(api).iter().map(|(group, all)| group_json(group, all)).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": all })
}

fn describe_group(api: &Api, group: &str) -> Answer {
    let Some(all) = versions(api).remove(group) else {
        return Answer::from(Failure::no_such_path());
    };
    let mut body = group_json(group, &all);
    body["kind"] = json!("APIGroup");
    body["apiVersion"] = json!("v1");
    Answer::json(200, &body)
}

fn entries(resource: &Resource) -> Vec<Value> {
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let mut all = vec![json!({
        "name": resource.plural, "singularName": resource.singular, "kind": resource.kind,
        "namespaced": resource.namespaced, "verbs": verbs,
    })];
    let mut below = |name: &str, kind: &str, more: Value, verbs: &[&str]| {
        let mut entry = json!({
            "name": format!("{}/{name}", resource.plural), "singularName": "", "kind": kind,
            "namespaced": resource.namespaced, "verbs": verbs,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            entry[key] = value.clone();
        }
        all.push(entry);
    };
    if resource.status {
        below("status", &resource.kind, Value::Null, &["get", "patch", "update"]);
    }
    if resource.scale.is_some() {
        let kind = json!({ "group": "autoscaling", "version": "v1" });
        below("scale", "Scale", kind, &["get", "patch", "update"]);
    }
    for other in resource.others {
        match *other {
            "binding" => below("binding", "Binding", Value::Null, &["create"]),
            "eviction" => {
                let kind = json!({ "group": "policy", "version": "v1" });
                below("eviction", "Eviction", kind, &["create"]);
            }
            name => below(name, &resource.kind, Value::Null, &["get", "patch", "update"]),
        }
    }
    all
}

fn resources(api: &Api, group: &str, version: &str) -> Answer {
    let store = api.store();
    let all: Vec<Value> = store
        .resources()
        .filter(|(_, resource)| resource.group == group && resource.version == version)
        .flat_map(|(_, resource)| entries(resource))
        .collect();
    if all.is_empty() {
        return Answer::from(Failure::no_such_path());
    }
    let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let body = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": all,
    });
    Answer::json(200, &body)
}
