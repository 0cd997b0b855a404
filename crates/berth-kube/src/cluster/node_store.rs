//! Nodes and what is used on each, by the engine's node index.

use std::sync::Arc;

use berth_engine::elastic::NodeElastic;
use rustc_hash::FxHashMap;

use super::node::{Effect, Node, Taint};
use super::pod::Port;
use super::resources::Resources;
use super::ties::{self, TieBreaker};

/// A node and what is used on it.
#[derive(Clone, Debug)]
pub(super) struct NodeEntry {
    /// The node as last reported.
    pub(super) node: Node,
    /// The hash of its name, for ties.
    pub(super) name_hash: u64,
    /// Its taints, including the one for being cordoned.
    pub(super) taints: Vec<Taint>,
    /// The sum of its pods' requests.
    pub(super) used: Resources,
    /// Its pods, by uid.
    pub(super) pods: Vec<Arc<str>>,
    /// Host ports in use.
    pub(super) ports: Vec<Port>,
    /// What the policy says of it.
    pub(super) elastic: NodeElastic,
    /// Whether the node object was deleted while pods are still accounted on it.
    pub(super) deleted: bool,
}

/// The taint of a cordoned node; pods that tolerate it may still be placed.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

impl NodeEntry {
    fn new(node: Node, elastic: NodeElastic) -> Self {
        let taints = taints(&node);
        let (used, pods, ports) = (Resources::default(), Vec::new(), Vec::new());
        let name_hash = ties::name_hash(&node.name);
        Self { node, name_hash, taints, used, pods, ports, elastic, deleted: false }
    }

    fn update(&mut self, node: Node, elastic: NodeElastic) {
        self.taints = taints(&node);
        self.elastic = elastic;
        self.node = node;
        self.deleted = false;
    }
}

fn taints(node: &Node) -> Vec<Taint> {
    let mut taints = node.taints.clone();
    if node.unschedulable && !taints.iter().any(is_cordon) {
        let (key, value) = (CORDONED.to_owned(), String::new());
        taints.push(Taint { key, value, effect: Effect::NoSchedule });
    }
    taints
}

/// Whether a taint only says that the node is cordoned.
pub(super) fn is_cordon(taint: &Taint) -> bool {
    taint.key == CORDONED && taint.effect == Effect::NoSchedule
}

/// All nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeStore {
    all: Vec<Option<NodeEntry>>,
    by_name: FxHashMap<Arc<str>, usize>,
    /// Indexes of nodes that were deleted; some may be back.
    deleted: Vec<usize>,
    /// Indexes of nodes whose labels or taints changed, in order.
    changes: Vec<usize>,
    version: u64,
}

impl NodeStore {
    /// The index of a node.
    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The node at an index, which may be deleted.
    pub(super) fn get(&self, index: usize) -> Option<&NodeEntry> {
        self.all.get(index)?.as_ref()
    }

    /// The slot of an index, which may be empty; `None`: there are no more.
    pub(super) fn slot(&self, index: usize) -> Option<Option<&NodeEntry>> {
        self.all.get(index).map(Option::as_ref)
    }

    /// The node at an index, to change its account.
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut NodeEntry> {
        self.all.get_mut(index)?.as_mut()
    }

    /// The rank of a node among those of one score.
    pub(super) fn tie_rank(&self, ties: TieBreaker, index: usize) -> u64 {
        self.get(index).map_or(0, |it| ties.rank(it.name_hash))
    }

    /// Nodes that exist.
    pub(super) fn present(&self) -> impl Iterator<Item = (usize, &NodeEntry)> {
        let all = self.all.iter().enumerate().filter_map(|(index, it)| Some((index, it.as_ref()?)));
        all.filter(|(_, entry)| !entry.deleted)
    }

    /// The number of nodes that exist.
    pub(super) fn count(&self) -> usize {
        self.present().count()
    }

    /// Increases whenever labels or taints of a node change.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Indexes of nodes that changed since a version; absent: too many.
    pub(super) fn changed_since(&self, version: u64) -> Option<&[usize]> {
        let behind = usize::try_from(self.version.checked_sub(version)?).ok()?;
        self.changes.get(self.changes.len().checked_sub(behind)?..)
    }

    /// Sets the node at an index.
    pub(super) fn put(&mut self, index: usize, node: Node, elastic: NodeElastic) {
        if index >= self.all.len() {
            self.all.resize(index + 1, None);
        }
        self.by_name.insert(Arc::clone(&node.name), index);
        let same = match &mut self.all[index] {
            Some(entry) => {
                let same = !entry.deleted && entry.node.same_facts(&node);
                entry.update(node, elastic);
                same
            }
            empty => {
                *empty = Some(NodeEntry::new(node, elastic));
                false
            }
        };
        if !same {
            self.record_change(index);
        }
    }

    /// Moves a node to another index, which is free.
    pub(super) fn move_node(&mut self, from: usize, to: usize) {
        let Some(entry) = self.all.get_mut(from).and_then(Option::take) else { return };
        if to >= self.all.len() {
            self.all.resize(to + 1, None);
        }
        self.by_name.insert(Arc::clone(&entry.node.name), to);
        self.all[to] = Some(entry);
        self.record_change(from);
        self.record_change(to);
    }

    /// Marks a node as deleted; its pods are still accounted there.
    pub(super) fn mark_deleted(&mut self, index: usize) {
        if let Some(entry) = self.get_mut(index) {
            entry.deleted = true;
            self.deleted.push(index);
            self.record_change(index);
        }
    }

    /// Deleted nodes on which nothing is accounted.
    pub(super) fn deleted_and_unused(&mut self) -> Vec<usize> {
        if self.deleted.is_empty() {
            return Vec::new();
        }
        let all = &self.all;
        let at = |index: usize| all.get(index).and_then(Option::as_ref).filter(|it| it.deleted);
        self.deleted.retain(|index| at(*index).is_some());
        self.deleted
            .iter()
            .copied()
            .filter(|it| at(*it).is_some_and(|it| it.pods.is_empty()))
            .collect()
    }

    /// Removes a node.
    pub(super) fn remove(&mut self, index: usize) {
        if let Some(entry) = self.all.get_mut(index).and_then(Option::take) {
            self.by_name.remove(&entry.node.name);
            self.record_change(index);
        }
    }

    fn record_change(&mut self, index: usize) {
        const CHANGES_MAX: usize = 1 << 17;
        if self.changes.len() >= CHANGES_MAX {
            self.changes.drain(..CHANGES_MAX / 2);
        }
        self.changes.push(index);
        self.version += 1;
    }
}
