//! Workloads: what should run, and the next steps towards it (slots, capacity classes, roll-outs).
//!
//! Pure rules over a workload's members. `reconcile` returns what to create and what to release; it
//! never chooses a node: each creation goes through the claim path like any other request.

mod planner;
mod reconcile;
mod rule;
mod slots;
mod takeover;
#[cfg(test)]
mod tests;
mod view;
mod volume;

pub use reconcile::{
    BlockedMember, Blocker, Cause, DesiredState, HostState, Member, MemberState, Step,
    WorkloadPlan, reconcile,
};
pub use rule::{CapacityMode, CapacityRule, InvalidRule, OnChange, Rolling, Share, Strategy};
pub use slots::{deletion_cost, lowest_free_slot, on_demand_slots, slot_class};
