//! Shared by controllers of pods: templates, ownership, and the order of deletion.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::{self, Object};
use crate::resource::Resource;
use crate::store::Store;

/// A reference to the object that manages another.
pub(super) fn controller_reference(resource: &Resource, owner: &Value) -> Value {
    json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "name": object::name(owner), "uid": object::uid(owner),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// A pod made from a template.
pub(super) fn from_template(resource: &Resource, owner: &Value, template: &Value) -> Value {
    let mut metadata = json!({
        "namespace": object::namespace(owner),
        "ownerReferences": [controller_reference(resource, owner)],
    });
    for field in ["labels", "annotations", "finalizers"] {
        if !template["metadata"][field].is_null() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"],
    })
}

/// The pods that an owner manages.
pub(super) fn managed(store: &Store, owner_uid: &str) -> Vec<Arc<Object>> {
    store
        .owned_by(owner_uid)
        .filter(|one| one.resource.kind == "Pod")
        .filter(|one| object::controller_uid(&one.value) == Some(owner_uid))
        .cloned()
        .collect()
}

pub(super) fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or_default()
}

pub(super) fn is_finished(pod: &Value) -> bool {
    matches!(phase(pod), "Failed" | "Succeeded")
}

/// Neither finished nor terminating.
pub(super) fn is_active(pod: &Value) -> bool {
    !is_finished(pod) && !object::is_terminating(pod)
}

pub(super) fn is_ready(pod: &Value) -> bool {
    object::condition(pod, "Ready") == Some("True")
}

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
}

fn deletion_cost(pod: &Value) -> i32 {
    let text = object::annotation(pod, "controller.kubernetes.io/pod-deletion-cost");
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &Value) -> i64 {
    let counts = object::items(&pod["status"]["containerStatuses"]);
    counts.map(|one| one["restartCount"].as_i64().unwrap_or(0)).max().unwrap_or(0)
}

fn ready_since(pod: &Value) -> &str {
    object::items(&pod["status"]["conditions"])
        .find(|one| one["type"] == "Ready")
        .and_then(|one| one["lastTransitionTime"].as_str())
        .unwrap_or_default()
}

/// The order of magnitude of an age: ages of the same magnitude count as equal.
fn magnitude(since: &str, now: Timestamp) -> i64 {
    let Ok(since) = since.parse::<Timestamp>() else { return -1 };
    let age_ns = now.duration_since(since).as_nanos();
    u128::try_from(age_ns).ok().and_then(u128::checked_ilog2).map_or(-1, i64::from)
}

/// The number of related pods on each pod's node.
pub(super) fn neighbours(related: &[Arc<Object>]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for pod in related.iter().filter(|pod| is_active(&pod.value)) {
        let node = pod.value["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        *counts.entry(node).or_insert(0) += 1;
    }
    counts
}

/// Sorts pods by the order of deletion.
pub(super) fn sort_for_deletion(pods: &mut [Arc<Object>], on_node: &HashMap<String, usize>) {
    let now = Timestamp::now();
    pods.sort_by(|left, right| before(&left.value, &right.value, on_node, now));
}

fn before(
    left: &Value,
    right: &Value,
    on_node: &HashMap<String, usize>,
    now: Timestamp,
) -> Ordering {
    let phase_rank = |pod: &Value| match phase(pod) {
        "Pending" => 0,
        "Running" => 2,
        _ => 1,
    };
    let crowd = |pod: &Value| {
        on_node.get(pod["spec"]["nodeName"].as_str().unwrap_or_default()).copied().unwrap_or(0)
    };
    let age = |left: &str, right: &str| {
        if left == right {
            Ordering::Equal
        } else {
            magnitude(left, now).cmp(&magnitude(right, now))
        }
    };
    let created = |pod: &Value| object::text(pod, "creationTimestamp").to_owned();
    is_bound(left)
        .cmp(&is_bound(right))
        .then_with(|| phase_rank(left).cmp(&phase_rank(right)))
        .then_with(|| is_ready(left).cmp(&is_ready(right)))
        .then_with(|| deletion_cost(left).cmp(&deletion_cost(right)))
        .then_with(|| crowd(right).cmp(&crowd(left)))
        .then_with(|| {
            if is_ready(left) && is_ready(right) {
                age(ready_since(left), ready_since(right))
            } else {
                Ordering::Equal
            }
        })
        .then_with(|| restarts(right).cmp(&restarts(left)))
        .then_with(|| age(&created(left), &created(right)))
        .then_with(|| object::uid(left).cmp(object::uid(right)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::sort_for_deletion;
    use crate::object::{self, Object};
    use crate::resource::built_ins;

    #[test]
    fn pods_are_ranked_for_deletion_as_by_a_replica_set() {
        let pod = |name: &str, node: &str, phase: &str, ready: &str, cost: &str| -> Value {
            json!({
                "metadata": {
                    "name": name, "uid": name, "creationTimestamp": "2025-01-01T00:00:00Z",
                    "annotations": { "controller.kubernetes.io/pod-deletion-cost": cost },
                },
                "spec": { "nodeName": node },
                "status": { "phase": phase, "conditions": [
                    { "type": "Ready", "status": ready,
                      "lastTransitionTime": "2025-01-01T00:00:00Z" },
                ] },
            })
        };
        let expected = ["unbound", "pending", "unready", "cheap", "crowded", "dear"];
        let pods = [
            pod("dear", "a", "Running", "True", "100"),
            pod("crowded", "b", "Running", "True", "2"),
            pod("cheap", "a", "Running", "True", "1"),
            pod("unready", "a", "Running", "False", "100"),
            pod("pending", "a", "Pending", "False", "100"),
            pod("unbound", "", "Pending", "False", "100"),
        ];
        let resource = Arc::clone(&built_ins(true)[0]);
        let mut objects: Vec<Arc<Object>> = pods
            .into_iter()
            .map(|pod| Arc::new(Object::new(Arc::clone(&resource), pod, 1)))
            .collect();
        let on_node = HashMap::from([("a".to_owned(), 4), ("b".to_owned(), 1)]);
        sort_for_deletion(&mut objects, &on_node);
        let names: Vec<&str> = objects.iter().map(|one| object::name(&one.value)).collect();
        assert_eq!(names, expected);
    }
}
