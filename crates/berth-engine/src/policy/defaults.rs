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
    /// The nodes; absent: all with these labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 1000))]
    pub names: Vec<String>,
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
    /// Whether instances there take no address of the overlay pool of all nodes.
    #[serde(skip_serializing_if = "is_false")]
    pub no_overlay_pool: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl NodeDefaults {
    fn is_about(&self, facts: &NodeFacts) -> bool {
        let is_named = || self.names.iter().any(|name| *name == *facts.id.as_str());
        (self.names.is_empty() || is_named()) && has_all(&facts.labels, &self.labels)
    }
}

/// Defaults for instances. What is absent stays as for all.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct InstanceDefaults {
    /// Tags that an instance must have, all of them.
    pub tags: BTreeMap<String, String>,
    /// Disk of an instance that does not say how much it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub disk_mib: Option<u32>,
}

/// Whether there are all of some labels or tags.
fn has_all(all: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| all.get(key) == Some(value))
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
    /// What holds for instances with such tags in place of the above; the first rule that fits counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub instances: Vec<InstanceDefaults>,
}

impl Defaults {
    /// Most rules about nodes, and as many about instances: each is evaluated for each of them.
    pub const MAX_RULES: usize = 64;
    /// Most nodes that one rule names.
    pub const MAX_NAMES: usize = 1000;

    /// Whether it says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn rule(&self, facts: &NodeFacts) -> Option<&NodeDefaults> {
        self.nodes.iter().find(|rule| rule.is_about(facts))
    }

    /// Disk of an instance with these tags that does not say how much it needs.
    #[must_use]
    pub fn disk_mib(&self, tags: &BTreeMap<String, String>) -> Option<u32> {
        let rule = self.instances.iter().find(|rule| has_all(tags, &rule.tags));
        rule.and_then(|rule| rule.disk_mib).or(self.disk_mib)
    }

    /// The defaults for a node, as values of its facts.
    #[must_use]
    pub fn values_for(&self, facts: &NodeFacts) -> FactValues {
        let rule = self.rule(facts);
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

    /// The pool that every instance takes an address of, on this node.
    #[must_use]
    pub fn overlay_pool(&self, facts: &NodeFacts) -> Option<&str> {
        let rule = self.rule(facts);
        let of_all = self.overlay_pool.as_deref();
        let of_all = of_all.filter(|_| !rule.is_some_and(|rule| rule.no_overlay_pool));
        rule.and_then(|rule| rule.overlay_pool.as_deref()).or(of_all)
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
        for (place, rule) in self.instances.iter().enumerate() {
            let key = format!("defaults.instances[{place}].disk_mib");
            ranged.push((key, rule.disk_mib.unwrap_or(0), 0, Amounts::MAX));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use super::*;

    fn facts(id: &str, class: &str) -> NodeFacts {
        let mut facts = NodeFacts::new(id, Amounts::new(1000, 1000));
        facts.labels.insert("class".to_owned(), class.to_owned());
        facts
    }

    #[test]
    fn a_class_or_a_node_can_be_exempt_from_the_overlay_pool() {
        let defaults: Defaults = serde_json::from_value(json!({
            "cpu_ratio_permille": 2000,
            "overlay_pool": "overlay",
            "nodes": [
                {"names": ["n1"], "overlay_pool": "own", "cpu_ratio_permille": 1000},
                {"names": ["n2"], "labels": {"class": "dense"}, "no_overlay_pool": true},
                {"labels": {"class": "bare"}, "no_overlay_pool": true},
            ],
        }))
        .unwrap();
        let pool =
            |id: &str, class: &str| defaults.overlay_pool(&facts(id, class)).map(ToOwned::to_owned);
        assert_eq!(pool("n1", "bare").as_deref(), Some("own"), "the first rule counts");
        assert_eq!(pool("n2", "dense"), None);
        assert_eq!(pool("n2", "other").as_deref(), Some("overlay"), "labels and name must fit");
        assert_eq!(pool("n3", "bare"), None);
        assert_eq!(pool("n3", "dense").as_deref(), Some("overlay"));
        let ratio = |id: &str| defaults.values_for(&facts(id, "x"))["ratios.cpu_permille"].clone();
        assert_eq!((ratio("n1"), ratio("n2")), (json!(1000), json!(2000)));
        assert!(defaults.has_overlay_pool());
    }

    #[test]
    fn disk_varies_by_tags() {
        let defaults: Defaults = serde_json::from_value(json!({
            "disk_mib": 4096,
            "instances": [
                {"tags": {"class": "large", "db": "yes"}, "disk_mib": 65536},
                {"tags": {"class": "large"}, "disk_mib": 16384},
                {"tags": {"class": "odd"}},
            ],
        }))
        .unwrap();
        let disk = |tags: &[(&str, &str)]| {
            let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            defaults.disk_mib(&tags.collect())
        };
        assert_eq!(disk(&[("class", "large"), ("db", "yes")]), Some(65536));
        assert_eq!(disk(&[("class", "large")]), Some(16384));
        assert_eq!(disk(&[("class", "odd")]), Some(4096), "what a rule leaves out is as for all");
        assert_eq!(disk(&[]), Some(4096));
    }

    #[test]
    fn rules_without_the_new_keys_are_written_as_before() {
        let text = r#"{"overlay_pool":"o","nodes":[{"labels":{"a":"b"},"vmm_overhead_mib":1}]}"#;
        let defaults: Defaults = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&defaults).unwrap(), text);
    }
}
