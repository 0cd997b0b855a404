//! Pods come, change and go.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use rustc_hash::FxHashSet;

use super::{Brain, Known};
use crate::cluster::PodState;
use crate::cluster::pod::{Key, Pod};
use crate::scheduler::queue::{Rank, Who};
use crate::scheduler::version;

/// The annotation of a pod that a kubelet made from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

impl Brain {
    /// A pod is as follows, unless something newer is known of it.
    pub(super) fn put_pod(&mut self, pod: &core::Pod) {
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        if self.buried.contains(uid) || self.departed.as_ref().is_some_and(|it| it.contains(uid)) {
            return;
        }
        let told = version::of(&pod.metadata);
        if self.pods.get(uid).is_some_and(|known| version::is_old_news(told, known.version)) {
            return;
        }
        if !self.succeeds(&Key::of(&pod.metadata), uid, told) {
            return;
        }
        let before = self.cluster.pod(uid).cloned();
        let state = self.cluster.put_pod(pod);
        let uid: Arc<str> = uid.into();
        match self.pods.get_mut(&uid) {
            Some(known) => (known.version, known.state) = (told, state),
            None => {
                let annotations = pod.metadata.annotations.as_ref();
                let mirror = annotations.is_some_and(|it| it.contains_key(MIRROR));
                let key = Key::of(&pod.metadata);
                self.pods.insert(Arc::clone(&uid), Known { key, version: told, state, mirror });
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

    /// Whether a pod is the one of its name now. One that had the name before has gone, though nobody
    /// said so.
    fn succeeds(&mut self, key: &Key, uid: &str, told: Option<u64>) -> bool {
        let Some(namesake) = self.cluster.named(key).filter(|it| *it.uid != *uid) else {
            return true;
        };
        let namesake = Arc::clone(&namesake.uid);
        let known = self.pods.get(&namesake).and_then(|it| it.version);
        if version::is_old_news(told, known) {
            return false;
        }
        self.pod_gone(key, &namesake);
        true
    }

    /// A pod has gone.
    pub(super) fn pod_gone(&mut self, key: &Key, uid: &Arc<str>) {
        self.buried.remove(uid);
        if let Some(departed) = &mut self.departed {
            departed.insert(Arc::clone(uid));
        }
        let before = self.cluster.pod(uid).cloned();
        self.dequeue(uid, before.as_deref());
        self.pods.remove(uid);
        self.cluster.remove_pod(key, uid);
    }

    /// Only these pods are there, but for those that are newer.
    pub(super) fn only_these(&mut self, uids: &FxHashSet<Arc<str>>, version: Option<u64>) {
        let gone: Vec<(Key, Arc<str>)> = self
            .pods
            .iter()
            .filter(|(uid, known)| {
                !uids.contains(*uid) && version::is_old_news(known.version, version)
            })
            .map(|(uid, known)| (known.key.clone(), Arc::clone(uid)))
            .collect();
        for (key, uid) in gone {
            self.pod_gone(&key, &uid);
        }
    }

    /// Puts a pod without a place in line, with its gang if it has one.
    pub(super) fn enqueue(&mut self, uid: &Arc<str>, before: Option<&Pod>) {
        let Some(pod) = self.cluster.pod(uid) else { return };
        let Some(gang) = &pod.gang else {
            let who = Who::Pod(Arc::clone(uid));
            let rank = Rank::new(pod.priority, pod.created, pod.key.clone());
            let renewed = before.is_some_and(|before| !asks_the_same(before, pod));
            self.queue.add(who.clone(), rank);
            if renewed {
                self.queue.renew(&who);
            }
            return;
        };
        let key = Key { namespace: Arc::clone(&pod.key.namespace), name: Arc::clone(&gang.name) };
        let members = self.gangs.entry(key.clone()).or_default();
        let is_new = members.insert(Arc::clone(uid), (pod.priority, pod.created)).is_none();
        let renewed = is_new || before.is_some_and(|before| !asks_the_same(before, pod));
        let priority = members.values().map(|it| it.0).max().unwrap_or_default();
        let created = members.values().map(|it| it.1).min().unwrap_or_default();
        let who = Who::Gang(key.clone());
        self.queue.add(who.clone(), Rank::new(priority, created, key));
        if renewed {
            self.queue.renew(&who);
        }
    }

    /// A pod waits for no place any more.
    pub(super) fn dequeue(&mut self, uid: &Arc<str>, before: Option<&Pod>) {
        self.told.remove(uid);
        self.promises.remove(uid);
        self.queue.remove(&Who::Pod(Arc::clone(uid)));
        let Some(before) = before else { return };
        let Some(gang) = &before.gang else { return };
        let key =
            Key { namespace: Arc::clone(&before.key.namespace), name: Arc::clone(&gang.name) };
        let Some(members) = self.gangs.get_mut(&key) else { return };
        members.remove(uid);
        if members.is_empty() {
            self.gangs.remove(&key);
            self.queue.remove(&Who::Gang(key));
        }
    }

    /// The entry in line that a pod belongs to.
    pub(super) fn entry_of(&self, uid: &Arc<str>) -> Who {
        let gang = self.cluster.pod(uid).and_then(|pod| Some((&pod.key, pod.gang.as_ref()?)));
        match gang {
            Some((key, gang)) => Who::Gang(Key {
                namespace: Arc::clone(&key.namespace),
                name: Arc::clone(&gang.name),
            }),
            None => Who::Pod(Arc::clone(uid)),
        }
    }
}

/// Whether nothing differs that could give it a place it was refused.
fn asks_the_same(before: &Pod, after: &Pod) -> bool {
    before.same_rules(after)
        && before.gated == after.gated
        && before.likes == after.likes
        && before.beside == after.beside
        && before.away == after.away
        && before.spread == after.spread
        && before.gang == after.gang
}
