//! The smallest set of instances on one node whose release makes room for a request.

use crate::filter::{FilterId, FilterTest, run_filter};
use crate::fleet::{InstanceRow, NodeIndex, NodeRow};
use crate::model::Amounts;
use crate::prepared_request::PreparedRequest;

/// What a node gets back when an instance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// All of it: the instance is gone.
    Gone,
    /// Its amounts. It counts as an instance until it has stopped, and so does its overhead.
    Stopping,
}

impl Departure {
    /// Takes an instance off a row.
    pub(crate) fn leave(self, row: &mut NodeRow, instance: &InstanceRow) {
        row.uncharge(instance);
        if self == Self::Stopping {
            row.charge(&without_amounts(instance));
        }
    }

    fn come_back(self, row: &mut NodeRow, instance: &InstanceRow) {
        if self == Self::Stopping {
            row.uncharge(&without_amounts(instance));
        }
        row.charge(instance);
    }
}

/// An instance that counts, and uses nothing.
fn without_amounts(instance: &InstanceRow) -> InstanceRow {
    InstanceRow { resources: Amounts::default(), rare: None, ..instance.clone() }
}

/// A small set of instances on one node whose departure lets the request in; nothing when the node
/// needs none, or none helps.
pub(crate) fn smallest_release<'a>(
    prepared: &PreparedRequest<'a>,
    index: NodeIndex,
    row: &NodeRow,
    departure: Departure,
    may_go: impl Fn(&InstanceRow) -> bool,
) -> Option<Vec<&'a InstanceRow>> {
    let lacks_room = |row: &NodeRow| fails(prepared, index, row, true);
    if fails(prepared, index, row, false) || !lacks_room(row) {
        return None;
    }
    let here = row.instances.iter().filter_map(|&number| prepared.fleet.instance_at(number));
    // Instances that the request must be placed with stay, or the room would be of no use.
    let may_go =
        |instance: &&InstanceRow| may_go(instance) && !is_required_neighbour(prepared, instance);
    let mut victims: Vec<&InstanceRow> = here.filter(may_go).collect();
    victims.sort_by_key(|v| (v.priority, std::cmp::Reverse(v.resources.memory_mib), v.id));
    let mut hypothetical = row.clone();
    let mut released: Vec<&InstanceRow> = Vec::new();
    for victim in victims {
        departure.leave(&mut hypothetical, victim);
        released.push(victim);
        if !lacks_room(&hypothetical) {
            return Some(drop_unneeded(hypothetical, released, departure, &lacks_room));
        }
    }
    None
}

/// Whether the request must be placed with this instance.
fn is_required_neighbour(prepared: &PreparedRequest<'_>, instance: &InstanceRow) -> bool {
    let mut rules = prepared.hard_rules.iter().filter(|rule| rule.wants_members());
    rules.any(|rule| rule.may_count(prepared.fleet, prepared.tenant, instance))
}

/// Drops every instance whose release turns out not to be needed, the most important first. The row
/// is the node without all of them.
fn drop_unneeded<'a>(
    mut row: NodeRow,
    mut released: Vec<&'a InstanceRow>,
    departure: Departure,
    lacks_room: &dyn Fn(&NodeRow) -> bool,
) -> Vec<&'a InstanceRow> {
    for spare in (0..released.len()).rev() {
        departure.come_back(&mut row, released[spare]);
        if lacks_room(&row) {
            departure.leave(&mut row, released[spare]);
        } else {
            released.remove(spare);
        }
    }
    released
}

/// Whether any filter of room, or any other filter, keeps the request off the node.
fn fails(prepared: &PreparedRequest<'_>, index: NodeIndex, row: &NodeRow, of_room: bool) -> bool {
    FilterId::all().any(|id| {
        matches!(id.filter().test, FilterTest::Load(_)) == of_room
            && run_filter(id, prepared, index, row).is_err()
    })
}
