//! Rules about where other instances are, and about where this one is bound to be.
//!
//! What "others" means was resolved when the request was prepared (see `plan::neighbours`); here
//! only the node's own domain is looked up.

use super::{Evidence, Filter, Test, Verdict};
use crate::fleet::Slot;
use crate::plan::{Ask, Origin};

pub(super) static NOT_EXCLUDED: Filter = Filter {
    name: "not-excluded",
    code: "excluded_no_node",
    remedy: "wait for the nodes that denied this request, or send it as a new request",
    transient: true,
    optional: false,
    test: Test::Neighbour(not_excluded),
};

fn not_excluded(ask: &Ask<'_>, slot: Slot) -> Verdict {
    if !ask.excluded.contains(&slot) {
        return Ok(());
    }
    Err(Evidence::fact("this request", "denied here before", "not denied"))
}

pub(super) static VOLUME_HOME: Filter = Filter {
    name: "volume-home",
    code: "volume_locality_no_node",
    remedy: "make the volume's home node fit for this instance, or move the volume",
    transient: true,
    optional: false,
    test: Test::Neighbour(volume_home),
};

fn volume_home(ask: &Ask<'_>, slot: Slot) -> Verdict {
    for volume in ask.request.volumes.iter().filter_map(|id| ask.fleet.volume(id)) {
        if ask.fleet.slot_of(&volume.home) != Some(slot) {
            let fact = format!("home of volume {}", volume.id);
            return Err(Evidence::about_others(&fact, &volume.home, "this node"));
        }
    }
    Ok(())
}

pub(super) static GROUPS: Filter = Filter {
    name: "groups",
    code: "group_no_node",
    remedy: "raise max_per_domain, make the group soft, or add nodes in further domains",
    transient: true,
    optional: false,
    test: Test::Neighbour(|ask, slot| rules_of(ask, slot, Origin::Group)),
};

pub(super) static RESIDENT_RULES: Filter = Filter {
    name: "resident-rules",
    code: "resident_rule_no_node",
    remedy: "change the hard != rule of the instances that are already there, or this one's tags",
    transient: true,
    optional: false,
    test: Test::Neighbour(|ask, slot| rules_of(ask, slot, Origin::Resident)),
};

pub(super) static AFFINITY: Filter = Filter {
    name: "affinity",
    code: "affinity_no_node",
    remedy: "make the rule soft with ~, or correct what it should match",
    transient: true,
    optional: false,
    test: Test::Neighbour(|ask, slot| rules_of(ask, slot, Origin::Affinity)),
};

pub(super) static STRICT_LOCALITY: Filter = Filter {
    name: "strict-locality",
    code: "locality_no_node",
    remedy: "drop strict, or name instances that can be near or far together",
    transient: true,
    optional: false,
    test: Test::Neighbour(|ask, slot| rules_of(ask, slot, Origin::Locality)),
};

/// All filters of this file at once, without the evidence.
pub(super) fn admits(ask: &Ask<'_>, slot: Slot) -> bool {
    not_excluded(ask, slot).is_ok()
        && volume_home(ask, slot).is_ok()
        && ask.hard.iter().all(|rule| rule.admits(ask.fleet, slot))
}

fn rules_of(ask: &Ask<'_>, slot: Slot, origin: Origin) -> Verdict {
    for rule in ask.hard.iter().filter(|rule| rule.origin == origin) {
        let members = rule.members(ask.fleet, slot);
        if !rule.admits(ask.fleet, slot) {
            return Err(Evidence::Neighbours {
                rule: rule.text.to_string(),
                topology: rule.topology,
                members,
                wanted: rule.wanted(),
            });
        }
    }
    Ok(())
}
