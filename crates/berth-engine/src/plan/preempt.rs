//! Preemption: which instances of lower priority could make room for a request. A proposal only.
//!
//! Only a lack of room is resolved: a node that other rules remove stays removed. The node whose
//! victims matter least is proposed. A victim hands over its amounts and counts as an instance until it
//! has stopped, as in the ledger.

use serde::Serialize;

use crate::engine::{
    CheckError, Departure, Engine, NodeChoice, Placement, Reuse, smallest_release,
};
use crate::fleet::InstanceRow;
use crate::model::{InstanceId, InstanceRequest, NodeId, Timestamp};
use crate::prepared_request::PreparedRequest;

/// Instances in whose room a request fits.
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
    /// The least harmful set of lower-priority instances in whose room the request fits, of those that
    /// `may_go` admits; `None` when it fits already, is not valid, or when no such set exists. What is
    /// leaving already is no victim.
    pub fn propose_preemption(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        may_go: &dyn Fn(InstanceId) -> bool,
    ) -> Option<Preemption> {
        if self.validate(request).is_err() || self.pick(request, now, Reuse::Mask).is_some() {
            return None;
        }
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        let nodes = self.fleet.nodes_in_order();
        let proposals = nodes.filter_map(|(id, index)| {
            let row = self.fleet.row(index)?;
            let is_victim = |instance: &InstanceRow| {
                instance.priority < request.priority
                    && !self.fleet.is_leaving(instance.id)
                    && may_go(instance.id)
            };
            let victims = smallest_release(&prepared, index, row, Departure::Stopping, is_victim)?;
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

    /// Places the request on a node in the room of these instances: the re-check of a preemption. Its
    /// score is that of the node with them.
    ///
    /// # Errors
    /// The first filter that fails, with its evidence.
    pub fn place_preempting(
        &mut self,
        request: &InstanceRequest,
        node: &NodeId,
        victims: &[InstanceId],
        now: Timestamp,
    ) -> Result<Placement, CheckError> {
        self.check_with(request, node, now, |index, row| {
            let victims = victims.iter().filter_map(|id| self.fleet.instance(*id));
            for victim in victims.filter(|victim| victim.host.index() == index) {
                Departure::Stopping.leave(row, victim);
            }
        })?;
        let unknown = || CheckError::UnknownNode(node.clone());
        let index = self.fleet.index_of(node).ok_or_else(unknown)?;
        let total = self.total_at(request, index, now);
        Ok(self.placement(request, NodeChoice { index, total }, now))
    }
}
