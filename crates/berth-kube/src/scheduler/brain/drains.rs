//! Nodes that are being emptied: who is on them, and who has another place.

use std::sync::Arc;

use super::{Brain, Moment};
use crate::cluster::PodState;
use crate::scheduler::drain::Leaver;
use crate::scheduler::messages::Work;

impl Brain {
    /// Looks at nodes that are being emptied, when it is time.
    pub(super) fn empty_nodes(&mut self, now: Moment, work: &mut Vec<Work>) {
        if !self.drains.is_due(now) {
            return;
        }
        self.drains.end(work);
        for node in self.drains.nodes() {
            let leavers = self.leavers(&node);
            let (drains, cluster) = (&mut self.drains, &mut self.cluster);
            drains.empty(&node, leavers, now, work, |leaver| {
                if leaver.alone {
                    let pod = &leaver.key;
                    let why = "nobody would make it anew; delete it, or give the drain a deadline";
                    return Err(format!("pod {pod} has no controller: {why}"));
                }
                let Some(found) = cluster.explain(&leaver.key, now.date) else {
                    return Err("it is not known any more".to_owned());
                };
                let takes = |it: &&crate::cluster::outcome::NodeVerdict| {
                    it.removed_by.is_empty() && it.node != node
                };
                match found.table.iter().filter(takes).count() {
                    0 => Err(found.refusal.map_or_else(
                        || "no other node can take it".to_owned(),
                        |refusal| refusal.line,
                    )),
                    places => Ok(places),
                }
            });
        }
    }

    /// Our pods on a node, but for those that are bound to it by what they are.
    fn leavers(&self, node: &str) -> Vec<Leaver> {
        let bound = self.pods.iter().filter(|(_, known)| known.state == PodState::Bound);
        bound
            .filter(|(_, known)| !known.mirror)
            .filter_map(|(uid, _)| Some((uid, self.cluster.pod(uid)?)))
            .filter(|(_, pod)| pod.node.as_deref() == Some(node))
            .filter(|(_, pod)| pod.scheduler == self.scheduler && !is_of_node(pod))
            .map(|(uid, pod)| Leaver {
                uid: Arc::clone(uid),
                key: pod.key.clone(),
                priority: pod.priority,
                leaving: pod.deleting,
                alone: pod.owner.is_none(),
            })
            .collect()
    }
}

/// Whether it belongs to its node: another would be put there at once.
fn is_of_node(pod: &crate::cluster::pod::Pod) -> bool {
    pod.owner.as_ref().is_some_and(|(kind, _, _)| kind == "DaemonSet" || kind == "Node")
}
