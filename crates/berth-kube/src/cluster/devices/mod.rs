//! Devices of dynamic resource allocation: which claims a pod has, which devices they get on which nodes,
//! and which devices are in use. Pure: no I/O, no clock.
//!
//! The API is `resource.k8s.io/v1`, with structured parameters: drivers publish devices in slices, claims
//! select them by expressions. Kubernetes' rules, with these choices:
//! - Devices are tried in the order of driver, pool, slice and position; the first solution is taken.
//! - A device that needs a feature that is not supported here is not used, and refusals name the feature.
//! - A device is in use while a claim has it, or while a pod is being bound with it.
//!
//! Never writes to the API server: [`Devices::try_reserve`] returns what has to be written.

mod allocator;
mod cel;
mod filters;
mod objects;
mod pools;
mod reservations;
mod results;
mod selectors;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde_json::Value;

use super::pod::{Key, Pod};
pub(super) use filters::{DeviceRejection, PreparedDevices};
use objects::{Claim, DeviceClass, DeviceId, TaintRule};
use pools::Pools;
use reservations::DeviceReservations;
pub use reservations::{DeviceDecision, DeviceState};
use selectors::SelectorCache;

/// A kind of object of `resource.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// `resourceclaims`.
    Claim,
    /// `resourceslices`.
    Slice,
    /// `deviceclasses`.
    Class,
    /// `devicetaintrules`.
    TaintRule,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claim => "ResourceClaim",
            Self::Slice => "ResourceSlice",
            Self::Class => "DeviceClass",
            Self::TaintRule => "DeviceTaintRule",
        })
    }
}

/// The claims of a pod, as it refers to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodDeviceClaim {
    /// The name within the pod.
    pub name: String,
    /// The claim.
    pub claim: ClaimReference,
}

/// How a pod refers to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimReference {
    /// By its name.
    Named(Arc<str>),
    /// By a template, from which this claim was created.
    Generated(Arc<str>),
    /// By a template, from which no claim was created yet.
    NotGenerated(String),
    /// In a way that is unknown.
    Unknown,
}

/// The state of all claims and devices.
#[derive(Debug, Default)]
pub struct Devices {
    claims: FxHashMap<Key, Arc<Claim>>,
    classes: FxHashMap<Arc<str>, Arc<DeviceClass>>,
    pools: Pools,
    taint_rules: BTreeMap<Arc<str>, TaintRule>,
    selectors: SelectorCache,
    /// Devices in use, and how often they are counted: as allocated to a claim, or as decided for one.
    in_use: FxHashMap<DeviceId, u32>,
    reservations: DeviceReservations,
    changed: bool,
}

/// The prefix of the extended resource that every class provides.
const IMPLICIT_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

impl Devices {
    /// Adds or updates an object.
    pub fn put(&mut self, kind: DeviceKind, object: &Value) {
        match kind {
            DeviceKind::Claim => self.put_claim(object),
            DeviceKind::Slice => self.put_slice(object),
            DeviceKind::Class => self.put_class(object),
            DeviceKind::TaintRule => self.put_taint_rule(object),
        }
    }

    /// Removes an object.
    pub fn remove(&mut self, kind: DeviceKind, key: &Key) {
        match kind {
            DeviceKind::Claim => self.remove_claim(key),
            DeviceKind::Slice => {
                self.changed |= self.pools.remove(&key.name);
                self.selectors.forget_slice(&key.name);
            }
            DeviceKind::Class => self.changed |= self.classes.remove(&key.name).is_some(),
            DeviceKind::TaintRule => self.changed |= self.taint_rules.remove(&key.name).is_some(),
        }
    }

    fn put_claim(&mut self, object: &Value) {
        let Some(claim) = Claim::read(object) else { return };
        let key = claim.key.clone();
        let old = self.claims.get(&key).cloned();
        if old.as_ref().is_some_and(|it| it.uid == claim.uid && it.version == claim.version) {
            return;
        }
        let before = old.as_ref().and_then(|it| it.allocation.clone());
        // A claim that got what was decided for it makes no other pod schedulable.
        let known = before.as_ref().or_else(|| self.reservations.decision(&key));
        let is_expected = match (&claim.allocation, &before) {
            (Some(after), _) => known.is_some_and(|known| known.devices == after.devices),
            (None, before) => before.is_none(),
        };
        self.changed |= !is_expected || old.is_none_or(|old| old.uid != claim.uid);
        self.count(before.as_deref(), false);
        self.count(claim.allocation.as_deref(), true);
        let claim = Arc::new(claim);
        self.claims.insert(key.clone(), Arc::clone(&claim));
        self.observe_claim(&claim);
    }

    fn remove_claim(&mut self, key: &Key) {
        let Some(old) = self.claims.remove(key) else { return };
        self.count(old.allocation.as_deref(), false);
        self.forget_claim(key);
        self.changed = true;
    }

    /// Counts the devices of an allocation as in use, or no longer.
    fn count(&mut self, allocation: Option<&objects::Allocation>, is_added: bool) {
        for device in allocation.into_iter().flat_map(|it| &it.devices) {
            if is_added {
                *self.in_use.entry(device.clone()).or_default() += 1;
            } else if let Some(count) = self.in_use.get_mut(device) {
                *count -= 1;
                if *count == 0 {
                    self.in_use.remove(device);
                }
            }
        }
    }

    fn put_slice(&mut self, object: &Value) {
        let Some(slice) = objects::Slice::read(object) else { return };
        let name = Arc::clone(&slice.name);
        if self.pools.put(slice) {
            self.selectors.forget_slice(&name);
            self.changed = true;
        }
    }

    fn put_class(&mut self, object: &Value) {
        let Some(class) = DeviceClass::read(object) else { return };
        if self.classes.get(&class.name).is_none_or(|old| **old != class) {
            self.classes.insert(Arc::clone(&class.name), Arc::new(class));
            self.changed = true;
        }
    }

    fn put_taint_rule(&mut self, object: &Value) {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let old = match TaintRule::read(object) {
            Some(rule) => self.taint_rules.insert(name.into(), rule),
            None => self.taint_rules.remove(name),
        };
        self.changed |= old.as_ref() != self.taint_rules.get(name);
    }

    /// The class whose devices provide an extended resource, under the name that it states or that every class
    /// has.
    #[must_use]
    pub fn class_providing(&self, resource: &str) -> Option<Arc<str>> {
        if let Some(class) = resource.strip_prefix(IMPLICIT_RESOURCE) {
            return self.classes.get_key_value(class).map(|(name, _)| Arc::clone(name));
        }
        let provides = |it: &&Arc<DeviceClass>| it.extended_resource.as_deref() == Some(resource);
        // The first by name: the message must not depend on the order of a map.
        self.classes.values().filter(provides).map(|it| Arc::clone(&it.name)).min()
    }

    /// Whether anything since the last call may make a pod with claims schedulable.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}

/// The keys of the claims that a pod has, without those that are not created yet.
fn claim_keys(pod: &Pod) -> impl Iterator<Item = Key> {
    pod.device_claims.iter().filter_map(|it| match &it.claim {
        ClaimReference::Named(name) | ClaimReference::Generated(name) => {
            Some(Key { namespace: Arc::clone(&pod.key.namespace), name: Arc::clone(name) })
        }
        ClaimReference::NotGenerated(_) | ClaimReference::Unknown => None,
    })
}
