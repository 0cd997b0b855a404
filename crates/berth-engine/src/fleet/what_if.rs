//! Nodes that are put into the fleet to try something, and taken out again: afterwards everything is
//! as it was, generations included, and followers never learn of it.

use super::Fleet;
use crate::model::{NodeFacts, NodeId};

/// A node that was added or changed to try something. It must be taken back.
#[must_use]
#[derive(Debug)]
pub(crate) struct TriedNode {
    id: NodeId,
    /// What was known of it, and the generation of that; absent where it is new.
    before: Option<(NodeFacts, u64)>,
    generation: u64,
}

impl Fleet {
    /// Adds a node, or changes one, until it is taken back; `None` where the facts cannot be stored.
    pub(crate) fn try_node(&mut self, facts: &NodeFacts) -> Option<TriedNode> {
        let before = self.node(&facts.id).zip(self.constraint_gen(&facts.id));
        let generation = self.generation;
        self.put_node(facts).ok()?;
        Some(TriedNode { id: facts.id.clone(), before, generation })
    }

    /// Takes back what was tried. Of several, the last is taken back first.
    pub(crate) fn take_back_node(&mut self, tried: TriedNode) {
        let TriedNode { id, before, generation } = tried;
        match before {
            None => _ = self.drop_node(&id),
            Some((facts, constraint_gen)) => {
                let restored = self.put_node(&facts).ok();
                let row = restored.and_then(|index| self.rows[index.as_usize()].as_mut());
                if let Some(row) = row {
                    row.constraint_gen = constraint_gen;
                }
            }
        }
        self.generation = generation;
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::Fleet;
    use crate::model::{Amounts, NodeFacts, NodeId, NodeState};

    #[test]
    fn a_node_that_was_tried_leaves_no_trace() {
        let mut fleet = Fleet::new();
        let facts = |name: &str| NodeFacts::new(name, Amounts::new(1000, 1024));
        assert!(fleet.put_node(&facts("a")).is_ok());
        let (before, a) = (fleet.fingerprint(), NodeId::new("a"));
        let generation = fleet.constraint_gen(&a);
        let changed = NodeFacts { state: NodeState::Cordoned, ..facts("a") };
        let tried: Vec<_> =
            [changed, facts("b")].iter().filter_map(|facts| fleet.try_node(facts)).collect();
        assert_eq!((tried.len(), fleet.node_count()), (2, 2));
        assert_ne!(fleet.fingerprint(), before);
        tried.into_iter().rev().for_each(|node| fleet.take_back_node(node));
        assert_eq!(fleet.fingerprint(), before);
        assert_eq!((fleet.node_count(), fleet.constraint_gen(&a)), (1, generation));
        assert!(fleet.put_node(&facts("c")).is_ok());
        assert_eq!(fleet.constraint_gen(&NodeId::new("c")), generation.map(|last| last + 1));
    }
}
