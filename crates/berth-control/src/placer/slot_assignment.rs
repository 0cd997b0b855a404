//! Giving slots: which seat of its workload each instance of a request gets, and what follows of it.
//!
//! The planner proposes, in the order in which requests come; the ledger gives the seat in the same
//! commit as the claim, or says that another has it.

use std::sync::Arc;

use berth_engine::InstanceRequest;
use berth_ledger::{ClaimKey, Slot, SlotKey, Text};

use super::planner::{InFlight, Planner};

/// A seat that is being given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// Which.
    pub(super) key: SlotKey,
    /// The claim that hands it over.
    pub(super) takes_over: Option<ClaimKey>,
}

impl Planner {
    /// Gives each instance of a workload a seat, and asks for the kind of capacity it is. What was
    /// asked for by the caller itself stays.
    pub(super) fn seat(&mut self, in_flight: &mut InFlight, asked: &mut [Arc<InstanceRequest>]) {
        in_flight.slots.clear();
        for (place, instance) in asked.iter_mut().enumerate() {
            let given = self.assign_one_slot(in_flight, place, instance);
            if let Some(given) = &given {
                let key = (given.key.tenant.clone(), given.key.workload.clone());
                self.replica.slots.take(instance.id, key, given.key.in_workload());
            }
            in_flight.slots.push(given);
        }
    }

    fn assign_one_slot(
        &mut self,
        in_flight: &InFlight,
        place: usize,
        instance: &mut Arc<InstanceRequest>,
    ) -> Option<Given> {
        let workload = instance.workload.as_deref()?;
        let key = (Text::from(instance.tenant.as_str()), Text::from(workload));
        // An instance that is placed keeps its seat; that it is placed is said elsewhere.
        if self.replica.slots.has(instance.id) {
            return None;
        }
        if let Some(wanted) = in_flight.job.request.slots.get(place) {
            return Some(given(key, wanted.seat, wanted.takes_over));
        }
        let pinned = instance.capacity_type;
        let (seat, class) = self.replica.slots.lowest(&key, pinned, &in_flight.denied_slots)?;
        if pinned.is_none() && class.is_some() {
            Arc::make_mut(instance).capacity_type = class;
        }
        Some(given(key, seat, None))
    }

    /// Takes back the slots of instances that were not placed.
    pub(super) fn release_slots(
        &mut self,
        in_flight: &InFlight,
        placed: &[berth_engine::InstanceId],
    ) {
        let instances = &in_flight.job.request.instances;
        for (instance, given) in instances.iter().zip(&in_flight.slots) {
            if given.is_some() && !placed.contains(&instance.id) {
                self.replica.slots.free(instance.id);
            }
        }
    }
}

fn given(key: (Text, Text), seat: Slot, takes_over: Option<ClaimKey>) -> Given {
    let (tenant, workload) = key;
    let key = SlotKey { tenant, workload, revision: seat.revision, slot: seat.slot };
    Given { key, takes_over }
}
