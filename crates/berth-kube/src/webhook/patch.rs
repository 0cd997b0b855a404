//! What is changed of a pod: affinity, deletion cost, and the marks by which we know it again.

use berth_engine::CapacityType;
use berth_engine::workload::deletion_cost;
use serde_json::{Map, Value, json};

use super::affinity::require;
use super::keys;
use super::review::{Op, escaped};
use super::settings::NodeLabel;

/// What a pod is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told<'a> {
    pub(super) token: String,
    pub(super) slot: i64,
    pub(super) class: CapacityType,
    /// Whether the pod chose its kind itself.
    pub(super) pinned: bool,
    pub(super) workload: &'a str,
}

/// The steps that make a pod what it is told to be. What is so already takes none.
pub(super) fn patch(pod: &Value, told: &Told<'_>, label: &NodeLabel) -> Vec<Op> {
    let mut ops = Vec::new();
    if !told.pinned {
        ops.extend(require(&pod["spec"], label, told.class));
    }
    if !pod["metadata"].is_object() {
        ops.push(Op::Add { path: "/metadata".to_owned(), value: json!({}) });
    }
    let mut annotations: Vec<(&str, String)> = vec![
        (keys::TOKEN, told.token.clone()),
        (keys::SLOT, told.slot.to_string()),
        (keys::WORKLOAD, told.workload.to_owned()),
    ];
    let present = |key: &str| pod["metadata"]["annotations"].get(key).filter(|it| it.is_string());
    // One that is there on a pod that did not choose was copied.
    if told.pinned || present(keys::PINNED).is_some() {
        annotations.push((keys::PINNED, told.pinned.to_string()));
    }
    // Ours may be from an earlier call for the same pod; anything else is the user's.
    if present(keys::DELETION_COST).is_none() || present(keys::COST_IS_OURS).is_some() {
        annotations.push((keys::DELETION_COST, deletion_cost(told.class).to_string()));
        annotations.push((keys::COST_IS_OURS, "managed".to_owned()));
    }
    ops.extend(entries(pod, "annotations", &annotations));
    ops.extend(entries(pod, "labels", &[(keys::CAPACITY, told.class.name().to_owned())]));
    ops
}

/// Adds entries to a map of the metadata, which is made when there is none.
fn entries(pod: &Value, map: &str, entries: &[(&str, String)]) -> Vec<Op> {
    let found = &pod["metadata"][map];
    if !found.is_object() {
        let value: Map<String, Value> =
            entries.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        return vec![Op::Add { path: format!("/metadata/{map}"), value: Value::Object(value) }];
    }
    let missing = entries.iter().filter(|(key, value)| found[*key] != value.as_str());
    let add = |(key, value): &(&str, String)| Op::Add {
        path: format!("/metadata/{map}/{}", escaped(key)),
        value: json!(value),
    };
    missing.map(add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(class: CapacityType) -> Told<'static> {
        let token = "t".to_owned();
        Told { token, slot: 3, class, pinned: false, workload: "Deployment/web/abc" }
    }

    fn ops(pod: &Value, told: &Told<'_>) -> Value {
        json!(patch(pod, told, &NodeLabel::default()))
    }

    #[test]
    fn a_bare_pod_gets_everything_and_parents_are_made() {
        let ops = ops(&json!({ "spec": {} }), &told(CapacityType::Spot));
        let paths: Vec<&str> =
            ops.as_array().unwrap().iter().map(|op| op["path"].as_str().unwrap()).collect();
        assert_eq!(
            paths,
            ["/spec/affinity", "/metadata", "/metadata/annotations", "/metadata/labels"]
        );
        let annotations = &ops[2]["value"];
        assert_eq!(annotations["controller.kubernetes.io/pod-deletion-cost"], "1");
        assert_eq!(annotations["berth.dev/slot"], "3");
        assert_eq!(ops[3]["value"], json!({ "berth.dev/capacity": "spot" }));
    }

    #[test]
    fn keys_are_escaped_where_the_map_is_there() {
        let pod =
            json!({ "metadata": { "annotations": { "x/y": "1" }, "labels": { "app": "web" } } });
        let ops = ops(&pod, &told(CapacityType::OnDemand));
        let paths: Vec<&str> =
            ops.as_array().unwrap().iter().map(|op| op["path"].as_str().unwrap()).collect();
        assert!(
            paths.contains(&"/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost")
        );
        assert!(paths.contains(&"/metadata/labels/berth.dev~1capacity"));
        assert_eq!(escaped("a~b/c"), "a~0b~1c");
    }

    #[test]
    fn the_users_own_deletion_cost_stays() {
        let pod = json!({ "metadata": { "annotations": {
            "controller.kubernetes.io/pod-deletion-cost": "7",
        } } });
        let text = ops(&pod, &told(CapacityType::OnDemand)).to_string();
        assert!(!text.contains("pod-deletion-cost") && !text.contains("berth.dev~1deletion-cost"));
    }

    #[test]
    fn a_pod_that_chose_its_kind_keeps_its_affinity() {
        let pinned = Told { pinned: true, ..told(CapacityType::Spot) };
        let text = ops(&json!({ "metadata": {}, "spec": {} }), &pinned).to_string();
        assert!(!text.contains("/spec/affinity") && text.contains("berth.dev/pinned"));
    }

    #[test]
    fn what_is_there_already_is_not_added_again() {
        let mut pod = json!({ "metadata": {}, "spec": {} });
        let first = patch(&pod, &told(CapacityType::Spot), &NodeLabel::default());
        for Op::Add { path, value } in first {
            let (parent, last) = path.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[last] = value;
        }
        assert_eq!(patch(&pod, &told(CapacityType::Spot), &NodeLabel::default()), []);
    }
}
