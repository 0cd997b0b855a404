//! Permits: how large the virtual machines in pods may be, decision by the engine's elastic code.
//!
//! A pod that runs a virtual machine is charged what the machine may be using. What a previous leader
//! granted is not known here, so an autoscaled machine that was found running is charged its maximum
//! until its agent reports.

use std::sync::Arc;

use berth_engine::elastic::{
    Free, InvalidPermitRequest, Overcommit, Permit, PermitContext, PermitDecision, PermitRequest,
    Size, decide_permit,
};
use thiserror::Error;

use super::pod::{Key, Pod};
use super::pod_store::PodEntry;
use super::{Cluster, vm};

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PermitError {
    /// The pod does not exist, or is not on a node.
    #[error("pod {0} is unknown or not on a node")]
    Unknown(Key),
    /// It runs no known virtual machine.
    #[error("pod {0} runs no known virtual machine")]
    NotElastic(Key),
    /// The requested size is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidPermitRequest),
}

impl Cluster {
    /// Adds or updates a virtual machine, and charges its pods accordingly.
    pub fn put_vm(&mut self, vm: &serde_json::Value) {
        if let Some(key) = self.vms.put(vm) {
            self.update_vm_pods(&key);
        }
    }

    /// Deletes a virtual machine.
    pub fn remove_vm(&mut self, key: &Key) {
        self.vms.remove(key);
        self.update_vm_pods(key);
    }

    /// Decides how large the machine in a pod may be; `unit` is the agent's compute unit, if it has one.
    ///
    /// # Errors
    /// When there is no such machine, or the request is invalid; then nothing has changed.
    pub fn request_permit(
        &mut self,
        pod: &Key,
        request: &PermitRequest,
        unit: Option<Size>,
        now: i64,
    ) -> Result<PermitDecision, PermitError> {
        let entry = self.pods.by_name(pod).filter(|it| it.pod.node.is_some() && !it.pod.ended);
        let entry = entry.ok_or_else(|| PermitError::Unknown(pod.clone()))?;
        let node = entry.assigned.and_then(|index| self.nodes.get(index));
        let node = node.ok_or_else(|| PermitError::Unknown(pod.clone()))?;
        let known = entry.permit.zip(self.vms.of(&entry.pod).copied());
        let (permit, vm) = known.ok_or_else(|| PermitError::NotElastic(pod.clone()))?;
        let (has, used) = (&node.node.allocatable, &node.used);
        let free = Free {
            cpu: has.cpu_milli.saturating_sub(used.cpu_milli),
            memory: has.memory.saturating_sub(used.memory).div_euclid(1 << 20),
        };
        let settings = self.settings.policy.elastic();
        let context = PermitContext {
            unit: unit.unwrap_or(settings.compute_unit),
            grants: settings.grants,
            min: vm.min,
            max: vm.max,
            frozen: entry.pod.deleting,
            whole_units: false,
            // Nothing is promised twice here, so no machine outgrows its host.
            host_cpu_milli: None,
            node: free,
            quota: Free::UNLIMITED,
            below_watermark: free,
            now,
        };
        let uid = Arc::clone(&entry.pod.uid);
        let decision = decide_permit(&permit, request, &context)?;
        self.set_permit(&uid, Some(decision.permit));
        Ok(decision)
    }

    /// How large the machine in a pod may be, as last decision.
    #[must_use]
    pub fn permit(&self, pod: &Key) -> Option<Permit> {
        self.pods.by_name(pod)?.permit
    }

    /// The permit of a pod whose agent has not asked for one yet.
    pub(super) fn initial_permit(&self, pod: &Pod) -> Option<Permit> {
        let vm = self.vms.of(pod)?;
        Some(if vm.scales && pod.node.is_some() {
            Permit::found(vm.used, vm.max, Overcommit::NONE)
        } else {
            Permit::placed(vm.used, Overcommit::NONE)
        })
    }

    pub(super) fn set_permit(&mut self, uid: &str, permit: Option<Permit>) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        entry.permit = permit;
        let requested = vm::charge(&entry.pod, permit.as_ref());
        self.set_charge(uid, requested);
    }

    /// A machine changed: its pods are charged accordingly.
    fn update_vm_pods(&mut self, key: &Key) {
        let runs = |it: &&PodEntry| {
            it.pod.key.namespace == key.namespace && it.pod.vm.as_deref() == Some(&*key.name)
        };
        let found = self.pods.iter().filter(runs);
        let found: Vec<(Arc<Pod>, Option<Permit>)> =
            found.map(|it| (Arc::clone(&it.pod), it.permit)).collect();
        for (pod, known) in found {
            let permit = match (known, self.vms.of(&pod)) {
                // Its agent has reported: what was granted stands, and what it uses is known.
                (Some(known), Some(vm)) if known.seq > 0 => {
                    let mut next = known.rebound(vm.max);
                    next.granted = next.granted.most(vm.used);
                    Some(next)
                }
                // A machine that was placed with a size is not of unknown size because it runs now.
                (Some(known), Some(vm)) if !known.uncertain => {
                    Some(Permit::placed(vm.used, Overcommit::NONE))
                }
                _ => self.initial_permit(&pod),
            };
            self.set_permit(&pod.uid, permit);
        }
    }
}
