//! Nodes whose pods request more than the node has, because several schedulers placed pods at the same time.
//!
//! Kubernetes has no lock on a node, so it cannot be prevented where another scheduler works on the same nodes.
//! Found when a pod is reported on a node. Reservations that would make it worse are given up, as long as their
//! binding was not sent. Changes no pod.

use std::sync::Arc;

use super::Cluster;
use super::filters::enumerate;
use super::pod::Key;
use super::pod_store::PodEntry;
use super::resources::{Resources, format_amount};

/// A node whose bound pods request more than it has.
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
        if !is_over(&entry.used, &entry.node.allocatable) {
            return;
        }
        let node = Arc::clone(&entry.node.name);
        // Reservations are given up first, the least important and newest before others. Those of gangs are
        // bound together, and volumes may have been provisioned for the node.
        let can_be_given_up =
            |it: &&PodEntry| it.reserved && it.pod.gang.is_none() && it.pod.claims.is_empty();
        let mut reserved: Vec<&PodEntry> = entry
            .pods
            .iter()
            .rev()
            .filter_map(|uid| self.pods.get(uid))
            .filter(can_be_given_up)
            .collect();
        reserved.sort_by_key(|it| (it.pod.priority, std::cmp::Reverse(it.pod.created)));
        let mut used = entry.used.clone();
        for pod in reserved {
            if !is_over(&used, &entry.node.allocatable) {
                break;
            }
            used.add(&pod.requested, -1);
            self.overfull.displaced.push(Arc::clone(&pod.pod.uid));
        }
        if is_over(&used, &entry.node.allocatable) && !self.overfull.current.contains(&node) {
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

    /// A node, if its bound pods request more than it has.
    #[must_use]
    pub fn overfull_node(&self, name: &str) -> Option<OverfullNode> {
        let index = self.nodes.index_of(name)?;
        let entry = self.nodes.get(index).filter(|entry| !entry.deleted)?;
        let has = &entry.node.allocatable;
        if !is_over(&entry.used, has) {
            return None;
        }
        let pods: Vec<&PodEntry> = entry.pods.iter().filter_map(|uid| self.pods.get(uid)).collect();
        let mut used = entry.used.clone();
        pods.iter().filter(|it| it.reserved).for_each(|it| used.add(&it.requested, -1));
        let over = excesses(&used, has);
        let amounts = |(name, used, has): &(&str, i64, i64)| {
            format!("{} of {} {name}", format_amount(name, *used), format_amount(name, *has))
        };
        let texts: Vec<String> = over.iter().map(amounts).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let text = format!("its pods request {}", enumerate(&texts));
        let highest = pods.iter().map(|it| it.pod.priority).max();
        let uses = |pod: &&&PodEntry| {
            let requested = &pod.requested;
            over.iter().any(|(name, ..)| amount_of(requested, name) > 0)
        };
        let victim = pods
            .iter()
            .filter(|it| !it.reserved && !it.pod.deleting && Some(it.pod.priority) < highest)
            .filter(uses)
            .min_by_key(|it| (it.pod.priority, std::cmp::Reverse(it.pod.created)));
        let victim = victim.map(|it| (it.pod.key.clone(), Arc::clone(&it.pod.uid)));
        (!over.is_empty()).then(|| OverfullNode {
            node: Arc::clone(&entry.node.name),
            text,
            victim,
        })
    }
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
fn excesses<'a>(used: &'a Resources, has: &Resources) -> Vec<(&'a str, i64, i64)> {
    let others = used.others.iter().map(|(name, _)| &**name);
    let names = ["cpu", "memory", "ephemeral-storage"].into_iter().chain(others);
    let amounts = names.map(|name| (name, amount_of(used, name), amount_of(has, name)));
    amounts.filter(|(_, used, has)| used > has).collect()
}
