//! Nodes that several schedulers filled together: reports them, and, if the settings allow it, evicts pods of
//! lower priority.

use std::sync::Arc;

use super::SchedulerCore;
use crate::scheduler::messages::{Action, NodeWarning};
use crate::scheduler::queue::{Millis, Moment};

/// How long a kubelet has to reject what does not fit, before pods are evicted.
const GRACE_MS: Millis = 5_000;

impl SchedulerCore {
    /// Lets it evict pods of lower priority from overfull nodes.
    pub(crate) const fn evicting_overfull(mut self, evicts: bool) -> Self {
        self.evicts_overfull = evicts;
        self
    }

    /// Reports nodes that became overfull, and evicts from those that stay so.
    pub(super) fn report_overfull_nodes(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let count = self.cluster.refresh_overfull();
        self.metrics.set_overfull_nodes(count);
        for found in self.cluster.take_overfull() {
            self.metrics.record_overfull_node();
            let due = now.millis.saturating_add(GRACE_MS);
            self.overfull.insert(Arc::clone(&found.node), due);
            let note = format!("{}; another scheduler works on the same nodes", found.text);
            let warning = NodeWarning::Overfull;
            actions.push(Action::WarnOfNode { node: found.node, warning, note });
        }
        if self.overfull.is_empty() {
            return;
        }
        let cluster = &self.cluster;
        self.overfull.retain(|node, _| cluster.overfull_node(node).is_some());
        if !self.evicts_overfull {
            return;
        }
        let mut due: Vec<Arc<str>> = self
            .overfull
            .iter()
            .filter(|(_, due)| **due <= now.millis)
            .map(|(node, _)| Arc::clone(node))
            .collect();
        due.sort();
        for node in due {
            let victim = self.cluster.overfull_node(&node).and_then(|found| found.victim);
            self.overfull.insert(node, now.millis.saturating_add(GRACE_MS));
            let Some((pod, uid)) = victim else { continue };
            if self.pods.get(&uid).is_some_and(|record| !record.mirror) {
                actions.push(Action::Evict { pod, uid });
            }
        }
    }
}
