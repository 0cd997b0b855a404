//! How large the virtual machines in pods may be: permits, decided by the elastic code.
//!
//! A pod that runs a machine is charged what the machine may have come to use. What an earlier
//! leader promised is not known here, so a machine that was found running and that an agent scales
//! counts with all of its maximum until its agent speaks.

use std::sync::Arc;

use berth_engine::elastic::{
    Free, InvalidPermitRequest, Overcommit, Permit, PermitContext, PermitDecision, PermitRequest,
    Size, decide_permit,
};
use thiserror::Error;

use super::pod::{Key, Pod};
use super::pods::PodEntry;
use super::{Cluster, vm};

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoPermit {
    /// There is no such pod, or it is on no node.
    #[error("pod {0} is not known, or is on no node")]
    Unknown(Key),
    /// It runs no virtual machine that is known.
    #[error("pod {0} runs no virtual machine that is known")]
    NotElastic(Key),
    /// What is asked for means nothing.
    #[error(transparent)]
    Invalid(#[from] InvalidPermitRequest),
}

impl Cluster {
    /// Takes in a virtual machine: pods that run it are charged what it may have come to use.
    pub fn put_vm(&mut self, vm: &serde_json::Value) {
        if let Some(key) = self.vms.put(vm) {
            self.vm_changed(&key);
        }
    }

    /// A virtual machine is gone.
    pub fn remove_vm(&mut self, key: &Key) {
        self.vms.remove(key);
        self.vm_changed(key);
    }

    /// Asks how large the machine in a pod may be; `unit` is the agent's compute unit, if it has one.
    ///
    /// # Errors
    /// When there is no such machine, or the wish means nothing; nothing has changed then.
    pub fn ask_permit(
        &mut self,
        pod: &Key,
        wish: &PermitRequest,
        unit: Option<Size>,
        now: i64,
    ) -> Result<PermitDecision, NoPermit> {
        let entry = self.pods.named(pod).filter(|it| it.pod.node.is_some() && !it.pod.ended);
        let entry = entry.ok_or_else(|| NoPermit::Unknown(pod.clone()))?;
        let node = entry.at.and_then(|place| self.nodes.get(place));
        let node = node.ok_or_else(|| NoPermit::Unknown(pod.clone()))?;
        let known = entry.permit.zip(self.vms.of(&entry.pod).copied());
        let (permit, vm) = known.ok_or_else(|| NoPermit::NotElastic(pod.clone()))?;
        let (has, used) = (&node.node.allocatable, &node.used);
        let free = Free {
            cpu: has.cpu_milli.saturating_sub(used.cpu_milli),
            memory: has.memory.saturating_sub(used.memory).div_euclid(1 << 20),
        };
        let settings = self.settings.policy.elastic();
        let terms = PermitContext {
            unit: unit.unwrap_or(settings.compute_unit),
            grants: settings.grants,
            min: vm.min,
            max: vm.max,
            frozen: entry.pod.deleting,
            whole_units: false,
            node: free,
            quota: Free::UNLIMITED,
            below_watermark: free,
            now,
        };
        let uid = Arc::clone(&entry.pod.uid);
        let decided = decide_permit(&permit, wish, &terms)?;
        self.set_permit(&uid, Some(decided.permit));
        Ok(decided)
    }

    /// How large the machine in a pod may be, as it was last decided.
    #[must_use]
    pub fn permit(&self, pod: &Key) -> Option<Permit> {
        self.pods.named(pod)?.permit
    }

    /// The permit of a pod that nobody asked for yet.
    pub(super) fn first_permit(&self, pod: &Pod) -> Option<Permit> {
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
        let asked = vm::charge(&entry.pod, permit.as_ref());
        self.charge(uid, asked);
    }

    /// A machine is not what it was: its pods are charged anew.
    fn vm_changed(&mut self, key: &Key) {
        let runs = |it: &&PodEntry| {
            it.pod.key.namespace == key.namespace && it.pod.vm.as_deref() == Some(&*key.name)
        };
        let found = self.pods.iter().filter(runs);
        let found: Vec<(Arc<Pod>, Option<Permit>)> =
            found.map(|it| (Arc::clone(&it.pod), it.permit)).collect();
        for (pod, known) in found {
            let permit = match (known, self.vms.of(&pod)) {
                // Its agent has spoken: what was granted stands, and what it uses is so.
                (Some(known), Some(vm)) if known.seq > 0 => {
                    let mut next = known.rebound(vm.max);
                    next.granted = next.granted.most(vm.used);
                    Some(next)
                }
                // What was placed with a size is not found all at once because it runs now.
                (Some(known), Some(vm)) if !known.uncertain => {
                    Some(Permit::placed(vm.used, Overcommit::NONE))
                }
                _ => self.first_permit(&pod),
            };
            self.set_permit(&pod.uid, permit);
        }
    }
}
