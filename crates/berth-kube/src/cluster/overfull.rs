//! Nodes whose pods request more than the node has, are too many for it, or have the same host port, because
//! several schedulers placed pods at the same time.
//!
//! Kubernetes has no lock on a node, so it cannot be prevented where another scheduler works on the same nodes.
//! Found when a pod is reported on a node. Reservations that would make it worse are given up, as long as their
//! binding was not sent. Changes no pod.

use std::sync::Arc;

use super::Cluster;
use super::filters::enumerate;
use super::node_store::NodeEntry;
use super::pod::{Key, Port};
use super::pod_store::PodEntry;
use super::resources::{Resources, format_amount};

/// A node whose bound pods are more than it has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverfullNode {
    /// The node.
    pub node: Arc<str>,
    /// What is requested of what it has, for an event.
    pub text: String,
    /// A pod of lower priority than others on the node, and newer than others of that priority, if there is
    /// one whose eviction helps.
    pub victim: Option<(Key, Arc<str>)>,
}

/// What changed about overfull nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct OverfullNodes {
    /// Nodes that are overfull.
    current: Vec<Arc<str>>,
    /// Those that were not reported yet.
    unreported: Vec<Arc<str>>,
    /// Pods whose reservations do not fit any more.
    displaced: Vec<Arc<str>>,
}

impl Cluster {
    /// Checks a node to which a pod was bound.
    pub(super) fn check_node_load(&mut self, index: usize) {
        let Some(entry) = self.nodes.get(index).filter(|entry| !entry.deleted) else { return };
        let everything: Vec<&PodEntry> = if has_conflict(&entry.ports) {
            entry.pods.iter().filter_map(|uid| self.pods.get(uid)).collect()
        } else if is_over(&entry.used, &entry.node.allocatable) || has_too_many(entry, 0) {
            Vec::new()
        } else {
            return;
        };
        let node = Arc::clone(&entry.node.name);
        // Reservations are given up first, the least important and newest before others.
        let mut reserved: Vec<&PodEntry> = entry
            .pods
            .iter()
            .rev()
            .filter_map(|uid| self.pods.get(uid))
            .filter(|it| it.can_be_given_up())
            .collect();
        reserved.sort_by_key(|it| (it.pod.priority, std::cmp::Reverse(it.pod.created)));
        let (mut used, mut given_up) = (entry.used.clone(), 0);
        for pod in reserved {
            let is_port_taken =
                everything.iter().any(|other| conflict_between(pod, other).is_some());
            if is_port_taken
                || is_over(&used, &entry.node.allocatable)
                || has_too_many(entry, given_up)
            {
                used.add(&pod.requested, -1);
                given_up += 1;
                self.overfull.displaced.push(Arc::clone(&pod.pod.uid));
            }
        }
        if !self.overfull.current.contains(&node) && self.overfull_node(&node).is_some() {
            self.overfull.current.push(Arc::clone(&node));
            self.overfull.unreported.push(node);
        }
    }

    /// Pods whose reservations do not fit any more since the last call.
    pub fn take_displaced(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.overfull.displaced)
    }

    /// Nodes that became overfull since the last call, and still are.
    pub fn take_overfull(&mut self) -> Vec<OverfullNode> {
        let unreported = std::mem::take(&mut self.overfull.unreported);
        unreported.iter().filter_map(|node| self.overfull_node(node)).collect()
    }

    /// The number of overfull nodes. Forgets those that are not any more.
    pub fn refresh_overfull(&mut self) -> usize {
        if !self.overfull.current.is_empty() {
            let mut current = std::mem::take(&mut self.overfull.current);
            current.retain(|node| self.overfull_node(node).is_some());
            self.overfull.current = current;
        }
        self.overfull.current.len()
    }

    /// A node, if its bound pods are more than it has room for.
    #[must_use]
    pub fn overfull_node(&self, name: &str) -> Option<OverfullNode> {
        let index = self.nodes.index_of(name)?;
        let entry = self.nodes.get(index).filter(|entry| !entry.deleted)?;
        let is_suspect = is_over(&entry.used, &entry.node.allocatable)
            || has_too_many(entry, 0)
            || has_conflict(&entry.ports);
        if !is_suspect {
            return None;
        }
        let pods: Vec<&PodEntry> = entry.pods.iter().filter_map(|uid| self.pods.get(uid)).collect();
        let bound: Vec<&PodEntry> = pods.iter().copied().filter(|it| !it.reserved).collect();
        let excess = Excess::of(entry, &bound)?;
        let highest = pods.iter().map(|it| it.pod.priority).max();
        let victim = bound
            .iter()
            .filter(|it| !it.pod.deleting && Some(it.pod.priority) < highest)
            .filter(|it| excess.is_reduced_by(it))
            .min_by_key(|it| (it.pod.priority, std::cmp::Reverse(it.pod.created)));
        let victim = victim.map(|it| (it.pod.key.clone(), Arc::clone(&it.pod.uid)));
        Some(OverfullNode { node: Arc::clone(&entry.node.name), text: excess.text(entry), victim })
    }
}

/// What the bound pods of a node have too much of.
struct Excess<'a> {
    bound: &'a [&'a PodEntry],
    /// Resources: the name, what is requested and what there is.
    amounts: Vec<(String, i64, i64)>,
    too_many: bool,
    /// A host port that two of them have.
    port: Option<&'a Port>,
}

impl<'a> Excess<'a> {
    /// `None` if they have their place.
    fn of(entry: &NodeEntry, bound: &'a [&'a PodEntry]) -> Option<Self> {
        let mut used = Resources::default();
        bound.iter().for_each(|it| used.add(&it.requested, 1));
        let count = i64::try_from(bound.len()).unwrap_or(i64::MAX);
        let pairs = bound.iter().enumerate();
        let port = pairs.filter(|(_, it)| !it.pod.ports.is_empty()).find_map(|(at, pod)| {
            let others = bound.get(at + 1..).unwrap_or_default();
            others.iter().find_map(|other| conflict_between(pod, other))
        });
        let amounts = excesses(&used, &entry.node.allocatable);
        let too_many = count > entry.node.max_pods;
        let is_some = !amounts.is_empty() || too_many || port.is_some();
        is_some.then_some(Self { bound, amounts, too_many, port })
    }

    /// Whether the departure of a pod helps.
    fn is_reduced_by(&self, pod: &PodEntry) -> bool {
        let uses = |(name, ..): &(String, i64, i64)| amount_of(&pod.requested, name) > 0;
        self.too_many
            || self.amounts.iter().any(uses)
            || self.port.is_some_and(|port| pod.pod.ports.contains(port))
    }

    fn text(&self, entry: &NodeEntry) -> String {
        let amounts = self.amounts.iter().map(|(name, used, has)| {
            format!("{} of {} {name}", format_amount(name, *used), format_amount(name, *has))
        });
        let amounts: Vec<String> = amounts.collect();
        let amounts: Vec<&str> = amounts.iter().map(String::as_str).collect();
        let mut parts = Vec::new();
        if !amounts.is_empty() {
            parts.push(format!("its pods request {}", enumerate(&amounts)));
        }
        if self.too_many {
            parts.push(format!("it has {} of {} pods", self.bound.len(), entry.node.max_pods));
        }
        if let Some(port) = self.port {
            parts.push(format!("two pods have host port {}/{}", port.port, port.protocol));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        enumerate(&parts)
    }
}

/// Whether a node has more pods than it takes, without so many of them.
fn has_too_many(entry: &NodeEntry, without: usize) -> bool {
    let count = entry.pods.len().saturating_sub(without);
    i64::try_from(count).is_ok_and(|count| count > entry.node.max_pods)
}

/// Whether two of these ports cannot be on one node.
fn has_conflict(ports: &[Port]) -> bool {
    let conflicts = |(at, port): (usize, &Port)| {
        ports.get(at + 1..).unwrap_or_default().iter().any(|it| it.conflicts_with(port))
    };
    ports.iter().enumerate().any(conflicts)
}

/// A port of a pod that it cannot have together with another pod.
fn conflict_between<'a>(pod: &'a PodEntry, other: &PodEntry) -> Option<&'a Port> {
    if pod.pod.uid == other.pod.uid {
        return None;
    }
    let theirs = &other.pod.ports;
    pod.pod.ports.iter().find(|port| theirs.iter().any(|it| it.conflicts_with(port)))
}

fn amount_of(resources: &Resources, name: &str) -> i64 {
    match name {
        "cpu" => resources.cpu_milli,
        "memory" => resources.memory,
        "ephemeral-storage" => resources.storage,
        other => resources.extended(other),
    }
}

/// Whether more is used of anything than there is.
fn is_over(used: &Resources, has: &Resources) -> bool {
    used.cpu_milli > has.cpu_milli
        || used.memory > has.memory
        || used.storage > has.storage
        || used.others.iter().any(|(name, used)| *used > has.extended(name))
}

/// Each resource of which more is used than there is, with both amounts.
fn excesses(used: &Resources, has: &Resources) -> Vec<(String, i64, i64)> {
    let others = used.others.iter().map(|(name, _)| &**name);
    let names = ["cpu", "memory", "ephemeral-storage"].into_iter().chain(others);
    let amounts = names.map(|name| (name.to_owned(), amount_of(used, name), amount_of(has, name)));
    amounts.filter(|(_, used, has)| used > has).collect()
}
