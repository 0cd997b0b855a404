//! Objects come and go: what the API server tells, taken into the books.
//!
//! A pod counts on its node from the moment a place is reserved for it until it has ended or is
//! gone; who bound it does not matter.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;

use super::facts;
use super::node::Node;
use super::pod::{Key, Pod};
use super::pods::{PodEntry, PodState};
use super::resources::Resources;
use super::selector::Labels;
use super::terms::Step;
use super::volumes::Volumes;
use super::{Cluster, outcome, vm};

impl Cluster {
    /// Takes in a node as it is now.
    pub fn put_node(&mut self, node: &core::Node) {
        let node = Node::read(node);
        let known = self.nodes.find(&node.name).and_then(|place| self.nodes.get(place));
        if known.is_some_and(|known| !known.gone && known.node == node) {
            return;
        }
        self.news = true;
        self.changes += 1;
        let name = Arc::clone(&node.name);
        let moved = known.is_none_or(|known| known.gone || known.node.labels != node.labels);
        let was_there = known.is_some_and(|known| !known.gone);
        let old = self.nodes.find(&name);
        if let Some(old) = old.filter(|_| moved && was_there) {
            self.recount(old, Step::Go);
        }
        if self.engine.fleet_mut().add_node(&facts::of_node(&node)).is_err() {
            tracing::warn!(node = &*name, "the node's facts cannot be kept");
        }
        let Some(place) = self.engine.fleet().position_of(&facts::node_id(&name)) else { return };
        // Where a node is in the columns depends on its zone, which may have changed.
        if let Some(old) = old.filter(|old| *old != place) {
            self.topologies.place(old, None);
            self.nodes.relocate(old, place);
            for uid in self.nodes.get(place).map(|it| it.pods.clone()).unwrap_or_default() {
                self.pods.get_mut(&uid).into_iter().for_each(|it| it.at = Some(place));
            }
        }
        self.topologies.place(place, Some(&node.labels));
        self.nodes.put(place, node);
        if old.is_some() && moved {
            self.recount(place, Step::Come);
        }
        for uid in self.pods.found(&name) {
            self.attach(&uid, place);
        }
    }

    /// A node is gone. Pods that are still bound to it count nowhere until it is back; a place that
    /// is held there stays held until it is known what became of it.
    pub fn remove_node(&mut self, name: &str) {
        let Some(place) = self.nodes.find(name) else { return };
        let Some(entry) = self.nodes.get(place).filter(|it| !it.gone) else { return };
        let (name, uids) = (Arc::clone(&entry.node.name), entry.pods.clone());
        for uid in uids {
            if self.pods.get(&uid).is_some_and(|it| !it.reserved) {
                self.detach(&uid);
                self.pods.lose(&uid, &name);
            }
        }
        // A domain may go with it, and with the domain what kept others from spreading.
        self.news = true;
        self.changes += 1;
        self.recount(place, Step::Go);
        self.topologies.place(place, None);
        self.nodes.mark_gone(place);
        self.forget_empty();
    }

    /// Takes in a pod as it is now, and says where it stands.
    pub fn put_pod(&mut self, pod: &core::Pod) -> PodState {
        let pod = Arc::new(Pod::read(pod));
        // Another pod of the same name: the older one is gone, though nobody said so.
        if let Some(other) = self.pods.named(&pod.key).map(|it| Arc::clone(&it.pod.uid))
            && other != pod.uid
        {
            self.forget_pod(&other);
        }
        let state = match self.pods.get(&pod.uid) {
            None => self.take_in(pod),
            Some(known) if *known.pod == *pod => known.state(&self.settings.scheduler),
            Some(known) if known.pod.same_rules(&pod) => self.update(pod),
            Some(_) => self.replace(pod),
        };
        self.forget_empty();
        state
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, key: &Key, uid: &str) {
        let is_it = self.pods.get(uid).is_some_and(|entry| entry.pod.key == *key);
        if is_it {
            self.forget_pod(uid);
            self.forget_empty();
        }
    }

    /// Tells of a namespace and its labels.
    pub fn put_namespace(&mut self, name: &str, labels: &Labels) {
        if self.terms.put_namespace(name, Some(labels), &self.topologies) {
            self.news = true;
            self.changes += 1;
        }
    }

    /// A namespace is gone.
    pub fn remove_namespace(&mut self, name: &str) {
        if self.terms.put_namespace(name, None, &self.topologies) {
            self.news = true;
            self.changes += 1;
        }
    }

    /// Takes in a disruption budget.
    pub fn put_budget(&mut self, budget: &policy::PodDisruptionBudget) {
        self.budgets.put(budget);
    }

    /// A disruption budget is gone.
    pub fn remove_budget(&mut self, key: &Key) {
        self.budgets.remove(key);
    }

    /// What is known of volumes.
    pub fn volumes(&mut self) -> &mut Volumes {
        &mut self.volumes
    }

    /// Whether anything since the last call may let a pod fit that was refused.
    pub fn take_news(&mut self) -> bool {
        let volumes = self.volumes.take_news();
        let news = std::mem::take(&mut self.news) || volumes;
        // Whoever is refused again says so again.
        self.waits_for_others &= !news;
        news
    }

    /// Pods that may be placed now.
    pub fn pending(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let pending = self.pods.iter().filter(|it| it.is_pending(&self.settings.scheduler));
        pending.map(|it| &it.pod)
    }

    /// How many nodes and pods are known.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.count(), self.pods.len())
    }

    /// The pod of a name, as it was told last.
    #[must_use]
    pub fn named(&self, key: &Key) -> Option<&Arc<Pod>> {
        self.pods.named(key).map(|entry| &entry.pod)
    }

    /// A pod as it was told last.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.get(uid).map(|entry| &entry.pod)
    }

    /// Undoes a reservation.
    pub fn give_up(&mut self, uid: &str) {
        let Some(entry) = self.pods.get(uid).filter(|entry| entry.reserved) else { return };
        if entry.pod.node.is_none() {
            let uid = Arc::clone(&entry.pod.uid);
            self.detach(&uid);
            // What it was told it may have, it may have again.
            self.settle(&uid);
            self.forget_empty();
        }
    }

    /// Undoes a promise that was made when others were told to go.
    pub fn forget_promise(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let Some(node) = entry.promised.take() else { return };
        if let Some(list) = self.promises.get_mut(&node) {
            list.retain(|it| **it != *uid);
            if list.is_empty() {
                self.promises.remove(&node);
            }
        }
        self.news = true;
        self.changes += 1;
    }

    /// Promises a node to a pod, instead of the one it was promised.
    pub fn promise(&mut self, uid: &str, node: &Arc<str>) {
        self.forget_promise(uid);
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.promised = Some(Arc::clone(node));
            let uid = Arc::clone(&entry.pod.uid);
            self.promises.entry(Arc::clone(node)).or_default().push(uid);
            self.changes += 1;
        }
    }

    /// Pods that a node was promised to and that are not there yet.
    pub(super) fn promised_to(&self, place: usize) -> impl Iterator<Item = &PodEntry> {
        let name = if self.promises.is_empty() { None } else { self.nodes.get(place) };
        let uids = name.and_then(|entry| self.promises.get(&entry.node.name));
        let entries = uids.into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        entries.filter(|entry| entry.at.is_none() && entry.pod.counts())
    }
}

impl Cluster {
    fn take_in(&mut self, pod: Arc<Pod>) -> PodState {
        let carried = self.terms.carry(&pod, &mut self.topologies);
        if let Some(set) = self.terms.set(carried.set) {
            self.spreads.set_came(carried.set, set);
        }
        let permit = self.first_permit(&pod);
        let asked = vm::charge(&pod, permit.as_ref());
        let uid = Arc::clone(&pod.uid);
        let (at, reserved, promised) = (None, false, None);
        self.pods.insert(PodEntry { pod, asked, permit, carried, at, reserved, promised });
        self.settle(&uid)
    }

    /// Only what its life brings differs.
    fn update(&mut self, pod: Arc<Pod>) -> PodState {
        let uid = Arc::clone(&pod.uid);
        let Some(entry) = self.pods.get_mut(&uid) else { return PodState::Ended };
        // Another bound it, and may have let it grow since.
        let found = entry.pod.node.is_none() && pod.node.is_some() && !entry.reserved;
        let told = pod.nominated.clone();
        let other = entry.pod.nominated != told && entry.promised != told;
        entry.pod = Arc::clone(&pod);
        if other {
            // What is told now holds, though we promised something else.
            self.forget_promise(&uid);
        }
        if found {
            self.set_permit(&uid, self.first_permit(&pod));
        }
        self.settle(&uid)
    }

    /// The rules see another pod.
    fn replace(&mut self, pod: Arc<Pod>) -> PodState {
        let uid = Arc::clone(&pod.uid);
        let (place, reserved) =
            self.pods.get(&uid).map_or((None, false), |it| (it.at, it.reserved));
        let permit = self.pods.get(&uid).and_then(|it| it.permit);
        let same = |it: &&PodEntry| it.pod.nominated == pod.nominated && !pod.deleting;
        let promised = self.pods.get(&uid).filter(same).and_then(|it| it.promised.clone());
        self.forget_pod(&uid);
        self.take_in(pod);
        if permit.is_some() {
            self.set_permit(&uid, permit);
        }
        if let Some(node) = promised {
            self.promise(&uid, &node);
        }
        // A place that is held is not lost because a label changed.
        let lost = self.pods.get(&uid).is_some_and(|it| it.at.is_none() && it.pod.counts());
        if let Some(place) = place.filter(|_| lost && reserved) {
            self.attach(&uid, place);
            self.pods.get_mut(&uid).into_iter().for_each(|it| it.reserved = it.at.is_some());
        }
        self.pods.get(&uid).map_or(PodState::Ended, |it| it.state(&self.settings.scheduler))
    }

    /// Puts a pod where it says it is.
    fn settle(&mut self, uid: &Arc<str>) -> PodState {
        let Some(entry) = self.pods.get(uid) else { return PodState::Ended };
        let (pod, at) = (Arc::clone(&entry.pod), entry.at);
        if !pod.counts() {
            self.detach(uid);
            self.forget_promise(uid);
        } else if let Some(node) = &pod.node {
            let place = self.nodes.find(node);
            let place = place.filter(|it| self.nodes.get(*it).is_some_and(|it| !it.gone));
            match (at, place) {
                (Some(at), Some(place)) if at == place => {}
                (_, Some(place)) => {
                    self.detach(uid);
                    self.attach(uid, place);
                }
                (_, None) => {
                    self.detach(uid);
                    self.pods.lose(uid, node);
                }
            }
            self.forget_promise(uid);
            if let Some(entry) = self.pods.get_mut(uid).filter(|it| it.reserved) {
                entry.reserved = false;
                // From now on it could be told to go.
                self.changes += 1;
            }
        } else if let Some(node) = &pod.nominated
            && self.pods.get(uid).is_some_and(|it| it.promised.is_none() && it.at.is_none())
            && !pod.deleting
        {
            // Told before we came: by another of us, or by whoever makes room from outside.
            self.promise(uid, node);
        }
        self.pods.get(uid).map_or(PodState::Ended, |it| it.state(&self.settings.scheduler))
    }

    fn forget_pod(&mut self, uid: &str) {
        self.forget_promise(uid);
        self.detach(uid);
        let Some(entry) = self.pods.remove(uid) else { return };
        let set = entry.carried.set;
        self.terms.drop_carried(&entry.carried);
        if self.terms.set(set).is_none() {
            self.spreads.set_went(set);
        }
    }

    /// Counts a pod on a node.
    pub(super) fn attach(&mut self, uid: &str, place: usize) {
        let Some(entry) = self.pods.get_mut(uid).filter(|entry| entry.at.is_none()) else { return };
        let Some(node) = self.nodes.get_mut(place) else { return };
        if !entry.pod.counts() {
            return;
        }
        entry.at = Some(place);
        *self.priorities.entry(entry.pod.priority).or_default() += 1;
        self.changes += 1;
        node.used.add(&entry.asked, 1);
        node.pods.push(Arc::clone(&entry.pod.uid));
        node.ports.extend(entry.pod.ports.iter().cloned());
        let id = facts::node_id(&node.node.name);
        // It can only fail for a pod that is there already, and then it is.
        let _ = self.engine.fleet_mut().claim(&facts::of_pod(entry), &id);
        if !node.gone {
            let stays = !entry.pod.deleting;
            self.terms.count(&entry.carried, place, stays, Step::Come, &self.topologies);
            if stays {
                self.spreads.count(entry.carried.set, place, Step::Come, &self.topologies);
            }
            // Whoever waits for others to be somewhere may have waited for this one.
            let set = entry.carried.set;
            self.news |=
                self.waits_for_others && (self.terms.concerns(set) || self.spreads.concerns(set));
        }
        if !entry.pod.claims.is_empty() {
            self.volumes.reserve(&entry.pod, &node.node);
        }
    }

    /// Counts a pod no longer.
    pub(super) fn detach(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let Some(place) = entry.at.take() else { return };
        entry.reserved = false;
        if let Some(count) = self.priorities.get_mut(&entry.pod.priority) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&entry.pod.priority);
            }
        }
        self.changes += 1;
        let mut there = false;
        if let Some(node) = self.nodes.get_mut(place) {
            there = !node.gone;
            node.used.add(&entry.asked, -1);
            node.pods.retain(|it| **it != *uid);
            for port in &entry.pod.ports {
                if let Some(at) = node.ports.iter().position(|it| it == port) {
                    node.ports.swap_remove(at);
                }
            }
        }
        self.engine.fleet_mut().release(entry.pod.id);
        let stays = !entry.pod.deleting;
        if there {
            self.terms.count(&entry.carried, place, stays, Step::Go, &self.topologies);
        }
        if there && stays {
            self.spreads.count(entry.carried.set, place, Step::Go, &self.topologies);
        }
        if !entry.pod.claims.is_empty() {
            self.volumes.release(&entry.pod);
        }
        self.news = true;
    }

    /// Counts every pod of a node among neighbours, or no longer: its domains change.
    fn recount(&mut self, place: usize, step: Step) {
        let uids = self.nodes.get(place).map(|it| it.pods.clone()).unwrap_or_default();
        for uid in uids {
            let Some(entry) = self.pods.get(&uid) else { continue };
            let stays = !entry.pod.deleting;
            self.terms.count(&entry.carried, place, stays, step, &self.topologies);
            if stays {
                self.spreads.count(entry.carried.set, place, step, &self.topologies);
            }
        }
    }

    /// Forgets nodes that are gone, once nothing is held there any more.
    fn forget_empty(&mut self) {
        for place in self.nodes.gone_and_empty() {
            if let Some(entry) = self.nodes.get(place) {
                self.engine.fleet_mut().remove_node(&facts::node_id(&entry.node.name));
            }
            self.topologies.place(place, None);
            self.nodes.remove(place);
        }
    }

    /// Changes what a pod is charged.
    pub(super) fn charge(&mut self, uid: &str, asked: Resources) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.asked == asked {
            return;
        }
        if let Some(node) = entry.at.and_then(|place| self.nodes.get_mut(place)) {
            node.used.add(&entry.asked, -1);
            node.used.add(&asked, 1);
            self.engine.fleet_mut().resize(entry.pod.id, facts::amounts(&asked));
        }
        entry.asked = asked;
        self.changes += 1;
        self.news = true;
    }
}

/// A place that is held for a pod, as the caller is told.
pub(super) fn reservation(
    entry: &PodEntry,
    node: &Arc<str>,
    volumes: outcome::VolumePlan,
) -> outcome::Reservation {
    let (pod, uid) = (entry.pod.key.clone(), Arc::clone(&entry.pod.uid));
    outcome::Reservation { pod, uid, node: Arc::clone(node), volumes }
}
