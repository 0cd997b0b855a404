//! The patch of a pod: affinity, deletion cost, and the annotations by which the webhook knows it.

use berth_engine::CapacityType;
use berth_engine::workload::deletion_cost;
use serde_json::{Map, Value, json};

use super::affinity::require;
use super::annotations;
use super::review::{Op, escape_pointer};
use super::settings::NodeLabel;

/// The slot of a pod, for its patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodSlot<'a> {
    pub(super) token: String,
    pub(super) slot: i64,
    pub(super) class: CapacityType,
    /// Whether the pod chose its capacity type itself.
    pub(super) pinned: bool,
    pub(super) workload: &'a str,
}

/// The patch for a pod's slot. What is already so is left out.
pub(super) fn build_patch(pod: &Value, pod_slot: &PodSlot<'_>, label: &NodeLabel) -> Vec<Op> {
    let mut ops = Vec::new();
    if !pod_slot.pinned {
        ops.extend(require(&pod["spec"], label, pod_slot.class));
    }
    if !pod["metadata"].is_object() {
        ops.push(Op::Add { path: "/metadata".to_owned(), value: json!({}) });
    }
    let mut annotations: Vec<(&str, String)> = vec![
        (annotations::TOKEN, pod_slot.token.clone()),
        (annotations::SLOT, pod_slot.slot.to_string()),
        (annotations::WORKLOAD, pod_slot.workload.to_owned()),
    ];
    let present = |key: &str| pod["metadata"]["annotations"].get(key).filter(|it| it.is_string());
    // On a pod that did not choose, an existing annotation was copied.
    if pod_slot.pinned || present(annotations::PINNED).is_some() {
        annotations.push((annotations::PINNED, pod_slot.pinned.to_string()));
    }
    // A managed cost is from an earlier call for the same pod; any other is the user's.
    if present(annotations::DELETION_COST).is_none()
        || present(annotations::COST_IS_MANAGED).is_some()
    {
        annotations.push((annotations::DELETION_COST, deletion_cost(pod_slot.class).to_string()));
        annotations.push((annotations::COST_IS_MANAGED, "managed".to_owned()));
    }
    ops.extend(entries(pod, "annotations", &annotations));
    ops.extend(entries(
        pod,
        "labels",
        &[(annotations::CAPACITY, pod_slot.class.name().to_owned())],
    ));
    ops
}

/// Adds entries to a map of the metadata, which is created if missing.
fn entries(pod: &Value, map: &str, entries: &[(&str, String)]) -> Vec<Op> {
    let found = &pod["metadata"][map];
    if !found.is_object() {
        let value: Map<String, Value> =
            entries.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        return vec![Op::Add { path: format!("/metadata/{map}"), value: Value::Object(value) }];
    }
    let missing = entries.iter().filter(|(key, value)| found[*key] != value.as_str());
    let add = |(key, value): &(&str, String)| Op::Add {
        path: format!("/metadata/{map}/{}", escape_pointer(key)),
        value: json!(value),
    };
    missing.map(add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod_slot(class: CapacityType) -> PodSlot<'static> {
        let token = "t".to_owned();
        PodSlot { token, slot: 3, class, pinned: false, workload: "Deployment/web/abc" }
    }

    fn ops(pod: &Value, pod_slot: &PodSlot<'_>) -> Value {
        json!(build_patch(pod, pod_slot, &NodeLabel::default()))
    }

    #[test]
    fn a_bare_pod_gets_everything_and_parents_are_created() {
        let ops = ops(&json!({ "spec": {} }), &pod_slot(CapacityType::Spot));
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
    fn keys_are_escaped_where_the_map_is_set() {
        let pod =
            json!({ "metadata": { "annotations": { "x/y": "1" }, "labels": { "app": "web" } } });
        let ops = ops(&pod, &pod_slot(CapacityType::OnDemand));
        let paths: Vec<&str> =
            ops.as_array().unwrap().iter().map(|op| op["path"].as_str().unwrap()).collect();
        assert!(
            paths.contains(&"/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost")
        );
        assert!(paths.contains(&"/metadata/labels/berth.dev~1capacity"));
        assert_eq!(escape_pointer("a~b/c"), "a~0b~1c");
    }

    #[test]
    fn the_users_own_deletion_cost_stays() {
        let pod = json!({ "metadata": { "annotations": {
            "controller.kubernetes.io/pod-deletion-cost": "7",
        } } });
        let text = ops(&pod, &pod_slot(CapacityType::OnDemand)).to_string();
        assert!(!text.contains("pod-deletion-cost") && !text.contains("berth.dev~1deletion-cost"));
    }

    #[test]
    fn a_pod_that_chose_its_capacity_type_keeps_its_affinity() {
        let pinned = PodSlot { pinned: true, ..pod_slot(CapacityType::Spot) };
        let text = ops(&json!({ "metadata": {}, "spec": {} }), &pinned).to_string();
        assert!(!text.contains("/spec/affinity") && text.contains("berth.dev/pinned"));
    }

    #[test]
    fn existing_values_are_not_added_again() {
        let mut pod = json!({ "metadata": {}, "spec": {} });
        let first = build_patch(&pod, &pod_slot(CapacityType::Spot), &NodeLabel::default());
        for Op::Add { path, value } in first {
            let (parent, last) = path.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[last] = value;
        }
        assert_eq!(build_patch(&pod, &pod_slot(CapacityType::Spot), &NodeLabel::default()), []);
    }
}
