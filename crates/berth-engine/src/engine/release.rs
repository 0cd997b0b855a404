//! The smallest set of instances on one node whose release makes room for a request.

use crate::filter::{FilterId, FilterTest, run_filter};
use crate::fleet::{InstanceRow, NodeIndex, NodeRow};
use crate::prepared_request::PreparedRequest;

/// A small set of instances on one node whose release lets the request in; nothing when the node
/// needs no release, or none helps.
pub(crate) fn smallest_release<'a>(
    prepared: &PreparedRequest<'a>,
    index: NodeIndex,
    row: &NodeRow,
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
        hypothetical.uncharge(victim);
        released.push(victim);
        if !lacks_room(&hypothetical) {
            return Some(drop_unneeded(row, released, &lacks_room));
        }
    }
    None
}

/// Whether the request must be placed with this instance.
fn is_required_neighbour(prepared: &PreparedRequest<'_>, instance: &InstanceRow) -> bool {
    let mut rules = prepared.hard_rules.iter().filter(|rule| rule.wants_members());
    rules.any(|rule| rule.may_count(prepared.fleet, prepared.tenant, instance))
}

/// Drops every instance whose release turns out not to be needed, the most important first.
fn drop_unneeded<'a>(
    row: &NodeRow,
    mut released: Vec<&'a InstanceRow>,
    lacks_room: &dyn Fn(&NodeRow) -> bool,
) -> Vec<&'a InstanceRow> {
    for spare in (0..released.len()).rev() {
        let mut hypothetical = row.clone();
        let others = released.iter().enumerate().filter(|(place, _)| *place != spare);
        others.for_each(|(_, victim)| hypothetical.uncharge(victim));
        if !lacks_room(&hypothetical) {
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
