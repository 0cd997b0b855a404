//! Elastic pods: how large each may be, what its node is charged, and which of them should leave a node
//! under pressure. Pure: no I/O, no clock.
//!
//! An elastic pod runs a `VirtualMachine`, or is resized in place and has bounds in annotations. All
//! arithmetic is the engine's; here are only Kubernetes' objects, turned into its terms and back.

pub mod account;
pub mod migrations;
pub mod permits;
pub mod relief;
pub mod resizable;
pub mod source;
pub mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use berth_engine::elastic::{Overcommit, Permit};

use super::Cluster;
use super::pod::{Key, Pod};
use super::pod_store::PodEntry;
use migrations::MigrationStore;
use source::{Vm, Vms};

/// The objects that elastic pods depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct ElasticObjects {
    pub(super) vms: Vms,
    pub(super) migrations: MigrationStore,
    /// Whether there was ever an elastic pod: without one, nothing needs to be searched for.
    pub(super) in_use: bool,
}

impl Cluster {
    /// Adds or updates a virtual machine, and charges its pods accordingly.
    pub fn put_vm(&mut self, vm: &serde_json::Value) {
        if let Some(key) = self.elastic.vms.put(vm) {
            self.refresh_vm_pods(&key);
        }
    }

    /// Deletes a virtual machine.
    pub fn remove_vm(&mut self, key: &Key) {
        self.elastic.vms.remove(key);
        self.refresh_vm_pods(key);
    }

    /// Adds or updates a migration of a virtual machine, and returns the machine.
    pub fn put_migration(&mut self, migration: &serde_json::Value) -> Option<Key> {
        let vm = self.elastic.migrations.put(migration)?;
        let runs = |it: &&PodEntry| migrations::vm_key(&it.pod).as_ref() == Some(&vm);
        let pending = self.pods.iter().filter(runs).filter(|it| it.assigned.is_none());
        let pending: Vec<Arc<str>> = pending.map(|it| Arc::clone(&it.pod.uid)).collect();
        for uid in pending {
            self.nominate_migration_target(&uid);
        }
        Some(vm)
    }

    /// Deletes a migration.
    pub fn remove_migration(&mut self, key: &Key) {
        self.elastic.migrations.remove(key);
    }

    /// Whether the cluster serves migrations of virtual machines.
    pub fn set_migrations_served(&mut self, served: bool) {
        self.elastic.migrations.set_served(served);
    }

    /// The virtual machine of a pod.
    #[must_use]
    pub fn vm_of(&self, pod: &Pod) -> Option<&Vm> {
        self.elastic.vms.of(pod)
    }

    /// Whether there was ever an elastic pod.
    #[must_use]
    pub const fn has_elastic_pods(&self) -> bool {
        self.elastic.in_use
    }

    /// Forgets what this replica decided, as another may lead by now: what is stored counts.
    pub fn reset_permits(&mut self) {
        let elastic = |it: &&PodEntry| it.permit.is_some();
        let pods: Vec<Arc<Pod>> =
            self.pods.iter().filter(elastic).map(|it| Arc::clone(&it.pod)).collect();
        for pod in pods {
            if let Some(entry) = self.pods.get_mut(&pod.uid) {
                entry.permit_write = false;
            }
            let permit = self.refreshed_permit(&pod, None);
            self.set_permit(&pod.uid, permit);
        }
    }

    /// A machine changed: its pods are charged accordingly.
    fn refresh_vm_pods(&mut self, key: &Key) {
        let runs = |it: &&PodEntry| {
            it.pod.key.namespace == key.namespace && it.pod.vm.as_deref() == Some(&*key.name)
        };
        let pods = self.pods.iter().filter(runs);
        let pods: Vec<Arc<Pod>> = pods.map(|it| Arc::clone(&it.pod)).collect();
        for pod in pods {
            let known = self.pods.get(&pod.uid).and_then(|it| it.permit);
            let permit = self.refreshed_permit(&pod, known);
            self.set_permit(&pod.uid, permit);
        }
    }

    /// The permit of a pod after it or its machine changed. `known` is what it was; absent: nothing is
    /// known but what is stored.
    pub(super) fn refreshed_permit(&self, pod: &Pod, known: Option<Permit>) -> Option<Permit> {
        let writing = self.pods.get(&pod.uid).is_some_and(|it| it.permit_write);
        if let (true, Some(known)) = (writing, known) {
            // The outcome of the write says what counts.
            return Some(known);
        }
        if let Some(vm) = self.elastic.vms.of(pod) {
            return Some(self.vm_permit(pod, vm, known));
        }
        let elastic = pod.elastic.as_ref()?.as_ref().ok()?;
        // The kubelet enforces the size in the spec, so that is what was granted.
        let base = known.unwrap_or_else(|| Permit::placed(elastic.size, Overcommit::NONE));
        Some(Permit { granted: elastic.size, ..base })
    }

    fn vm_permit(&self, pod: &Pod, vm: &Vm, known: Option<Permit>) -> Permit {
        let class = vm.class.as_ref().and_then(|it| self.settings.policy.elastic().classes.get(it));
        let overcommit = class.map_or(Overcommit::NONE, |it| it.overcommit_permille);
        if !vm.scales {
            return Permit::placed(vm.used, overcommit);
        }
        let stored_seq = vm.permit.map_or(0, |it| it.seq);
        let newer = known.filter(|it| it.seq > stored_seq);
        if let Some(stored) = newer.or(vm.permit) {
            let rebound = stored.rebound(vm.max);
            return Permit { granted: rebound.granted.most(vm.used), overcommit, ..rebound };
        }
        match known {
            // A machine that was placed with a size is not of unknown size because it runs now.
            Some(known) if !known.uncertain => Permit::placed(vm.used, overcommit),
            // The agent of a machine of another scheduler never speaks to this one.
            _ if pod.node.is_some() && *pod.scheduler == *self.settings.scheduler => {
                Permit::found(vm.used, vm.max, overcommit)
            }
            _ => Permit::placed(vm.used, overcommit),
        }
    }
}
