//! Which pods use which volumes: claims in use, decisions for claims without a volume, and volumes
//! attached to nodes.
//!
//! A decision stands until the API server shows that it was carried out, or until the last pod that
//! relies on it is released before it was bound. Meanwhile other pods see it as if it were done.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::InstanceId;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::filters::VolumeChoice;
use super::objects::Volume;
use super::{VolumeRejection, Volumes};
use crate::cluster::node::Node;
use crate::cluster::outcome::VolumePlan;
use crate::cluster::pod::{Key, Pod};

/// An attached volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum VolumeHandle {
    /// An existing one, by its driver's handle.
    Volume(Arc<str>),
    /// One that is yet to be provisioned for this claim.
    Claim(Key),
}

/// The driver and the volume.
pub(super) type Attachment = (Arc<str>, VolumeHandle);

/// What was decided for an unbound claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimDecision {
    /// Bind it to this volume.
    Bind(Arc<str>),
    /// Provision a volume for this node.
    Provision(Arc<str>),
}

#[derive(Clone, Debug)]
struct SharedDecision {
    decision: ClaimDecision,
    /// Pods that rely on it.
    pods: Vec<InstanceId>,
}

/// What a pod uses.
#[derive(Clone, Debug)]
struct VolumeUse {
    pod: Key,
    node: Arc<str>,
    claims: Vec<Key>,
    attached: Vec<Attachment>,
}

/// Decisions for claims of volumes, and what is attached to nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeState {
    /// Decisions that the API server does not show yet, by claim.
    pub decisions: BTreeMap<String, VolumeDecision>,
    /// The number of attached volumes, by node and driver.
    pub attached: BTreeMap<Arc<str>, BTreeMap<Arc<str>, usize>>,
    /// The number of pods that use each claim.
    pub used_claims: BTreeMap<String, usize>,
}

/// What was decided for a claim of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeDecision {
    /// The existing volume that it gets.
    pub volume: Option<Arc<str>>,
    /// The node for which one is provisioned.
    pub provision_for: Option<Arc<str>>,
    /// The number of pods that rely on it.
    pub pods: usize,
}

impl VolumeReservations {
    pub(super) fn state(&self) -> VolumeState {
        let decision = |it: &SharedDecision| {
            let (volume, provision_for) = match &it.decision {
                ClaimDecision::Bind(volume) => (Some(Arc::clone(volume)), None),
                ClaimDecision::Provision(node) => (None, Some(Arc::clone(node))),
            };
            VolumeDecision { volume, provision_for, pods: it.pods.len() }
        };
        let by_driver = |it: &NodeAttachments| {
            it.iter().map(|(driver, volumes)| (Arc::clone(driver), volumes.len())).collect()
        };
        let used = self.users.iter();
        VolumeState {
            decisions: self
                .decided
                .iter()
                .map(|(key, it)| (key.to_string(), decision(it)))
                .collect(),
            attached: self
                .attached
                .iter()
                .map(|(node, it)| (Arc::clone(node), by_driver(it)))
                .collect(),
            used_claims: used.map(|(key, pods)| (key.to_string(), pods.len())).collect(),
        }
    }
}

/// What is attached to a node: by driver, the volumes and their pods.
type NodeAttachments = FxHashMap<Arc<str>, FxHashMap<VolumeHandle, Vec<InstanceId>>>;

/// Claims in use, decisions and attachments.
#[derive(Clone, Debug, Default)]
pub(super) struct VolumeReservations {
    uses: FxHashMap<InstanceId, VolumeUse>,
    /// The pods that use a claim.
    users: FxHashMap<Key, Vec<InstanceId>>,
    decided: FxHashMap<Key, SharedDecision>,
    /// Volumes that were decided for a claim.
    taken: FxHashMap<Arc<str>, Key>,
    attached: FxHashMap<Arc<str>, NodeAttachments>,
    /// What was decided for the pod that was released last, if nothing was updated since.
    last: Option<ReleasedPod>,
}

/// What was decided for a released pod: on which node, and for which claims.
#[derive(Clone, Debug)]
struct ReleasedPod {
    pod: InstanceId,
    node: Arc<str>,
    decisions: Vec<(Key, ClaimDecision)>,
}

impl VolumeReservations {
    /// The claim that a volume was decided for.
    pub(super) fn claim_of_volume(&self, volume: &str) -> Option<&Key> {
        self.taken.get(volume)
    }

    /// Objects changed: a pod that is put back now is decided again.
    pub(super) fn clear_last_release(&mut self) {
        self.last = None;
    }

    /// What was decided for a claim.
    pub(super) fn decision(&self, claim: &Key) -> Option<&ClaimDecision> {
        self.decided.get(claim).map(|it| &it.decision)
    }

    /// A pod that uses a claim, except this one and those that are assumed to be gone.
    pub(super) fn other_user(
        &self,
        claim: &Key,
        pod: InstanceId,
        deleted: &[InstanceId],
    ) -> Option<&Key> {
        let users = self.users.get(claim)?;
        let other = users.iter().find(|it| **it != pod && !deleted.contains(it))?;
        self.uses.get(other).map(|it| &it.pod)
    }

    /// The number of a driver's volumes attached to a node, and whether a volume is one of them.
    pub(super) fn attached<'a>(
        &'a self,
        node: &str,
        driver: &str,
        deleted: &'a [InstanceId],
    ) -> (i64, impl Fn(&VolumeHandle) -> bool + 'a) {
        let present = self.attached.get(node).and_then(|it| it.get(driver));
        let stays = move |pods: &Vec<InstanceId>| {
            deleted.is_empty() || pods.iter().any(|pod| !deleted.contains(pod))
        };
        let count = present.map_or(0, |it| match deleted {
            [] => it.len(),
            _ => it.values().filter(|pods| stays(pods)).count(),
        });
        let has =
            move |handle: &VolumeHandle| present.and_then(|it| it.get(handle)).is_some_and(stays);
        (i64::try_from(count).unwrap_or(i64::MAX), has)
    }

    fn attach(&mut self, id: InstanceId, attachments: Vec<Attachment>) {
        let Some(used) = self.uses.get_mut(&id) else { return };
        let node = self.attached.entry(Arc::clone(&used.node)).or_default();
        for (driver, handle) in &attachments {
            let pods = node.entry(Arc::clone(driver)).or_default();
            pods.entry(handle.clone()).or_default().push(id);
        }
        used.attached = attachments;
    }

    fn detach(&mut self, id: InstanceId) {
        let Some(used) = self.uses.get_mut(&id) else { return };
        let Some(node) = self.attached.get_mut(&used.node) else { return };
        for (driver, handle) in used.attached.drain(..) {
            let Some(present) = node.get_mut(&driver) else { continue };
            let Some(pods) = present.get_mut(&handle) else { continue };
            pods.retain(|it| *it != id);
            if pods.is_empty() {
                present.remove(&handle);
            }
            if present.is_empty() {
                node.remove(&driver);
            }
        }
        if node.is_empty() {
            self.attached.remove(&used.node);
        }
    }
}

impl Volumes {
    /// Reserves a pod's volumes on a node, if possible: chooses existing volumes, or returns the claims
    /// to provision. Until the pod is released or the claims are bound, no other claim gets these
    /// volumes, and these claims count as bound.
    ///
    /// Several pods may use one claim; then each plan names it, and plans must be idempotent. A pod
    /// that is already bound uses its claims unconditionally: nothing is checked, and nothing is left
    /// to do.
    ///
    /// # Errors
    /// Why its volumes cannot be used there; then nothing is reserved.
    pub fn try_reserve(&mut self, pod: &Pod, node: &Node) -> Result<VolumePlan, VolumeRejection> {
        if pod.claims.is_empty() {
            return Ok(VolumePlan::default());
        }
        if pod.node.is_some() {
            self.record(pod, &node.name);
            return Ok(VolumePlan::default());
        }
        if self.reservations.uses.get(&pod.id).is_some_and(|it| it.node != node.name) {
            self.release(pod);
        }
        let usable = |it: &Volume| it.allows_node(node) && it.zone_mismatch(node).is_none();
        self.restore_decisions(pod, &node.name, usable);
        let prepared = self.prepare(pod)?;
        self.check(&prepared, node)?;
        let plan = self.decide(pod, node, prepared.choices(self, node));
        self.record(pod, &node.name);
        Ok(plan)
    }

    /// The same after a check: what is not available is left out of the plan.
    pub fn reserve(&mut self, pod: &Pod, node: &Node) -> VolumePlan {
        self.try_reserve(pod, node).unwrap_or_else(|_| {
            self.record(pod, &node.name);
            VolumePlan::default()
        })
    }

    fn decide(&mut self, pod: &Pod, node: &Node, choices: Vec<(Key, VolumeChoice)>) -> VolumePlan {
        let mut plan = VolumePlan::default();
        for (claim, choice) in choices {
            let decision = match choice {
                VolumeChoice::Existing(volume) => {
                    plan.bind.push((claim.clone(), volume.to_string()));
                    ClaimDecision::Bind(volume)
                }
                VolumeChoice::Provision => {
                    plan.provision.push(claim.clone());
                    ClaimDecision::Provision(Arc::clone(&node.name))
                }
            };
            self.record_decision(pod.id, claim, decision);
        }
        plan
    }

    /// Records that a pod relies on a decision for a claim.
    fn record_decision(&mut self, pod: InstanceId, claim: Key, decision: ClaimDecision) {
        if self.reservations.decision(&claim).is_some_and(|old| *old != decision) {
            self.drop_decision(&claim);
        }
        if let ClaimDecision::Bind(volume) = &decision {
            self.reservations.taken.insert(Arc::clone(volume), claim.clone());
            self.index_volume(volume);
        }
        let shared = SharedDecision { decision, pods: Vec::new() };
        let shared = self.reservations.decided.entry(claim).or_insert(shared);
        if !shared.pods.contains(&pod) {
            shared.pods.push(pod);
        }
    }

    /// Restores the decisions of a pod that is put back where it just was: the plan may be in
    /// progress, and another decision would not be the one that is carried out.
    fn restore_decisions(&mut self, pod: &Pod, node: &str, usable: impl Fn(&Volume) -> bool) {
        let same = |it: &mut ReleasedPod| it.pod == pod.id && *it.node == *node;
        let Some(released) = self.reservations.last.take_if(same) else { return };
        for (claim, decision) in released.decisions {
            let free = match &decision {
                ClaimDecision::Provision(_) => true,
                ClaimDecision::Bind(name) => self.is_free_for(name, &claim, &usable),
            };
            if free && self.reservations.decision(&claim).is_none() {
                self.record_decision(pod.id, claim, decision);
            }
        }
    }

    fn is_free_for(&self, volume: &str, claim: &Key, usable: &impl Fn(&Volume) -> bool) -> bool {
        let free = |it: &Volume| match &it.claim {
            Some((nominated, _)) => nominated == claim,
            None => it.available && !self.bound_to.contains_key(volume),
        };
        self.volumes.get(volume).is_some_and(|it| free(it) && usable(it))
            && self.reservations.claim_of_volume(volume).is_none()
    }

    /// Records that a pod uses its claims on a node, unconditionally. A pod that was recorded there
    /// keeps its decisions; if it was recorded elsewhere, it is released first.
    pub fn record(&mut self, pod: &Pod, node: &str) {
        match self.reservations.uses.get(&pod.id) {
            Some(used) if *used.node == *node => {}
            _ if pod.claims.is_empty() => return,
            Some(_) => {
                self.release(pod);
                self.record_use(pod, node);
            }
            None => self.record_use(pod, node),
        }
        self.reattach(pod.id);
    }

    fn record_use(&mut self, pod: &Pod, node: &str) {
        self.restore_decisions(pod, node, |_| true);
        let claims = claim_keys(pod);
        for claim in &claims {
            self.reservations.users.entry(claim.clone()).or_default().push(pod.id);
        }
        let (pod, id) = (pod.key.clone(), pod.id);
        let used = VolumeUse { pod, node: node.into(), claims, attached: Vec::new() };
        self.reservations.uses.insert(id, used);
    }

    /// Releases a pod's volumes: decisions that only it relied on are dropped. This does not count as
    /// a change; the caller knows that the pod left.
    ///
    /// Decisions for a bound pod have been written to the API server, and outlive it.
    pub fn release(&mut self, pod: &Pod) {
        self.reservations.detach(pod.id);
        let Some(used) = self.reservations.uses.remove(&pod.id) else { return };
        let mut decisions = Vec::new();
        for claim in &used.claims {
            if let Some(users) = self.reservations.users.get_mut(claim) {
                users.retain(|it| *it != pod.id);
                if users.is_empty() {
                    self.reservations.users.remove(claim);
                }
            }
            let Some(shared) = self.reservations.decided.get_mut(claim) else { continue };
            if pod.node.is_some() || !shared.pods.contains(&pod.id) {
                continue;
            }
            decisions.push((claim.clone(), shared.decision.clone()));
            shared.pods.retain(|it| *it != pod.id);
            if shared.pods.is_empty() {
                self.drop_decision(claim);
                self.reattach_claim(claim);
            }
        }
        self.reservations.last = Some(ReleasedPod { pod: pod.id, node: used.node, decisions });
    }

    /// Drops the decision for a claim.
    pub(super) fn drop_decision(&mut self, claim: &Key) {
        let Some(shared) = self.reservations.decided.remove(claim) else { return };
        if let ClaimDecision::Bind(volume) = shared.decision {
            self.reservations.taken.remove(&volume);
            self.index_volume(&volume);
        }
    }

    fn reattach(&mut self, id: InstanceId) {
        self.reservations.detach(id);
        let Some(used) = self.reservations.uses.get(&id) else { return };
        let attachments = self.attachments(&used.claims);
        self.reservations.attach(id, attachments);
    }

    /// A claim may have another volume.
    pub(super) fn reattach_claim(&mut self, claim: &Key) {
        for id in self.reservations.users.get(claim).cloned().unwrap_or_default() {
            self.reattach(id);
        }
    }

    /// A volume may have another handle.
    pub(super) fn reattach_volume(&mut self, volume: &str) {
        let claims = [self.bound_to.get(volume), self.reservations.claim_of_volume(volume)];
        for claim in claims.map(|it| it.cloned()).into_iter().flatten() {
            self.reattach_claim(&claim);
        }
    }

    /// Volumes may have other drivers.
    pub(super) fn reattach_all(&mut self) {
        let all: Vec<InstanceId> = self.reservations.uses.keys().copied().collect();
        for id in all {
            self.reattach(id);
        }
    }
}

/// The distinct claims of a pod.
pub(super) fn claim_keys(pod: &Pod) -> Vec<Key> {
    let key = |name: &String| Key {
        namespace: Arc::clone(&pod.key.namespace),
        name: Arc::from(name.as_str()),
    };
    let mut claims: Vec<Key> = pod.claims.iter().map(key).collect();
    claims.sort_unstable();
    claims.dedup();
    claims
}
