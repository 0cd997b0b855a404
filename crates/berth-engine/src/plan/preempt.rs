//! Preemption: which instances could be released to make room. A proposal only.
//!
//! Only instances of lower priority are considered, and only a lack of room is resolved: a node that
//! other rules remove stays removed. The node whose victims matter least is proposed.

use serde::Serialize;

use crate::engine::{Engine, Reuse, smallest_release};
use crate::fleet::InstanceRow;
use crate::model::{InstanceId, InstanceRequest, NodeId, Timestamp};
use crate::prepared_request::PreparedRequest;

/// Instances whose release would let a request in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preemption {
    /// The node.
    pub node: NodeId,
    /// Instances to release, the least important first.
    pub victims: Vec<InstanceId>,
    /// The highest priority among them.
    pub highest_priority: i32,
}

impl Engine {
    /// The least harmful set of lower-priority instances whose release makes the request fit; `None`
    /// when it fits already, is not valid, or when no such set exists.
    pub fn propose_preemption(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
    ) -> Option<Preemption> {
        if self.validate(request).is_err() || self.pick(request, now, Reuse::Mask).is_some() {
            return None;
        }
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        let nodes = self.fleet.nodes_in_order();
        let proposals = nodes.filter_map(|(id, index)| {
            let row = self.fleet.row(index)?;
            let lower = |victim: &InstanceRow| victim.priority < request.priority;
            let victims = smallest_release(&prepared, index, row, lower)?;
            let priorities = victims.iter().map(|victim| victim.priority);
            let highest_priority = priorities.max().unwrap_or(i32::MIN);
            let memory: u64 = victims.iter().map(|v| u64::from(v.resources.memory_mib)).sum();
            let victims: Vec<InstanceId> = victims.iter().map(|victim| victim.id).collect();
            let harm = (highest_priority, victims.len(), memory);
            Some((harm, Preemption { node: id.clone(), victims, highest_priority }))
        });
        // Nodes come in order of id, and the first of equals is kept.
        proposals.min_by_key(|(harm, _)| *harm).map(|(_, proposal)| proposal)
    }
}
