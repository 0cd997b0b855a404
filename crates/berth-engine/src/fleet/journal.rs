//! The journal: what callers changed in a fleet, so that a copy of it can follow.
//!
//! It records calls and not their effects, in the order in which they were made. A copy that applies
//! them is in the same state, whatever numbers its rows have. What a plan claims and undoes while it
//! searches is not recorded.

use std::sync::Arc;

use super::Fleet;
use crate::model::{
    Amounts, BootOutcome, Group, InstanceId, InstanceRequest, MeasuredLoad, NodeFacts, NodeId,
    NodeState, Timestamp, Volume,
};

/// One change of a fleet, as its caller made it.
#[derive(Clone, Debug)]
pub enum FleetChange {
    /// [`Fleet::claim`].
    Claim(Arc<InstanceRequest>, NodeId),
    /// [`Fleet::release`].
    Release(InstanceId),
    /// [`Fleet::set_leaving`].
    SetLeaving(InstanceId, bool),
    /// [`Fleet::set_replaced`].
    SetReplaced(InstanceId, bool),
    /// [`Fleet::resize`].
    Resize(InstanceId, Amounts),
    /// [`Fleet::add_node`].
    AddNode(Box<NodeFacts>),
    /// [`Fleet::remove_node`].
    RemoveNode(NodeId),
    /// [`Fleet::heartbeat`].
    Heartbeat(NodeId, Timestamp),
    /// [`Fleet::record_boot`].
    Boot(NodeId, BootOutcome),
    /// [`Fleet::set_load`].
    SetLoad(NodeId, Option<MeasuredLoad>),
    /// [`Fleet::set_state`].
    SetState(NodeId, NodeState),
    /// [`Fleet::put_group`].
    PutGroup(Box<Group>),
    /// [`Fleet::remove_group`].
    RemoveGroup(String),
    /// [`Fleet::put_volume`].
    PutVolume(Box<Volume>),
    /// [`Fleet::remove_volume`].
    RemoveVolume(String),
    /// [`Fleet::set_secrets`].
    SetSecrets(String, bool),
    /// [`Fleet::set_tenant_secrets`].
    SetTenantSecrets(String, String, bool),
    /// [`Fleet::set_free_addresses`].
    SetFreeAddresses(Option<u64>),
}

/// Changes since they were last taken; absent while nobody follows.
#[derive(Debug, Default)]
pub(super) struct Journal(Option<Vec<FleetChange>>);

impl Clone for Journal {
    /// A copy has no followers of its own.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Journal {
    /// Records a change if there is a follower.
    pub(super) fn record(&mut self, change: impl FnOnce() -> FleetChange) {
        if let Some(changes) = &mut self.0 {
            changes.push(change());
        }
    }
}

impl Fleet {
    /// Records every change from now on, for a copy that was made now. They must be taken.
    pub fn record_changes(&mut self) {
        self.journal.0.get_or_insert_default();
    }

    /// How many changes were recorded since they were last taken.
    #[must_use]
    pub fn recorded_changes(&self) -> usize {
        self.journal.0.as_ref().map_or(0, Vec::len)
    }

    /// Takes the changes that were recorded, in order.
    pub fn take_changes(&mut self) -> Vec<FleetChange> {
        self.journal.0.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Repeats a change that was made in the fleet that this is a copy of. What changed nothing there
    /// changes nothing here.
    pub fn apply_change(&mut self, change: &FleetChange) {
        match change {
            FleetChange::Claim(request, node) => drop(self.claim(request, node)),
            FleetChange::Release(id) => drop(self.release(*id)),
            FleetChange::SetLeaving(id, leaving) => self.set_leaving(*id, *leaving),
            FleetChange::SetReplaced(id, replaced) => self.set_replaced(*id, *replaced),
            FleetChange::Resize(id, resources) => _ = self.resize(*id, *resources),
            FleetChange::AddNode(facts) => drop(self.add_node(facts)),
            FleetChange::RemoveNode(node) => _ = self.remove_node(node),
            FleetChange::Heartbeat(node, at) => _ = self.heartbeat(node, *at),
            FleetChange::Boot(node, outcome) => _ = self.record_boot(node, outcome.clone()),
            FleetChange::SetLoad(node, load) => _ = self.set_load(node, *load),
            FleetChange::SetState(node, state) => _ = self.set_state(node, *state),
            FleetChange::PutGroup(group) => self.put_group(Group::clone(group)),
            FleetChange::RemoveGroup(id) => _ = self.remove_group(id),
            FleetChange::PutVolume(volume) => self.put_volume(Volume::clone(volume)),
            FleetChange::RemoveVolume(id) => _ = self.remove_volume(id),
            FleetChange::SetSecrets(env, present) => self.set_secrets(env, *present),
            FleetChange::SetTenantSecrets(tenant, env, present) => {
                self.set_tenant_secrets(tenant, env, *present);
            }
            FleetChange::SetFreeAddresses(free) => self.set_free_addresses(*free),
        }
    }
}
