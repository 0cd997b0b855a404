//! Keeps the cluster state current as API objects are created, updated and deleted.
//!
//! A pod is accounted on its node from its reservation until it has ended or is deleted; which
//! scheduler bound it does not matter.

use std::sync::Arc;

use berth_ledger::invariant;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;

use super::devices::Devices;
use super::elastic::account::node_elastic;
use super::elastic::source;
use super::engine_types;
use super::node::Node;
use super::observed_pod::ObservedPod;
use super::pod::{Key, Pod};
use super::pod_affinity::CountChange;
use super::pod_groups::GroupKind;
use super::pod_store::{PodEntry, PodState};
use super::resources::Resources;
use super::selector::Labels;
use super::volumes::Volumes;
use super::{Cluster, outcome};

impl Cluster {
    /// Adds or updates a node.
    pub fn put_node(&mut self, node: &core::Node) {
        let node = self.with_policy_reserve(Node::read(node));
        self.put_read_node(node, false);
    }

    /// Reads all nodes again after a change of the policy.
    pub(super) fn apply_policy_to_nodes(&mut self) {
        let nodes: Vec<Node> = self.nodes.present().map(|(_, it)| it.node.clone()).collect();
        for node in nodes {
            let node = self.with_policy_reserve(node);
            self.put_read_node(node, true);
        }
    }

    fn put_read_node(&mut self, node: Node, is_policy_new: bool) {
        let known = self.nodes.index_of(&node.name).and_then(|index| self.nodes.get(index));
        if !is_policy_new && known.is_some_and(|known| !known.deleted && known.node == node) {
            return;
        }
        let name = Arc::clone(&node.name);
        let moved = known.is_none_or(|known| known.deleted || known.node.labels != node.labels);
        let was_there = known.is_some_and(|known| !known.deleted);
        self.mark_changed();
        let old = self.nodes.index_of(&name);
        if let Some(old) = old.filter(|_| moved && was_there) {
            self.recount(old, CountChange::Remove);
        }
        if self.engine.fleet_mut().add_node(&engine_types::node_facts(&node)).is_err() {
            tracing::warn!(node = &*name, "failed to add node to the engine");
        }
        let Some(index) = self.engine.fleet().position_of(&engine_types::node_id(&name)) else {
            return;
        };
        // A node's index in the columns depends on its zone, which may have changed.
        if let Some(old) = old.filter(|old| *old != index) {
            self.topologies.set_node(old, None);
            self.nodes.move_node(old, index);
            self.unstated.move_node(old, index);
            for uid in self.nodes.get(index).map(|it| it.pods.clone()).unwrap_or_default() {
                self.pods.get_mut(&uid).into_iter().for_each(|it| it.assigned = Some(index));
            }
        }
        self.topologies.set_node(index, Some(&node.labels));
        let elastic = node_elastic(self.settings.policy.elastic(), &node);
        self.unstated.refresh(index, &node);
        self.nodes.put(index, node, elastic);
        if old.is_some() && moved {
            self.recount(index, CountChange::Add);
        }
        let orphans = self.pods.take_orphans(&name);
        let has_orphans = !orphans.is_empty();
        for uid in orphans {
            self.account(&uid, index);
        }
        if has_orphans {
            self.check_node_load(index);
        }
    }

    /// Deletes a node. Pods bound to it are accounted nowhere until it is back; reservations on it stay
    /// until their outcome is known.
    pub fn remove_node(&mut self, name: &str) {
        let Some(index) = self.nodes.index_of(name) else { return };
        let Some(entry) = self.nodes.get(index).filter(|it| !it.deleted) else { return };
        let (name, uids) = (Arc::clone(&entry.node.name), entry.pods.clone());
        for uid in uids {
            if self.pods.get(&uid).is_some_and(|it| !it.reserved) {
                self.unaccount(&uid);
                self.pods.add_orphan(&uid, &name);
            }
        }
        // A domain may go with it, and with the domain a limit on the spreading of other pods.
        self.mark_changed();
        self.recount(index, CountChange::Remove);
        self.topologies.set_node(index, None);
        self.nodes.mark_deleted(index);
        self.purge_deleted_nodes();
    }

    /// Adds or updates a pod, and returns its state.
    pub fn put_pod(&mut self, pod: &ObservedPod) -> PodState {
        let mut pod = Pod::read(pod);
        self.interner.share(&mut pod);
        if let Some(known) = self.pods.get(&pod.uid) {
            pod.uid = Arc::clone(&known.pod.uid);
            if pod.key == known.pod.key {
                pod.key = known.pod.key.clone();
            }
        }
        let pod = Arc::new(pod);
        let (uid, is_machine) = (Arc::clone(&pod.uid), pod.vm.is_some());
        // A pod with the same name and another uid: the deletion of the older one was not reported.
        if let Some(other) = self.pods.by_name(&pod.key).map(|it| Arc::clone(&it.pod.uid))
            && other != pod.uid
        {
            self.delete_pod(&other);
        }
        let known = self.pods.get(&pod.uid);
        // A running pod that was resized is the kubelet's business.
        let is_bound_now = pod.uses_node() && known.is_none_or(|known| known.pod.node.is_none());
        let node = pod.node.clone().filter(|_| is_bound_now);
        let state = match known {
            None => self.add_pod(pod),
            Some(known) if *known.pod == *pod => known.state(&self.settings.scheduler),
            Some(known) if known.pod.same_filter_fields(&pod) => self.update_pod(pod),
            Some(_) => self.replace_pod(pod),
        };
        if state == PodState::Pending && is_machine {
            self.nominate_migration_target(&uid);
        }
        if let Some(index) = node.and_then(|node| self.nodes.index_of(&node)) {
            self.check_node_load(index);
        }
        self.purge_deleted_nodes();
        state
    }

    /// Deletes a pod.
    pub fn remove_pod(&mut self, key: &Key, uid: &str) {
        let is_it = self.pods.get(uid).is_some_and(|entry| entry.pod.key == *key);
        if is_it {
            self.delete_pod(uid);
            self.purge_deleted_nodes();
        }
    }

    /// Adds or updates an object that defines groups of pods.
    pub fn put_group(&mut self, kind: GroupKind, object: &serde_json::Value) {
        if self.groups.put(kind, object) {
            self.mark_changed();
        }
    }

    /// Removes an object that defines groups of pods.
    pub fn remove_group(&mut self, kind: GroupKind, key: &Key) {
        self.groups.remove(kind, key);
        self.mark_changed();
    }

    /// Adds or updates a namespace and its labels.
    pub fn put_namespace(&mut self, name: &str, labels: &Labels) {
        if self.affinity.put_namespace(name, Some(labels), &self.topologies) {
            self.mark_changed();
        }
    }

    /// Deletes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        if self.affinity.put_namespace(name, None, &self.topologies) {
            self.mark_changed();
        }
    }

    /// Adds or updates a disruption budget.
    pub fn put_budget(&mut self, budget: &policy::PodDisruptionBudget) {
        self.budgets.put(budget);
    }

    /// Deletes a disruption budget.
    pub fn remove_budget(&mut self, key: &Key) {
        self.budgets.remove(key);
    }

    /// The state of volumes.
    pub fn volumes(&mut self) -> &mut Volumes {
        &mut self.volumes
    }

    /// The state of devices.
    pub fn devices(&mut self) -> &mut Devices {
        &mut self.devices
    }

    /// The reservation of a pod was handed to the executor.
    pub fn mark_submitted(&mut self, uid: &str) {
        let Some(entry) = self.pods.get(uid).filter(|it| !it.pod.device_claims.is_empty()) else {
            return;
        };
        self.devices.mark_submitted(entry.pod.id);
    }

    /// Claims that keep a refused pod from being scheduled, and are to be deallocated.
    pub fn release_stuck_claims(&mut self, uid: &str) -> Vec<outcome::ClaimRelease> {
        let pod = self.pods.get(uid).filter(|it| !it.pod.device_claims.is_empty());
        pod.map(|it| self.devices.release_stuck_claims(&it.pod)).unwrap_or_default()
    }

    /// Whether anything since the last call may make an unschedulable pod schedulable.
    pub fn take_changed(&mut self) -> bool {
        let volumes = self.volumes.take_changed();
        let devices = self.devices.take_changed();
        let changed = std::mem::take(&mut self.changed) || volumes || devices;
        // Pods that are refused again set it again.
        self.waits_for_others &= !changed;
        changed
    }

    /// The number of nodes and pods.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.count(), self.pods.len())
    }

    /// The pod with this name.
    #[must_use]
    pub fn pod_by_name(&self, key: &Key) -> Option<&Arc<Pod>> {
        self.pods.by_name(key).map(|entry| &entry.pod)
    }

    /// The pod with this uid.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.get(uid).map(|entry| &entry.pod)
    }

    /// Undoes a reservation.
    pub fn unreserve(&mut self, uid: &str) {
        let Some(entry) = self.pods.get(uid).filter(|entry| entry.reserved) else { return };
        if entry.pod.node.is_none() {
            let uid = Arc::clone(&entry.pod.uid);
            self.unaccount(&uid);
            // An earlier nomination counts again.
            self.reconcile_assignment(&uid);
            self.purge_deleted_nodes();
        }
    }

    /// Clears the nomination of a pod.
    pub fn clear_nomination(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let Some(node) = entry.nominated.take() else { return };
        if let Some(list) = self.nominations.get_mut(&node) {
            list.retain(|it| **it != *uid);
            if list.is_empty() {
                self.nominations.remove(&node);
            }
        }
        self.mark_changed();
    }

    /// Nominates a node for a pod, replacing an earlier nomination.
    pub fn nominate(&mut self, uid: &str, node: &Arc<str>) {
        self.clear_nomination(uid);
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.nominated = Some(Arc::clone(node));
            let uid = Arc::clone(&entry.pod.uid);
            self.nominations.entry(Arc::clone(node)).or_default().push(uid);
            self.generation += 1;
        }
    }

    /// Pods that are nominated to a node and not accounted yet.
    pub(super) fn nominated_to(&self, index: usize) -> impl Iterator<Item = &PodEntry> {
        let name = if self.nominations.is_empty() { None } else { self.nodes.get(index) };
        let uids = name.and_then(|entry| self.nominations.get(&entry.node.name));
        let entries = uids.into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        entries.filter(|entry| entry.assigned.is_none() && entry.pod.uses_node())
    }
}

impl Cluster {
    fn add_pod(&mut self, pod: Arc<Pod>) -> PodState {
        let pod_terms = self.affinity.add_pod(&pod, &mut self.topologies);
        if let Some(set) = self.affinity.set(pod_terms.set) {
            self.spreads.add_set(pod_terms.set, set);
        }
        let permit = self.refreshed_permit(&pod, None);
        self.elastic.in_use |= permit.is_some();
        let requested = source::charge(&pod, permit.as_ref());
        let uid = Arc::clone(&pod.uid);
        let (assigned, reserved, nominated) = (None, false, None);
        self.pods.insert(PodEntry {
            pod,
            requested,
            permit,
            permit_write: false,
            pod_terms,
            assigned,
            reserved,
            nominated,
        });
        self.reconcile_assignment(&uid)
    }

    /// Updates fields that the filters do not look at.
    fn update_pod(&mut self, pod: Arc<Pod>) -> PodState {
        let uid = Arc::clone(&pod.uid);
        let Some(entry) = self.pods.get_mut(&uid) else { return PodState::Ended };
        // If another scheduler bound it, its virtual machine may have grown since.
        let found = entry.pod.node.is_none() && pod.node.is_some() && !entry.reserved;
        let reported = pod.nominated_node.clone();
        let other = entry.pod.nominated_node != reported && entry.nominated != reported;
        entry.pod = Arc::clone(&pod);
        if other {
            // The nomination in the API server wins over ours.
            self.clear_nomination(&uid);
        }
        if found {
            self.set_permit(&uid, self.refreshed_permit(&pod, None));
        }
        self.reconcile_assignment(&uid)
    }

    /// Replaces a pod whose fields differ that the filters look at.
    fn replace_pod(&mut self, pod: Arc<Pod>) -> PodState {
        let uid = Arc::clone(&pod.uid);
        let (index, reserved) =
            self.pods.get(&uid).map_or((None, false), |it| (it.assigned, it.reserved));
        let known = self.pods.get(&uid).map(|it| (it.permit, it.permit_write));
        let (permit, permit_write) = known.unwrap_or_default();
        let same = |it: &&PodEntry| it.pod.nominated_node == pod.nominated_node && !pod.deleting;
        let nominated = self.pods.get(&uid).filter(same).and_then(|it| it.nominated.clone());
        self.delete_pod(&uid);
        self.add_pod(pod);
        if permit.is_some() {
            self.pods.get_mut(&uid).into_iter().for_each(|it| it.permit_write = permit_write);
            let current = self.pods.get(&uid).map(|it| Arc::clone(&it.pod));
            let permit = current.and_then(|pod| self.refreshed_permit(&pod, permit));
            self.set_permit(&uid, permit);
        }
        if let Some(node) = nominated {
            self.nominate(&uid, &node);
        }
        // A change of a label does not end a reservation.
        let is_unassigned =
            self.pods.get(&uid).is_some_and(|it| it.assigned.is_none() && it.pod.uses_node());
        if let Some(index) = index.filter(|_| is_unassigned && reserved) {
            self.account(&uid, index);
            self.pods.get_mut(&uid).into_iter().for_each(|it| it.reserved = it.assigned.is_some());
        }
        self.pods.get(&uid).map_or(PodState::Ended, |it| it.state(&self.settings.scheduler))
    }

    /// Accounts a pod on the node that it is bound or nominated to.
    fn reconcile_assignment(&mut self, uid: &Arc<str>) -> PodState {
        let Some(entry) = self.pods.get(uid) else { return PodState::Ended };
        let (pod, at) = (Arc::clone(&entry.pod), entry.assigned);
        if !pod.uses_node() {
            self.unaccount(uid);
            self.clear_nomination(uid);
        } else if let Some(node) = &pod.node {
            let index = self.nodes.index_of(node);
            let index = index.filter(|it| self.nodes.get(*it).is_some_and(|it| !it.deleted));
            match (at, index) {
                (Some(at), Some(index)) if at == index => {}
                (_, Some(index)) => {
                    self.unaccount(uid);
                    self.account(uid, index);
                }
                (_, None) => {
                    self.unaccount(uid);
                    self.pods.add_orphan(uid, node);
                }
            }
            self.clear_nomination(uid);
            if let Some(entry) = self.pods.get_mut(uid).filter(|it| it.reserved) {
                entry.reserved = false;
                // From now on it can be preempted.
                self.generation += 1;
            }
        } else if let Some(node) = &pod.nominated_node
            && self.pods.get(uid).is_some_and(|it| it.nominated.is_none() && it.assigned.is_none())
            && !pod.deleting
        {
            // Nominated by a previous leader, or by another component.
            self.nominate(uid, node);
        }
        self.pods.get(uid).map_or(PodState::Ended, |it| it.state(&self.settings.scheduler))
    }

    fn delete_pod(&mut self, uid: &str) {
        self.clear_nomination(uid);
        self.unaccount(uid);
        let Some(entry) = self.pods.remove(uid) else { return };
        let set = entry.pod_terms.set;
        self.affinity.remove_pod(&entry.pod_terms);
        if self.affinity.set(set).is_none() {
            self.spreads.remove_set(set);
        }
    }

    /// Accounts a pod on a node.
    pub(super) fn account(&mut self, uid: &str, index: usize) {
        let Some(entry) = self.pods.get_mut(uid).filter(|entry| entry.assigned.is_none()) else {
            return;
        };
        let Some(node) = self.nodes.get_mut(index) else { return };
        if !entry.pod.uses_node() {
            return;
        }
        entry.assigned = Some(index);
        *self.priorities.entry(entry.pod.priority).or_default() += 1;
        self.generation += 1;
        node.used.add(&entry.requested, 1);
        self.unstated.add(index, &node.node, &entry.requested, 1);
        node.pods.push(Arc::clone(&entry.pod.uid));
        node.ports.extend(entry.pod.ports.iter().cloned());
        let id = engine_types::node_id(&node.node.name);
        let claimed = self.engine.fleet_mut().claim(&engine_types::instance_request(entry), &id);
        // A node that was deleted has no room to account for.
        let is_claimed = claimed.is_ok() || node.deleted;
        invariant!(is_claimed, "pod_is_accounted_once", pod = entry.pod.uid, claimed);
        if !node.deleted {
            let stays = !entry.pod.deleting;
            self.affinity.count_pod(
                &entry.pod_terms,
                index,
                stays,
                CountChange::Add,
                &self.topologies,
            );
            if stays {
                self.spreads.count_pod(
                    entry.pod_terms.set,
                    index,
                    CountChange::Add,
                    &self.topologies,
                );
            }
            // A pod that waits for others to be somewhere may have waited for this one.
            let set = entry.pod_terms.set;
            self.changed |= self.waits_for_others
                && (self.affinity.is_relevant(set) || self.spreads.is_relevant(set));
        }
        if !entry.pod.claims.is_empty() {
            self.volumes.reserve(&entry.pod, &node.node);
        }
        if !entry.pod.device_claims.is_empty() {
            self.devices.reserve(&entry.pod, &node.node);
        }
    }

    /// Removes a pod from the account of its node.
    pub(super) fn unaccount(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let Some(index) = entry.assigned.take() else { return };
        entry.reserved = false;
        if let Some(count) = self.priorities.get_mut(&entry.pod.priority) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&entry.pod.priority);
            }
        }
        self.generation += 1;
        let mut present = false;
        if let Some(node) = self.nodes.get_mut(index) {
            present = !node.deleted;
            node.used.add(&entry.requested, -1);
            self.unstated.add(index, &node.node, &entry.requested, -1);
            node.pods.retain(|it| **it != *uid);
            for port in &entry.pod.ports {
                if let Some(at) = node.ports.iter().position(|it| it == port) {
                    node.ports.swap_remove(at);
                }
            }
        }
        self.engine.fleet_mut().release(entry.pod.id);
        let stays = !entry.pod.deleting;
        if present {
            self.affinity.count_pod(
                &entry.pod_terms,
                index,
                stays,
                CountChange::Remove,
                &self.topologies,
            );
        }
        if present && stays {
            self.spreads.count_pod(
                entry.pod_terms.set,
                index,
                CountChange::Remove,
                &self.topologies,
            );
        }
        if !entry.pod.claims.is_empty() {
            self.volumes.release(&entry.pod);
        }
        if !entry.pod.device_claims.is_empty() {
            self.devices.release(&entry.pod);
        }
        self.changed = true;
    }

    /// Adds or removes all pods of a node to the counts per domain, because its domains change.
    fn recount(&mut self, index: usize, step: CountChange) {
        let uids = self.nodes.get(index).map(|it| it.pods.clone()).unwrap_or_default();
        for uid in uids {
            let Some(entry) = self.pods.get(&uid) else { continue };
            let stays = !entry.pod.deleting;
            self.affinity.count_pod(&entry.pod_terms, index, stays, step, &self.topologies);
            if stays {
                self.spreads.count_pod(entry.pod_terms.set, index, step, &self.topologies);
            }
        }
    }

    /// Removes deleted nodes on which nothing is accounted any more.
    fn purge_deleted_nodes(&mut self) {
        for index in self.nodes.deleted_and_unused() {
            if let Some(entry) = self.nodes.get(index) {
                self.engine.fleet_mut().remove_node(&engine_types::node_id(&entry.node.name));
            }
            self.topologies.set_node(index, None);
            self.nodes.remove(index);
        }
    }

    /// Changes the resources that a pod is charged.
    pub(super) fn set_charge(&mut self, uid: &str, requested: Resources) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.requested == requested {
            return;
        }
        if let Some(node) = entry.assigned.and_then(|index| self.nodes.get_mut(index)) {
            node.used.add(&entry.requested, -1);
            node.used.add(&requested, 1);
            if let Some(index) = entry.assigned {
                self.unstated.add(index, &node.node, &entry.requested, -1);
                self.unstated.add(index, &node.node, &requested, 1);
            }
            self.engine.fleet_mut().resize(entry.pod.id, engine_types::amounts(&requested));
        }
        entry.requested = requested;
        self.generation += 1;
        self.changed = true;
    }
}

/// The reservation of a pod.
pub(super) fn reservation(
    entry: &PodEntry,
    node: &Arc<str>,
    volumes: outcome::VolumePlan,
    devices: outcome::DevicePlan,
) -> outcome::Reservation {
    let (pod, uid) = (entry.pod.key.clone(), Arc::clone(&entry.pod.uid));
    let node = Arc::clone(node);
    outcome::Reservation { pod, uid, node, volumes, devices, is_contested: false }
}
