//! Slots: the kind of capacity of each, which one is filled next, and which is released first.

use super::rule::CapacityRule;
use crate::model::CapacityType;

/// How many slots are on-demand: those with the lowest numbers. All of them when there is no limit.
/// `replicas` is how many should run; absent when the caller creates the members itself.
#[must_use]
pub fn on_demand_slots(rule: &CapacityRule, replicas: Option<u32>) -> u32 {
    let limit = rule.max_on_demand.unwrap_or(u32::MAX);
    match replicas {
        Some(replicas) if rule.at_least_one_of_each && replicas >= 2 => {
            limit.clamp(1, replicas - 1)
        }
        Some(_) if rule.at_least_one_of_each => limit.max(1),
        _ => limit,
    }
}

/// The kind of capacity that a slot's member must be on; none when the rule is not in force.
#[must_use]
pub fn slot_class(rule: &CapacityRule, replicas: Option<u32>, slot: u32) -> Option<CapacityType> {
    let on_demand = slot < on_demand_slots(rule, replicas);
    let class = if on_demand { CapacityType::OnDemand } else { CapacityType::Spot };
    rule.enabled.then_some(class)
}

/// The lowest number that is not among these, which are in order.
#[must_use]
pub fn lowest_free_slot(taken: impl IntoIterator<Item = u32>) -> u32 {
    let mut free = 0;
    for slot in taken {
        if slot > free {
            break;
        }
        free = free.max(slot.saturating_add(1));
    }
    free
}

/// The deletion cost of a member: the lowest is released first.
#[must_use]
pub const fn deletion_cost(class: CapacityType) -> u32 {
    match class {
        CapacityType::OnDemand => 100,
        CapacityType::Spot => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(max_on_demand: Option<u32>, at_least_one_of_each: bool) -> CapacityRule {
        CapacityRule { max_on_demand, at_least_one_of_each, ..CapacityRule::default() }
    }

    #[test]
    fn the_lowest_slots_are_on_demand() {
        let cases = [
            // limit, one of each, replicas, on-demand slots
            (Some(3), false, Some(5), 3),
            (Some(7), false, Some(5), 7),
            (Some(0), false, Some(5), 0),
            (None, false, Some(5), u32::MAX),
            (Some(3), false, None, 3),
            (Some(0), true, Some(5), 1),
            (Some(7), true, Some(5), 4),
            (None, true, Some(2), 1),
            // Of one there cannot be both: it is on-demand.
            (Some(0), true, Some(1), 1),
            (Some(0), true, Some(0), 1),
            (Some(0), true, None, 0),
        ];
        for (limit, each, replicas, expected) in cases {
            let slots = on_demand_slots(&rule(limit, each), replicas);
            assert_eq!(slots, expected, "{limit:?} {each} {replicas:?}");
        }
    }

    #[test]
    fn a_slot_has_a_kind_only_while_the_rule_is_in_force() {
        let rule = rule(Some(1), false);
        assert_eq!(slot_class(&rule, Some(2), 0), Some(CapacityType::OnDemand));
        assert_eq!(slot_class(&rule, Some(2), 1), Some(CapacityType::Spot));
        let off = CapacityRule { enabled: false, ..rule };
        assert_eq!(slot_class(&off, Some(2), 0), None);
    }

    #[test]
    fn the_lowest_free_slot_is_the_first_gap() {
        let cases: [(&[u32], u32); 6] = [
            (&[], 0),
            (&[0, 1, 2], 3),
            (&[1, 2], 0),
            (&[0, 2, 3], 1),
            (&[0, 0, 1, 1], 2),
            (&[0, u32::MAX], 1),
        ];
        for (taken, expected) in cases {
            assert_eq!(lowest_free_slot(taken.iter().copied()), expected, "{taken:?}");
        }
    }

    #[test]
    fn spot_members_are_cheaper_to_release() {
        assert!(deletion_cost(CapacityType::Spot) < deletion_cost(CapacityType::OnDemand));
    }
}
