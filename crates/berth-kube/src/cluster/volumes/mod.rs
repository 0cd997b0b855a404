//! Volumes: which claims a pod can have, on which nodes, and who has them. Pure: no I/O, no clock.
//!
//! Kubernetes' rules, with what its pages leave open decided so:
//! - A claim without a class asks for a volume without one. The API server writes the default class
//!   into claims that name none, also later; until it has, there is none. Such a claim is bound by
//!   Kubernetes' volume controller, never from here.
//! - A claim that names a volume but is not bound to it waits for the volume controller, too.
//! - A claim with a selector gets only a volume that exists.
//! - A volume that reports no phase is free; one that reports any but `Available` is not.
//!
//! Never here: writing anything to the API server. [`Volumes::try_reserve`] says what to write.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use rustc_hash::FxHashMap;

use super::pod::Key;

mod facts;
mod holds;
mod rules;
#[cfg(test)]
mod tests;

use facts::{Capacity, Claim, Class, Pinned, Volume};
use holds::Holds;
pub use rules::Prepared;

/// Why a pod's volumes keep it from all nodes or from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// A stable code, such as `volume_node_affinity`.
    pub code: &'static str,
    /// Why, in one line that names the claim.
    pub text: String,
    /// What would help.
    pub help: &'static str,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Everything about volumes.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    claims: FxHashMap<Key, Arc<Claim>>,
    volumes: FxHashMap<Arc<str>, Arc<Volume>>,
    classes: FxHashMap<Arc<str>, Arc<Class>>,
    capacities: FxHashMap<Key, Capacity>,
    /// Capacities by class and node.
    rooms: FxHashMap<Arc<str>, Pinned<Key>>,
    /// Drivers whose capacities count.
    measured: BTreeSet<String>,
    /// How many volumes of a driver a node takes.
    limits: FxHashMap<Arc<str>, Vec<(Arc<str>, i64)>>,
    /// Volumes that anyone may have, by class and node, the smallest first.
    free: FxHashMap<Arc<str>, Pinned<(i64, Arc<str>)>>,
    /// Volumes that name the claim they are for.
    promised: FxHashMap<Key, BTreeSet<Arc<str>>>,
    /// Which claim says that it has a volume. The volume may be seen to say so later.
    bound_to: FxHashMap<Arc<str>, Key>,
    holds: Holds,
    news: bool,
}

impl Volumes {
    /// A claim as it is now.
    pub fn put_claim(&mut self, claim: &core::PersistentVolumeClaim) {
        let claim = Claim::read(claim);
        let key = claim.key.clone();
        let old = self.claims.get(&key).cloned();
        if old.as_ref().is_some_and(|old| **old == claim) {
            return;
        }
        self.tell_news();
        // What was decided for a claim is void for another of its name, and where whoever makes
        // volumes gave up on the node; it is done where the claim is bound.
        let void = old.as_ref().is_some_and(|old| {
            old.uid != claim.uid || (old.selected.is_some() && claim.selected.is_none())
        });
        let claim = Arc::new(claim);
        self.claims.insert(key.clone(), Arc::clone(&claim));
        if let Some(name) = old.filter(|it| it.bound).and_then(|it| it.volume.clone()) {
            self.bound_to.remove(&name);
            self.list(&name);
        }
        if let Some(name) = claim.volume.as_ref().filter(|_| claim.bound) {
            self.bound_to.insert(Arc::clone(name), key.clone());
            self.list(name);
        }
        if void || claim.bound {
            self.undecide(&key);
        }
        self.reattach_claim(&key);
    }

    /// A claim is gone.
    pub fn remove_claim(&mut self, key: &Key) {
        let Some(old) = self.claims.remove(key) else { return };
        self.holds.look_again();
        if let Some(name) = old.volume.as_ref().filter(|_| old.bound) {
            self.bound_to.remove(name);
            self.list(name);
        }
        self.undecide(key);
        self.reattach_claim(key);
    }

    /// A volume as it is now.
    pub fn put_volume(&mut self, volume: &core::PersistentVolume) {
        let volume = Volume::read(volume);
        let name = Arc::clone(&volume.name);
        let old = self.volumes.get(&name).cloned();
        if old.as_ref().is_some_and(|old| **old == volume) {
            return;
        }
        self.tell_news();
        if let Some(old) = old {
            self.unlist(&old);
        }
        let claim = volume.claim.as_ref().map(|(key, _)| key.clone());
        self.volumes.insert(Arc::clone(&name), Arc::new(volume));
        // Somebody else was quicker: whoever held it will be told by the API server.
        if let (Some(taker), Some(claim)) = (self.holds.taker(&name).cloned(), &claim)
            && taker != *claim
        {
            self.undecide(&taker);
        }
        self.list(&name);
        self.reattach_volume(&name);
    }

    /// A volume is gone.
    pub fn remove_volume(&mut self, name: &str) {
        let Some(old) = self.volumes.remove(name) else { return };
        self.holds.look_again();
        self.unlist(&old);
        if let Some(taker) = self.holds.taker(name).cloned() {
            self.undecide(&taker);
        }
        self.reattach_volume(name);
    }

    /// A class as it is now.
    pub fn put_class(&mut self, class: &storage::StorageClass) {
        let class = Class::read(class);
        if self.classes.get(&class.name).is_some_and(|old| **old == class) {
            return;
        }
        self.tell_news();
        self.classes.insert(Arc::clone(&class.name), Arc::new(class));
        self.reattach_all();
    }

    /// A class is gone.
    pub fn remove_class(&mut self, name: &str) {
        if self.classes.remove(name).is_some() {
            self.holds.look_again();
            self.reattach_all();
        }
    }

    /// What a node says of its drivers.
    pub fn put_csi_node(&mut self, node: &storage::CSINode) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let limits = facts::limits(node);
        let old = self.limits.insert(name.into(), limits);
        self.news |= old.as_ref() != self.limits.get(name);
    }

    /// A node says nothing of its drivers any more, and so has no limits.
    pub fn remove_csi_node(&mut self, name: &str) {
        self.news |= self.limits.remove(name).is_some_and(|limits| !limits.is_empty());
    }

    /// A driver as it is now.
    pub fn put_csi_driver(&mut self, driver: &storage::CSIDriver) {
        let name = driver.metadata.name.as_deref().unwrap_or_default();
        if driver.spec.storage_capacity == Some(true) {
            // One more thing to ask for lets nothing fit that did not.
            self.measured.insert(name.to_owned());
            self.holds.look_again();
        } else {
            self.remove_csi_driver(name);
        }
    }

    /// A driver is gone; what it says of its capacity counts no more.
    pub fn remove_csi_driver(&mut self, name: &str) {
        self.news |= self.measured.remove(name);
    }

    /// What a driver can make in a part of the cluster.
    pub fn put_csi_capacity(&mut self, capacity: &storage::CSIStorageCapacity) {
        let key = Key::of(&capacity.metadata);
        let capacity = Capacity::read(capacity);
        let old = self.take_capacity(&key);
        // Less room for the same nodes lets nothing fit that did not.
        self.news |= old.is_none_or(|old| !capacity.is_at_most(&old));
        let rooms = self.rooms.entry(Arc::clone(&capacity.class)).or_default();
        rooms.insert(&capacity.pin, &key);
        self.capacities.insert(key, capacity);
    }

    /// A driver says nothing any more of a part of the cluster.
    pub fn remove_csi_capacity(&mut self, key: &Key) {
        self.take_capacity(key);
    }

    fn tell_news(&mut self) {
        self.news = true;
        self.holds.look_again();
    }

    fn take_capacity(&mut self, key: &Key) -> Option<Capacity> {
        self.holds.look_again();
        let old = self.capacities.remove(key)?;
        if let Some(rooms) = self.rooms.get_mut(&old.class) {
            rooms.remove(&old.pin, key);
        }
        Some(old)
    }

    /// Whether something was told since the last call that may let a pod fit that did not. Only
    /// pods that use claims are concerned.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Puts a volume where those look that may have it.
    fn list(&mut self, name: &str) {
        let Some(volume) = self.volumes.get(name).cloned() else { return };
        self.unlist(&volume);
        let name = Arc::clone(&volume.name);
        if let Some((claim, _)) = &volume.claim {
            self.promised.entry(claim.clone()).or_default().insert(name);
            return;
        }
        let taken = self.bound_to.contains_key(&name) || self.holds.taker(&name).is_some();
        if let Some(class) = volume.class.as_ref().filter(|_| volume.available && !taken) {
            let free = self.free.entry(Arc::clone(class)).or_default();
            free.insert(&volume.pin, &(volume.size, name));
        }
    }

    fn unlist(&mut self, volume: &Volume) {
        if let Some((claim, _)) = &volume.claim
            && let Some(promised) = self.promised.get_mut(claim)
        {
            promised.remove(&volume.name);
            if promised.is_empty() {
                self.promised.remove(claim);
            }
        }
        if let Some(free) = volume.class.as_ref().and_then(|class| self.free.get_mut(class)) {
            free.remove(&volume.pin, &(volume.size, Arc::clone(&volume.name)));
        }
    }
}
