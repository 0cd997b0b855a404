//! Discovery: version, health, and resources.

use std::collections::BTreeMap;

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

fn versions(api: &Api) -> BTreeMap<String, String> {
    let store = api.store();
    let named = store.resources().filter(|(_, resource)| !resource.group.is_empty());
    named.map(|(_, resource)| (resource.group.clone(), resource.version.clone())).collect()
}

fn group_json(group: &str, version: &str) -> Value {
    let entry = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
    json!({ "name": group, "versions": [entry], "preferredVersion": entry })
}

fn groups(api: &Api) -> Value {
    let all: Vec<Value> =
        versions(api).iter().map(|(group, version)| group_json(group, version)).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": all })
}

fn describe_group(api: &Api, group: &str) -> Answer {
    let Some(version) = versions(api).get(group).cloned() else {
        return Answer::from(Failure::no_such_path());
    };
    let mut body = group_json(group, &version);
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
