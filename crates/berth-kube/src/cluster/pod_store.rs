//! Pods by uid, with their state.

use std::sync::Arc;

use berth_engine::elastic::Permit;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::pod::{Key, Pod};
use super::pod_affinity::PodTerms;
use super::resources::Resources;

/// A pod with its state.
#[derive(Clone, Debug)]
pub(super) struct PodEntry {
    /// The pod as last reported.
    pub(super) pod: Arc<Pod>,
    /// The resources it is charged: its requests, or what its virtual machine uses.
    pub(super) requested: Resources,
    /// How large it may be, if it is elastic.
    pub(super) permit: Option<Permit>,
    /// Whether a permit is being written: it counts as the larger one until then.
    pub(super) permit_write: bool,
    /// Its affinity terms.
    pub(super) pod_terms: PodTerms,
    /// The index of the node that it is accounted on.
    pub(super) assigned: Option<usize>,
    /// Whether it is only reserved there, and not yet bound.
    pub(super) reserved: bool,
    /// The node that is nominated for it after a preemption.
    pub(super) nominated: Option<Arc<str>>,
}

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PodState {
    /// It waits for a node.
    Pending,
    /// It has scheduling gates.
    Gated,
    /// It is bound.
    Bound,
    /// A node is reserved for it.
    Reserved,
    /// It succeeded or failed.
    Ended,
    /// It waits for another scheduler.
    Foreign,
}

/// All pods.
#[derive(Clone, Debug, Default)]
pub(super) struct PodStore {
    all: FxHashMap<Arc<str>, PodEntry>,
    by_key: FxHashMap<Key, Arc<str>>,
    /// Pods that are bound to unknown nodes.
    orphans: FxHashMap<Arc<str>, Vec<Arc<str>>>,
    /// Pods of each gang, by namespace and gang name.
    gangs: FxHashMap<Key, Vec<Arc<str>>>,
}

impl PodStore {
    /// The pod with a uid.
    pub(super) fn get(&self, uid: &str) -> Option<&PodEntry> {
        self.all.get(uid)
    }

    /// The pod with a uid, to change it.
    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut PodEntry> {
        self.all.get_mut(uid)
    }

    /// The pod with a name.
    pub(super) fn by_name(&self, key: &Key) -> Option<&PodEntry> {
        self.all.get(self.by_key.get(key)?)
    }

    /// All pods.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PodEntry> {
        self.all.values()
    }

    /// The pods of a gang.
    pub(super) fn gang(&self, key: &Key) -> impl Iterator<Item = &PodEntry> {
        let uids = self.gangs.get(key).into_iter().flatten();
        uids.filter_map(|uid| self.all.get(uid))
    }

    /// The number of pods.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a pod.
    pub(super) fn insert(&mut self, entry: PodEntry) {
        self.by_key.insert(entry.pod.key.clone(), Arc::clone(&entry.pod.uid));
        if let Some(key) = entry.pod.gang_key() {
            self.gangs.entry(key).or_default().push(Arc::clone(&entry.pod.uid));
        }
        self.all.insert(Arc::clone(&entry.pod.uid), entry);
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &str) -> Option<PodEntry> {
        let entry = self.all.remove(uid)?;
        if let Some(key) = entry.pod.gang_key()
            && let Some(members) = self.gangs.get_mut(&key)
        {
            members.retain(|it| **it != *uid);
            if members.is_empty() {
                self.gangs.remove(&key);
            }
        }
        // Another pod may have the name by now.
        if self.by_key.get(&entry.pod.key).is_some_and(|it| **it == *uid) {
            self.by_key.remove(&entry.pod.key);
        }
        Some(entry)
    }

    /// Records that a pod is bound to an unknown node.
    pub(super) fn add_orphan(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        let orphans = self.orphans.entry(Arc::clone(node)).or_default();
        if !orphans.contains(uid) {
            orphans.push(Arc::clone(uid));
        }
    }

    /// Takes the pods that were bound to a node before it was known.
    pub(super) fn take_orphans(&mut self, node: &str) -> Vec<Arc<str>> {
        self.orphans.remove(node).unwrap_or_default()
    }
}

impl PodEntry {
    /// Its state.
    pub(super) fn state(&self, scheduler: &str) -> PodState {
        match (self.pod.ended, self.pod.node.is_some(), self.assigned.is_some()) {
            (true, _, _) => PodState::Ended,
            (false, true, _) => PodState::Bound,
            (false, false, true) => PodState::Reserved,
            (false, false, false) if *self.pod.scheduler != *scheduler => PodState::Foreign,
            (false, false, false) if self.pod.gated => PodState::Gated,
            (false, false, false) => PodState::Pending,
        }
    }

    /// Whether it can be scheduled: ours, not gated, without a node, and not terminating.
    pub(super) fn is_pending(&self, scheduler: &str) -> bool {
        self.state(scheduler) == PodState::Pending && !self.pod.deleting
    }
}
