//! The one function that decides whether a pod may go on a node: [`first_failure`].
//!
//! Choice, re-check, preemption, gangs, drains and explanations all rest on it. The scan proposes
//! nodes by bits and columns, which is fast; what it proposes is asked here before it is reserved.
//! Rules never score and never change anything.

use std::sync::Arc;

use super::Cluster;
use super::node::{Effect, untolerated};
use super::nodes::{NodeEntry, is_cordon};
use super::pods::PodEntry;
use super::resources::{Resources, shown};
use super::spreads::Ready;
use super::terms::{SetId, TermId};
use super::topology::NOWHERE;
use super::volumes;

/// Why a node cannot take a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The rule's name.
    pub(super) rule: Arc<str>,
    /// Its code.
    pub(super) code: &'static str,
    /// Why, with both numbers where there are two.
    pub(super) text: String,
    /// By how much it missed, in thousandths of what was asked; absent where that cannot be said.
    pub(super) short: Option<i64>,
}

/// A pod made ready to be asked about nodes.
pub(super) struct Asking<'a> {
    /// The pod.
    pub(super) entry: &'a PodEntry,
    /// Its constraints on spreading.
    pub(super) spread: Vec<Ready>,
    /// Its volumes.
    pub(super) volumes: volumes::Prepared,
    /// No pod that it must be beside is anywhere, and it would be the first of its kind itself.
    pub(super) seeds: bool,
}

type Rule = fn(&Cluster, &Asking<'_>, usize, &NodeEntry) -> Option<Failure>;

/// Every rule, in the order in which they are asked: facts first, then neighbours, then load.
pub(super) const RULES: [Rule; 10] = [
    cordoned,
    taints,
    node_affinity,
    others_anti_affinity,
    anti_affinity,
    affinity,
    spread,
    promised,
    load,
    volume_rules,
];

/// The first rule that keeps a pod off a node, if any does.
pub(super) fn first_failure(
    cluster: &Cluster,
    asking: &Asking<'_>,
    place: usize,
) -> Option<Failure> {
    let Some(entry) = cluster.nodes.get(place).filter(|entry| !entry.gone) else {
        return failure("node", "node_gone", "it is gone".to_owned());
    };
    RULES.iter().find_map(|rule| rule(cluster, asking, place, entry))
}

/// Every rule that keeps a pod off a node, in order.
pub(super) fn all_failures(cluster: &Cluster, asking: &Asking<'_>, place: usize) -> Vec<Failure> {
    let Some(entry) = cluster.nodes.get(place) else { return Vec::new() };
    RULES.iter().filter_map(|rule| rule(cluster, asking, place, entry)).collect()
}

fn failure(rule: &str, code: &'static str, text: String) -> Option<Failure> {
    Some(Failure { rule: rule.into(), code, text, short: None })
}

fn hard(effect: Effect) -> bool {
    effect != Effect::PreferNoSchedule
}

fn cordoned(_: &Cluster, asking: &Asking<'_>, _: usize, entry: &NodeEntry) -> Option<Failure> {
    let tolerations = &asking.entry.pod.needs.tolerations;
    let taint = entry.taints.iter().find(|it| is_cordon(it))?;
    if tolerations.iter().any(|it| it.tolerates(taint)) {
        return None;
    }
    failure("cordoned", "node_cordoned", "it is cordoned".to_owned())
}

fn taints(_: &Cluster, asking: &Asking<'_>, _: usize, entry: &NodeEntry) -> Option<Failure> {
    let counts = |effect| hard(effect);
    let tolerations = &asking.entry.pod.needs.tolerations;
    let others = entry.taints.iter().filter(|it| !is_cordon(it));
    let taint = others.into_iter().find(|it| {
        counts(it.effect) && untolerated(std::slice::from_ref(it), tolerations, counts).is_some()
    })?;
    failure("taints", "taint_not_tolerated", format!("taint {taint} is not tolerated"))
}

fn node_affinity(_: &Cluster, asking: &Asking<'_>, _: usize, entry: &NodeEntry) -> Option<Failure> {
    let (needs, node) = (&asking.entry.pod.needs, &entry.node);
    let missing = needs.labels.iter().find(|(key, value)| node.labels.get(key) != Some(value));
    if let Some((key, value)) = missing {
        let has = node.labels.get(key).map_or("is not there".to_owned(), |it| format!("is {it}"));
        let text = format!("label {key} {has}, nodeSelector asks for {value}");
        return failure("node-selector", "node_selector_no_match", text);
    }
    if needs.nodes.matches(&node.name, &node.labels) {
        return None;
    }
    let text = "no term of its required node affinity matches".to_owned();
    failure("node-affinity", "node_affinity_no_match", text)
}

fn others_anti_affinity(
    cluster: &Cluster,
    asking: &Asking<'_>,
    place: usize,
    _: &NodeEntry,
) -> Option<Failure> {
    let set = cluster.terms.set(asking.entry.carried.set)?;
    let terms = set.terms.iter().filter_map(|id| cluster.terms.term(*id));
    let near = terms.filter(|term| term.away_total > 0).map(|term| {
        let count = term.away_in(cluster.topologies.domain(term.topology, place));
        (count, cluster.topologies.key(term.topology))
    });
    // Rules are numbered as they come; what is said must not depend on that.
    let (count, key) = near.filter(|(count, _)| *count > 0).max()?;
    let text = format!("{count} pod(s) in its {key} must be away from pods like this one");
    failure("anti-affinity-of-others", "anti_affinity_of_others", text)
}

fn anti_affinity(
    cluster: &Cluster,
    asking: &Asking<'_>,
    place: usize,
    _: &NodeEntry,
) -> Option<Failure> {
    for id in &asking.entry.carried.away {
        let Some(term) = cluster.terms.term(*id) else { continue };
        let count = term.matching_in(cluster.topologies.domain(term.topology, place));
        if count > 0 {
            let key = cluster.topologies.key(term.topology);
            let text = format!("{count} pod(s) in its {key} are those it must be away from");
            return failure("pod-anti-affinity", "pod_anti_affinity", text);
        }
    }
    None
}

fn affinity(
    cluster: &Cluster,
    asking: &Asking<'_>,
    place: usize,
    _: &NodeEntry,
) -> Option<Failure> {
    for id in &asking.entry.carried.beside {
        let Some(term) = cluster.terms.term(*id) else { continue };
        let domain = cluster.topologies.domain(term.topology, place);
        let key = cluster.topologies.key(term.topology);
        if domain == NOWHERE {
            let text = format!("it has no label {key}, which its pod affinity goes by");
            return failure("pod-affinity", "pod_affinity", text);
        }
        if !asking.seeds && term.matching_in(domain) == 0 {
            let text = format!("no pod that it must be beside is in its {key}");
            return failure("pod-affinity", "pod_affinity", text);
        }
    }
    None
}

fn spread(cluster: &Cluster, asking: &Asking<'_>, place: usize, _: &NodeEntry) -> Option<Failure> {
    for ready in asking.spread.iter().filter(|it| it.hard) {
        let Some(spread) = cluster.spreads.get(ready.id) else { continue };
        let domain = cluster.topologies.domain(ready.topology, place);
        let key = cluster.topologies.key(ready.topology);
        if domain == NOWHERE {
            let text = format!("it has no label {key}, which the topology spread goes by");
            return failure("topology-spread", "topology_spread", text);
        }
        let count = spread.in_domain(domain);
        if count > ready.limit {
            let (least, most) = (ready.least, ready.max_skew);
            let text = format!(
                "its {key} has {count} such pod(s), the emptiest has {least}, and maxSkew is {most}"
            );
            return failure("topology-spread", "topology_spread", text);
        }
    }
    None
}

/// Pods that the node was promised to and that are of at least this one's priority.
fn ahead<'a>(
    cluster: &'a Cluster,
    asking: &'a Asking<'_>,
    place: usize,
) -> impl Iterator<Item = &'a PodEntry> {
    let pod = &asking.entry.pod;
    let others = cluster.promised_to(place);
    others.filter(|it| it.pod.uid != pod.uid && it.pod.priority >= pod.priority)
}

/// Whom the node was promised to counts among the neighbours there as if it had come.
fn promised(
    cluster: &Cluster,
    asking: &Asking<'_>,
    place: usize,
    _: &NodeEntry,
) -> Option<Failure> {
    let others: Vec<&PodEntry> = ahead(cluster, asking, place).collect();
    let here = |id: &TermId, set: SetId| {
        let term = cluster.terms.term(*id);
        cluster.terms.is_match(set, *id)
            && term.is_some_and(|it| cluster.topologies.domain(it.topology, place) != NOWHERE)
    };
    let own = &asking.entry.carried;
    for other in &others {
        if own.away.iter().any(|id| here(id, other.carried.set)) {
            let text = format!("it must be away from {}, which it is promised to", other.pod.key);
            return failure("pod-anti-affinity", "pod_anti_affinity", text);
        }
        if other.carried.away.iter().any(|id| here(id, own.set)) {
            let text = format!("{}, which it is promised to, must be away from it", other.pod.key);
            return failure("anti-affinity-of-others", "anti_affinity_of_others", text);
        }
    }
    let hard = asking.spread.iter().filter(|it| it.hard && !others.is_empty());
    for (ready, spread) in hard.filter_map(|it| Some((it, cluster.spreads.get(it.id)?))) {
        let sets = others.iter().filter_map(|it| cluster.terms.set(it.carried.set));
        let more = sets.filter(|set| spread.counts_at(set, place)).count();
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        let domain = cluster.topologies.domain(ready.topology, place);
        if more > 0 && spread.in_domain(domain) + more > ready.limit_with(spread, domain, more) {
            let key = cluster.topologies.key(ready.topology);
            let text = format!("its {key} would have too many with those it is promised to");
            return failure("topology-spread", "topology_spread", text);
        }
    }
    None
}

/// Room for pods, ports and resources, with what was promised to others of at least its priority.
fn load(
    cluster: &Cluster,
    asking: &Asking<'_>,
    place: usize,
    entry: &NodeEntry,
) -> Option<Failure> {
    let pod = &asking.entry.pod;
    let mut promised: Option<(i64, Resources)> = None;
    let mut clash = pod.ports.iter().find(|it| entry.ports.iter().any(|used| used.clashes(it)));
    for other in ahead(cluster, asking, place) {
        let sum = promised.get_or_insert_with(|| (0, entry.used.clone()));
        sum.0 += 1;
        sum.1.add(&other.asked, 1);
        let clashes = || pod.ports.iter().find(|it| other.pod.ports.iter().any(|p| p.clashes(it)));
        clash = clash.or_else(clashes);
    }
    if let Some(port) = clash {
        let text = format!("host port {}/{} is in use", port.port, port.protocol);
        return failure("host-ports", "host_port_in_use", text);
    }
    let (more, used) = promised.as_ref().map_or((0, &entry.used), |(more, used)| (*more, used));
    let pods = i64::try_from(entry.pods.len()).unwrap_or(i64::MAX).saturating_add(more);
    if pods >= entry.node.max_pods {
        let text = format!("it has {pods} pods of {} at most", entry.node.max_pods);
        return failure("pods", "no_capacity_pods", text);
    }
    let (name, free, asked) = asking.entry.asked.lacking(used, &entry.node.allocatable)?;
    let code = match name {
        "cpu" => "no_capacity_cpu",
        "memory" => "no_capacity_memory",
        "ephemeral-storage" => "no_capacity_storage",
        _ => "no_capacity_extended",
    };
    let text = format!("{} free of {} asked", shown(name, free.max(0)), shown(name, asked));
    let short = asked.saturating_sub(free).saturating_mul(1000).checked_div(asked);
    Some(Failure { rule: name.into(), code, text, short })
}

fn volume_rules(
    cluster: &Cluster,
    asking: &Asking<'_>,
    _: usize,
    entry: &NodeEntry,
) -> Option<Failure> {
    let why = cluster.volumes.check(&asking.volumes, &entry.node).err()?;
    failure("volumes", why.code, why.text)
}
