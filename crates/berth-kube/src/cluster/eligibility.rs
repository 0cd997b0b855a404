//! Which nodes satisfy a pod's node requirements, as one bit per node: pods of one template share it.
//!
//! An entry follows the log of changed nodes and evaluates only those again.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::node::{Effect, untolerated};
use super::node_store::NodeStore;
use super::pod::NodeRequirements;

/// Entries that are kept; beyond this, all are dropped.
const ENTRIES_MAX: usize = 512;

/// The nodes that satisfy one set of requirements, resources and other pods aside.
#[derive(Clone, Debug, Default)]
struct EligibleSet {
    eligible: NodeBits,
    /// Nodes with untolerated `PreferNoSchedule` taints, and their number.
    prefer_no_schedule: FxHashMap<usize, u32>,
    version: Option<u64>,
}

/// The cache.
#[derive(Clone, Debug, Default)]
pub(super) struct EligibilityCache {
    by_requirements: FxHashMap<Arc<NodeRequirements>, EligibleSet>,
}

/// The nodes that satisfy requirements now.
pub(super) struct EligibleNodes<'a> {
    /// One bit per node.
    pub(super) words: &'a [u64],
    /// Nodes with untolerated `PreferNoSchedule` taints, and their number.
    pub(super) prefer_no_schedule: &'a FxHashMap<usize, u32>,
}

impl EligibilityCache {
    /// The nodes that satisfy these requirements, brought up to date.
    pub(super) fn get(
        &mut self,
        requirements: &Arc<NodeRequirements>,
        nodes: &NodeStore,
    ) -> EligibleNodes<'_> {
        if self.by_requirements.len() >= ENTRIES_MAX
            && !self.by_requirements.contains_key(requirements)
        {
            self.by_requirements.clear();
        }
        let set = self.by_requirements.entry(Arc::clone(requirements)).or_default();
        set.refresh(requirements, nodes);
        EligibleNodes { words: set.eligible.words(), prefer_no_schedule: &set.prefer_no_schedule }
    }
}

impl EligibleSet {
    fn refresh(&mut self, requirements: &NodeRequirements, nodes: &NodeStore) {
        if self.version == Some(nodes.version()) {
            return;
        }
        match self.version.and_then(|version| nodes.changed_since(version)) {
            Some(changed) => {
                for index in changed {
                    self.evaluate_node(*index, requirements, nodes);
                }
            }
            None => {
                self.eligible.clear();
                self.prefer_no_schedule.clear();
                for (index, _) in nodes.present() {
                    self.evaluate_node(index, requirements, nodes);
                }
            }
        }
        self.version = Some(nodes.version());
    }

    fn evaluate_node(&mut self, index: usize, requirements: &NodeRequirements, nodes: &NodeStore) {
        self.prefer_no_schedule.remove(&index);
        let Some(entry) = nodes.get(index).filter(|entry| !entry.deleted) else {
            self.eligible.set(index, false);
            return;
        };
        let hard = |effect| effect != Effect::PreferNoSchedule;
        let eligible = requirements.selects(&entry.node.name, &entry.node.labels)
            && untolerated(&entry.taints, &requirements.tolerations, hard).is_none()
            && entry.node.missing_feature(&requirements.features).is_none();
        self.eligible.set(index, eligible);
        let soft = entry.taints.iter().filter(|it| it.effect == Effect::PreferNoSchedule);
        let untolerated =
            soft.filter(|it| !requirements.tolerations.iter().any(|by| by.tolerates(it))).count();
        if eligible && untolerated > 0 {
            self.prefer_no_schedule.insert(index, u32::try_from(untolerated).unwrap_or(u32::MAX));
        }
    }
}

/// Whether the bit of a node is set.
pub(super) fn has_bit(words: &[u64], index: usize) -> bool {
    words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

/// A bit set by node index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeBits(Vec<u64>);

impl NodeBits {
    /// The bit of a node.
    pub(super) fn get(&self, index: usize) -> bool {
        has_bit(&self.0, index)
    }

    /// Sets the bit of a node.
    pub(super) fn set(&mut self, index: usize, on: bool) {
        let word = index / 64;
        if word >= self.0.len() {
            if !on {
                return;
            }
            self.0.resize(word + 1, 0);
        }
        let bit = 1 << (index % 64);
        if on {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    /// Clears all bits.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The bits as words.
    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }
}
