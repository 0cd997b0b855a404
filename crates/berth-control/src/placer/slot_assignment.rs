//! Assigning slots: which slot of its workload each instance of a request gets, and its class.
//!
//! The planner proposes, in the order in which requests come; the ledger gives the slot in the same
//! commit as the claim, or says that another has it.

use std::sync::Arc;

use berth_engine::InstanceRequest;
use berth_ledger::{ClaimKey, Slot, SlotKey, Text};
use rustc_hash::FxHashSet;

use super::pending_plan::PendingPlan;
use super::planner::Planner;

/// A slot that is assigned to an instance.
#[derive(Clone, Debug)]
pub(super) struct SlotAssignment {
    /// Which.
    pub(super) key: SlotKey,
    /// The claim that hands it over.
    pub(super) takes_over: Option<ClaimKey>,
}

impl Planner {
    /// Gives each instance of a workload a slot, and asks for the kind of capacity it is. What was
    /// asked for by the caller itself stays.
    pub(super) fn assign_slots(
        &mut self,
        pending: &mut PendingPlan,
        asked: &mut [Arc<InstanceRequest>],
    ) {
        pending.slots.clear();
        for (place, instance) in asked.iter_mut().enumerate() {
            let assigned = self.assign_one_slot(pending, place, instance);
            if let Some(assigned) = &assigned {
                let key = (assigned.key.tenant.clone(), assigned.key.workload.clone());
                self.replica.slots.take(instance.id, key, assigned.key.in_workload());
            }
            pending.slots.push(assigned);
        }
    }

    fn assign_one_slot(
        &mut self,
        pending: &PendingPlan,
        place: usize,
        instance: &mut Arc<InstanceRequest>,
    ) -> Option<SlotAssignment> {
        let workload = instance.workload.as_deref()?;
        let key = (Text::from(instance.tenant.as_str()), Text::from(workload));
        // An instance that is placed keeps its slot; its placement is reported elsewhere.
        if self.replica.slots.has(instance.id) {
            return None;
        }
        if let Some(wanted) = pending.job.request.slots.get(place) {
            return Some(slot_assignment(key, wanted.slot, wanted.takes_over));
        }
        let pinned = instance.capacity_type;
        let (slot, class) = self.replica.slots.lowest(&key, pinned, &pending.denied_slots)?;
        if pinned.is_none() && class.is_some() {
            Arc::make_mut(instance).capacity_type = class;
        }
        Some(slot_assignment(key, slot, None))
    }

    /// Takes back the slots of instances that were not placed.
    pub(super) fn release_slots(
        &mut self,
        pending: &PendingPlan,
        placed: &[berth_engine::InstanceId],
    ) {
        if pending.slots.iter().all(Option::is_none) {
            return;
        }
        let placed: FxHashSet<_> = placed.iter().collect();
        let instances = &pending.job.request.instances;
        for (instance, assigned) in instances.iter().zip(&pending.slots) {
            if assigned.is_some() && !placed.contains(&instance.id) {
                self.replica.slots.free(instance.id);
            }
        }
    }
}

fn slot_assignment(key: (Text, Text), slot: Slot, takes_over: Option<ClaimKey>) -> SlotAssignment {
    let (tenant, workload) = key;
    let key = SlotKey { tenant, workload, revision: slot.revision, slot: slot.slot };
    SlotAssignment { key, takes_over }
}
