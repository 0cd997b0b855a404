//! What should run, and the next steps towards it: seats, classes, roll-outs.
//!
//! Pure rules over a workload's members. `reconcile` says what to create and what to let go; it
//! never chooses a node: each creation goes through the one claim path like any other request.

mod planner;
mod reconcile;
mod rule;
mod seats;
mod takeover;
#[cfg(test)]
mod tests;
mod view;
mod volume;

pub use reconcile::{
    Blocked, Blocker, Cause, Desired, HostState, Member, MemberState, Outlook, Step, reconcile,
};
pub use rule::{CapacityMode, CapacityRule, InvalidRule, OnChange, Rolling, Share, Strategy};
pub use seats::{deletion_cost, lowest_free, on_demand_seats, seat_class};
