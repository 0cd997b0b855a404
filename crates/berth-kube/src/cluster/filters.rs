//! The filters: [`first_failure`] is the one function that decides whether a node can take a pod.
//!
//! Choice, re-check, preemption, gangs, drains and explanations all use it. The scan finds candidates
//! by bits and columns, which is fast; a candidate has to pass here before it is reserved. Filters
//! never score and never change anything.

use std::sync::Arc;

use super::Cluster;
use super::node::{Effect, untolerated};
use super::node_store::{NodeEntry, is_cordon};
use super::pod::Port;
use super::pod_affinity::{SetId, TermId};
use super::pod_store::PodEntry;
use super::resources::{Resources, Shortage, format_amount};
use super::topology::NO_DOMAIN;
use super::topology_spread::PreparedSpread;
use super::{devices, volumes};

/// Why a node cannot take a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilterFailure {
    /// The name of the rule.
    pub(super) rule: Arc<str>,
    /// Its stable code.
    pub(super) code: &'static str,
    /// The reason, with both numbers where there are two.
    pub(super) text: String,
    /// By how much it missed, in thousandths of the request; absent where there is no such number.
    pub(super) short: Option<i64>,
    /// The topology label that the node lacks, if that is why.
    pub(super) missing_label: Option<Box<str>>,
    /// What is known of a remedy.
    pub(super) remedy: Option<Remedy>,
}

/// What a rule knows of a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// A larger node: what this one has in all of the resources of which the pod requests more than that,
    /// such as `only 8 cpu`. Another pod's departure would not help.
    LargerNode(Box<str>),
    /// What would help.
    Text(&'static str),
}

impl FilterFailure {
    /// A failure that is not a matter of amounts.
    pub(super) fn new(rule: &str, code: &'static str, text: String) -> Self {
        Self { rule: rule.into(), code, text, short: None, missing_label: None, remedy: None }
    }

    /// What the node has in all, if the pod requests more than that.
    pub(super) fn too_small(&self) -> Option<&str> {
        match &self.remedy {
            Some(Remedy::LargerNode(amounts)) => Some(amounts),
            Some(Remedy::Text(_)) | None => None,
        }
    }

    /// What would help, where the rule itself knows.
    pub(super) const fn help(&self) -> Option<&'static str> {
        match self.remedy {
            Some(Remedy::Text(text)) => Some(text),
            Some(Remedy::LargerNode(_)) | None => None,
        }
    }
}

/// A pod prepared for the filters.
pub(super) struct PreparedPod<'a> {
    /// The pod.
    pub(super) entry: &'a PodEntry,
    /// Its topology spread constraints.
    pub(super) spread: Vec<PreparedSpread>,
    /// Its volumes.
    pub(super) volumes: volumes::PreparedVolumes,
    /// Its claims of devices.
    pub(super) devices: devices::PreparedDevices,
    /// Whether no pod matches its required affinity anywhere, and it would match itself.
    pub(super) is_first_match: bool,
}

/// A pod and a node that may take it.
#[derive(Clone, Copy)]
struct NodeCheck<'a> {
    cluster: &'a Cluster,
    prepared: &'a PreparedPod<'a>,
    index: usize,
    entry: &'a NodeEntry,
}

type Filter = fn(NodeCheck<'_>) -> Option<FilterFailure>;

/// Every filter, in order: node facts first, then other pods, then resources; devices take the longest.
const FILTERS: [Filter; 12] = [
    cordoned,
    taints,
    node_affinity,
    declared_features,
    anti_affinity,
    others_anti_affinity,
    affinity,
    spread,
    nominated,
    load,
    volume_filters,
    device_filters,
];

/// The first filter that rejects a node, if any.
pub(super) fn first_failure(
    cluster: &Cluster,
    prepared: &PreparedPod<'_>,
    index: usize,
) -> Option<FilterFailure> {
    let Some(entry) = cluster.nodes.get(index).filter(|entry| !entry.deleted) else {
        return failure("node", "node_gone", "the node was deleted".to_owned());
    };
    let check = NodeCheck { cluster, prepared, index, entry };
    FILTERS.iter().find_map(|filter| filter(check))
}

/// Every filter that rejects a node, in order.
pub(super) fn all_failures(
    cluster: &Cluster,
    prepared: &PreparedPod<'_>,
    index: usize,
) -> Vec<FilterFailure> {
    let Some(entry) = cluster.nodes.get(index) else { return Vec::new() };
    let check = NodeCheck { cluster, prepared, index, entry };
    let mut failures = Vec::new();
    for failure in FILTERS.iter().filter_map(|filter| filter(check)) {
        let is_load = ["host_port_in_use", "no_capacity_pods"].contains(&failure.code)
            || failure.code == "device_feature_unsupported" && *failure.rule != *"devices";
        failures.push(failure);
        if is_load {
            // What it is short of as well.
            failures.extend(load_failures(check).into_iter().flatten().skip(1));
        }
    }
    failures
}

fn failure(rule: &str, code: &'static str, text: String) -> Option<FilterFailure> {
    Some(FilterFailure::new(rule, code, text))
}

fn label_missing(rule: &str, code: &'static str, key: &str, text: String) -> Option<FilterFailure> {
    let missing_label = Some(key.into());
    Some(FilterFailure { missing_label, ..FilterFailure::new(rule, code, text) })
}

/// The domain of a node, for messages.
fn domain(entry: &NodeEntry, key: &str) -> String {
    match entry.node.labels.get(key) {
        Some(value) => format!("{key}={value}"),
        None => format!("the node without label {key}"),
    }
}

fn matching_pods(count: u32, entry: &NodeEntry, key: &str) -> String {
    let many = if count == 1 { "" } else { "s" };
    format!("{count} matching pod{many} in {}", domain(entry, key))
}

fn is_hard(effect: Effect) -> bool {
    effect != Effect::PreferNoSchedule
}

fn cordoned(NodeCheck { prepared, entry, .. }: NodeCheck<'_>) -> Option<FilterFailure> {
    let tolerations = &prepared.entry.pod.node_requirements.tolerations;
    let taint = entry.taints.iter().find(|it| is_cordon(it))?;
    if tolerations.iter().any(|it| it.tolerates(taint)) {
        return None;
    }
    failure("cordoned", "node_cordoned", "the node is cordoned".to_owned())
}

fn taints(NodeCheck { prepared, entry, .. }: NodeCheck<'_>) -> Option<FilterFailure> {
    let tolerations = &prepared.entry.pod.node_requirements.tolerations;
    let others = entry.taints.iter().filter(|it| !is_cordon(it));
    let taint = others
        .into_iter()
        .find(|it| untolerated(std::slice::from_ref(it), tolerations, is_hard).is_some())?;
    failure("taints", "taint_not_tolerated", format!("taint {taint} is not tolerated"))
}

fn node_affinity(NodeCheck { prepared, entry, .. }: NodeCheck<'_>) -> Option<FilterFailure> {
    let (node_requirements, node) = (&prepared.entry.pod.node_requirements, &entry.node);
    let missing =
        node_requirements.labels.iter().find(|(key, value)| node.labels.get(key) != Some(value));
    if let Some((key, value)) = missing {
        let has = node.labels.get(key).map_or("is missing".to_owned(), |it| format!("is {it}"));
        let text = format!("label {key} {has}, nodeSelector requires {value}");
        return failure("node-selector", "node_selector_no_match", text);
    }
    if node_requirements.nodes.matches(&node.name, &node.labels) {
        return None;
    }
    let text = "no required node affinity term matches".to_owned();
    failure("node-affinity", "node_affinity_no_match", text)
}

fn declared_features(NodeCheck { prepared, entry, .. }: NodeCheck<'_>) -> Option<FilterFailure> {
    let features = &prepared.entry.pod.node_requirements.features;
    let feature = entry.node.missing_feature(features)?;
    let text = format!("the node does not declare feature {feature}, which the pod needs");
    failure("declared-features", "node_feature_missing", text)
}

fn others_anti_affinity(
    NodeCheck { cluster, prepared, index, entry }: NodeCheck<'_>,
) -> Option<FilterFailure> {
    let set = cluster.affinity.set(prepared.entry.pod_terms.set)?;
    let terms = set.terms.iter().filter_map(|id| cluster.affinity.term(*id));
    let near = terms.filter(|term| term.anti_affinity_total > 0).map(|term| {
        let count = term.anti_affinity_in(cluster.topologies.domain(term.topology, index));
        (count, cluster.topologies.key(term.topology))
    });
    // Terms are numbered in order of appearance; the message must not depend on that.
    let (count, key) = near.filter(|(count, _)| *count > 0).max()?;
    let text = matching_pods(count, entry, key);
    failure("anti-affinity-of-others", "anti_affinity_of_others", text)
}

fn anti_affinity(
    NodeCheck { cluster, prepared, index, entry }: NodeCheck<'_>,
) -> Option<FilterFailure> {
    for id in &prepared.entry.pod_terms.anti_affinity {
        let Some(term) = cluster.affinity.term(*id) else { continue };
        let count = term.matching_in(cluster.topologies.domain(term.topology, index));
        if count > 0 {
            let key = cluster.topologies.key(term.topology);
            let text = matching_pods(count, entry, key);
            return failure("pod-anti-affinity", "pod_anti_affinity", text);
        }
    }
    None
}

fn affinity(NodeCheck { cluster, prepared, index, entry }: NodeCheck<'_>) -> Option<FilterFailure> {
    for id in &prepared.entry.pod_terms.required_affinity {
        let Some(term) = cluster.affinity.term(*id) else { continue };
        let number = cluster.topologies.domain(term.topology, index);
        let key = cluster.topologies.key(term.topology);
        if number == NO_DOMAIN {
            let text = format!("it lacks label {key}, the topology key of the pod's affinity");
            return label_missing("pod-affinity", "pod_affinity", key, text);
        }
        if !prepared.is_first_match && term.matching_in(number) == 0 {
            let text = format!("no matching pod in {}", domain(entry, key));
            return failure("pod-affinity", "pod_affinity", text);
        }
    }
    None
}

fn spread(NodeCheck { cluster, prepared, index, entry }: NodeCheck<'_>) -> Option<FilterFailure> {
    for constraint in prepared.spread.iter().filter(|it| it.hard) {
        let Some(spread) = cluster.spreads.get(constraint.id) else { continue };
        let number = cluster.topologies.domain(constraint.topology, index);
        let key = cluster.topologies.key(constraint.topology);
        if number == NO_DOMAIN {
            let text = format!("it lacks label {key}, the topology key of the spread constraint");
            return label_missing("topology-spread", "topology_spread", key, text);
        }
        let count = spread.in_domain(number);
        if count > constraint.limit {
            let (here, most) = (domain(entry, key), constraint.max_skew);
            let least = match (constraint.domains, constraint.min_domains) {
                (few, many) if few < many => {
                    format!("with {few} of {many} domains (minDomains) the minimum counts as 0")
                }
                _ => format!("the minimum is {}", constraint.least),
            };
            let text = format!("{count} matching pod(s) in {here}, {least}, maxSkew is {most}");
            return failure("topology-spread", "topology_spread", text);
        }
    }
    None
}

/// Pods of at least this priority that are nominated to the node.
fn nominated_ahead<'a>(
    cluster: &'a Cluster,
    prepared: &'a PreparedPod<'_>,
    index: usize,
) -> impl Iterator<Item = &'a PodEntry> {
    let pod = &prepared.entry.pod;
    let others = cluster.nominated_to(index);
    others.filter(|it| it.pod.uid != pod.uid && it.pod.priority >= pod.priority)
}

/// Pods nominated to the node count for affinity and spreading as if they were there.
fn nominated(
    NodeCheck { cluster, prepared, index, entry }: NodeCheck<'_>,
) -> Option<FilterFailure> {
    let mut others: Vec<&PodEntry> = nominated_ahead(cluster, prepared, index).collect();
    others.sort_unstable_by(|a, b| a.pod.key.cmp(&b.pod.key));
    let here = |id: &TermId, set: SetId| {
        let term = cluster.affinity.term(*id);
        cluster.affinity.is_match(set, *id)
            && term.is_some_and(|it| cluster.topologies.domain(it.topology, index) != NO_DOMAIN)
    };
    let own = &prepared.entry.pod_terms;
    for other in &others {
        if own.anti_affinity.iter().any(|id| here(id, other.pod_terms.set)) {
            let text =
                format!("{} is nominated to it, which the pod must not be near", other.pod.key);
            return failure("pod-anti-affinity", "pod_anti_affinity", text);
        }
        if other.pod_terms.anti_affinity.iter().any(|id| here(id, own.set)) {
            let text =
                format!("{} is nominated to it, which must not be near such pods", other.pod.key);
            return failure("anti-affinity-of-others", "anti_affinity_of_others", text);
        }
    }
    let hard = prepared.spread.iter().filter(|it| it.hard && !others.is_empty());
    for (constraint, spread) in hard.filter_map(|it| Some((it, cluster.spreads.get(it.id)?))) {
        let sets = others.iter().filter_map(|it| cluster.affinity.set(it.pod_terms.set));
        let more = sets.filter(|set| spread.counts_at(set, index)).count();
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        let domain = cluster.topologies.domain(constraint.topology, index);
        if more > 0 && spread.in_domain(domain) + more > constraint.limit_with(spread, domain, more)
        {
            let here = self::domain(entry, cluster.topologies.key(constraint.topology));
            let text = format!("{here} would have too many with the pods nominated to the node");
            return failure("topology-spread", "topology_spread", text);
        }
    }
    None
}

fn find_conflict<'a>(ports: &'a [Port], used: &[Port]) -> Option<&'a Port> {
    ports.iter().find(|it| used.iter().any(|used| used.conflicts_with(it)))
}

/// Host ports, pod count and resources, including pods nominated to the node.
fn load(check: NodeCheck<'_>) -> Option<FilterFailure> {
    load_failures(check).into_iter().flatten().next()
}

fn load_failures(
    NodeCheck { cluster, prepared, index, entry }: NodeCheck<'_>,
) -> [Option<FilterFailure>; 4] {
    let pod = &prepared.entry.pod;
    let mut nominated: Option<(i64, Resources)> = None;
    let mut conflict = find_conflict(&pod.ports, &entry.ports);
    for other in nominated_ahead(cluster, prepared, index) {
        let sum = nominated.get_or_insert_with(|| (0, entry.used.clone()));
        sum.0 += 1;
        sum.1.add(&other.requested, 1);
        let theirs = &other.pod.ports;
        conflict = conflict.or_else(|| find_conflict(&pod.ports, theirs));
    }
    let conflict = conflict.and_then(|port| {
        let text = format!("host port {}/{} is in use", port.port, port.protocol);
        failure("host-ports", "host_port_in_use", text)
    });
    let (more, used) = nominated.as_ref().map_or((0, &entry.used), |(more, used)| (*more, used));
    let pods = i64::try_from(entry.pods.len()).unwrap_or(i64::MAX).saturating_add(more);
    let full = (pods >= entry.node.max_pods).then(|| {
        let text = format!("{pods} of {} pods", entry.node.max_pods);
        FilterFailure::new("pods", "no_capacity_pods", text)
    });
    let (requested, allocatable) = (&prepared.entry.requested, &entry.node.allocatable);
    let mut all = match requested.first_shortage(used, allocatable) {
        Some(_) => requested.shortages(used, allocatable),
        None => Vec::new(),
    };
    let from_class = class_resource(cluster, &all);
    if let Some((resource, _)) = &from_class {
        all.retain(|it| it.resource != &**resource);
    }
    [conflict, full, from_class.map(|(_, failure)| failure), shortage(&all)]
}

/// A resource that the node does not have, and that a class of devices would provide: which, and the failure.
fn class_resource(cluster: &Cluster, all: &[Shortage<'_>]) -> Option<(Box<str>, FilterFailure)> {
    let absent = all.iter().filter(|it| it.capacity == 0 && it.resource.contains('/'));
    let (resource, class) = absent
        .filter_map(|it| Some((it.resource, cluster.devices.class_providing(it.resource)?)))
        .next()?;
    let text = format!(
        "{resource} is provided by DeviceClass {class} (extendedResourceName), which is not supported"
    );
    let failure = FilterFailure {
        remedy: Some(Remedy::Text(
            "claim the devices by spec.resourceClaims instead of an extended resource",
        )),
        ..FilterFailure::new(
            &format!("{resource} of DeviceClass {class}"),
            "device_feature_unsupported",
            text,
        )
    };
    Some((resource.into(), failure))
}

/// The failure of a node that is short of these.
fn shortage(all: &[Shortage<'_>]) -> Option<FilterFailure> {
    let code = match all.first()?.resource {
        "cpu" => "no_capacity_cpu",
        "memory" => "no_capacity_memory",
        "ephemeral-storage" => "no_capacity_storage",
        _ => "no_capacity_extended",
    };
    let text = match all {
        [one] => one.amounts(),
        several => {
            let parts: Vec<String> =
                several.iter().map(|it| format!("{}: {}", it.resource, it.amounts())).collect();
            parts.join(", ")
        }
    };
    let misses = all.iter().filter_map(|it| {
        it.requested.saturating_sub(it.free).saturating_mul(1000).checked_div(it.requested)
    });
    let too_small: Vec<String> = all
        .iter()
        .filter(|it| it.requested > it.capacity)
        .map(|it| match it.capacity {
            0 => format!("no {}", it.resource),
            capacity => format!("only {} {}", format_amount(it.resource, capacity), it.resource),
        })
        .collect();
    let too_small = too_small.iter().map(String::as_str).collect::<Vec<_>>();
    let names: Vec<&str> = all.iter().map(|it| it.resource).collect();
    Some(FilterFailure {
        short: misses.max(),
        remedy: (!too_small.is_empty()).then(|| Remedy::LargerNode(enumerate(&too_small).into())),
        ..FilterFailure::new(&enumerate(&names), code, text)
    })
}

/// Names in a sentence: `cpu, memory and example.com/gpu`.
pub(super) fn enumerate(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn volume_filters(
    NodeCheck { cluster, prepared, entry, .. }: NodeCheck<'_>,
) -> Option<FilterFailure> {
    let why = cluster.volumes.check(&prepared.volumes, &entry.node).err()?;
    Some(FilterFailure {
        remedy: Some(Remedy::Text(why.help)),
        ..FilterFailure::new("volumes", why.code, why.text)
    })
}

fn device_filters(
    NodeCheck { cluster, prepared, entry, .. }: NodeCheck<'_>,
) -> Option<FilterFailure> {
    if prepared.devices.is_empty() {
        return None;
    }
    let why = cluster.devices.check(&prepared.devices, &entry.node).err()?;
    let rule = match why.code {
        "devices_elsewhere" => "allocated-devices",
        "device_selector_failed" => "device-selectors",
        _ => "devices",
    };
    Some(FilterFailure { short: why.short, ..FilterFailure::new(rule, why.code, why.text) })
}
