//! Groups of pods that Kubernetes itself defines (`scheduling.k8s.io`): PodGroups, and groups of Workloads.
//!
//! Read from untyped objects, because their versions differ in shape and clusters serve different
//! ones. Whatever is not understood is unsupported: its pods are refused, and never scheduled one by one
//! as if they had no group.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::Value;

use super::observed_pod::ObservedPod;
use super::pod::Key;

/// A kind of object that defines groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKind {
    /// `podgroups`: one group.
    PodGroup,
    /// `workloads` of `v1alpha1`: several groups.
    Workload,
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PodGroup => "PodGroup",
            Self::Workload => "Workload",
        })
    }
}

/// The group that a pod says it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GroupRef {
    /// A PodGroup, by name.
    PodGroup(Arc<str>),
    /// A group of a Workload: their names.
    Workload(Arc<str>, Arc<str>),
    /// Something else, which is described.
    Unknown(&'static str),
}

impl fmt::Display for GroupRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodGroup(name) => write!(f, "PodGroup {name}"),
            Self::Workload(name, group) => write!(f, "group {group} of Workload {name}"),
            Self::Unknown(what) => f.write_str(what),
        }
    }
}

/// How messages call a gang.
pub(crate) fn describe_gang(name: &str) -> String {
    if let Some(name) = name.strip_prefix("podgroup/") {
        return format!("PodGroup {name}");
    }
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        ["workload", workload, group, ""] => format!("group {group} of Workload {workload}"),
        ["workload", workload, group, replica] => {
            format!("replica {replica} of group {group} of Workload {workload}")
        }
        _ => format!("gang {name}"),
    }
}

/// The group of a pod, and the name of its gang: each replica of a group is one of its own.
pub(super) fn group_of(pod: &ObservedPod) -> Option<(GroupRef, Arc<str>)> {
    let group = pod.pod.spec.as_ref().and_then(|it| it.scheduling_group.as_ref());
    match (group, &pod.workload) {
        (Some(core::PodSchedulingGroup { pod_group_name: Some(name) }), None) => {
            let name: Arc<str> = name.as_str().into();
            Some((GroupRef::PodGroup(Arc::clone(&name)), format!("podgroup/{name}").into()))
        }
        (None, Some(it)) => {
            let gang =
                format!("workload/{}/{}/{}", it.name, it.pod_group, it.pod_group_replica_key);
            let (name, group) = (it.name.as_str().into(), it.pod_group.as_str().into());
            Some((GroupRef::Workload(name, group), gang.into()))
        }
        (Some(_), None) => {
            let what = "a kind of group that is unknown here (spec.schedulingGroup)";
            Some((GroupRef::Unknown(what), "unknown/".into()))
        }
        (Some(_), Some(_)) => {
            let what = "two groups (spec.schedulingGroup and spec.workloadRef)";
            Some((GroupRef::Unknown(what), "unknown/".into()))
        }
        (None, None) => None,
    }
}

/// How the pods of a group are scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupPolicy {
    /// Each on its own.
    Basic,
    /// At least so many at once.
    Gang {
        /// How many.
        min_count: usize,
    },
    /// In a way that is not supported: the field, and what is accepted.
    Unsupported(String),
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodGroup {
    /// How its pods are scheduled.
    pub policy: GroupPolicy,
    /// Whether its pods may be preempted only all together.
    pub is_unit: bool,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub(super) struct PodGroups {
    pod_groups: FxHashMap<Key, PodGroup>,
    workloads: FxHashMap<Key, FxHashMap<Arc<str>, PodGroup>>,
}

impl PodGroups {
    /// Adds or updates the groups of an object; whether that changed anything.
    pub(super) fn put(&mut self, kind: GroupKind, object: &Value) -> bool {
        let Some(key) = key_of(object) else { return false };
        let spec = object.get("spec").unwrap_or(&Value::Null);
        match kind {
            GroupKind::PodGroup => {
                let group = read_pod_group(spec);
                self.pod_groups.insert(key, group.clone()) != Some(group)
            }
            GroupKind::Workload => {
                let groups = spec.get("podGroups").and_then(Value::as_array).into_iter().flatten();
                let groups: FxHashMap<Arc<str>, PodGroup> =
                    groups.filter_map(read_group_of_workload).collect();
                self.workloads.insert(key, groups.clone()) != Some(groups)
            }
        }
    }

    /// How the pods of each group are scheduled, by the kind, the object and the group.
    pub(super) fn state(&self) -> BTreeMap<String, PodGroup> {
        let alone = self.pod_groups.iter();
        let alone = alone.map(|(key, it)| (format!("PodGroup {key}"), it.clone()));
        let several = self.workloads.iter().flat_map(|(key, groups)| {
            groups.iter().map(move |(name, it)| (format!("Workload {key}, {name}"), it.clone()))
        });
        alone.chain(several).collect()
    }

    /// Removes the groups of an object.
    pub(super) fn remove(&mut self, kind: GroupKind, key: &Key) {
        match kind {
            GroupKind::PodGroup => drop(self.pod_groups.remove(key)),
            GroupKind::Workload => drop(self.workloads.remove(key)),
        }
    }

    /// The group that a pod of a namespace refers to, if it exists.
    pub(super) fn get(&self, namespace: &Arc<str>, group: &GroupRef) -> Option<&PodGroup> {
        let key =
            |name: &Arc<str>| Key { namespace: Arc::clone(namespace), name: Arc::clone(name) };
        match group {
            GroupRef::PodGroup(name) => self.pod_groups.get(&key(name)),
            GroupRef::Workload(name, group) => self.workloads.get(&key(name))?.get(group),
            GroupRef::Unknown(_) => None,
        }
    }
}

fn key_of(object: &Value) -> Option<Key> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    Some(Key::new(text("/metadata/namespace")?, text("/metadata/name")?))
}

/// Fields of a PodGroup that do not constrain where its pods can run: where it comes from, and its
/// priority, which is that of its pods here. Its claims of devices are not supported: they would have to
/// be reserved for the group, and not for its pods.
const IGNORED: [&str; 6] = [
    "podGroupTemplateRef",
    "workloadRef",
    "disruptionMode",
    "preemptionPolicy",
    "priorityClassName",
    "priority",
];

fn read_pod_group(spec: &Value) -> PodGroup {
    let fields = spec.as_object().into_iter().flatten().filter(|(_, value)| !is_empty(value));
    let mut unsupported = fields
        .map(|(name, _)| name.as_str())
        .filter(|name| *name != "schedulingPolicy" && !IGNORED.contains(name));
    let policy = match unsupported.next() {
        Some(field) => GroupPolicy::Unsupported(format!("spec.{field} is not supported")),
        None => read_policy("spec.schedulingPolicy", spec.get("schedulingPolicy")),
    };
    let mode = spec.get("disruptionMode").unwrap_or(&Value::Null);
    let is_unit = mode == "PodGroup" || mode.get("all").is_some();
    PodGroup { policy, is_unit }
}

fn read_group_of_workload(group: &Value) -> Option<(Arc<str>, PodGroup)> {
    let name = group.get("name").and_then(Value::as_str)?;
    let policy = read_policy("policy", group.get("policy"));
    Some((name.into(), PodGroup { policy, is_unit: false }))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.values().all(is_empty),
        _ => false,
    }
}

fn read_policy(field: &str, policy: Option<&Value>) -> GroupPolicy {
    let set: Vec<(&String, &Value)> = policy
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .collect();
    let no_more_than = |value: &Value, known: &[&str]| {
        let fields = value.as_object().into_iter().flatten();
        fields.into_iter().all(|(name, value)| known.contains(&name.as_str()) || is_empty(value))
    };
    if let [(name, value)] = set.as_slice() {
        let min_count = value.get("minCount").and_then(Value::as_u64);
        let min_count = min_count.and_then(|it| usize::try_from(it).ok()).filter(|it| *it > 0);
        match (name.as_str(), min_count) {
            ("basic", _) if no_more_than(value, &[]) => return GroupPolicy::Basic,
            ("gang", Some(min_count)) if no_more_than(value, &["minCount"]) => {
                return GroupPolicy::Gang { min_count };
            }
            _ => {}
        }
    }
    let found = policy.unwrap_or(&Value::Null);
    let text =
        format!("{field} is {found}; accepted: basic, or gang with a minCount of at least 1");
    GroupPolicy::Unsupported(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(spec: Value) -> GroupPolicy {
        read_pod_group(&spec).policy
    }

    #[test]
    fn policies_are_read_and_what_is_not_understood_is_unsupported() {
        let gang = |count: Value| json!({"gang": {"minCount": count}});
        let with = |policy: Value| json!({"schedulingPolicy": policy});
        assert_eq!(policy(with(json!({"basic": {}}))), GroupPolicy::Basic);
        assert_eq!(policy(with(gang(json!(3)))), GroupPolicy::Gang { min_count: 3 });
        let full = json!({
            "schedulingPolicy": {"gang": {"minCount": 2}, "basic": null}, "priority": 7,
            "disruptionMode": {"single": {}}, "schedulingConstraints": {"topology": []},
        });
        assert_eq!(policy(full), GroupPolicy::Gang { min_count: 2 });
        for bad in [
            with(gang(json!(0))),
            with(gang(json!(-1))),
            with(gang(json!("3"))),
            with(json!({})),
            with(json!({"ring": {}})),
            with(json!({"basic": {}, "gang": {"minCount": 1}})),
            with(json!({"gang": {"minCount": 1, "maxCount": 2}})),
            with(json!({"basic": {"spread": true}})),
            json!({}),
            json!({"schedulingPolicy": {"basic": {}},
                   "schedulingConstraints": {"topology": [{"key": "rack"}]}}),
            json!({"schedulingPolicy": {"basic": {}}, "parentCompositePodGroupName": "a"}),
        ] {
            let found = policy(bad.clone());
            assert!(matches!(found, GroupPolicy::Unsupported(_)), "{bad}: {found:?}");
        }
    }

    #[test]
    fn a_group_is_a_unit_of_disruption_if_it_says_so_in_any_version() {
        let is_unit = |mode: Value| read_pod_group(&json!({"disruptionMode": mode})).is_unit;
        assert!(is_unit(json!("PodGroup")) && is_unit(json!({"all": {}})));
        assert!(!is_unit(json!("Pod")) && !is_unit(json!({"single": {}})) && !is_unit(json!(null)));
    }

    #[test]
    fn the_groups_of_a_workload_are_found_by_both_names() {
        let mut groups = PodGroups::default();
        let workload = json!({
            "metadata": {"namespace": "default", "name": "train"},
            "spec": {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 4}}}]},
        });
        assert!(groups.put(GroupKind::Workload, &workload));
        assert!(!groups.put(GroupKind::Workload, &workload), "nothing has changed");
        let default: Arc<str> = "default".into();
        let of = |name: &str, group: &str| GroupRef::Workload(name.into(), group.into());
        let found = groups.get(&default, &of("train", "workers")).map(|it| it.policy.clone());
        assert_eq!(found, Some(GroupPolicy::Gang { min_count: 4 }));
        assert_eq!(groups.get(&default, &of("train", "drivers")), None);
        assert_eq!(groups.get(&"other".into(), &of("train", "workers")), None);
        groups.remove(GroupKind::Workload, &Key::new("default", "train"));
        assert_eq!(groups.get(&default, &of("train", "workers")), None);
    }
}
