//! Drains: which pods are on a node, and which of them another node can take.

use std::sync::Arc;

use super::SchedulerCore;
use crate::cluster::PodState;
use crate::scheduler::drain::DrainingPod;
use crate::scheduler::messages::Action;
use crate::scheduler::queue::Moment;

impl SchedulerCore {
    /// Runs a pass over the nodes that are being drained, when one is due.
    pub(super) fn drain_nodes(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if !self.drains.begin_pass(now) {
            return;
        }
        self.drains.clear_ended_statuses(actions);
        for node in self.drains.nodes() {
            let pods = self.draining_pods(&node);
            let (drains, cluster) = (&mut self.drains, &mut self.cluster);
            drains.plan_evictions(&node, pods, now, actions, |pod| {
                if pod.unmanaged {
                    return Err(format!(
                        "pod {} has no controller to recreate it; delete it, or set a deadline for \
                         the drain",
                        pod.key
                    ));
                }
                let Some(found) = cluster.explain(&pod.key, now.date) else {
                    return Err("the pod is not known any more".to_owned());
                };
                let takes = |it: &&crate::cluster::outcome::NodeVerdict| {
                    it.removed_by.is_empty() && it.node != node
                };
                match found.table.iter().filter(takes).count() {
                    0 => Err(found.refusal.map_or_else(
                        || "no other node can take it".to_owned(),
                        |refusal| refusal.line,
                    )),
                    nodes => Ok(nodes),
                }
            });
        }
    }

    /// Pods of this scheduler on a node, except those that belong to the node.
    fn draining_pods(&self, node: &str) -> Vec<DrainingPod> {
        let bound = self.pods.iter().filter(|(_, record)| record.state == PodState::Bound);
        bound
            .filter(|(_, record)| !record.mirror)
            .filter_map(|(uid, _)| Some((uid, self.cluster.pod(uid)?)))
            .filter(|(_, pod)| pod.node.as_deref() == Some(node))
            .filter(|(_, pod)| *pod.scheduler == *self.scheduler && !belongs_to_node(pod))
            .map(|(uid, pod)| DrainingPod {
                uid: Arc::clone(uid),
                key: pod.key.clone(),
                priority: pod.priority,
                terminating: pod.deleting,
                unmanaged: pod.owner.is_none(),
            })
            .collect()
    }
}

/// Whether its controller would recreate it on the same node.
fn belongs_to_node(pod: &crate::cluster::pod::Pod) -> bool {
    pod.owner.as_ref().is_some_and(|it| it.kind == "DaemonSet" || it.kind == "Node")
}
