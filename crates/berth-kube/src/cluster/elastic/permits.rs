//! Permits: how large an elastic pod may be, decided by the engine's elastic code.
//!
//! A larger permit is answered only after it was stored: on the virtual machine, or in the spec of a pod that
//! is resized in place. Meanwhile the pod is charged the larger of what it had and what it gets, and so
//! it stays if nobody knows whether the write arrived.

use std::sync::Arc;

use berth_engine::elastic::{
    Account, Free, InvalidPermitRequest, Permit, PermitContext, PermitDecision, PermitRequest,
    Size, decide_permit,
};
use thiserror::Error;

use super::migrations::vm_key;
use super::resizable::Resize;
use super::source::{self, Vm};
use crate::cluster::Cluster;
use crate::cluster::pod::{Key, Pod};
use crate::cluster::pod_store::PodEntry;

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PermitError {
    /// The pod does not exist, or is not on a node.
    #[error("pod {0} is unknown or not on a node")]
    Unknown(Key),
    /// It is not elastic.
    #[error(
        "pod {0} is not elastic: it runs no known virtual machine, and has no annotations \
         berth.dev/elastic-min and berth.dev/elastic-max"
    )]
    NotElastic(Key),
    /// Its annotations are invalid.
    #[error("pod {pod} has invalid annotations: {why}")]
    InvalidBounds {
        /// The pod.
        pod: Key,
        /// What is wrong, and what is accepted.
        why: String,
    },
    /// An annotation decides its size.
    #[error("pod {0} has the annotation berth.dev/elastic-use, which decides its size")]
    SizedByAnnotation(Key),
    /// It is being moved.
    #[error("pod {0} is being moved and stays as large as it is")]
    Moving(Key),
    /// The requested size is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidPermitRequest),
    /// The permit could not be stored.
    #[error("the permit of pod {pod} could not be stored: {why}; retry")]
    NotStored {
        /// The pod.
        pod: Key,
        /// What the API server said.
        why: String,
    },
}

/// A permit request, and what its agent goes by.
#[derive(Clone, Copy, Debug)]
pub struct AgentRequest {
    /// The request.
    pub request: PermitRequest,
    /// The agent's compute unit; absent: the policy's.
    pub unit: Option<Size>,
    /// What makes of the policy's unit one that the agent can count in.
    pub unit_of_memory_mib: u32,
    /// The same for CPU.
    pub unit_of_cpu_milli: u32,
    /// Whether sizes must be multiples of the unit that the agent was told last.
    pub whole_units: bool,
}

impl AgentRequest {
    /// A request for a size by an agent that takes any.
    #[must_use]
    pub const fn new(request: PermitRequest, unit: Option<Size>) -> Self {
        Self { request, unit, unit_of_memory_mib: 1, unit_of_cpu_milli: 1, whole_units: false }
    }

    fn countable(&self, unit: Size) -> Size {
        let whole = |of: u32, by: u32| of.checked_next_multiple_of(by.max(1)).unwrap_or(of);
        Size::new(
            whole(unit.cpu_milli, self.unit_of_cpu_milli),
            whole(unit.memory_mib, self.unit_of_memory_mib),
        )
    }
}

/// What an agent is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitReply {
    /// What it may use.
    pub granted: Size,
    /// The compute unit that it was decided by.
    pub unit: Size,
    /// Whether it is being moved, and must not change its size.
    pub moving: bool,
}

/// Where a permit is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitTarget {
    /// On a virtual machine.
    Vm {
        /// The machine.
        vm: Key,
        /// Its uid.
        uid: Arc<str>,
        /// The version of the object that the decision was made for.
        version: Option<String>,
        /// The number of the permit that is stored there now.
        stored_seq: Option<u64>,
    },
    /// In the spec of the pod.
    Container(Resize),
}

/// A permit that has to be stored before it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitWrite {
    /// The pod.
    pub pod: Key,
    /// Its uid.
    pub uid: Arc<str>,
    /// The permit.
    pub permit: Permit,
    /// Where it is stored.
    pub target: PermitTarget,
}

/// The outcome of a request for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitPlan {
    /// The decision.
    pub decision: PermitDecision,
    /// The permit until then.
    pub before: Permit,
    /// What its agent is told.
    pub reply: PermitReply,
    /// What has to be stored first; absent: nothing.
    pub write: Option<PermitWrite>,
}

/// How the write of a permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is stored.
    Stored,
    /// It is certainly not.
    NotStored,
    /// Nobody knows.
    Unknown,
}

impl Cluster {
    /// Decides how large a pod may be and takes it for stored; for use without an API server.
    ///
    /// # Errors
    /// When the pod is not elastic, or the request is invalid; then nothing has changed.
    pub fn request_permit(
        &mut self,
        pod: &Key,
        request: &PermitRequest,
        unit: Option<Size>,
        now: i64,
    ) -> Result<PermitDecision, PermitError> {
        let plan = self.plan_permit(pod, &AgentRequest::new(*request, unit), now)?;
        let uid = self.pods.by_name(pod).map(|it| Arc::clone(&it.pod.uid));
        if let Some(uid) = uid {
            self.set_permit(&uid, Some(plan.decision.permit));
        }
        Ok(plan.decision)
    }

    /// Decides how large a pod may be. Changes nothing.
    ///
    /// # Errors
    /// When the pod is not elastic, or the request is invalid.
    pub fn plan_permit(
        &self,
        pod: &Key,
        asked: &AgentRequest,
        now: i64,
    ) -> Result<PermitPlan, PermitError> {
        let entry = self.pods.by_name(pod).filter(|it| it.pod.node.is_some() && !it.pod.ended);
        let entry = entry.ok_or_else(|| PermitError::Unknown(pod.clone()))?;
        let node = entry.assigned.and_then(|index| self.nodes.get(index));
        let node = node.ok_or_else(|| PermitError::Unknown(pod.clone()))?;
        let (min, max) = self.bounds_of(&entry.pod)?;
        let permit = entry.permit.ok_or_else(|| PermitError::NotElastic(pod.clone()))?;
        let moving = self.active_migration(&entry.pod).is_some();
        if moving && asked.request.size != permit.granted && !permit.uncertain {
            return Err(PermitError::Moving(pod.clone()));
        }
        let settings = self.settings.policy.elastic();
        let by_class = self.vm_of(&entry.pod).and_then(|it| it.class.as_ref());
        let by_class = by_class.and_then(|it| settings.classes.get(it)?.compute_unit);
        let unit = by_class.unwrap_or(node.elastic.compute_unit);
        let unit = asked.unit.unwrap_or_else(|| asked.countable(unit));
        let account = self.account_of(node, now);
        let context = PermitContext {
            unit,
            grants: settings.grants,
            min,
            max,
            frozen: entry.pod.deleting || moving,
            whole_units: asked.whole_units,
            host_cpu_milli: u32::try_from(node.node.capacity.cpu_milli).ok(),
            node: free(&account),
            quota: Free::UNLIMITED,
            below_watermark: account.below_watermark(),
            now,
        };
        let decision = decide_permit(&permit, &asked.request, &context)?;
        let reply = PermitReply { granted: decision.permit.granted, unit, moving };
        let write = self.permit_write(entry, &decision);
        Ok(PermitPlan { decision, before: permit, reply, write })
    }

    /// The size that an annotation asks for, if it differs from what the pod has.
    pub(super) fn wanted_by_annotation(&self, entry: &PodEntry) -> Option<Size> {
        let elastic = entry.pod.elastic.as_ref()?.as_ref().ok()?;
        let granted = entry.permit?.granted;
        let is_open = entry.pod.vm.is_none()
            && *entry.pod.scheduler == *self.settings.scheduler
            && entry.pod.node.is_some()
            && !entry.permit_write
            && !entry.pod.deleting
            && !entry.pod.ended;
        elastic.wanted.filter(|wanted| is_open && *wanted != granted)
    }

    /// Pods whose annotations ask for another size than they have, in the order of their names.
    #[must_use]
    pub fn resizes_by_annotation(&self) -> Vec<(Key, Size)> {
        let wanted = self
            .pods
            .iter()
            .filter_map(|it| self.wanted_by_annotation(it).map(|size| (it.pod.key.clone(), size)));
        let mut wanted: Vec<(Key, Size)> = wanted.collect();
        wanted.sort();
        wanted
    }

    /// Whether a pod's size follows an annotation.
    #[must_use]
    pub fn is_sized_by_annotation(&self, pod: &Key) -> bool {
        let pod = self.pods.by_name(pod).map(|it| &it.pod).filter(|it| it.vm.is_none());
        let elastic = pod.and_then(|it| it.elastic.as_ref()?.as_ref().ok());
        elastic.is_some_and(|it| it.wanted.is_some())
    }

    /// The bounds of an elastic pod.
    fn bounds_of(&self, pod: &Pod) -> Result<(Size, Size), PermitError> {
        if let Some(vm) = self.vm_of(pod) {
            return Ok((vm.min, vm.max));
        }
        match &pod.elastic {
            Some(Ok(elastic)) if pod.vm.is_none() => Ok((elastic.min, elastic.max)),
            Some(Err(why)) if pod.vm.is_none() => {
                Err(PermitError::InvalidBounds { pod: pod.key.clone(), why: why.clone() })
            }
            _ => Err(PermitError::NotElastic(pod.key.clone())),
        }
    }

    /// What has to be stored for a decision.
    fn permit_write(&self, entry: &PodEntry, decision: &PermitDecision) -> Option<PermitWrite> {
        let (pod, permit) = (&entry.pod, decision.permit);
        let target = match self.vm_of(pod) {
            Some(vm) if is_stored(vm, &permit) => return None,
            Some(vm) => PermitTarget::Vm {
                vm: vm_key(pod)?,
                uid: Arc::clone(&vm.uid),
                version: vm.version.clone(),
                stored_seq: vm.permit.map(|it| it.seq),
            },
            None => {
                let elastic = pod.elastic.as_ref()?.as_ref().ok()?;
                if elastic.size == permit.granted {
                    return None;
                }
                PermitTarget::Container(elastic.resize_to(permit.granted))
            }
        };
        (!decision.repeated).then(|| PermitWrite {
            pod: pod.key.clone(),
            uid: Arc::clone(&pod.uid),
            permit,
            target,
        })
    }

    /// Takes a decision that needs no write.
    pub fn apply_permit(&mut self, uid: &str, plan: &PermitPlan) {
        self.set_permit(uid, Some(plan.decision.permit));
    }

    /// Holds what a decision needs while it is written.
    pub fn begin_permit_write(&mut self, uid: &str, plan: &PermitPlan) {
        let permit = held(&plan.before, &plan.decision.permit);
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.permit_write = true;
        }
        self.set_permit(uid, Some(permit));
    }

    /// Ends the write of a decision.
    pub fn end_permit_write(&mut self, uid: &str, plan: &PermitPlan, outcome: WriteOutcome) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        entry.permit_write = false;
        let (before, after) = (plan.before, plan.decision.permit);
        let permit = match outcome {
            WriteOutcome::Stored => after,
            WriteOutcome::NotStored => before,
            WriteOutcome::Unknown => {
                let most = before.reserved().most(after.reserved());
                Permit { buffer: most.less(before.granted), ..before }
            }
        };
        self.set_permit(uid, Some(permit));
    }

    /// How large a pod may be, as last decided.
    #[must_use]
    pub fn permit(&self, pod: &Key) -> Option<Permit> {
        self.pods.by_name(pod)?.permit
    }

    pub(in crate::cluster) fn set_permit(&mut self, uid: &str, permit: Option<Permit>) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        entry.permit = permit;
        self.elastic.in_use |= permit.is_some();
        let requested = source::charge(&entry.pod, permit.as_ref());
        self.set_charge(uid, requested);
    }
}

/// What a node has left.
fn free(account: &Account) -> Free {
    Free {
        cpu: account.cpu.reservable().saturating_sub(account.cpu.reserved),
        memory: account.memory.reservable().saturating_sub(account.memory.reserved),
    }
}

/// Whether what is stored on a machine charges its node as much as the permit does.
fn is_stored(vm: &Vm, permit: &Permit) -> bool {
    let charged = |it: &Permit| (it.granted, it.buffer, it.headroom, it.uncertain);
    vm.permit.as_ref().is_some_and(|stored| charged(stored) == charged(permit))
}

/// The permit while it is written: charged as the larger of both.
fn held(before: &Permit, after: &Permit) -> Permit {
    let most = before.reserved().most(after.reserved());
    Permit { buffer: most.less(after.granted), ..*after }
}
