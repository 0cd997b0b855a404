//! Which devices were decided for which claims, until the API server shows it.
//!
//! Nothing in the API server keeps two claims from having the same device, so that a decision counts as in use
//! until it is certain that it was written and seen, or that it was not written. A decision that was handed
//! to the executor is kept until the executor reports what became of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::InstanceId;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::objects::{Allocation, Claim};
use super::results::allocation_result;
use super::{DeviceRejection, Devices, claim_keys};
use crate::cluster::node::Node;
use crate::cluster::outcome::{ClaimPlan, ClaimRelease, DevicePlan};
use crate::cluster::pod::{Key, Pod};

/// What was decided for a claim.
#[derive(Clone, Debug)]
struct ClaimDecision {
    uid: Arc<str>,
    allocation: Arc<Allocation>,
    /// Pods that rely on it.
    pods: Vec<InstanceId>,
    /// Pods for which the executor is writing it.
    writers: Vec<InstanceId>,
    /// The version of the claim that has it, once it was written.
    written: Option<u64>,
}

/// Decisions for claims.
#[derive(Debug, Default)]
pub(super) struct DeviceReservations {
    decided: FxHashMap<Key, ClaimDecision>,
    /// Claims that are being deallocated, and the version that shows it once it was written.
    deallocating: FxHashMap<Key, Option<u64>>,
    /// Claims whose decisions a pod relies on.
    uses: FxHashMap<InstanceId, Vec<Key>>,
    dry_run: Option<DryRun>,
}

/// Devices in use, and decisions that the API server does not show yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceState {
    /// Decisions, by claim.
    pub decisions: BTreeMap<String, DeviceDecision>,
    /// Claims that are being deallocated.
    pub deallocating: Vec<String>,
    /// By device, the number of claims that have it or are to have it.
    pub in_use: BTreeMap<String, u32>,
}

/// What was decided for a claim of devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceDecision {
    /// Its devices.
    pub devices: Vec<String>,
    /// The number of pods that rely on it.
    pub pods: usize,
    /// The number of pods for which it is being written.
    pub writers: usize,
    /// The version of the claim that has it, once it was written.
    pub written: Option<u64>,
}

impl Devices {
    /// What was decided and is in use.
    #[must_use]
    pub fn state(&self) -> DeviceState {
        let decision = |it: &ClaimDecision| DeviceDecision {
            devices: it.allocation.devices.iter().map(ToString::to_string).collect(),
            pods: it.pods.len(),
            writers: it.writers.len(),
            written: it.written,
        };
        let decided = self.reservations.decided.iter();
        let mut deallocating: Vec<String> =
            self.reservations.deallocating.keys().map(ToString::to_string).collect();
        deallocating.sort();
        DeviceState {
            decisions: decided.map(|(key, it)| (key.to_string(), decision(it))).collect(),
            deallocating,
            in_use: self
                .in_use
                .iter()
                .map(|(device, count)| (device.to_string(), *count))
                .collect(),
        }
    }
}

/// Pods that are assumed to be gone, and claims that would be without consumers then.
#[derive(Debug, Default)]
struct DryRun {
    gone: FxHashSet<Arc<str>>,
    lifted: FxHashSet<Key>,
}

impl DeviceReservations {
    /// What was decided for a claim.
    pub(super) fn decision(&self, claim: &Key) -> Option<&Arc<Allocation>> {
        self.decided.get(claim).map(|it| &it.allocation)
    }

    /// Whether a claim is being deallocated.
    pub(super) fn is_deallocating(&self, claim: &Key) -> bool {
        self.deallocating.contains_key(claim)
    }
}

impl Devices {
    /// Reserves devices for a pod on a node, if possible, and returns what has to be written to its claims
    /// before it is bound. A pod that is already bound has its devices: nothing is checked.
    ///
    /// # Errors
    /// Why there are none; then nothing is reserved.
    pub fn try_reserve(&mut self, pod: &Pod, node: &Node) -> Result<DevicePlan, DeviceRejection> {
        if pod.device_claims.is_empty() || pod.node.is_some() {
            self.record(pod);
            return Ok(DevicePlan::default());
        }
        let prepared = self.prepare(pod)?;
        let chosen = self.allocate(&prepared, node)?;
        let decide = |(claim, chosen)| {
            let result = allocation_result(claim, chosen, node);
            (Arc::clone(&claim.claim), Arc::new(Allocation::new(result)))
        };
        let decided: Vec<_> = prepared.pending.iter().zip(&chosen).map(decide).collect();
        let mut plan = DevicePlan::default();
        for (claim, allocation) in prepared.settled.iter().chain(&decided) {
            let is_written = claim.allocation.is_some();
            if !is_written || self.reservations.decided.contains_key(&claim.key) {
                self.record_decision(pod, claim, allocation);
            }
            plan.claims.push(ClaimPlan {
                claim: claim.key.clone(),
                uid: Arc::clone(&claim.uid),
                allocation: (!is_written).then(|| Arc::new(allocation.result.clone())),
            });
        }
        Ok(plan)
    }

    /// The same after a check: what is not available is left out of the plan.
    pub fn reserve(&mut self, pod: &Pod, node: &Node) {
        // A pod that is bound has what it has.
        let _ = self.try_reserve(pod, node);
    }

    fn record_decision(&mut self, pod: &Pod, claim: &Claim, allocation: &Arc<Allocation>) {
        if !self.reservations.decided.contains_key(&claim.key) {
            self.count(Some(allocation), true);
        }
        let decision =
            self.reservations.decided.entry(claim.key.clone()).or_insert_with(|| ClaimDecision {
                uid: Arc::clone(&claim.uid),
                allocation: Arc::clone(allocation),
                pods: Vec::new(),
                writers: Vec::new(),
                written: None,
            });
        if !decision.pods.contains(&pod.id) {
            decision.pods.push(pod.id);
            self.reservations.uses.entry(pod.id).or_default().push(claim.key.clone());
        }
    }

    /// A pod is where it was bound: in a dry run, it is back.
    fn record(&mut self, pod: &Pod) {
        let Some(run) = &mut self.reservations.dry_run else { return };
        run.gone.remove(&pod.uid);
        let back: Vec<Key> = claim_keys(pod).filter(|it| run.lifted.remove(it)).collect();
        for key in back {
            let allocation = self.claims.get(&key).and_then(|it| it.allocation.clone());
            self.count(allocation.as_deref(), true);
        }
    }

    /// Releases the devices of a pod: what was decided for it alone is dropped, unless it is being written.
    pub fn release(&mut self, pod: &Pod) {
        if let Some(run) = &mut self.reservations.dry_run {
            run.gone.insert(Arc::clone(&pod.uid));
            for key in claim_keys(pod) {
                self.lift(&key);
            }
            return;
        }
        for key in self.reservations.uses.remove(&pod.id).unwrap_or_default() {
            if let Some(decision) = self.reservations.decided.get_mut(&key) {
                decision.pods.retain(|it| *it != pod.id);
            }
            self.drop_if_done(&key);
        }
    }

    /// Counts the devices of a claim as free if all pods that it is reserved for are assumed to be gone.
    fn lift(&mut self, key: &Key) {
        let Some(run) = &mut self.reservations.dry_run else { return };
        let Some(claim) = self.claims.get(key).cloned() else { return };
        let is_free = !claim.is_reserved_for_others
            && !claim.reserved_for.is_empty()
            && claim.reserved_for.iter().all(|it| run.gone.contains(it));
        if is_free && !self.reservations.decided.contains_key(key) && run.lifted.insert(key.clone())
        {
            self.count(claim.allocation.as_deref(), false);
        }
    }

    /// From now on, released pods are assumed to be gone from their claims as well.
    pub fn begin_dry_run(&mut self) {
        self.reservations.dry_run = Some(DryRun::default());
    }

    /// Everything is as it is.
    pub fn end_dry_run(&mut self) {
        let Some(run) = self.reservations.dry_run.take() else { return };
        for key in run.lifted {
            let allocation = self.claims.get(&key).and_then(|it| it.allocation.clone());
            self.count(allocation.as_deref(), true);
        }
    }

    /// The decisions of a pod are handed to the executor.
    pub fn mark_submitted(&mut self, pod: InstanceId) {
        for key in self.reservations.uses.get(&pod).cloned().unwrap_or_default() {
            if let Some(decision) = self.reservations.decided.get_mut(&key)
                && !decision.writers.contains(&pod)
            {
                decision.writers.push(pod);
            }
        }
    }

    /// The executor is done with a claim for a pod. If the claim has the devices now, with the version that
    /// shows it.
    pub fn settle(&mut self, pod: InstanceId, claim: &Key, version: Option<u64>) {
        if let Some(decision) = self.reservations.decided.get_mut(claim) {
            decision.writers.retain(|it| *it != pod);
            decision.written = decision.written.max(version);
        }
        self.drop_if_done(claim);
    }

    /// A claim is deallocated, or that failed: with the version that shows it, if it was written.
    pub fn settle_release(&mut self, claim: &Key, version: Option<u64>) {
        match version.filter(|_| self.claims.contains_key(claim)) {
            Some(version) => {
                self.reservations.deallocating.insert(claim.clone(), Some(version));
                if let Some(claim) = self.claims.get(claim).cloned() {
                    self.observe_claim(&claim);
                }
            }
            None => {
                self.reservations.deallocating.remove(claim);
                self.changed = true;
            }
        }
    }

    /// Claims that keep a pod from being scheduled: they have devices that only it uses, or nobody does.
    /// They count as being deallocated from now on.
    pub fn release_stuck_claims(&mut self, pod: &Pod) -> Vec<ClaimRelease> {
        let mut found = Vec::new();
        for key in claim_keys(pod) {
            let Some(claim) = self.claims.get(&key) else { continue };
            let Some(allocation) = &claim.allocation else { continue };
            let is_own = claim.reserved_for.iter().all(|it| **it == *pod.uid)
                && !claim.is_reserved_for_others;
            let is_busy = self.reservations.decided.contains_key(&key)
                || self.reservations.deallocating.contains_key(&key);
            if is_own && !is_busy && allocation.nodes.0.is_some() {
                found.push(ClaimRelease { claim: key.clone(), uid: Arc::clone(&claim.uid) });
                self.reservations.deallocating.insert(key, None);
            }
        }
        found
    }

    /// The API server shows a claim.
    pub(super) fn observe_claim(&mut self, claim: &Claim) {
        let is_other = |it: &ClaimDecision| it.uid != claim.uid;
        if self.reservations.decided.get(&claim.key).is_some_and(is_other) {
            self.forget_claim(&claim.key);
        }
        self.drop_if_done(&claim.key);
        let version = claim.version.parse::<u64>().ok();
        let shown =
            |at: &Option<u64>| at.is_some_and(|at| version.is_none_or(|version| version >= at));
        if self.reservations.deallocating.get(&claim.key).is_some_and(shown) {
            self.reservations.deallocating.remove(&claim.key);
            self.changed = true;
        }
    }

    /// A claim is gone.
    pub(super) fn forget_claim(&mut self, key: &Key) {
        self.reservations.deallocating.remove(key);
        if let Some(decision) = self.reservations.decided.remove(key) {
            self.count(Some(&decision.allocation), false);
        }
    }

    /// Drops a decision that nobody relies on, or that the API server shows.
    fn drop_if_done(&mut self, key: &Key) {
        let Some(decision) = self.reservations.decided.get(key) else { return };
        let shown = self.claims.get(key).and_then(|it| it.version.parse::<u64>().ok());
        let is_done = decision.writers.is_empty()
            && match decision.written {
                Some(written) => shown.is_none_or(|shown| shown >= written),
                None => decision.pods.is_empty(),
            };
        if is_done && let Some(decision) = self.reservations.decided.remove(key) {
            self.count(Some(&decision.allocation), false);
            // Otherwise the claim itself has the devices.
            self.changed |= decision.written.is_none();
        }
    }
}
