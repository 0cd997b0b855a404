//! The elastic part of a policy: units, watermarks, reserves, classes and migration.
//!
//! Rules for nodes are looked up by their labels whenever they are needed, so a change takes effect
//! with the next request. Only the host's reserve is written to nodes, since guards read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::permit::Grants;
use crate::model::size::{Overcommit, Size};
use crate::model::{Amounts, Elastic, NodeFacts, Watermarks};

/// Shares of a node above which instances should leave, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WatermarkRule {
    /// Of CPU.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
    pub cpu_permille: u16,
    /// Of memory.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
    pub memory_permille: u16,
}

impl Default for WatermarkRule {
    fn default() -> Self {
        Self { cpu_permille: 900, memory_permille: 900 }
    }
}

impl From<Watermarks> for WatermarkRule {
    fn from(marks: Watermarks) -> Self {
        Self { cpu_permille: marks.cpu_permille, memory_permille: marks.memory_permille }
    }
}

/// What a policy says of some nodes. Of several rules for a node the first counts.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NodeRule {
    /// Labels that a node must have, all of them; none: every node.
    pub labels: BTreeMap<String, String>,
    /// Where pressure begins; absent: as the node says, or as for all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark: Option<WatermarkRule>,
    /// What the host keeps for itself, in place of what the node says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Size>,
    /// What grants are multiples of; absent: as for all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_unit: Option<Size>,
}

impl NodeRule {
    fn is_about(&self, facts: &NodeFacts) -> bool {
        self.labels.iter().all(|(key, value)| facts.labels.get(key) == Some(value))
    }
}

/// What a policy says of instances of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct InstanceClass {
    /// How many times what a node has may be given to them, in thousandths.
    pub overcommit_permille: Overcommit,
    /// What grants are multiples of; absent: as on their node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_unit: Option<Size>,
}

/// How nodes under pressure are relieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MigrationSettings {
    /// Whether instances are moved automatically.
    pub enabled: bool,
    /// Most migrations at once from or to one node.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
    pub per_node: u32,
    /// Most migrations at once in the fleet.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100000))]
    pub fleet: u32,
    /// How long an instance is left alone after it was moved.
    #[cfg_attr(feature = "schema", schema(maximum = 31536000))]
    pub cooldown_s: u32,
    /// How long an instance is left alone after its migration failed; twice as long each time.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31536000))]
    pub backoff_s: u32,
    /// How long agents have for a migration before it counts as failed.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31536000))]
    pub timeout_s: u32,
    /// Kubernetes only: whether pods that cannot migrate, but can be resized in place, are evicted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub evict: bool,
}

impl Default for MigrationSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            per_node: 2,
            fleet: 32,
            cooldown_s: 600,
            backoff_s: 60,
            timeout_s: 3600,
            evict: false,
        }
    }
}

/// The elastic part of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ElasticSettings {
    /// How requests that do not fit as a whole are granted.
    pub grants: Grants,
    /// What grants are multiples of.
    pub compute_unit: Size,
    /// Where pressure begins.
    pub watermark: WatermarkRule,
    /// How fast denied requests decay.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 86400))]
    pub pressure_half_life_s: u32,
    /// What holds for some nodes only.
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub nodes: Vec<NodeRule>,
    /// Classes of instances, by the name that instances give.
    pub classes: BTreeMap<String, InstanceClass>,
    /// How nodes under pressure are relieved.
    pub migration: MigrationSettings,
}

impl Default for ElasticSettings {
    fn default() -> Self {
        Self {
            grants: Grants::Joint,
            compute_unit: Size::new(250, 1024),
            watermark: WatermarkRule::default(),
            pressure_half_life_s: 60,
            nodes: Vec::new(),
            classes: BTreeMap::new(),
            migration: MigrationSettings::default(),
        }
    }
}

/// What holds on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeElastic {
    /// What grants are multiples of.
    pub compute_unit: Size,
    /// Where pressure begins.
    pub watermark: WatermarkRule,
    /// What the host keeps by the policy; absent: what it says itself.
    pub system: Option<Size>,
}

impl ElasticSettings {
    /// Most rules about nodes: each is evaluated for each node.
    pub const MAX_RULES: usize = 64;

    /// Whether nothing of it was changed.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// What holds on a node.
    #[must_use]
    pub fn on(&self, facts: &NodeFacts) -> NodeElastic {
        let rule = self.nodes.iter().find(|rule| rule.is_about(facts));
        let stated = (facts.watermarks != Watermarks::default()).then(|| facts.watermarks.into());
        NodeElastic {
            compute_unit: rule.and_then(|rule| rule.compute_unit).unwrap_or(self.compute_unit),
            watermark: rule.and_then(|rule| rule.watermark).or(stated).unwrap_or(self.watermark),
            system: rule.and_then(|rule| rule.system),
        }
    }

    /// What grants to an instance are multiples of, on such a node.
    #[must_use]
    pub fn unit_for(&self, elastic: &Elastic, node: &NodeElastic) -> Size {
        let class = elastic.class.as_ref().and_then(|class| self.classes.get(class));
        let by_class = class.and_then(|class| class.compute_unit);
        elastic.compute_unit.or(by_class).unwrap_or(node.compute_unit)
    }

    /// Names of keys with values that must not be zero or too large: key, value, least and most.
    pub(crate) fn ranged(&self) -> Vec<(String, u32, u32, u32)> {
        let most = Amounts::MAX;
        let mut ranged = Vec::new();
        let mut unit = |key: String, unit: Size| {
            for (name, value) in unit.named() {
                ranged.push((format!("{key}.compute_unit.{name}"), value, 1, most));
            }
        };
        unit("elastic".to_owned(), self.compute_unit);
        for (place, rule) in self.nodes.iter().enumerate() {
            if let Some(of) = rule.compute_unit {
                unit(format!("elastic.nodes[{place}]"), of);
            }
        }
        for (name, class) in &self.classes {
            if let Some(of) = class.compute_unit {
                unit(format!("elastic.classes.{name}"), of);
            }
        }
        let mut mark = |key: String, mark: WatermarkRule| {
            ranged.push((
                format!("{key}.watermark.cpu_permille"),
                mark.cpu_permille.into(),
                1,
                1000,
            ));
            let memory = mark.memory_permille.into();
            ranged.push((format!("{key}.watermark.memory_permille"), memory, 1, 1000));
        };
        mark("elastic".to_owned(), self.watermark);
        for (place, rule) in self.nodes.iter().enumerate() {
            if let Some(of) = rule.watermark {
                mark(format!("elastic.nodes[{place}]"), of);
            }
        }
        for (place, rule) in self.nodes.iter().enumerate() {
            for (name, value) in rule.system.unwrap_or_default().named() {
                ranged.push((format!("elastic.nodes[{place}].system.{name}"), value, 0, most));
            }
        }
        let (year, moves) = (31_536_000, &self.migration);
        let numbers = [
            ("elastic.pressure_half_life_s", self.pressure_half_life_s, 1, 86_400),
            ("elastic.migration.per_node", moves.per_node, 1, 1000),
            ("elastic.migration.fleet", moves.fleet, 1, 100_000),
            ("elastic.migration.cooldown_s", moves.cooldown_s, 0, year),
            ("elastic.migration.backoff_s", moves.backoff_s, 1, year),
            ("elastic.migration.timeout_s", moves.timeout_s, 1, year),
        ];
        ranged
            .extend(numbers.map(|(key, value, least, most)| (key.to_owned(), value, least, most)));
        ranged
    }
}
