//! What pods ask of nodes' facts, as one bit per node: pods of one template share it.
//!
//! A class follows the log of changed facts and looks again only at nodes that changed.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::bits::Bits;
use super::node::{Effect, untolerated};
use super::nodes::Nodes;
use super::pod::Needs;

/// Classes that are kept; beyond it all are made anew.
const KEPT: usize = 512;

/// Which nodes pods of one kind may go to, load and neighbours aside.
#[derive(Clone, Debug, Default)]
struct Class {
    open: Bits,
    /// Nodes with a taint that would rather keep such pods away, and how many such taints.
    shunned: FxHashMap<usize, u32>,
    version: Option<u64>,
}

/// All classes.
#[derive(Clone, Debug, Default)]
pub(super) struct Classes {
    by_needs: FxHashMap<Arc<Needs>, Class>,
}

/// A class that is up to date.
pub(super) struct Open<'a> {
    /// Nodes that pods may go to.
    pub(super) words: &'a [u64],
    /// Nodes that would rather not have them, and by how many taints.
    pub(super) shunned: &'a FxHashMap<usize, u32>,
}

impl Classes {
    /// The class of such needs, brought up to date.
    pub(super) fn get(&mut self, needs: &Arc<Needs>, nodes: &Nodes) -> Open<'_> {
        if self.by_needs.len() >= KEPT && !self.by_needs.contains_key(needs) {
            self.by_needs.clear();
        }
        let class = self.by_needs.entry(Arc::clone(needs)).or_default();
        class.catch_up(needs, nodes);
        Open { words: class.open.words(), shunned: &class.shunned }
    }
}

impl Class {
    fn catch_up(&mut self, needs: &Needs, nodes: &Nodes) {
        if self.version == Some(nodes.version()) {
            return;
        }
        match self.version.and_then(|version| nodes.changed_since(version)) {
            Some(changed) => {
                for place in changed {
                    self.look_at(*place, needs, nodes);
                }
            }
            None => {
                self.open.clear();
                self.shunned.clear();
                for (place, _) in nodes.present() {
                    self.look_at(place, needs, nodes);
                }
            }
        }
        self.version = Some(nodes.version());
    }

    fn look_at(&mut self, place: usize, needs: &Needs, nodes: &Nodes) {
        self.shunned.remove(&place);
        let Some(entry) = nodes.get(place).filter(|entry| !entry.gone) else {
            self.open.set(place, false);
            return;
        };
        let hard = |effect| effect != Effect::PreferNoSchedule;
        let open = needs.selects(&entry.node.name, &entry.node.labels)
            && untolerated(&entry.taints, &needs.tolerations, hard).is_none();
        self.open.set(place, open);
        let soft = entry.taints.iter().filter(|it| it.effect == Effect::PreferNoSchedule);
        let shuns = soft.filter(|it| !needs.tolerations.iter().any(|by| by.tolerates(it))).count();
        if open && shuns > 0 {
            self.shunned.insert(place, u32::try_from(shuns).unwrap_or(u32::MAX));
        }
    }
}
