//! A Kubernetes node as the rules see it.

use std::sync::Arc;

use berth_engine::elastic::Size;
use k8s_openapi::api::core::v1 as core;
use serde::Serialize;

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

/// CPU and memory: millicores and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct CpuAndMemory {
    /// Millicores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
}

impl CpuAndMemory {
    fn of(resources: &Resources) -> Self {
        Self { cpu_milli: resources.cpu_milli, memory: resources.memory }
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
    /// What the node has.
    pub capacity: CpuAndMemory,
    /// What of it the node reports to be for pods.
    pub reported: CpuAndMemory,
    /// Resources for pods: what it reports, less what the policy keeps for the system.
    pub allocatable: Resources,
    /// The maximum number of pods.
    pub max_pods: i64,
    /// Images present on the node, by any of their names.
    pub images: Vec<String>,
    /// Features that it declares.
    pub features: Vec<String>,
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
        let allocatable = stated.map(Resources::read).unwrap_or_default();
        let capacity = status.and_then(|it| it.capacity.as_ref()).map(Resources::read);
        let has = |of: fn(&Resources) -> i64| capacity.as_ref().map_or(0, of).max(of(&allocatable));
        Self {
            capacity: CpuAndMemory {
                cpu_milli: has(|it| it.cpu_milli),
                memory: has(|it| it.memory),
            },
            reported: CpuAndMemory::of(&allocatable),
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            labels: Arc::new(node.metadata.labels.clone().unwrap_or_default()),
            taints: spec
                .and_then(|it| it.taints.as_ref())
                .into_iter()
                .flatten()
                .filter_map(read_taint)
                .collect(),
            unschedulable: spec.and_then(|it| it.unschedulable).unwrap_or(false),
            allocatable,
            // A node that does not report a maximum is not ready yet: it takes none.
            max_pods: stated.and_then(pods).unwrap_or(0),
            images: images.flat_map(|it| it.names.clone().unwrap_or_default()).collect(),
            features: status.and_then(|it| it.declared_features.clone()).unwrap_or_default(),
        }
    }

    /// Keeps at least this much of its capacity for the system.
    pub fn keep_for_system(&mut self, system: Size) {
        let (cpu, memory) = (i64::from(system.cpu_milli), i64::from(system.memory_mib) << 20);
        let left = |capacity: i64, kept: i64| capacity.saturating_sub(kept).max(0);
        self.allocatable.cpu_milli =
            self.reported.cpu_milli.min(left(self.capacity.cpu_milli, cpu));
        self.allocatable.memory = self.reported.memory.min(left(self.capacity.memory, memory));
    }

    /// Whether labels, taints, cordon and declared features are the same.
    #[must_use]
    pub fn same_facts(&self, other: &Self) -> bool {
        self.labels == other.labels
            && self.taints == other.taints
            && self.unschedulable == other.unschedulable
            && self.features == other.features
    }

    /// The first of these features that it does not declare.
    #[must_use]
    pub fn missing_feature<'a>(&self, features: &[&'a str]) -> Option<&'a str> {
        let declares = |name: &str| self.features.iter().any(|it| it == name);
        features.iter().copied().find(|name| !declares(name))
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
    /// The values.
    values: TaintValues,
    /// The effect; absent: any.
    effect: Option<String>,
}

/// The values of a taint that a toleration accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TaintValues {
    /// Any.
    Any,
    /// This one.
    Equal(String),
    /// Greater integers.
    Greater(i64),
    /// Smaller integers.
    Less(i64),
    /// None: the operator is unknown, or its value is not an integer.
    Never,
}

impl TaintValues {
    fn read(operator: &str, value: &str) -> Self {
        let integer = || parse_integer(value);
        match operator {
            "Exists" => Self::Any,
            "Equal" | "" => Self::Equal(value.to_owned()),
            "Gt" => integer().map_or(Self::Never, Self::Greater),
            "Lt" => integer().map_or(Self::Never, Self::Less),
            _ => Self::Never,
        }
    }

    fn accept(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Equal(it) => it == value,
            Self::Greater(bound) => parse_integer(value).is_some_and(|it| it > *bound),
            Self::Less(bound) => parse_integer(value).is_some_and(|it| it < *bound),
            Self::Never => false,
        }
    }
}

/// An integer as Kubernetes compares them: of 64 bits, without a plus sign and leading zeros.
fn parse_integer(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

impl Toleration {
    /// Reads a toleration.
    #[must_use]
    pub fn read(toleration: &core::Toleration) -> Self {
        let text = |it: &Option<String>| it.clone().filter(|it| !it.is_empty());
        let (operator, value) = (toleration.operator.as_deref(), toleration.value.as_deref());
        let values = TaintValues::read(operator.unwrap_or_default(), value.unwrap_or_default());
        Self { key: text(&toleration.key), values, effect: text(&toleration.effect) }
    }

    /// Whether it tolerates a taint.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let effect = match taint.effect {
            Effect::NoSchedule => "NoSchedule",
            Effect::PreferNoSchedule => "PreferNoSchedule",
            Effect::NoExecute => "NoExecute",
        };
        self.effect.as_deref().is_none_or(|it| it == effect)
            && self.key.as_deref().is_none_or(|it| it == taint.key)
            && self.values.accept(&taint.value)
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
    fn a_toleration_compares_integers_and_nothing_else() -> Result<(), serde_json::Error> {
        let cases = [
            ("Gt", "900", "950", true),
            ("Gt", "900", "900", false),
            ("Lt", "900", "899", true),
            ("Lt", "900", "900", false),
            ("Lt", "0", "-5", true),
            ("Gt", "9", "10", true),
            ("Gt", "900", "", false),
            ("Gt", "900", "many", false),
            ("Gt", "900", "0950", false),
            ("Gt", "0900", "950", false),
            ("Gt", "900", "+950", false),
            ("Lt", "-1", "-0", false),
            ("Lt", "9", "-99999999999999999999", false),
        ];
        for (operator, than, value, expected) in cases {
            let json = serde_json::json!({"key": "sla", "operator": operator, "value": than});
            let (key, effect) = ("sla".to_owned(), Effect::NoSchedule);
            let taint = Taint { key, value: value.to_owned(), effect };
            let tolerates = toleration(json)?.tolerates(&taint);
            assert_eq!(tolerates, expected, "{operator} {than}: {value}");
        }
        Ok(())
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
