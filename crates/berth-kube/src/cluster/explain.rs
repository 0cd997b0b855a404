//! Explains why a pod is unschedulable, and the verdict of every node.
//!
//! Pods of one template that are refused one after the other share the work.

use std::sync::Arc;

use berth_engine::{CheckError, Timestamp};
use rustc_hash::FxHashMap;

use super::filters::{FilterFailure, PreparedPod, all_failures};
use super::outcome::{GangOutcome, NodeVerdict, PodExplanation, Refusal};
use super::pod::Key;
use super::pod_groups::describe_gang;
use super::pod_store::PodEntry;
use super::rejections::Rejections;
use super::ties::{self, TieBreaker};
use super::{Cluster, engine_types};

/// A refusal, with the pod and the generation that it was made for.
#[derive(Clone, Debug)]
pub(super) struct CachedRefusal {
    generation: u64,
    of: PodEntry,
    refusal: Refusal,
    /// Whether preemption cannot help either.
    no_victims: bool,
}

impl CachedRefusal {
    /// Whether another pod would get the same refusal now.
    fn is_for(&self, generation: u64, entry: &PodEntry) -> bool {
        let (a, b) = (&self.of, entry);
        self.generation == generation
            && a.requested == b.requested
            && a.pod_terms == b.pod_terms
            && a.nominated == b.nominated
            && a.pod.node_requirements == b.pod.node_requirements
            && a.pod.spread == b.pod.spread
            && a.pod.ports == b.pod.ports
            && a.pod.priority == b.pod.priority
            && a.pod.claims.is_empty()
            && b.pod.claims.is_empty()
            && a.pod.device_claims.is_empty()
            && b.pod.device_claims.is_empty()
    }
}

impl Cluster {
    /// Why no node can take a pod.
    pub(super) fn build_refusal(&mut self, uid: &str, now: Timestamp) -> Refusal {
        let Some(entry) = self.pods.get(uid).cloned() else { return deleted_pod(uid) };
        if let Some(last) = self.refused.as_ref().filter(|it| it.is_for(self.generation, &entry)) {
            return Refusal { pod: entry.pod.key.clone(), ..last.refusal.clone() };
        }
        let prepared = match self.prepare_pod(&entry) {
            Ok(prepared) => prepared,
            Err(failure) => return self.refuse_pod(uid, &failure),
        };
        let mut rejections = Rejections::default();
        for (index, node) in self.nodes.present() {
            let mut failures = all_failures(self, &prepared, index);
            if failures.is_empty() {
                failures.extend(self.engine_failure(&prepared, index, now));
            }
            rejections.add_node(&node.node.name, failures);
        }
        let refusal = rejections.summarize(&entry);
        let (generation, kept) = (self.generation, refusal.clone());
        self.refused =
            Some(CachedRefusal { generation, of: entry, refusal: kept, no_victims: false });
        refusal
    }

    /// Whether it is known that preemption cannot help such a pod.
    pub(super) fn has_no_victims(&self, entry: &PodEntry) -> bool {
        self.refused.as_ref().is_some_and(|it| it.no_victims && it.is_for(self.generation, entry))
    }

    /// Records that preemption cannot help such a pod.
    pub(super) fn mark_no_victims(&mut self, entry: &PodEntry) {
        let generation = self.generation;
        if let Some(last) = self.refused.as_mut().filter(|it| it.is_for(generation, entry)) {
            last.no_victims = true;
        }
    }

    /// The refusal of a pod for a reason that does not depend on nodes.
    pub(super) fn refuse_pod(&self, uid: &str, failure: &FilterFailure) -> Refusal {
        let Some(entry) = self.pods.get(uid) else { return deleted_pod(uid) };
        Refusal {
            pod: entry.pod.key.clone(),
            code: failure.code.to_owned(),
            nodes: self.nodes.count(),
            counts: Vec::new(),
            line: failure.text.clone(),
            help: Vec::new(),
            shape: None,
        }
    }

    /// The first of the policy's own filters that rejects a node.
    fn engine_failure(
        &self,
        prepared: &PreparedPod<'_>,
        index: usize,
        now: Timestamp,
    ) -> Option<FilterFailure> {
        let name = &self.nodes.get(index)?.node.name;
        let request = engine_types::instance_request(prepared.entry);
        match self.engine.check(&request, &engine_types::node_id(name), now) {
            // The pod requests none, while every instance of the engine uses memory.
            Err(CheckError::Removed { filter: "memory", .. })
                if prepared.entry.requested.memory == 0 =>
            {
                None
            }
            Err(CheckError::Removed { filter, code, evidence }) => {
                Some(FilterFailure::new(filter, code, evidence.to_string()))
            }
            Ok(()) | Err(_) => None,
        }
    }

    /// Explains a pod: the verdict of each node, and the node that would be chosen now. A pod that is
    /// on a node is treated as if it were not.
    pub fn explain(&mut self, pod: &Key, now: Timestamp) -> Option<PodExplanation> {
        let entry = self.pods.by_name(pod)?.clone();
        let uid = Arc::clone(&entry.pod.uid);
        let (changed, generation) = (self.changed, self.generation);
        let (at, reserved) = (entry.assigned, entry.reserved);
        // Taking a pod off whose volumes are being prepared could give them to another pod, and a
        // deleted node would be forgotten with its last pod.
        let stays = at.and_then(|index| self.nodes.get(index)).is_some_and(|node| !node.deleted);
        let has_claims = !entry.pod.claims.is_empty() || !entry.pod.device_claims.is_empty();
        let is_removed = stays && (!reserved || !has_claims);
        if is_removed {
            self.devices.begin_dry_run();
            self.unaccount(&uid);
        }
        let explanation = self.explain_unaccounted(&entry, now);
        if let Some(index) = at.filter(|_| is_removed) {
            self.account(&uid, index);
            self.pods.get_mut(&uid).into_iter().for_each(|it| it.reserved = reserved);
            self.devices.end_dry_run();
        }
        (self.changed, self.generation) = (changed, generation);
        Some(explanation)
    }

    /// Why a pending pod is not scheduled, for reasons that do not depend on nodes.
    fn pod_refusal(&mut self, entry: &PodEntry, now: Timestamp) -> Option<Refusal> {
        let (pod, uid) = (&entry.pod, &entry.pod.uid);
        if pod.node.is_some() || entry.assigned.is_some() || pod.ended {
            return None;
        }
        let because = |code: &'static str, text: String| FilterFailure::new("pod", code, text);
        let ours = &self.settings.scheduler;
        if *pod.scheduler != **ours {
            let text = format!(
                "its schedulerName is {:?}, but this scheduler handles {ours:?}",
                pod.scheduler
            );
            return Some(self.refuse_pod(uid, &because("other_scheduler", text)));
        }
        if pod.deleting {
            let text = "it is being deleted".to_owned();
            return Some(self.refuse_pod(uid, &because("pod_deleting", text)));
        }
        if pod.gated {
            let text = "its schedulingGates are not all removed yet".to_owned();
            return Some(self.refuse_pod(uid, &because("scheduling_gated", text)));
        }
        let gang = Arc::clone(&pod.gang.as_ref()?.name);
        match self.schedule_gang(&pod.key.namespace, &gang, now) {
            GangOutcome::Incomplete { present, size } => {
                let gang = describe_gang(&gang);
                let text = format!("{gang} has {present} of {size} pods, and waits for the others");
                Some(self.refuse_pod(uid, &because("gang_incomplete", text)))
            }
            GangOutcome::Refused(refusal) => Some(*refusal),
            GangOutcome::Group(plan) => {
                plan.members.iter().for_each(|member| self.unreserve(&member.uid));
                let fits = plan.members.iter().any(|member| member.uid == *uid);
                plan.refusal.filter(|_| !fits).map(|refusal| *refusal)
            }
            // This was only a question.
            GangOutcome::Reserved(members) => {
                members.iter().for_each(|member| self.unreserve(&member.uid));
                None
            }
        }
    }

    fn explain_unaccounted(&mut self, entry: &PodEntry, now: Timestamp) -> PodExplanation {
        let uid = Arc::clone(&entry.pod.uid);
        let at = entry.assigned.and_then(|index| self.nodes.get(index));
        let mut explanation = PodExplanation {
            pod: entry.pod.key.clone(),
            node: at.map(|it| Arc::clone(&it.node.name)),
            best: None,
            refusal: None,
            table: Vec::new(),
        };
        let prepared = match self.prepare_pod(entry) {
            Ok(prepared) => prepared,
            Err(failure) => {
                explanation.refusal = Some(self.refuse_pod(&uid, &failure));
                return explanation;
            }
        };
        let mut found = Vec::new();
        self.find_candidates(&prepared, now, &mut found);
        self.add_memory_overcommitted(&prepared, &mut found);
        let totals: FxHashMap<usize, i64> = found.iter().map(|it| (it.index, it.total)).collect();
        for (index, node) in self.nodes.present() {
            let mut failures = all_failures(self, &prepared, index);
            if failures.is_empty() {
                failures.extend(self.engine_failure(&prepared, index, now));
            }
            let total = totals.get(&index).copied().filter(|_| failures.is_empty());
            let removed_by =
                failures.into_iter().map(|it| (it.rule.to_string(), it.text)).collect();
            explanation.table.push(NodeVerdict {
                node: Arc::clone(&node.node.name),
                removed_by,
                total,
            });
        }
        explanation.table.sort_by(|a, b| a.node.cmp(&b.node));
        let best = explanation.table.iter().filter(|it| it.total.is_some());
        let ties = TieBreaker::new(entry.pod.id);
        let best = best.max_by_key(|it| (it.total, ties.rank(ties::name_hash(&it.node))));
        explanation.best = best.map(|it| Arc::clone(&it.node));
        if let Some(waits) = self.pod_refusal(entry, now) {
            explanation.best = None;
            explanation.refusal = Some(waits);
            return explanation;
        }
        if explanation.best.is_none() {
            // A cached refusal would count the pod itself.
            self.refused = None;
            explanation.refusal = Some(self.build_refusal(&uid, now));
            self.refused = None;
        }
        explanation
    }
}

fn deleted_pod(uid: &str) -> Refusal {
    Refusal {
        pod: Key::new("", uid),
        code: "pod_gone".to_owned(),
        nodes: 0,
        counts: Vec::new(),
        line: "the pod was deleted".to_owned(),
        help: Vec::new(),
        shape: None,
    }
}
