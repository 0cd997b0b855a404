//! A Kubernetes node as the rules see it.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::quantity;
use super::resources::{ResourceList, Resources};
use super::selector::Labels;

/// The effect of a taint on pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// They are not scheduled there.
    NoSchedule,
    /// They are scheduled there only if there is no better node.
    PreferNoSchedule,
    /// They are not scheduled there, and running pods are evicted.
    NoExecute,
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What it does.
    pub effect: Effect,
}

impl std::fmt::Display for Taint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = if self.value.is_empty() { String::new() } else { format!("={}", self.value) };
        write!(f, "{}{value}:{:?}", self.key, self.effect)
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Resources for pods.
    pub allocatable: Resources,
    /// The maximum number of pods.
    pub max_pods: i64,
    /// Images present on the node, by any of their names.
    pub images: Vec<String>,
}

impl Node {
    /// Reads a node.
    #[must_use]
    pub fn read(node: &core::Node) -> Self {
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        // Older nodes report only the capacity.
        let stated = status.and_then(|it| it.allocatable.as_ref().or(it.capacity.as_ref()));
        let pods = |stated: &ResourceList| stated.get("pods").and_then(quantity::to_units);
        let images = status.and_then(|it| it.images.as_ref()).into_iter().flatten();
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            labels: Arc::new(node.metadata.labels.clone().unwrap_or_default()),
            taints: spec
                .and_then(|it| it.taints.as_ref())
                .into_iter()
                .flatten()
                .filter_map(read_taint)
                .collect(),
            unschedulable: spec.and_then(|it| it.unschedulable).unwrap_or(false),
            allocatable: stated.map(Resources::read).unwrap_or_default(),
            // A node that does not report a maximum is not ready yet: it takes none.
            max_pods: stated.and_then(pods).unwrap_or(0),
            images: images.flat_map(|it| it.names.clone().unwrap_or_default()).collect(),
        }
    }

    /// Whether labels, taints and cordon are the same.
    #[must_use]
    pub fn same_facts(&self, other: &Self) -> bool {
        self.labels == other.labels
            && self.taints == other.taints
            && self.unschedulable == other.unschedulable
    }

    /// The zone from its label.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.labels.get("topology.kubernetes.io/zone").map(String::as_str)
    }
}

fn read_taint(taint: &core::Taint) -> Option<Taint> {
    let effect = match taint.effect.as_str() {
        "NoSchedule" => Effect::NoSchedule,
        "PreferNoSchedule" => Effect::PreferNoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => return None,
    };
    let value = taint.value.clone().unwrap_or_default();
    Some(Taint { key: taint.key.clone(), value, effect })
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// The key; absent: any.
    key: Option<String>,
    /// The value; absent: any.
    value: Option<String>,
    /// The effect; absent: any.
    effect: Option<String>,
    /// The operator is invalid, so it tolerates nothing.
    never: bool,
}

impl Toleration {
    /// Reads a toleration.
    #[must_use]
    pub fn read(toleration: &core::Toleration) -> Self {
        let text = |it: &Option<String>| it.clone().filter(|it| !it.is_empty());
        let operator = toleration.operator.as_deref().unwrap_or("Equal");
        let value = match operator {
            "Exists" => None,
            _ => Some(toleration.value.clone().unwrap_or_default()),
        };
        let never = !matches!(operator, "Exists" | "Equal" | "");
        Self { key: text(&toleration.key), value, effect: text(&toleration.effect), never }
    }

    /// Whether it tolerates a taint.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let effect = match taint.effect {
            Effect::NoSchedule => "NoSchedule",
            Effect::PreferNoSchedule => "PreferNoSchedule",
            Effect::NoExecute => "NoExecute",
        };
        !self.never
            && self.effect.as_deref().is_none_or(|it| it == effect)
            && self.key.as_deref().is_none_or(|it| it == taint.key)
            && self.value.as_deref().is_none_or(|it| it == taint.value)
    }
}

/// The first untolerated taint with such an effect.
#[must_use]
pub fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
    counts: impl Fn(Effect) -> bool,
) -> Option<&'a Taint> {
    let bad =
        |taint: &&Taint| counts(taint.effect) && !tolerations.iter().any(|it| it.tolerates(taint));
    taints.iter().find(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(json: serde_json::Value) -> Result<Toleration, serde_json::Error> {
        serde_json::from_value::<core::Toleration>(json).map(|it| Toleration::read(&it))
    }

    #[test]
    fn a_toleration_matches_by_key_value_and_effect() -> Result<(), serde_json::Error> {
        let taint = |key: &str, value: &str, effect| Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect,
        };
        let gpu = taint("gpu", "a100", Effect::NoSchedule);
        let cases = [
            (serde_json::json!({"operator": "Exists"}), true),
            (serde_json::json!({"key": "gpu", "operator": "Exists"}), true),
            (serde_json::json!({"key": "gpu", "value": "a100"}), true),
            (serde_json::json!({"key": "gpu", "operator": "Equal", "value": "h100"}), false),
            (serde_json::json!({"key": "gpu"}), false),
            (serde_json::json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), false),
            (serde_json::json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}), true),
            (serde_json::json!({"key": "gpu", "operator": "Near", "value": "a100"}), false),
        ];
        for (json, expected) in cases {
            assert_eq!(toleration(json.clone())?.tolerates(&gpu), expected, "{json}");
        }
        let plain = taint("spare", "", Effect::NoExecute);
        assert!(toleration(serde_json::json!({"key": "spare"}))?.tolerates(&plain));
        Ok(())
    }
}
