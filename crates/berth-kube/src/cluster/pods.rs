//! Pods by uid, and where each stands.

use std::sync::Arc;

use berth_engine::elastic::Permit;
use rustc_hash::FxHashMap;

use super::pod::{Key, Pod};
use super::resources::Resources;
use super::terms::Carried;

/// A pod and where it stands.
#[derive(Clone, Debug)]
pub(super) struct PodEntry {
    /// The pod as it was told last.
    pub(super) pod: Arc<Pod>,
    /// What it is charged: what it asks for, or what its virtual machine uses.
    pub(super) asked: Resources,
    /// How large its virtual machine may be, if it runs one that is known.
    pub(super) permit: Option<Permit>,
    /// The rules that it carries.
    pub(super) carried: Carried,
    /// The place of the node that it counts on.
    pub(super) at: Option<usize>,
    /// Whether that is a place held for it, and not yet seen to be bound.
    pub(super) reserved: bool,
    /// The node that it was promised, when others were told to go.
    pub(super) promised: Option<Arc<str>>,
}

/// Where a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// It waits for a node.
    Pending,
    /// It waits for its gates to open.
    Gated,
    /// It is bound.
    Bound,
    /// A node is held for it.
    Reserved,
    /// It has ended.
    Ended,
    /// It waits, for another scheduler.
    Foreign,
}

/// All pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    all: FxHashMap<Arc<str>, PodEntry>,
    by_key: FxHashMap<Key, Arc<str>>,
    /// Pods that are bound to nodes that nobody told of.
    lost: FxHashMap<Arc<str>, Vec<Arc<str>>>,
    /// Pods of each gang, by namespace and the gang's name.
    gangs: FxHashMap<Key, Vec<Arc<str>>>,
}

impl Pods {
    /// A pod.
    pub(super) fn get(&self, uid: &str) -> Option<&PodEntry> {
        self.all.get(uid)
    }

    /// The same, to change.
    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut PodEntry> {
        self.all.get_mut(uid)
    }

    /// The pod of a name.
    pub(super) fn named(&self, key: &Key) -> Option<&PodEntry> {
        self.all.get(self.by_key.get(key)?)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PodEntry> {
        self.all.values()
    }

    /// The pods of a gang.
    pub(super) fn gang(&self, key: &Key) -> impl Iterator<Item = &PodEntry> {
        let uids = self.gangs.get(key).into_iter().flatten();
        uids.filter_map(|uid| self.all.get(uid))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Takes a pod in.
    pub(super) fn insert(&mut self, entry: PodEntry) {
        self.by_key.insert(entry.pod.key.clone(), Arc::clone(&entry.pod.uid));
        if let Some(key) = gang_of(&entry.pod) {
            self.gangs.entry(key).or_default().push(Arc::clone(&entry.pod.uid));
        }
        self.all.insert(Arc::clone(&entry.pod.uid), entry);
    }

    /// Takes a pod out.
    pub(super) fn remove(&mut self, uid: &str) -> Option<PodEntry> {
        let entry = self.all.remove(uid)?;
        if let Some(key) = gang_of(&entry.pod)
            && let Some(members) = self.gangs.get_mut(&key)
        {
            members.retain(|it| **it != *uid);
            if members.is_empty() {
                self.gangs.remove(&key);
            }
        }
        // A namesake may have come meanwhile.
        if self.by_key.get(&entry.pod.key).is_some_and(|it| **it == *uid) {
            self.by_key.remove(&entry.pod.key);
        }
        Some(entry)
    }

    /// Notes that a pod is on a node that is not known.
    pub(super) fn lose(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        let lost = self.lost.entry(Arc::clone(node)).or_default();
        if !lost.contains(uid) {
            lost.push(Arc::clone(uid));
        }
    }

    /// The pods that were on a node before it was known.
    pub(super) fn found(&mut self, node: &str) -> Vec<Arc<str>> {
        self.lost.remove(node).unwrap_or_default()
    }
}

fn gang_of(pod: &Pod) -> Option<Key> {
    let gang = pod.gang.as_ref()?;
    Some(Key { namespace: Arc::clone(&pod.key.namespace), name: Arc::clone(&gang.name) })
}

impl PodEntry {
    /// Where it stands.
    pub(super) fn state(&self, scheduler: &str) -> PodState {
        match (self.pod.ended, self.pod.node.is_some(), self.at.is_some()) {
            (true, _, _) => PodState::Ended,
            (false, true, _) => PodState::Bound,
            (false, false, true) => PodState::Reserved,
            (false, false, false) if self.pod.scheduler != scheduler => PodState::Foreign,
            (false, false, false) if self.pod.gated => PodState::Gated,
            (false, false, false) => PodState::Pending,
        }
    }

    /// Whether it may be placed: ours, not gated, nowhere, and not about to go.
    pub(super) fn is_pending(&self, scheduler: &str) -> bool {
        self.state(scheduler) == PodState::Pending && !self.pod.deleting
    }
}
