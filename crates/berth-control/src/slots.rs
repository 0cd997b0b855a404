//! Which slots of which workloads are taken: by claims, and by our own plans in flight.
//!
//! It proposes the lowest free slot. Whether a slot is free is decided by the ledger, in the same
//! commit as the claim.

use std::collections::BTreeMap;

use berth_api::CapacityRule;
use berth_engine::workload::{on_demand_slots, slot_class};
use berth_engine::{CapacityType, InstanceId};
use berth_ledger::{Slot, Text, Workload};
use rustc_hash::FxHashMap;

use crate::workload::{Definition, WorkloadKey};

/// What a workload says of its slots.
#[derive(Clone, Copy, Debug)]
struct Rule {
    revision: i64,
    replicas: Option<u32>,
    capacity: Option<CapacityRule>,
}

/// Slots of all workloads.
#[derive(Default)]
pub struct Slots {
    rules: FxHashMap<WorkloadKey, Rule>,
    /// The version of every workload, also of those that give no slots.
    versions: FxHashMap<WorkloadKey, i64>,
    /// How many instances have each slot: more than one while it is handed over.
    taken: FxHashMap<WorkloadKey, BTreeMap<Slot, u32>>,
    of: FxHashMap<InstanceId, (WorkloadKey, Slot)>,
}

impl Slots {
    /// Takes in a workload as it is now.
    pub fn define(&mut self, row: &Workload) {
        let key = (Text::from(row.tenant.as_str()), Text::from(row.name.as_str()));
        self.versions.insert(key, row.revision);
        // One that cannot be read is reported by the catalogue, and gives no slots.
        let Ok(found) = Definition::read(row) else { return };
        if found.quarantined.is_some() {
            self.rules.remove(&found.key);
            return;
        }
        let (replicas, capacity) = (found.replicas, found.body.capacity);
        let rule = Rule { revision: found.body.revision, replicas, capacity };
        self.rules.insert(found.key, rule);
    }

    /// A workload is gone.
    pub fn undefine(&mut self, tenant: &Text, name: &Text) {
        let key = (tenant.clone(), name.clone());
        self.rules.remove(&key);
        self.versions.remove(&key);
    }

    /// The version of a workload as it is known here; 0 if there is none.
    #[must_use]
    pub fn version(&self, key: &WorkloadKey) -> i64 {
        self.versions.get(key).copied().unwrap_or(0)
    }

    /// Records that an instance has a slot.
    pub fn take(&mut self, id: InstanceId, key: WorkloadKey, slot: Slot) {
        self.free(id);
        *self.taken.entry(key.clone()).or_default().entry(slot).or_default() += 1;
        self.of.insert(id, (key, slot));
    }

    /// Records that an instance has no slot any more.
    pub fn free(&mut self, id: InstanceId) {
        let Some((key, slot)) = self.of.remove(&id) else { return };
        let Some(slots) = self.taken.get_mut(&key) else { return };
        if let Some(count) = slots.get_mut(&slot) {
            *count -= 1;
            if *count == 0 {
                slots.remove(&slot);
            }
        }
        if slots.is_empty() {
            self.taken.remove(&key);
        }
    }

    /// Whether an instance has a slot.
    #[must_use]
    pub fn has(&self, id: InstanceId) -> bool {
        self.of.contains_key(&id)
    }

    /// The lowest free slot of a workload, except those denied, and the kind of capacity it is;
    /// absent when there is no such workload. An instance that asks for a kind itself gets a slot
    /// of that kind while there is one.
    #[must_use]
    pub fn lowest(
        &self,
        key: &WorkloadKey,
        pinned: Option<CapacityType>,
        denied: &[Slot],
    ) -> Option<(Slot, Option<CapacityType>)> {
        let rule = self.rules.get(key)?;
        let revision = rule.revision;
        let taken = self.taken.get(key);
        let is_free = |slot: i64| {
            let found = Slot { revision, slot };
            !denied.contains(&found) && taken.is_none_or(|taken| !taken.contains_key(&found))
        };
        let lowest = |from: i64| (from..).find(|slot| is_free(*slot)).unwrap_or(from);
        let first_spot =
            rule.capacity.map_or(0, |it| i64::from(on_demand_slots(&it, rule.replicas)));
        let slot = match pinned {
            Some(CapacityType::Spot) => lowest(first_spot),
            Some(CapacityType::OnDemand) | None => lowest(0),
        };
        let narrow = u32::try_from(slot).unwrap_or(u32::MAX);
        let class = rule.capacity.and_then(|it| slot_class(&it, rule.replicas, narrow));
        Some((Slot { revision, slot }, class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(max_on_demand: u32) -> Slots {
        let mut slots = Slots::default();
        let body = serde_json::json!({
            "revision": 3,
            "template": { "resources": { "cpu_milli": 1000, "memory_mib": 1024 } },
            "capacity": { "max_on_demand": max_on_demand },
        });
        let (tenant, name) = ("acme".to_owned(), "web".to_owned());
        let body = body.to_string();
        slots.define(&Workload { tenant, name, revision: 1, replicas: -1, body });
        slots
    }

    fn key() -> WorkloadKey {
        (Text::from("acme"), Text::from("web"))
    }

    fn slot_of(slot: i64) -> Slot {
        Slot { revision: 3, slot }
    }

    #[test]
    fn the_lowest_free_slot_is_assigned_and_its_number_decides_its_class() {
        let mut slots = web(2);
        for (slot, id) in [(0, 1), (1, 2)] {
            let on_demand = Some(CapacityType::OnDemand);
            assert_eq!(slots.lowest(&key(), None, &[]), Some((slot_of(slot), on_demand)));
            slots.take(InstanceId::from_u128(id), key(), slot_of(slot));
        }
        assert_eq!(slots.lowest(&key(), None, &[]), Some((slot_of(2), Some(CapacityType::Spot))));
        slots.free(InstanceId::from_u128(1));
        let again = Some((slot_of(0), Some(CapacityType::OnDemand)));
        assert_eq!(slots.lowest(&key(), None, &[]), again);
        assert_eq!(slots.lowest(&key(), None, &[slot_of(0)]).map(|it| it.0), Some(slot_of(2)));
    }

    #[test]
    fn a_slot_that_is_handed_over_is_free_only_when_both_have_gone() {
        let mut slots = web(1);
        slots.take(InstanceId::from_u128(1), key(), slot_of(0));
        slots.take(InstanceId::from_u128(2), key(), slot_of(0));
        slots.free(InstanceId::from_u128(2));
        assert_eq!(slots.lowest(&key(), None, &[]).map(|it| it.0), Some(slot_of(1)));
        slots.free(InstanceId::from_u128(1));
        assert_eq!(slots.lowest(&key(), None, &[]).map(|it| it.0), Some(slot_of(0)));
    }

    #[test]
    fn an_instance_that_asks_for_spot_itself_gets_a_spot_slot() {
        let slots = web(2);
        let found = slots.lowest(&key(), Some(CapacityType::Spot), &[]);
        assert_eq!(found.map(|it| it.0), Some(slot_of(2)));
        let other = (Text::from("acme"), Text::from("api"));
        assert_eq!(slots.lowest(&other, None, &[]), None);
    }
}
