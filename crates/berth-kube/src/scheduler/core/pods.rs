//! Pods are added, updated and deleted: the core's records and the queue follow.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{PodRecord, SchedulerCore};
use crate::cluster::PodState;
use crate::cluster::observed_pod::ObservedPod;
use crate::cluster::pod::{Key, Pod};
use crate::scheduler::pruning::STATIC_POD;
use crate::scheduler::queue::{QueueKey, QueueRank};
use crate::watch::{is_stale, resource_version};

impl SchedulerCore {
    /// Adds or updates a pod, unless a newer version is known.
    pub(super) fn put_pod(&mut self, observed: &ObservedPod) {
        let pod = &observed.pod;
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        let deleted = self.deleted_during_relist.as_ref();
        if self.tombstones.contains(uid) || deleted.is_some_and(|it| it.contains(uid)) {
            return;
        }
        let version = resource_version(&pod.metadata);
        if self.pods.get(uid).is_some_and(|record| is_stale(version, record.version)) {
            return;
        }
        if !self.replace_namesake(&Key::of(&pod.metadata), uid, version) {
            return;
        }
        let before = self.cluster.pod(uid).cloned();
        let state = self.cluster.put_pod(observed);
        // Shared with the cluster's state.
        let known = self.cluster.pod(uid).map(|it| (Arc::clone(&it.uid), it.key.clone()));
        let Some((uid, key)) = known else { return };
        match self.pods.get_mut(&uid) {
            Some(record) => (record.version, record.state) = (version, state),
            None => {
                let annotations = pod.metadata.annotations.as_ref();
                let mirror = annotations.is_some_and(|it| it.contains_key(STATIC_POD));
                let record = PodRecord { key, version, state, mirror, noticed: None };
                self.pods.insert(Arc::clone(&uid), record);
            }
        }
        match state {
            PodState::Pending => self.enqueue(&uid, before.as_deref()),
            PodState::Reserved => {}
            PodState::Bound | PodState::Gated | PodState::Ended | PodState::Foreign => {
                self.dequeue(&uid, before.as_deref());
            }
        }
    }

    /// Deletes an older pod with the same name, whose deletion was not reported. Returns false if the
    /// known pod is the newer one.
    fn replace_namesake(&mut self, key: &Key, uid: &str, version: Option<u64>) -> bool {
        let Some(namesake) = self.cluster.pod_by_name(key).filter(|it| *it.uid != *uid) else {
            return true;
        };
        let namesake = Arc::clone(&namesake.uid);
        let known = self.pods.get(&namesake).and_then(|it| it.version);
        if is_stale(version, known) {
            return false;
        }
        self.delete_pod(key, &namesake);
        true
    }

    /// A pod was deleted.
    pub(super) fn delete_pod(&mut self, key: &Key, uid: &Arc<str>) {
        self.tombstones.remove(uid);
        if let Some(deleted) = &mut self.deleted_during_relist {
            deleted.insert(Arc::clone(uid));
        }
        let before = self.cluster.pod(uid).cloned();
        self.dequeue(uid, before.as_deref());
        self.drains.forget_pod(uid);
        self.pods.remove(uid);
        self.cluster.remove_pod(key, uid);
        self.activate_preemptors_of(uid);
    }

    /// Deletes pods that are not in a complete list, unless they are newer than it.
    pub(super) fn retain_listed_pods(&mut self, uids: &FxHashSet<Arc<str>>, version: Option<u64>) {
        let deleted: Vec<(Key, Arc<str>)> = self
            .pods
            .iter()
            .filter(|(uid, record)| !uids.contains(*uid) && is_stale(record.version, version))
            .map(|(uid, record)| (record.key.clone(), Arc::clone(uid)))
            .collect();
        for (key, uid) in deleted {
            self.delete_pod(&key, &uid);
        }
    }

    /// Queues a pending pod, or its gang if it has one.
    pub(super) fn enqueue(&mut self, uid: &Arc<str>, before: Option<&Pod>) {
        let Some(pod) = self.cluster.pod(uid) else { return };
        let Some(key) = pod.gang_key() else {
            let entry = QueueKey::Pod(Arc::clone(uid));
            let rank = QueueRank::new(pod.priority, pod.created, pod.key.clone());
            let changed = before.is_some_and(|before| !same_scheduling_needs(before, pod));
            self.queue.add(entry.clone(), rank);
            if changed {
                self.queue.reset_backoff(&entry);
            }
            return;
        };
        let members = self.gangs.entry(key.clone()).or_default();
        let is_new = members.insert(Arc::clone(uid), (pod.priority, pod.created)).is_none();
        let changed = is_new || before.is_some_and(|before| !same_scheduling_needs(before, pod));
        let priority = members.values().map(|it| it.0).max().unwrap_or_default();
        let created = members.values().map(|it| it.1).min().unwrap_or_default();
        let entry = QueueKey::Gang(key.clone());
        self.queue.add(entry.clone(), QueueRank::new(priority, created, key));
        if changed {
            self.queue.reset_backoff(&entry);
        }
    }

    /// Removes a pod that is not pending any more from the queue.
    pub(super) fn dequeue(&mut self, uid: &Arc<str>, before: Option<&Pod>) {
        self.last_notices.remove(uid);
        self.deferred_notices.remove(uid);
        self.nominations.remove(uid);
        self.shared_nodes.forget(uid);
        self.queue.remove(&QueueKey::Pod(Arc::clone(uid)));
        let Some(key) = before.and_then(Pod::gang_key) else { return };
        let Some(members) = self.gangs.get_mut(&key) else { return };
        members.remove(uid);
        if members.is_empty() {
            self.gangs.remove(&key);
            self.queue.remove(&QueueKey::Gang(key));
            return;
        }
        // The other members are bound: those that came late are scheduled next.
        let is_reserved = |it: &Arc<str>| {
            self.pods.get(it).is_some_and(|record| record.state == PodState::Reserved)
        };
        if !members.keys().any(is_reserved) {
            self.queue.requeue(&QueueKey::Gang(key));
        }
    }

    /// The queue entry that a pod belongs to.
    pub(super) fn queue_key(&self, uid: &Arc<str>) -> QueueKey {
        let gang = self.cluster.pod(uid).and_then(|pod| pod.gang_key());
        gang.map_or_else(|| QueueKey::Pod(Arc::clone(uid)), QueueKey::Gang)
    }
}

/// Whether an update changed nothing that could make an unschedulable pod schedulable.
fn same_scheduling_needs(before: &Pod, after: &Pod) -> bool {
    before.same_filter_fields(after)
        && before.gated == after.gated
        && before.preferred_nodes == after.preferred_nodes
        && before.required_affinity == after.required_affinity
        && before.anti_affinity == after.anti_affinity
        && before.spread == after.spread
        && before.gang == after.gang
}
