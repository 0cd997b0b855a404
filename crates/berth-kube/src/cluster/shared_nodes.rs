//! Nodes on which another scheduler may be binding pods at this moment: where a binding should be checked
//! before it is sent, and whether it still fits with pods that the watch has not shown yet.
//!
//! Such pods are only counted here. They are added to the state by the watch alone: it reports their deletion
//! too, and a pod that was listed and is deleted meanwhile must not come back.

use super::Cluster;
use super::node_store::NodeEntry;
use super::observed_pod::ObservedPod;
use super::pod::Pod;
use super::pod_store::PodEntry;

/// A node of which less than one in so many parts is left is nearly full.
const NEARLY_FULL: i64 = 4;

impl PodEntry {
    /// Whether its reservation can be given up alone, and at once. Those of gangs are bound together, and
    /// volumes may have been provisioned for the node.
    pub(super) fn can_be_given_up(&self) -> bool {
        self.reserved && self.pod.gang.is_none() && self.pod.claims.is_empty()
    }
}

impl Cluster {
    /// Whether a reservation left little room on its node, and can still be given up.
    #[must_use]
    pub fn is_nearly_full_by(&self, uid: &str) -> bool {
        let entry = self.pods.get(uid).filter(|it| it.can_be_given_up());
        let node = entry.and_then(|it| self.nodes.get(it.assigned?));
        node.is_some_and(is_nearly_full)
    }

    /// Whether the reservation of a pod fits on its node together with the pods that the API server has there.
    /// Reservations that are given up already do not count. True if there is no such reservation any more.
    pub fn fits_beside(
        &self,
        uid: &str,
        listed: &[ObservedPod],
        is_given_up: impl Fn(&str) -> bool,
    ) -> bool {
        let Some(entry) = self.pods.get(uid).filter(|it| it.reserved) else { return true };
        let Some(index) = entry.assigned else { return true };
        let Some(node) = self.nodes.get(index) else { return true };
        let unseen = |pod: &Pod| {
            let known = self.pods.get(&pod.uid);
            pod.uses_node() && *pod.uid != *uid && known.is_none_or(|it| it.assigned != Some(index))
        };
        let unseen: Vec<Pod> = listed.iter().map(Pod::read).filter(unseen).collect();
        if unseen.is_empty() {
            return true;
        }
        let given_up = node
            .pods
            .iter()
            .filter(|it| ***it != *uid && is_given_up(it))
            .filter_map(|it| self.pods.get(it).filter(|it| it.reserved));
        let mut used = node.used.clone();
        // Without the pod itself.
        used.add(&entry.requested, -1);
        let mut count = node.pods.len();
        for pod in given_up {
            used.add(&pod.requested, -1);
            count -= 1;
        }
        for pod in &unseen {
            used.add(&pod.requests.resources, 1);
            count += 1;
        }
        let conflicts = |pod: &Pod| {
            let ours = &entry.pod.ports;
            pod.ports.iter().any(|port| ours.iter().any(|it| it.conflicts_with(port)))
        };
        entry.requested.first_shortage(&used, &node.node.allocatable).is_none()
            && i64::try_from(count).is_ok_and(|count| count <= node.node.max_pods)
            && !unseen.iter().any(conflicts)
    }
}

fn is_nearly_full(entry: &NodeEntry) -> bool {
    let (used, has) = (&entry.used, &entry.node.allocatable);
    let pods = i64::try_from(entry.pods.len()).unwrap_or(i64::MAX);
    let amounts = [
        (used.cpu_milli, has.cpu_milli),
        (used.memory, has.memory),
        (used.storage, has.storage),
        (pods, entry.node.max_pods),
    ];
    let others = has.others.iter().map(|(name, has)| (used.extended(name), *has));
    amounts
        .into_iter()
        .chain(others)
        .any(|(used, has)| used > 0 && has.saturating_sub(used).saturating_mul(NEARLY_FULL) < has)
}
