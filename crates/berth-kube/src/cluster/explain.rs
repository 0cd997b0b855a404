//! Explains why a pod is unschedulable, and the verdict of every node.
//!
//! A refusal begins with one line: how many nodes each rule rejected, and the nearest miss with both
//! numbers. Pods of one template that are refused one after the other share the work.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{CheckError, Timestamp};
use rustc_hash::FxHashMap;

use super::filters::{FilterFailure, PreparedPod, all_failures, enumerate, first_failure};
use super::outcome::{GangOutcome, NodeVerdict, PodExplanation, Refusal, RuleCount};
use super::pod::Key;
use super::pod_groups::describe_gang;
use super::pod_store::PodEntry;
use super::ties::{self, TieBreaker};
use super::{Cluster, engine_types};

/// Rules that the summary names; the others are summed up.
const RULES_NAMED: usize = 4;

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

/// The nodes that one rule rejected.
#[derive(Default)]
struct RuleTally {
    nodes: usize,
    code: &'static str,
    /// The position of the rule among the filters.
    stage: usize,
    nearest: Option<(Option<i64>, Arc<str>, String)>,
    /// The nearest node that no other rule rejects: what helps against this one helps there.
    only: Option<(Option<i64>, Arc<str>)>,
    /// A topology label that nodes lack, and how many do.
    missing_label: Option<(String, usize)>,
}

impl RuleTally {
    /// Counts a node. `is_only` tells whether no other rule rejects it.
    fn add(
        &mut self,
        stage: usize,
        node: &Arc<str>,
        failure: FilterFailure,
        is_only: impl FnOnce() -> bool,
    ) {
        self.nodes += 1;
        self.code = failure.code;
        self.stage = self.stage.max(stage);
        let nearer = match (&self.nearest, failure.short) {
            (None, _) => true,
            (Some((Some(best), name, _)), Some(short)) => (short, node) < (*best, name),
            (Some((None, ..)), Some(_)) => true,
            (Some((None, name, _)), None) => node < name,
            (Some((Some(_), ..)), None) => false,
        };
        let miss = |short: Option<i64>| short.unwrap_or(i64::MAX);
        let better = self
            .only
            .as_ref()
            .is_none_or(|(best, name)| (miss(failure.short), node) < (miss(*best), name));
        if better && is_only() {
            self.only = Some((failure.short, Arc::clone(node)));
        }
        if let Some(key) = failure.missing_label {
            let (least, count) = self.missing_label.get_or_insert_with(|| (key.clone(), 0));
            if key < *least {
                *least = key;
            }
            *count += 1;
        }
        if nearer {
            self.nearest = Some((failure.short, Arc::clone(node), failure.text));
        }
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
        let mut tallies: BTreeMap<Arc<str>, RuleTally> = BTreeMap::new();
        let mut nodes = 0;
        for (index, node) in self.nodes.present() {
            nodes += 1;
            let (stage, failure) = self.first_rejection(&prepared, index, now);
            if let Some(failure) = failure {
                let tally = tallies.entry(Arc::clone(&failure.rule)).or_default();
                let is_only =
                    || stage == usize::MAX || all_failures(self, &prepared, index).len() == 1;
                tally.add(stage, &node.node.name, failure, is_only);
            }
        }
        let mut refusal = summarize(&entry, nodes, tallies);
        if let (true, Some(line)) =
            (refusal.help.is_empty(), self.no_single_fix(&prepared, &refusal))
        {
            refusal.help.push(line);
        }
        let (generation, kept) = (self.generation, refusal.clone());
        self.refused =
            Some(CachedRefusal { generation, of: entry, refusal: kept, no_victims: false });
        refusal
    }

    /// That several rules reject every node, by the example of one.
    fn no_single_fix(&self, prepared: &PreparedPod<'_>, refusal: &Refusal) -> Option<String> {
        let nearest = refusal.counts.iter().filter_map(|it| it.nearest.as_ref());
        let all = nearest.filter_map(|(node, _)| {
            let failures = all_failures(self, prepared, self.nodes.index_of(node)?);
            let rules: Vec<&str> = failures.iter().map(|it| &*it.rule).collect();
            Some((rules.len(), node, enumerate(&rules)))
        });
        let (_, node, rules) = all.filter(|it| it.0 > 1).min()?;
        Some(format!("No single change is enough: {node} is rejected by {rules}."))
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
        }
    }

    /// The first rule that rejects a node, and its position among the filters.
    fn first_rejection(
        &self,
        prepared: &PreparedPod<'_>,
        index: usize,
        now: Timestamp,
    ) -> (usize, Option<FilterFailure>) {
        match first_failure(self, prepared, index) {
            Some(failure) => (filter_stage(&failure), Some(failure)),
            None => (usize::MAX, self.engine_failure(prepared, index, now)),
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
        if pod.scheduler != *ours {
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
    }
}

/// The position of a failure among the filters: those that come last were nearest to fitting.
fn filter_stage(failure: &FilterFailure) -> usize {
    const ORDER: [&str; 13] = [
        "node_cordoned",
        "taint_not_tolerated",
        "node_selector_no_match",
        "node_affinity_no_match",
        "node_feature_missing",
        "pod_anti_affinity",
        "anti_affinity_of_others",
        "pod_affinity",
        "topology_spread",
        "host_port_in_use",
        "no_capacity_pods",
        "no_capacity_cpu",
        "no_capacity_memory",
    ];
    ORDER.iter().position(|code| *code == failure.code).unwrap_or(ORDER.len())
}

fn summarize(entry: &PodEntry, nodes: usize, tallies: BTreeMap<Arc<str>, RuleTally>) -> Refusal {
    let pod = entry.pod.key.clone();
    let mut tallies: Vec<(Arc<str>, RuleTally)> = tallies.into_iter().collect();
    tallies.sort_by(|a, b| (b.1.nodes, &a.0).cmp(&(a.1.nodes, &b.0)));
    if nodes == 0 {
        let line = "the cluster has no nodes".to_owned();
        let help = vec!["Add a node; the pod is retried when it joins.".to_owned()];
        return Refusal { pod, code: "no_nodes".to_owned(), nodes, counts: Vec::new(), line, help };
    }
    let nearest_stage = tallies.iter().max_by_key(|(_, it)| it.stage);
    let code = nearest_stage.map_or("no_place", |(_, it)| it.code).to_owned();
    let mut parts: Vec<String> =
        tallies.iter().take(RULES_NAMED).map(|(rule, it)| describe_rule(rule, it)).collect();
    let more: usize = tallies.iter().skip(RULES_NAMED).map(|(_, it)| it.nodes).sum();
    if more > 0 {
        parts.push(format!("{more} for other reasons"));
    }
    let line = format!("0/{nodes} nodes are available: {}", parts.join("; "));
    let help = tallies.iter().filter_map(|(rule, it)| suggest_fix(rule, it)).take(3).collect();
    let counts = tallies
        .into_iter()
        .map(|(rule, it)| RuleCount {
            rule: rule.to_string(),
            nodes: it.nodes,
            nearest: it.nearest.map(|(_, node, text)| (node, text)),
        })
        .collect();
    Refusal { pod, code, nodes, counts, line, help }
}

fn describe_rule(rule: &str, tally: &RuleTally) -> String {
    let nodes = tally.nodes;
    let many = if nodes == 1 { "" } else { "s" };
    let what = match tally.code {
        "node_cordoned" => format!("{nodes} cordoned"),
        "taint_not_tolerated" => format!("{nodes} with an untolerated taint"),
        "node_selector_no_match" | "node_affinity_no_match" => {
            format!("{nodes} not matching its {rule}")
        }
        "node_feature_missing" => format!("{nodes} without a feature that it needs"),
        "pod_anti_affinity" => format!("{nodes} violating its pod anti-affinity"),
        "anti_affinity_of_others" => format!("{nodes} violating the anti-affinity of other pods"),
        "pod_affinity" => format!("{nodes} not matching its pod affinity{}", unlabelled(tally)),
        "topology_spread" => {
            format!("{nodes} violating its topology spread constraints{}", unlabelled(tally))
        }
        "no_capacity_pods" => format!("{nodes} with too many pods"),
        "host_port_in_use" => format!("{nodes} with its host port in use"),
        code if code.starts_with("no_capacity") => format!("{nodes} short of {rule}"),
        "devices_elsewhere" => format!("{nodes} that cannot reach the devices of its claim"),
        "device_selector_failed" => format!("{nodes} where a device selector fails"),
        _ if rule == "devices" => format!("{nodes} without the devices that it claims"),
        _ if rule == "volumes" => format!("{nodes} where its volumes cannot be used"),
        _ => format!("{nodes} node{many} by {rule}"),
    };
    match (&tally.nearest, tally.code) {
        (Some((Some(_), node, text)), _) => format!("{what} (nearest {node}: {text})"),
        (Some((None, ..)), "node_cordoned") | (None, _) => what,
        (Some((None, node, text)), _) => format!("{what} ({node}: {text})"),
    }
}

/// How many of the nodes lack the topology label.
fn unlabelled(tally: &RuleTally) -> String {
    tally
        .missing_label
        .as_ref()
        .map_or_else(String::new, |(key, count)| format!(", {count} of them without label {key}"))
}

/// What would help against one rule, if that is enough on some node.
fn suggest_fix(rule: &str, tally: &RuleTally) -> Option<String> {
    let (_, near) = tally.only.as_ref()?;
    if let Some((key, _)) = &tally.missing_label {
        return Some(format!("Label all nodes with {key}, or use another topology key."));
    }
    Some(match tally.code {
        "node_cordoned" => format!("Uncordon a node, such as `kubectl uncordon {near}`."),
        "taint_not_tolerated" => "Add a toleration to the pod, or remove the taint.".to_owned(),
        "node_selector_no_match" | "node_affinity_no_match" => {
            format!("Label a node to match, or relax the pod's {rule}.")
        }
        "node_feature_missing" => {
            "Upgrade a node or enable its feature gate, or remove the field that needs it."
                .to_owned()
        }
        "no_capacity_pods" => "Add a node, or raise maxPods of the kubelet.".to_owned(),
        code if code.starts_with("no_capacity") => {
            format!("Request less {rule}, add a node, or delete other pods (nearest: {near}).")
        }
        "host_port_in_use" => "Use a Service instead of a host port, or add a node.".to_owned(),
        "pod_affinity" => {
            "Start a pod that its affinity matches, or make the rule preferred instead of required."
                .to_owned()
        }
        "pod_anti_affinity" | "anti_affinity_of_others" => {
            "Add a node in another domain, or make the rule preferred instead of required."
                .to_owned()
        }
        "topology_spread" => {
            "Add a node in the least loaded domain, raise maxSkew, or use ScheduleAnyway."
                .to_owned()
        }
        "devices_unavailable" => {
            "Free a device, add a node that has one, or relax the selectors of the claim."
                .to_owned()
        }
        "devices_elsewhere" => {
            "Make room on the nodes that can reach the devices of the claim, or use another claim."
                .to_owned()
        }
        "device_selector_failed" => {
            "Test in the selector whether a device has the attribute, with has() or `in`."
                .to_owned()
        }
        _ => return None,
    })
}
