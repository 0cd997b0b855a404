//! Nodes by their place, with what is used on each. Places are the engine's.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::node::{Effect, Node, Taint};
use super::pod::Port;
use super::resources::Resources;

/// A node and what is used on it.
#[derive(Clone, Debug)]
pub(super) struct NodeEntry {
    /// The node as it was told last.
    pub(super) node: Node,
    /// Its taints, being cordoned among them.
    pub(super) taints: Vec<Taint>,
    /// What its pods ask for together.
    pub(super) used: Resources,
    /// Its pods, by uid.
    pub(super) pods: Vec<Arc<str>>,
    /// Ports of the host that are in use.
    pub(super) ports: Vec<Port>,
    /// Whether the API server has it no longer, though pods are still bound to it.
    pub(super) gone: bool,
}

/// The taint that stands for being cordoned: whoever tolerates it may come all the same.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

impl NodeEntry {
    fn new(node: Node) -> Self {
        let taints = taints(&node);
        let (used, pods, ports) = (Resources::default(), Vec::new(), Vec::new());
        Self { node, taints, used, pods, ports, gone: false }
    }

    fn update(&mut self, node: Node) {
        self.taints = taints(&node);
        self.node = node;
        self.gone = false;
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
pub(super) struct Nodes {
    all: Vec<Option<NodeEntry>>,
    by_name: FxHashMap<Arc<str>, usize>,
    /// Places of nodes that were gone, though some may be back.
    gone: Vec<usize>,
    /// Places whose facts changed, in the order in which they did.
    changes: Vec<usize>,
    version: u64,
}

impl Nodes {
    /// A node's place.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The node at a place, though it may be gone.
    pub(super) fn get(&self, place: usize) -> Option<&NodeEntry> {
        self.all.get(place)?.as_ref()
    }

    /// The same, to change what is used there.
    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut NodeEntry> {
        self.all.get_mut(place)?.as_mut()
    }

    /// Nodes that are there.
    pub(super) fn present(&self) -> impl Iterator<Item = (usize, &NodeEntry)> {
        let all = self.all.iter().enumerate().filter_map(|(place, it)| Some((place, it.as_ref()?)));
        all.filter(|(_, entry)| !entry.gone)
    }

    /// How many are there.
    pub(super) fn count(&self) -> usize {
        self.present().count()
    }

    /// Rises whenever a node's facts change.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Places whose facts changed since a version; absent: too many to tell.
    pub(super) fn changed_since(&self, version: u64) -> Option<&[usize]> {
        let behind = usize::try_from(self.version.checked_sub(version)?).ok()?;
        self.changes.get(self.changes.len().checked_sub(behind)?..)
    }

    /// Puts a node at a place.
    pub(super) fn put(&mut self, place: usize, node: Node) {
        if place >= self.all.len() {
            self.all.resize(place + 1, None);
        }
        self.by_name.insert(Arc::clone(&node.name), place);
        let same = match &mut self.all[place] {
            Some(entry) => {
                let same = !entry.gone && entry.node.same_facts(&node);
                entry.update(node);
                same
            }
            empty => {
                *empty = Some(NodeEntry::new(node));
                false
            }
        };
        if !same {
            self.note(place);
        }
    }

    /// Moves a node to another place, which is empty.
    pub(super) fn relocate(&mut self, from: usize, to: usize) {
        let Some(entry) = self.all.get_mut(from).and_then(Option::take) else { return };
        if to >= self.all.len() {
            self.all.resize(to + 1, None);
        }
        self.by_name.insert(Arc::clone(&entry.node.name), to);
        self.all[to] = Some(entry);
        self.note(from);
        self.note(to);
    }

    /// Marks a node as gone; its pods are still counted there.
    pub(super) fn mark_gone(&mut self, place: usize) {
        if let Some(entry) = self.get_mut(place) {
            entry.gone = true;
            self.gone.push(place);
            self.note(place);
        }
    }

    /// Nodes that are gone and on which nothing is held.
    pub(super) fn gone_and_empty(&mut self) -> Vec<usize> {
        if self.gone.is_empty() {
            return Vec::new();
        }
        let all = &self.all;
        let at = |place: usize| all.get(place).and_then(Option::as_ref).filter(|it| it.gone);
        self.gone.retain(|place| at(*place).is_some());
        self.gone
            .iter()
            .copied()
            .filter(|it| at(*it).is_some_and(|it| it.pods.is_empty()))
            .collect()
    }

    /// Forgets a node.
    pub(super) fn remove(&mut self, place: usize) {
        if let Some(entry) = self.all.get_mut(place).and_then(Option::take) {
            self.by_name.remove(&entry.node.name);
            self.note(place);
        }
    }

    fn note(&mut self, place: usize) {
        const MOST: usize = 1 << 17;
        if self.changes.len() >= MOST {
            self.changes.drain(..MOST / 2);
        }
        self.changes.push(place);
        self.version += 1;
    }
}
