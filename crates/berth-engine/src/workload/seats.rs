//! Seats: which kind of capacity each is, which one comes next, which goes first.

use super::rule::CapacityRule;
use crate::model::CapacityType;

/// How many seats are on-demand: those with the lowest numbers. All of them when there is no limit.
/// `replicas` is how many should run; absent when the caller creates the members itself.
#[must_use]
pub fn on_demand_seats(rule: &CapacityRule, replicas: Option<u32>) -> u32 {
    let limit = rule.max_on_demand.unwrap_or(u32::MAX);
    match replicas {
        Some(replicas) if rule.at_least_one_of_each && replicas >= 2 => {
            limit.clamp(1, replicas - 1)
        }
        Some(_) if rule.at_least_one_of_each => limit.max(1),
        _ => limit,
    }
}

/// The kind of capacity that a seat's member must be on; none when the rule is not in force.
#[must_use]
pub fn seat_class(rule: &CapacityRule, replicas: Option<u32>, slot: u32) -> Option<CapacityType> {
    let on_demand = slot < on_demand_seats(rule, replicas);
    let class = if on_demand { CapacityType::OnDemand } else { CapacityType::Spot };
    rule.enabled.then_some(class)
}

/// The lowest number that is not among these, which are in order.
#[must_use]
pub fn lowest_free(taken: impl IntoIterator<Item = u32>) -> u32 {
    let mut free = 0;
    for slot in taken {
        if slot > free {
            break;
        }
        free = free.max(slot.saturating_add(1));
    }
    free
}

/// What it costs to let a member go: the lowest goes first.
#[must_use]
pub const fn deletion_cost(class: CapacityType) -> u32 {
    match class {
        CapacityType::OnDemand => 100,
        CapacityType::Spot => 1,
    }
}
