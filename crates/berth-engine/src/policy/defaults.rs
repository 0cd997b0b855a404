//! What holds for nodes and instances that do not say otherwise.
//!
//! A server writes the defaults for nodes to their facts, above what they report and below what an
//! operator set, since guards read them there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::model::{Amounts, FactValues, NodeFacts};

/// Defaults for nodes. What is absent stays as each node says.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NodeDefaults {
    /// Labels that a node must have, all of them.
    pub labels: BTreeMap<String, String>,
    /// How often CPU may be promised, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000000))]
    pub cpu_ratio_permille: Option<u32>,
    /// Memory that the hypervisor takes for each instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub vmm_overhead_mib: Option<u32>,
    /// Memory that the host keeps for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub reserved_memory_mib: Option<u32>,
    /// The pool that every instance there takes an address of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 200))]
    pub overlay_pool: Option<String>,
}

impl NodeDefaults {
    fn is_about(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// The defaults of a policy. What is absent stays as nodes and requests say.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// How often CPU may be promised, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000000))]
    pub cpu_ratio_permille: Option<u32>,
    /// Memory that the hypervisor takes for each instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub vmm_overhead_mib: Option<u32>,
    /// Memory that a host keeps for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub reserved_memory_mib: Option<u32>,
    /// Disk of an instance that does not say how much it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub disk_mib: Option<u32>,
    /// The pool that every instance takes an address of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 200))]
    pub overlay_pool: Option<String>,
    /// What holds for nodes with such labels in place of the above; the first rule that fits counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub nodes: Vec<NodeDefaults>,
}

impl Defaults {
    /// Most rules about nodes: each is evaluated for each node.
    pub const MAX_RULES: usize = 64;

    /// Whether it says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn rule(&self, labels: &BTreeMap<String, String>) -> Option<&NodeDefaults> {
        self.nodes.iter().find(|rule| rule.is_about(labels))
    }

    /// The defaults for a node, as values of its facts.
    #[must_use]
    pub fn values_for(&self, facts: &NodeFacts) -> FactValues {
        let rule = self.rule(&facts.labels);
        let of = |by_rule: fn(&NodeDefaults) -> Option<u32>, all: Option<u32>| {
            rule.and_then(by_rule).or(all)
        };
        let values = [
            ("ratios.cpu_permille", of(|rule| rule.cpu_ratio_permille, self.cpu_ratio_permille)),
            (
                "system_reserve.memory_mib",
                of(|rule| rule.reserved_memory_mib, self.reserved_memory_mib),
            ),
            ("vmm_overhead_mib", of(|rule| rule.vmm_overhead_mib, self.vmm_overhead_mib)),
        ];
        let stated = values.into_iter().filter_map(|(path, value)| Some((path, value?)));
        stated.map(|(path, value)| (path.to_owned(), json!(value))).collect()
    }

    /// The pool that every instance takes an address of, on a node with these labels.
    #[must_use]
    pub fn overlay_pool(&self, labels: &BTreeMap<String, String>) -> Option<&str> {
        let by_rule = self.rule(labels).and_then(|rule| rule.overlay_pool.as_deref());
        by_rule.or(self.overlay_pool.as_deref())
    }

    /// Whether some instances must take an address of a pool.
    #[must_use]
    pub fn has_overlay_pool(&self) -> bool {
        self.overlay_pool.is_some() || self.nodes.iter().any(|rule| rule.overlay_pool.is_some())
    }

    /// Keys with a range: key, value, least and most.
    pub(crate) fn ranged(&self) -> Vec<(String, u32, u32, u32)> {
        let numbers =
            |key: &str, ratio: Option<u32>, overhead: Option<u32>, memory: Option<u32>| {
                [
                    (format!("{key}.cpu_ratio_permille"), ratio.unwrap_or(1), 1, 1_000_000),
                    (format!("{key}.vmm_overhead_mib"), overhead.unwrap_or(0), 0, Amounts::MAX),
                    (format!("{key}.reserved_memory_mib"), memory.unwrap_or(0), 0, Amounts::MAX),
                ]
            };
        let (ratio, overhead) = (self.cpu_ratio_permille, self.vmm_overhead_mib);
        let mut ranged = numbers("defaults", ratio, overhead, self.reserved_memory_mib).to_vec();
        ranged.push(("defaults.disk_mib".to_owned(), self.disk_mib.unwrap_or(0), 0, Amounts::MAX));
        for (place, rule) in self.nodes.iter().enumerate() {
            let (ratio, overhead) = (rule.cpu_ratio_permille, rule.vmm_overhead_mib);
            let key = format!("defaults.nodes[{place}]");
            ranged.extend(numbers(&key, ratio, overhead, rule.reserved_memory_mib));
        }
        ranged
    }

    /// Names of pools, with their keys.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (String, &str)> {
        let all =
            self.overlay_pool.as_deref().map(|pool| ("defaults.overlay_pool".to_owned(), pool));
        let rules = self.nodes.iter().enumerate().filter_map(|(place, rule)| {
            let pool = rule.overlay_pool.as_deref()?;
            Some((format!("defaults.nodes[{place}].overlay_pool"), pool))
        });
        all.into_iter().chain(rules)
    }
}
