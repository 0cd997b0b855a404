//! Why a pod has no place, and what every node says about it.
//!
//! A refusal begins with one line: how many nodes each rule removed, and the nearest miss with both
//! numbers. Pods of one template that are refused one after the other share the work.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{CheckError, Timestamp};
use rustc_hash::FxHashMap;

use super::outcome::{GangOutcome, NodeVerdict, PodExplanation, Refusal, RuleCount};
use super::pod::Key;
use super::pods::PodEntry;
use super::rules::{Asking, Failure, all_failures, first_failure};
use super::{Cluster, facts};

/// Rules that the one line names; the others are summed up.
const NAMED: usize = 4;

/// A refusal, and for whom and when it was found.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    changes: u64,
    of: PodEntry,
    refusal: Refusal,
    /// Nobody could go for it either.
    no_room: bool,
}

impl Refused {
    /// Whether another pod would get the same at the same time.
    fn is_for(&self, changes: u64, entry: &PodEntry) -> bool {
        let (a, b) = (&self.of, entry);
        self.changes == changes
            && a.asked == b.asked
            && a.carried == b.carried
            && a.promised == b.promised
            && a.pod.needs == b.pod.needs
            && a.pod.spread == b.pod.spread
            && a.pod.ports == b.pod.ports
            && a.pod.priority == b.pod.priority
            && a.pod.claims.is_empty()
            && b.pod.claims.is_empty()
    }
}

/// What one rule did to the nodes.
#[derive(Default)]
struct Tally {
    nodes: usize,
    code: &'static str,
    /// How far along the rules it stands.
    stage: usize,
    nearest: Option<(Option<i64>, Arc<str>, String)>,
}

impl Tally {
    fn add(&mut self, stage: usize, node: &Arc<str>, failure: Failure) {
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
        if nearer {
            self.nearest = Some((failure.short, Arc::clone(node), failure.text));
        }
    }
}

impl Cluster {
    /// Why no node can take a pod.
    pub(super) fn refuse(&mut self, uid: &str, now: Timestamp) -> Refusal {
        let Some(entry) = self.pods.get(uid).cloned() else { return gone(uid) };
        if let Some(last) = self.refused.as_ref().filter(|it| it.is_for(self.changes, &entry)) {
            return Refusal { pod: entry.pod.key.clone(), ..last.refusal.clone() };
        }
        let asking = match self.asking(&entry) {
            Ok(asking) => asking,
            Err(failure) => return self.refuse_anywhere(uid, &failure),
        };
        let mut tallies: BTreeMap<Arc<str>, Tally> = BTreeMap::new();
        let mut nodes = 0;
        for (place, node) in self.nodes.present() {
            nodes += 1;
            let (stage, failure) = self.verdict(&asking, place, now);
            if let Some(failure) = failure {
                let tally = tallies.entry(Arc::clone(&failure.rule)).or_default();
                tally.add(stage, &node.node.name, failure);
            }
        }
        let refusal = write(&entry, nodes, tallies);
        let (changes, kept) = (self.changes, refusal.clone());
        self.refused = Some(Refused { changes, of: entry, refusal: kept, no_room: false });
        refusal
    }

    /// Whether it is known that nobody could go for such a pod.
    pub(super) fn knows_no_room(&self, entry: &PodEntry) -> bool {
        self.refused.as_ref().is_some_and(|it| it.no_room && it.is_for(self.changes, entry))
    }

    /// Notes that nobody could go for such a pod.
    pub(super) fn note_no_room(&mut self, entry: &PodEntry) {
        let changes = self.changes;
        if let Some(last) = self.refused.as_mut().filter(|it| it.is_for(changes, entry)) {
            last.no_room = true;
        }
    }

    /// Why a pod has no place, for a reason that has nothing to do with nodes.
    pub(super) fn refuse_anywhere(&self, uid: &str, failure: &Failure) -> Refusal {
        let Some(entry) = self.pods.get(uid) else { return gone(uid) };
        Refusal {
            pod: entry.pod.key.clone(),
            code: failure.code.to_owned(),
            nodes: self.nodes.count(),
            counts: Vec::new(),
            line: failure.text.clone(),
            help: Vec::new(),
        }
    }

    /// What a node says first, and how far along the rules that is.
    fn verdict(
        &self,
        asking: &Asking<'_>,
        place: usize,
        now: Timestamp,
    ) -> (usize, Option<Failure>) {
        match first_failure(self, asking, place) {
            Some(failure) => (stage(&failure), Some(failure)),
            None => (usize::MAX, self.engine_says(asking, place, now)),
        }
    }

    /// What the policy's own filters say.
    fn engine_says(&self, asking: &Asking<'_>, place: usize, now: Timestamp) -> Option<Failure> {
        let name = &self.nodes.get(place)?.node.name;
        let request = facts::of_pod(asking.entry);
        match self.engine.check(&request, &facts::node_id(name), now) {
            // It asks for none; the engine knows no instance without.
            Err(CheckError::Removed { filter: "memory", .. }) if asking.entry.asked.memory == 0 => {
                None
            }
            Err(CheckError::Removed { filter, code, evidence }) => {
                let (rule, text) = (filter.into(), evidence.to_string());
                Some(Failure { rule, code, text, short: None })
            }
            Ok(()) | Err(_) => None,
        }
    }

    /// Everything about one pod: what each node says, and the choice that would be made now. A pod
    /// that is somewhere is looked at as if it were not.
    pub fn explain(&mut self, pod: &Key, now: Timestamp) -> Option<PodExplanation> {
        let entry = self.pods.named(pod)?.clone();
        let uid = Arc::clone(&entry.pod.uid);
        let (news, changes) = (self.news, self.changes);
        let (at, reserved) = (entry.at, entry.reserved);
        // Lifting a pod whose volumes are being made ready could give them to another, and a node
        // that is gone would be forgotten with its last pod.
        let stays = at.and_then(|place| self.nodes.get(place)).is_some_and(|node| !node.gone);
        let lifts = stays && (!reserved || entry.pod.claims.is_empty());
        if lifts {
            self.detach(&uid);
        }
        let explanation = self.explain_lifted(&entry, now);
        if let Some(place) = at.filter(|_| lifts) {
            self.attach(&uid, place);
            self.pods.get_mut(&uid).into_iter().for_each(|it| it.reserved = reserved);
        }
        (self.news, self.changes) = (news, changes);
        Some(explanation)
    }

    /// Why a pod without a node waits, though there may be one: for reasons that are not the nodes'.
    fn waits_for_else(&mut self, entry: &PodEntry, now: Timestamp) -> Option<Refusal> {
        let (pod, uid) = (&entry.pod, &entry.pod.uid);
        if pod.node.is_some() || entry.at.is_some() || pod.ended {
            return None;
        }
        let because = |code: &'static str, text: String| Failure {
            rule: "pod".into(),
            code,
            text,
            short: None,
        };
        let ours = &self.settings.scheduler;
        if pod.scheduler != *ours {
            let text = format!(
                "its schedulerName is {:?}, and this scheduler places pods of {ours:?}",
                pod.scheduler
            );
            return Some(self.refuse_anywhere(uid, &because("other_scheduler", text)));
        }
        if pod.deleting {
            let text = "it is being deleted".to_owned();
            return Some(self.refuse_anywhere(uid, &because("pod_deleting", text)));
        }
        if pod.gated {
            let text = "its schedulingGates are not all removed yet".to_owned();
            return Some(self.refuse_anywhere(uid, &because("scheduling_gated", text)));
        }
        let gang = Arc::clone(&pod.gang.as_ref()?.name);
        match self.place_gang(&pod.key.namespace, &gang, now) {
            GangOutcome::Incomplete { there, size } => {
                let text =
                    format!("gang {gang} has {there} of {size} pods, and waits for the rest");
                Some(self.refuse_anywhere(uid, &because("gang_incomplete", text)))
            }
            GangOutcome::Refused(refusal) => Some(*refusal),
            // It was only asked.
            GangOutcome::Reserved(members) => {
                members.iter().for_each(|member| self.give_up(&member.uid));
                None
            }
        }
    }

    fn explain_lifted(&mut self, entry: &PodEntry, now: Timestamp) -> PodExplanation {
        let uid = Arc::clone(&entry.pod.uid);
        let at = entry.at.and_then(|place| self.nodes.get(place));
        let mut explanation = PodExplanation {
            pod: entry.pod.key.clone(),
            node: at.map(|it| Arc::clone(&it.node.name)),
            best: None,
            refusal: None,
            table: Vec::new(),
        };
        let asking = match self.asking(entry) {
            Ok(asking) => asking,
            Err(failure) => {
                explanation.refusal = Some(self.refuse_anywhere(&uid, &failure));
                return explanation;
            }
        };
        let mut found = Vec::new();
        self.scan(&asking, now, &mut found);
        self.add_overfull(&asking, &mut found);
        let totals: FxHashMap<usize, i64> = found.iter().map(|it| (it.place, it.total)).collect();
        for (place, node) in self.nodes.present() {
            let mut failures = all_failures(self, &asking, place);
            if failures.is_empty() {
                failures.extend(self.engine_says(&asking, place, now));
            }
            let total = totals.get(&place).copied().filter(|_| failures.is_empty());
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
        let best = best.max_by(|a, b| a.total.cmp(&b.total).then(b.node.cmp(&a.node)));
        explanation.best = best.map(|it| Arc::clone(&it.node));
        if let Some(waits) = self.waits_for_else(entry, now) {
            explanation.best = None;
            explanation.refusal = Some(waits);
            return explanation;
        }
        if explanation.best.is_none() {
            // It must not find the pod itself in its way.
            self.refused = None;
            explanation.refusal = Some(self.refuse(&uid, now));
            self.refused = None;
        }
        explanation
    }
}

fn gone(uid: &str) -> Refusal {
    Refusal {
        pod: Key::new("", uid),
        code: "pod_gone".to_owned(),
        nodes: 0,
        counts: Vec::new(),
        line: "the pod is gone".to_owned(),
        help: Vec::new(),
    }
}

/// How far along the rules a failure stands: those that come last were nearest to fitting.
fn stage(failure: &Failure) -> usize {
    const ORDER: [&str; 12] = [
        "node_cordoned",
        "taint_not_tolerated",
        "node_selector_no_match",
        "node_affinity_no_match",
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

fn write(entry: &PodEntry, nodes: usize, tallies: BTreeMap<Arc<str>, Tally>) -> Refusal {
    let pod = entry.pod.key.clone();
    let mut tallies: Vec<(Arc<str>, Tally)> = tallies.into_iter().collect();
    tallies.sort_by(|a, b| (b.1.nodes, &a.0).cmp(&(a.1.nodes, &b.0)));
    if nodes == 0 {
        let line = "the cluster has no nodes".to_owned();
        let help = vec!["Add a node; the pod is tried again when it joins.".to_owned()];
        return Refusal { pod, code: "no_nodes".to_owned(), nodes, counts: Vec::new(), line, help };
    }
    let nearest_stage = tallies.iter().max_by_key(|(_, it)| it.stage);
    let code = nearest_stage.map_or("no_place", |(_, it)| it.code).to_owned();
    let mut parts: Vec<String> =
        tallies.iter().take(NAMED).map(|(rule, it)| part(rule, it)).collect();
    let more: usize = tallies.iter().skip(NAMED).map(|(_, it)| it.nodes).sum();
    if more > 0 {
        parts.push(format!("{more} for other reasons"));
    }
    let line = format!("0/{nodes} nodes can take it: {}", parts.join("; "));
    let help = tallies.iter().filter_map(|(rule, it)| help(rule, it)).take(3).collect();
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

fn part(rule: &str, tally: &Tally) -> String {
    let nodes = tally.nodes;
    let many = if nodes == 1 { "" } else { "s" };
    let what = match tally.code {
        "node_cordoned" => format!("{nodes} cordoned"),
        "taint_not_tolerated" => format!("{nodes} with a taint it does not tolerate"),
        "node_selector_no_match" | "node_affinity_no_match" => {
            format!("{nodes} not selected by its {rule}")
        }
        "pod_anti_affinity" => format!("{nodes} near pods that it must be away from"),
        "anti_affinity_of_others" => format!("{nodes} near pods that must be away from it"),
        "pod_affinity" => format!("{nodes} not near the pods that it must be beside"),
        "topology_spread" => format!("{nodes} where it would be spread too unevenly"),
        "no_capacity_pods" => format!("{nodes} full of pods"),
        "host_port_in_use" => format!("{nodes} with its host port in use"),
        code if code.starts_with("no_capacity") => format!("{nodes} short of {rule}"),
        _ => format!("{nodes} node{many} by {rule}"),
    };
    match (&tally.nearest, tally.code) {
        (Some((Some(_), node, text)), _) => format!("{what} (nearest {node}: {text})"),
        (Some((None, ..)), "node_cordoned") | (None, _) => what,
        (Some((None, node, text)), _) => format!("{what} ({node}: {text})"),
    }
}

/// What would help against one rule.
fn help(rule: &str, tally: &Tally) -> Option<String> {
    let near = tally.nearest.as_ref().map_or("", |(_, node, _)| node);
    Some(match tally.code {
        "node_cordoned" => format!("Uncordon a node, such as `kubectl uncordon {near}`."),
        "taint_not_tolerated" => "Tolerate the taint in the pod, or take it off a node.".to_owned(),
        "node_selector_no_match" | "node_affinity_no_match" => {
            format!("Label a node as the pod asks, or ask for less in its {rule}.")
        }
        "no_capacity_pods" => "Add a node, or raise maxPods of the kubelet.".to_owned(),
        code if code.starts_with("no_capacity") => {
            format!("Ask for less {rule}, add a node, or let something go (nearest: {near}).")
        }
        "host_port_in_use" => "Use a Service instead of a host port, or add a node.".to_owned(),
        "pod_affinity" => {
            "Start a pod that it can be beside, or make the rule preferred, not required."
                .to_owned()
        }
        "pod_anti_affinity" | "anti_affinity_of_others" => {
            "Add a node in another domain, or make the rule preferred, not required.".to_owned()
        }
        "topology_spread" => {
            "Add a node in the emptiest domain, or raise maxSkew, or use ScheduleAnyway.".to_owned()
        }
        _ => return None,
    })
}
