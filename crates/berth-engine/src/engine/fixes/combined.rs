//! Changes that help only together: a smaller size and a relaxed rule, two relaxed rules, a mended
//! node and a relaxed rule, and the like.

use super::change::{RequestChange, changed};
use super::new_node::{changes_for_new_node, smallest_node};
use super::required_changes::{RequiredChanges, is_room, mended, required_changes_at};
use super::{Departure, LIMITS, free, mend, node_id, shrink, smallest_release, takes};
use crate::explain::{Diagnosis, FilterSet, Fix};
use crate::filter::FilterId;
use crate::fleet::{InstanceRow, NodeIndex, NodeRow};
use crate::prepared_request::PreparedRequest;

/// Changes that one node needs together.
pub(crate) struct Combination {
    pub(crate) changes: Vec<RequestChange>,
    pub(crate) mends: Vec<FilterId>,
    /// Instances to release there.
    pub(crate) released: Vec<crate::model::InstanceId>,
    pub(crate) index: NodeIndex,
}

impl Combination {
    fn count(&self) -> usize {
        self.changes.len() + self.mends.len() + usize::from(!self.released.is_empty())
    }

    const fn is_of_request(&self) -> bool {
        self.mends.is_empty() && self.released.is_empty()
    }
}

/// Combined changes that were tried and work: of the request if possible, else of nodes as well.
pub(super) fn propose_combined(
    prepared: &PreparedRequest<'_>,
    diagnosis: &Diagnosis,
    of_operator: bool,
) -> Vec<Fix> {
    let candidates = combined_candidates(prepared, diagnosis, of_operator);
    let mut fixes: Vec<Fix> = Vec::new();
    for candidate in &candidates {
        if fixes.len() >= LIMITS.combined {
            break;
        }
        if let Some(fix) = try_at_node(prepared, candidate)
            && !fixes.iter().any(|kept| kept.changes_the_same(&fix))
        {
            fixes.push(fix);
        }
    }
    if fixes.is_empty() && of_operator {
        fixes.extend(propose_node_and_changes(prepared));
    }
    fixes
}

/// What nodes would need together, the fewest changes first, and those of the request alone first.
pub(crate) fn combined_candidates(
    prepared: &PreparedRequest<'_>,
    diagnosis: &Diagnosis,
    of_operator: bool,
) -> Vec<Combination> {
    let room = FilterSet::of(is_room);
    // Everything about room is at most one change.
    let size = |set: FilterSet| set.without(room).len() + u32::from(set.without(room) != set);
    let mut found: Vec<Combination> = Vec::new();
    for (set, nodes) in diagnosis.sets.smallest_first(size).into_iter().take(LIMITS.sets) {
        if size(set) as usize > LIMITS.changes_of_combined {
            break;
        }
        let nodes = match set.without(room) == set {
            true => nodes.first.iter().copied().take(LIMITS.nodes_freed).collect(),
            false => shrink::closest(prepared, &nodes.first, LIMITS.nodes_freed),
        };
        for index in nodes {
            found.extend(combinations_at(prepared, index, set, of_operator));
        }
    }
    found.retain(|one| {
        (2..=LIMITS.changes_of_combined).contains(&one.count()) || !one.is_of_request()
    });
    found.sort_by_key(|one| (one.count(), !one.is_of_request()));
    found
}

/// The ways past every filter on one node.
fn combinations_at(
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    set: FilterSet,
    of_operator: bool,
) -> Vec<Combination> {
    let Some(row) = prepared.fleet.row(index) else { return Vec::new() };
    let Some(needed) = required_changes_at(prepared, index, row, set) else { return Vec::new() };
    if needed.count() > LIMITS.changes_of_combined || (!needed.mends.is_empty() && !of_operator) {
        return Vec::new();
    }
    let RequiredChanges { changes, mends, lacks_amounts, lacks_slot } = needed;
    let plain = |changes: Vec<RequestChange>| Combination {
        changes,
        mends: mends.clone(),
        released: Vec::new(),
        index,
    };
    if !lacks_amounts && !lacks_slot {
        return vec![plain(changes)];
    }
    let mut ways = Vec::new();
    if !lacks_slot && let Some(smaller) = shrink::shrink_to(prepared, row) {
        ways.push(plain([vec![smaller], changes.clone()].concat()));
    }
    if let Some(released) = release_at(prepared, index, row, &changes, &mends) {
        ways.push(Combination { released, ..plain(changes) });
    }
    ways
}

/// Instances whose release makes room for the changed request on the mended node.
fn release_at(
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    row: &NodeRow,
    changes: &[RequestChange],
    mends: &[FilterId],
) -> Option<Vec<crate::model::InstanceId>> {
    let relaxed = changed(prepared.request, changes);
    relaxed.validate().ok()?;
    let row = all_mended(prepared, row, mends)?;
    let fleet = prepared.fleet;
    let again = PreparedRequest::new(&relaxed, prepared.policy, fleet, prepared.now);
    let own = |row: &InstanceRow| Some(row.tenant) == again.tenant && fleet.is_releasable(row);
    let any =
        |row: &InstanceRow| row.priority <= again.request.priority && fleet.is_releasable(row);
    let released = smallest_release(&again, index, &row, Departure::Gone, own)
        .or_else(|| smallest_release(&again, index, &row, Departure::Gone, any))?;
    Some(released.iter().map(|row| row.id).collect())
}

fn all_mended(
    prepared: &PreparedRequest<'_>,
    row: &NodeRow,
    mends: &[FilterId],
) -> Option<NodeRow> {
    mends.iter().try_fold(row.clone(), |row, id| mended(&row, *id, prepared))
}

/// Asks the node again, with everything changed.
fn try_at_node(prepared: &PreparedRequest<'_>, candidate: &Combination) -> Option<Fix> {
    let Combination { changes, mends, released, index } = candidate;
    let mut row = all_mended(prepared, prepared.fleet.row(*index)?, mends)?;
    for id in released {
        row.uncharge(prepared.fleet.instance(*id)?);
    }
    let request = changed(prepared.request, changes);
    takes(prepared, &request, *index, &row).then(|| combined_fix(prepared, candidate))
}

/// All changes as one fix.
pub(crate) fn combined_fix(prepared: &PreparedRequest<'_>, candidate: &Combination) -> Fix {
    let node = node_id(prepared, candidate.index);
    let row = prepared.fleet.row(candidate.index);
    let mends = candidate.mends.iter().filter_map(|id| Some(mend(*id, row?)));
    let released = candidate.released.iter().filter_map(|id| prepared.fleet.instance(*id));
    let released: Vec<&InstanceRow> = released.collect();
    let released = (!released.is_empty()).then(|| free(prepared, &released));
    let changes = candidate.changes.iter();
    let changes = changes.map(|change| change.fix(prepared.request, node.clone()));
    Fix::all_of(mends.chain(released).chain(changes).collect())
}

/// A new node, and what the request must do without to be placed on it.
fn propose_node_and_changes(prepared: &PreparedRequest<'_>) -> Option<Fix> {
    let changes = changes_for_new_node(prepared);
    if changes.is_empty() || changes.len() >= LIMITS.changes_of_combined {
        return None;
    }
    let relaxed = changed(prepared.request, &changes);
    relaxed.validate().ok()?;
    let again = PreparedRequest::new(&relaxed, prepared.policy, prepared.fleet, prepared.now);
    let facts = smallest_node(&again, 1)?;
    let (shape, id) = (facts.capacity.unwrap_or_default(), facts.id.clone());
    let added = Fix::AddNode { shape, count: 1, facts: Box::new(facts) };
    let changes = changes.iter().map(|change| change.fix(prepared.request, Some(id.clone())));
    Some(Fix::all_of(std::iter::once(added).chain(changes).collect()))
}

/// An instance whose release gives an overlay address back, if that is all that is missing: the
/// tenant's own smallest one.
pub(super) fn release_for_address(
    prepared: &PreparedRequest<'_>,
    diagnosis: &Diagnosis,
) -> Option<Fix> {
    let address = FilterSet::of(|id| id.filter().name == "address-available");
    diagnosis.sets.exactly(address).first()?;
    let fleet = prepared.fleet;
    let nodes = prepared.tenant.and_then(|tenant| fleet.index().tenant(tenant))?;
    let mut smallest: Option<&InstanceRow> = None;
    let mut looked_at = 0;
    nodes.for_each(|index, _| {
        looked_at += 1;
        let row = fleet.row(NodeIndex(index)).filter(|_| looked_at <= LIMITS.nodes_shrunk);
        let numbers = row.map_or(&[][..], |row| &row.instances);
        for instance in numbers.iter().filter_map(|&number| fleet.instance_at(number)) {
            let own = Some(instance.tenant) == prepared.tenant && fleet.is_releasable(instance);
            let size = |row: &InstanceRow| (row.resources.memory_mib, row.id);
            if own && smallest.is_none_or(|least| size(instance) < size(least)) {
                smallest = Some(instance);
            }
        }
    });
    // One that a rule of the request needs stays.
    let mut rules = prepared.hard_rules.iter().filter(|rule| rule.wants_members());
    let instance = smallest?;
    let needed = rules.any(|rule| rule.may_count(fleet, prepared.tenant, instance));
    (!needed).then(|| free(prepared, &[instance]))
}
