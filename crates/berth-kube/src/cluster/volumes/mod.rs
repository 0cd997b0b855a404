//! Volumes: which claims a pod can use, on which nodes, and which are in use. Pure: no I/O, no clock.
//!
//! Kubernetes' rules, with these choices where the documentation leaves them open:
//! - A claim without a class requests a volume without one. The API server writes the default class
//!   into claims that name none, even later; until then there is none. Such a claim is bound by
//!   Kubernetes' volume controller, never from here.
//! - A claim that names a volume but is not bound to it also waits for the volume controller.
//! - A claim with a selector only gets an existing volume.
//! - A volume that reports no phase is free; one that reports any but `Available` is not.
//!
//! Never writes to the API server: [`Volumes::try_reserve`] returns what has to be written.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use rustc_hash::FxHashMap;

use super::pod::Key;

mod filters;
mod objects;
mod reservations;
#[cfg(test)]
mod tests;

pub use filters::PreparedVolumes;
use objects::{Capacity, Claim, Class, LabelPinIndex, Volume};
use reservations::VolumeReservations;
pub use reservations::{VolumeDecision, VolumeState};

/// Why a pod's volumes rule out all nodes or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRejection {
    /// A stable code, such as `volume_node_affinity`.
    pub code: &'static str,
    /// The reason in one line that names the claim.
    pub text: String,
    /// What would help.
    pub help: &'static str,
}

impl fmt::Display for VolumeRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The state of all volumes, claims and classes.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    claims: FxHashMap<Key, Arc<Claim>>,
    volumes: FxHashMap<Arc<str>, Arc<Volume>>,
    classes: FxHashMap<Arc<str>, Arc<Class>>,
    capacities: FxHashMap<Key, Capacity>,
    /// Capacities by class and node.
    capacity_index: FxHashMap<Arc<str>, LabelPinIndex<Key>>,
    /// Drivers that report their capacity.
    measured: BTreeSet<String>,
    /// Attach limits: by node, the drivers and their limits.
    limits: FxHashMap<Arc<str>, Vec<(Arc<str>, i64)>>,
    /// Unclaimed volumes, by class and node, the smallest first.
    free: FxHashMap<Arc<str>, LabelPinIndex<(i64, Arc<str>)>>,
    /// Volumes that name the claim they are reserved for.
    nominated: FxHashMap<Key, BTreeSet<Arc<str>>>,
    /// The claim that is bound to a volume. The volume may be updated later.
    bound_to: FxHashMap<Arc<str>, Key>,
    reservations: VolumeReservations,
    changed: bool,
}

impl Volumes {
    /// What was decided and is in use.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        self.reservations.state()
    }

    /// Adds or updates a claim.
    pub fn put_claim(&mut self, claim: &core::PersistentVolumeClaim) {
        let claim = Claim::read(claim);
        let key = claim.key.clone();
        let old = self.claims.get(&key).cloned();
        if old.as_ref().is_some_and(|old| **old == claim) {
            return;
        }
        self.mark_changed();
        // A decision is void for another claim of the same name, and if the provisioner gave up on the
        // node; it is carried out when the claim is bound.
        let void = old.as_ref().is_some_and(|old| {
            old.uid != claim.uid || (old.selected.is_some() && claim.selected.is_none())
        });
        let claim = Arc::new(claim);
        self.claims.insert(key.clone(), Arc::clone(&claim));
        if let Some(name) = old.filter(|it| it.bound).and_then(|it| it.volume.clone()) {
            self.bound_to.remove(&name);
            self.index_volume(&name);
        }
        if let Some(name) = claim.volume.as_ref().filter(|_| claim.bound) {
            self.bound_to.insert(Arc::clone(name), key.clone());
            self.index_volume(name);
        }
        if void || claim.bound {
            self.drop_decision(&key);
        }
        self.reattach_claim(&key);
    }

    /// Deletes a claim.
    pub fn remove_claim(&mut self, key: &Key) {
        let Some(old) = self.claims.remove(key) else { return };
        self.reservations.clear_last_release();
        if let Some(name) = old.volume.as_ref().filter(|_| old.bound) {
            self.bound_to.remove(name);
            self.index_volume(name);
        }
        self.drop_decision(key);
        self.reattach_claim(key);
    }

    /// Adds or updates a volume.
    pub fn put_volume(&mut self, volume: &core::PersistentVolume) {
        let volume = Volume::read(volume);
        let name = Arc::clone(&volume.name);
        let old = self.volumes.get(&name).cloned();
        if old.as_ref().is_some_and(|old| **old == volume) {
            return;
        }
        self.mark_changed();
        if let Some(old) = old {
            self.unindex_volume(&old);
        }
        let claim = volume.claim.as_ref().map(|(key, _)| key.clone());
        self.volumes.insert(Arc::clone(&name), Arc::new(volume));
        // Another claim got the volume: binding the pod will fail at the API server.
        if let (Some(taker), Some(claim)) =
            (self.reservations.claim_of_volume(&name).cloned(), &claim)
            && taker != *claim
        {
            self.drop_decision(&taker);
        }
        self.index_volume(&name);
        self.reattach_volume(&name);
    }

    /// Deletes a volume.
    pub fn remove_volume(&mut self, name: &str) {
        let Some(old) = self.volumes.remove(name) else { return };
        self.reservations.clear_last_release();
        self.unindex_volume(&old);
        if let Some(taker) = self.reservations.claim_of_volume(name).cloned() {
            self.drop_decision(&taker);
        }
        self.reattach_volume(name);
    }

    /// Adds or updates a class.
    pub fn put_class(&mut self, class: &storage::StorageClass) {
        let class = Class::read(class);
        if self.classes.get(&class.name).is_some_and(|old| **old == class) {
            return;
        }
        self.mark_changed();
        self.classes.insert(Arc::clone(&class.name), Arc::new(class));
        self.reattach_all();
    }

    /// Deletes a class.
    pub fn remove_class(&mut self, name: &str) {
        if self.classes.remove(name).is_some() {
            self.reservations.clear_last_release();
            self.reattach_all();
        }
    }

    /// Adds or updates the drivers of a node.
    pub fn put_csi_node(&mut self, node: &storage::CSINode) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let limits = objects::limits(node);
        let old = self.limits.insert(name.into(), limits);
        self.changed |= old.as_ref() != self.limits.get(name);
    }

    /// Deletes the drivers of a node, which then has no limits.
    pub fn remove_csi_node(&mut self, name: &str) {
        self.changed |= self.limits.remove(name).is_some_and(|limits| !limits.is_empty());
    }

    /// Adds or updates a driver.
    pub fn put_csi_driver(&mut self, driver: &storage::CSIDriver) {
        let name = driver.metadata.name.as_deref().unwrap_or_default();
        if driver.spec.storage_capacity == Some(true) {
            // A further condition makes no pod schedulable.
            self.measured.insert(name.to_owned());
            self.reservations.clear_last_release();
        } else {
            self.remove_csi_driver(name);
        }
    }

    /// Deletes a driver; its capacities do not count any more.
    pub fn remove_csi_driver(&mut self, name: &str) {
        self.changed |= self.measured.remove(name);
    }

    /// Adds or updates what a driver can provision in a part of the cluster.
    pub fn put_csi_capacity(&mut self, capacity: &storage::CSIStorageCapacity) {
        let key = Key::of(&capacity.metadata);
        let capacity = Capacity::read(capacity);
        let old = self.take_capacity(&key);
        // Less capacity for the same nodes makes no pod schedulable.
        self.changed |= old.is_none_or(|old| !capacity.is_at_most(&old));
        let capacity_index = self.capacity_index.entry(Arc::clone(&capacity.class)).or_default();
        capacity_index.insert(&capacity.pin, &key);
        self.capacities.insert(key, capacity);
    }

    /// Deletes what a driver can provision in a part of the cluster.
    pub fn remove_csi_capacity(&mut self, key: &Key) {
        self.take_capacity(key);
    }

    fn mark_changed(&mut self) {
        self.changed = true;
        self.reservations.clear_last_release();
    }

    fn take_capacity(&mut self, key: &Key) -> Option<Capacity> {
        self.reservations.clear_last_release();
        let old = self.capacities.remove(key)?;
        if let Some(capacity_index) = self.capacity_index.get_mut(&old.class) {
            capacity_index.remove(&old.pin, key);
        }
        Some(old)
    }

    /// Whether anything since the last call may make a pod with claims schedulable.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Adds a volume to the index in which claims look for it.
    fn index_volume(&mut self, name: &str) {
        let Some(volume) = self.volumes.get(name).cloned() else { return };
        self.unindex_volume(&volume);
        let name = Arc::clone(&volume.name);
        if let Some((claim, _)) = &volume.claim {
            self.nominated.entry(claim.clone()).or_default().insert(name);
            return;
        }
        let taken =
            self.bound_to.contains_key(&name) || self.reservations.claim_of_volume(&name).is_some();
        if let Some(class) = volume.class.as_ref().filter(|_| volume.available && !taken) {
            let free = self.free.entry(Arc::clone(class)).or_default();
            free.insert(&volume.pin, &(volume.size, name));
        }
    }

    fn unindex_volume(&mut self, volume: &Volume) {
        if let Some((claim, _)) = &volume.claim
            && let Some(nominated) = self.nominated.get_mut(claim)
        {
            nominated.remove(&volume.name);
            if nominated.is_empty() {
                self.nominated.remove(claim);
            }
        }
        if let Some(free) = volume.class.as_ref().and_then(|class| self.free.get_mut(class)) {
            free.remove(&volume.pin, &(volume.size, Arc::clone(&volume.name)));
        }
    }
}
