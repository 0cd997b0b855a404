//! The smallest fixes of a refusal. Every fix is tried before it is proposed: a node is asked again
//! with the changed request, without the released instances, or mended; a new node is tried in a
//! fleet of its own.
//!
//! The search starts at nodes, not at rules: the diagnosis says which filters keep each node out, and
//! a node says what it would need. So its cost depends on [`FixLimits`], and on the size of a request
//! only as far as a node is asked again. No fix decides over the whole fleet again.

mod change;
mod combined;
mod new_node;
mod required_changes;
mod shrink;

use super::Engine;
use super::release::{Departure, smallest_release};
use crate::explain::{Diagnosis, FilterSet, Fix, PassedTests, Refusal, describe, diagnose};
use crate::filter::{FilterId, FilterTest, NODE_ACTIVE, first_failure};
use crate::fleet::{InstanceRow, NodeIndex, NodeRow};
use crate::model::{InstanceRequest, NodeFacts, NodeId, NodeState, Timestamp};
use crate::prepared_request::PreparedRequest;
use required_changes::{RequiredChanges, mended, required_changes_at};

pub(crate) use change::{RequestChange, changed};
pub(crate) use combined::{Combination, combined_fix};
pub(crate) use new_node::{
    changes_for_new_node, least_amount, least_shape, new_name, numbered, smallest_node,
};
pub(crate) use shrink::{Room, shrink_to_count};

/// What the search for the fixes of one refusal may cost.
pub(crate) struct FixLimits {
    /// Nodes that are asked what they would need, of each set of filters that keeps nodes out.
    pub(crate) nodes_of_set: usize,
    /// Sets of filters that are looked at for changes that help together.
    pub(crate) sets: usize,
    /// Nodes that are searched for a smaller size.
    pub(crate) nodes_shrunk: usize,
    /// Nodes that are searched for instances to release.
    pub(crate) nodes_freed: usize,
    /// Changes of the request that are proposed, each alone.
    pub(crate) relaxations: usize,
    /// Changes of the request that are tried, each alone.
    pub(crate) relaxations_tried: usize,
    /// Combined changes that are proposed.
    pub(crate) combined: usize,
    /// Changes that one combined fix may have.
    pub(crate) changes_of_combined: usize,
}

/// The limits of every search.
pub(crate) const LIMITS: FixLimits = FixLimits {
    nodes_of_set: 256,
    sets: 48,
    nodes_shrunk: 64,
    nodes_freed: 16,
    relaxations: 24,
    relaxations_tried: 64,
    combined: 2,
    changes_of_combined: 3,
};

impl Engine {
    /// Explains why no node can take a request.
    pub(crate) fn refusal(&mut self, request: &InstanceRequest, now: Timestamp) -> Refusal {
        self.diagnosed(request, now, |prepared, diagnosis| {
            let mut refusal = describe(prepared, diagnosis);
            refusal.fixes = fixes(prepared, diagnosis);
            refusal
        })
    }

    /// Explains why no node can take a member of a batch, and says what may help it.
    pub(crate) fn refusal_of_member(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
    ) -> (Refusal, FixLeads) {
        self.diagnosed(request, now, |prepared, diagnosis| {
            (describe(prepared, diagnosis), FixLeads::new(prepared, diagnosis))
        })
    }

    /// What is said of a diagnosis that uses what the engine knows of nodes already.
    fn diagnosed<T>(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        say: impl FnOnce(&PreparedRequest<'_>, &Diagnosis) -> T,
    ) -> T {
        self.catch_up(now);
        self.count_work(self.fleet.node_count());
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        let facts = self.masks.get(&self.fleet, &self.policy, request);
        let node = self.derived.eligible.words();
        let diagnosis = diagnose(&prepared, PassedTests { node, facts });
        say(&prepared, &diagnosis)
    }

    /// The same without fixes, which cost the most to find.
    pub(crate) fn diagnosis(&self, request: &InstanceRequest, now: Timestamp) -> Refusal {
        let prepared = PreparedRequest::new(request, self.policy(), self.fleet(), now);
        describe(&prepared, &diagnose(&prepared, PassedTests::default()))
    }
}

/// What may help a refused member of a batch, by the nodes: to be tried with the whole batch.
pub(crate) struct FixLeads {
    pub(crate) relaxations: Vec<(RequestChange, NodeIndex)>,
    pub(crate) combined: Vec<Combination>,
    /// Nodes that one filter about the node itself keeps out, as they would be when mended.
    pub(crate) mends: Vec<(FilterId, NodeIndex, NodeFacts)>,
    /// Nodes that lack only room, the closest first.
    pub(crate) short_of_room: Vec<NodeIndex>,
}

impl FixLeads {
    /// Reads them off a diagnosis.
    pub(crate) fn new(prepared: &PreparedRequest<'_>, diagnosis: &Diagnosis) -> Self {
        let about_node = |id: &FilterId| matches!(id.filter().test, FilterTest::Node(_));
        let mends = FilterId::all().filter(about_node).flat_map(|id| {
            mendable_nodes(prepared, diagnosis, id).into_iter().map(move |index| (id, index))
        });
        let mends = mends
            .filter_map(|(id, index)| Some((id, index, mended_facts(prepared, index, &[id])?)));
        Self {
            relaxations: relaxations(prepared, diagnosis),
            combined: combined::combined_candidates(prepared, diagnosis, true),
            mends: mends.collect(),
            short_of_room: shrink::closest(
                prepared,
                &diagnosis.lack_only_room,
                LIMITS.nodes_shrunk,
            ),
        }
    }
}

fn fixes(prepared: &PreparedRequest<'_>, diagnosis: &Diagnosis) -> Vec<Fix> {
    let mut fixes = Vec::new();
    let closest = shrink::closest(prepared, &diagnosis.lack_only_room, LIMITS.nodes_shrunk);
    fixes.extend(propose_shrink(prepared, &closest));
    fixes.extend(propose_relaxations(prepared, diagnosis));
    fixes.extend(propose_releases(prepared, diagnosis, &closest));
    fixes.extend(propose_repair(prepared, diagnosis));
    fixes.extend(propose_node(prepared));
    // What the tenant can do without an operator is worth a second look.
    if !fixes.iter().any(|fix| fix.is_for_tenant(&prepared.request.tenant)) {
        let of_operator = fixes.is_empty();
        fixes.extend(combined::propose_combined(prepared, diagnosis, of_operator));
    }
    fixes
}

fn node_id(prepared: &PreparedRequest<'_>, index: NodeIndex) -> Option<NodeId> {
    prepared.fleet.row(index).map(|row| row.id.clone())
}

/// Whether a node as it would be takes a request as it would be.
fn takes(
    prepared: &PreparedRequest<'_>,
    request: &InstanceRequest,
    index: NodeIndex,
    row: &NodeRow,
) -> bool {
    let again = PreparedRequest::new(request, prepared.policy, prepared.fleet, prepared.now);
    request.validate().is_ok() && first_failure(&again, index, row).is_none()
}

/// The largest request of the same kind that fits: on the node where least must be given up.
fn propose_shrink(prepared: &PreparedRequest<'_>, closest: &[NodeIndex]) -> Option<Fix> {
    closest.iter().find_map(|&index| {
        let row = prepared.fleet.row(index)?;
        let change = shrink::shrink_to(prepared, row)?;
        let smaller = changed(prepared.request, std::slice::from_ref(&change));
        let works = takes(prepared, &smaller, index, row);
        works.then(|| change.fix(prepared.request, Some(row.id.clone())))
    })
}

/// Each change of the request that is enough alone, with the first node that could take it then.
fn propose_relaxations(prepared: &PreparedRequest<'_>, diagnosis: &Diagnosis) -> Vec<Fix> {
    let found = relaxations(prepared, diagnosis).into_iter();
    found.map(|(change, index)| change.fix(prepared.request, node_id(prepared, index))).collect()
}

/// Changes of the request that are all that some node needs, in the order of filters.
pub(crate) fn relaxations(
    prepared: &PreparedRequest<'_>,
    diagnosis: &Diagnosis,
) -> Vec<(RequestChange, NodeIndex)> {
    let mut found: Vec<(RequestChange, NodeIndex)> = Vec::new();
    let mut tries = 0;
    for (set, nodes) in diagnosis.sets.smallest_first(FilterSet::len) {
        // Next to two filters about volumes, one change is past one filter.
        if set.len() > 2 || set.is_empty() {
            break;
        }
        for &index in nodes.first.iter().take(LIMITS.nodes_of_set) {
            if found.len() >= LIMITS.relaxations || tries >= LIMITS.relaxations_tried {
                return found;
            }
            // A node may be past help for a reason of its own: the next one is asked.
            let row = prepared.fleet.row(index);
            let needs =
                row.and_then(|row| Some((row, required_changes_at(prepared, index, row, set)?)));
            let Some((row, needs)) = needs else { continue };
            let mut works = true;
            if let Some(change) = needs.only_change()
                && !found.iter().any(|(other, _)| other == change)
            {
                tries += 1;
                let relaxed = changed(prepared.request, std::slice::from_ref(change));
                works = takes(prepared, &relaxed, index, row);
                if works {
                    found.push((change.clone(), index));
                }
            }
            // All nodes of a set of filters without lists need the same.
            if works && !names_one_of_many(&needs) {
                break;
            }
        }
    }
    found
}

/// Whether another node may need another rule of the same kind to be relaxed.
fn names_one_of_many(needs: &RequiredChanges) -> bool {
    needs.changes.iter().any(|change| match change {
        RequestChange::DropTrait(_)
        | RequestChange::DropPlace(_)
        | RequestChange::AskForTrait(..)
        | RequestChange::DropNetwork(_)
        | RequestChange::LeaveGroup(_)
        | RequestChange::Soften(_) => true,
        RequestChange::Shrink { .. }
        | RequestChange::SendAgain
        | RequestChange::DropCapacityType
        | RequestChange::DropPlatform
        | RequestChange::DropRatios
        | RequestChange::AcceptVirtual
        | RequestChange::DropStrict
        | RequestChange::DropVolumes(_)
        | RequestChange::SwitchCap
        | RequestChange::DropSecrets => false,
    })
}

/// The fewest instances on one node whose release makes room; the tenant's own first. If instances of
/// lower priority are enough, these as well: the request can be placed in their room.
fn propose_releases(
    prepared: &PreparedRequest<'_>,
    diagnosis: &Diagnosis,
    closest: &[NodeIndex],
) -> Vec<Fix> {
    if let Some(fix) = combined::release_for_address(prepared, diagnosis) {
        return vec![fix];
    }
    let nodes = &closest[..closest.len().min(LIMITS.nodes_freed)];
    let released = least_release(prepared, nodes, &|_| true);
    let released = released.map(|released| free(prepared, &released));
    let Some(Fix::Free { instances, tenants, node, .. }) = least_preemption(prepared, nodes) else {
        return released.into_iter().collect();
    };
    let (freed, names) = (instances.clone(), Vec::new());
    let preempted = Fix::Free { instances: freed, names, tenants, node, preempts: true };
    let is_other =
        |fix: &Fix| !matches!(fix, Fix::Free { instances: ids, .. } if *ids == instances);
    released.filter(is_other).into_iter().chain([preempted]).collect()
}

/// The fewest instances of lower priority on one of these nodes in whose room the request fits: the
/// tenant's own if they are enough. Those that would be replaced are among them: a preemption gives
/// their room to the request in the same commit.
fn least_preemption(prepared: &PreparedRequest<'_>, nodes: &[NodeIndex]) -> Option<Fix> {
    let fleet = prepared.fleet;
    let lower =
        |row: &InstanceRow| row.priority < prepared.request.priority && !fleet.is_leaving(row.id);
    let own = |row: &InstanceRow| Some(row.tenant) == prepared.tenant && lower(row);
    let found = least_departure(prepared, nodes, Departure::Stopping, &own)
        .or_else(|| least_departure(prepared, nodes, Departure::Stopping, &lower))?;
    Some(free(prepared, &found))
}

/// The fewest instances on one of these nodes whose release makes room for the request: the tenant's
/// own if they are enough, else any of no higher priority. None that is going already, and none that
/// would be replaced.
pub(crate) fn least_release<'a>(
    prepared: &PreparedRequest<'a>,
    nodes: &[NodeIndex],
    may_go: &dyn Fn(&InstanceRow) -> bool,
) -> Option<Vec<&'a InstanceRow>> {
    let fleet = prepared.fleet;
    let stays = |row: &InstanceRow| !fleet.is_releasable(row) || !may_go(row);
    let own = |row: &InstanceRow| Some(row.tenant) == prepared.tenant && !stays(row);
    let any = |row: &InstanceRow| row.priority <= prepared.request.priority && !stays(row);
    least_departure(prepared, nodes, Departure::Gone, &own)
        .or_else(|| least_departure(prepared, nodes, Departure::Gone, &any))
}

/// The fewest instances on one of these nodes whose departure makes room for the request.
fn least_departure<'a>(
    prepared: &PreparedRequest<'a>,
    nodes: &[NodeIndex],
    departure: Departure,
    may_go: &dyn Fn(&InstanceRow) -> bool,
) -> Option<Vec<&'a InstanceRow>> {
    let found = nodes.iter().filter_map(|&index| {
        let row = prepared.fleet.row(index)?;
        let released = smallest_release(prepared, index, row, departure, may_go)?;
        let memory: u64 = released.iter().map(|r| u64::from(r.resources.memory_mib)).sum();
        Some(((released.len(), memory, row.id.clone()), released))
    });
    found.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, released)| released)
}

/// The fix that releases these instances.
pub(crate) fn free(prepared: &PreparedRequest<'_>, released: &[&InstanceRow]) -> Fix {
    let fleet = prepared.fleet;
    let text = |row: &&InstanceRow| fleet.texts().text(row.tenant).to_owned();
    let mut tenants: Vec<String> = released.iter().map(text).collect();
    tenants.sort_unstable();
    tenants.dedup();
    let mut nodes: Vec<NodeIndex> = released.iter().map(|row| row.host.index()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let node = match nodes.as_slice() {
        [one] => node_id(prepared, *one),
        _ => None,
    };
    let instances = released.iter().map(|row| row.id).collect();
    Fix::Free { instances, names: Vec::new(), tenants, node, preempts: false }
}

/// A node that one filter about the node itself keeps out, mended.
fn propose_repair(prepared: &PreparedRequest<'_>, diagnosis: &Diagnosis) -> Option<Fix> {
    let about_node = |id: &FilterId| matches!(id.filter().test, FilterTest::Node(_));
    let mut mendable: Vec<FilterId> = FilterId::all().filter(about_node).collect();
    mendable.sort_by_key(|id| std::cmp::Reverse(diagnosis.only[usize::from(id.0)]));
    mendable.into_iter().find_map(|id| {
        mendable_nodes(prepared, diagnosis, id).into_iter().find_map(|index| {
            let row = prepared.fleet.row(index)?;
            let mended = mended(row, id, prepared)?;
            takes(prepared, prepared.request, index, &mended).then(|| mend(id, row))
        })
    })
}

/// Nodes that one filter about the node itself keeps out: first those that one command opens, last
/// those of which only the host can be repaired; of equals the first by id.
fn mendable_nodes(
    prepared: &PreparedRequest<'_>,
    diagnosis: &Diagnosis,
    id: FilterId,
) -> Vec<NodeIndex> {
    let nodes = diagnosis.sets.exactly(FilterSet::default().with(id));
    let state = |index: &NodeIndex| prepared.fleet.row(*index).map(|row| row.state);
    let mut nodes: Vec<NodeIndex> = nodes.to_vec();
    nodes.sort_by_key(|index| match state(index) {
        Some(NodeState::Draining) => 1,
        Some(NodeState::Degraded) => 2,
        Some(NodeState::Lost) => 3,
        Some(NodeState::Joining | NodeState::Active | NodeState::Cordoned) | None => 0,
    });
    nodes.truncate(LIMITS.nodes_freed);
    nodes
}

/// The fix that mends a node.
pub(crate) fn mend(id: FilterId, row: &NodeRow) -> Fix {
    let filter = id.filter();
    let state = (id == NODE_ACTIVE).then_some(row.state);
    let remedy = match state {
        Some(NodeState::Cordoned | NodeState::Joining) => "uncordon it",
        Some(NodeState::Draining) => "cancel its drain",
        Some(NodeState::Degraded) => "repair what its agent reports, which ends the state",
        Some(NodeState::Lost) => "start the host or its agent, whose next heartbeat ends the state",
        Some(NodeState::Active) | None => filter.remedy,
    };
    let node = Some(row.id.clone());
    Fix::Mend { filter: filter.name.into(), remedy: remedy.into(), node, state }
}

/// What would be known of a node that was mended in several ways.
pub(crate) fn mended_facts(
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    mends: &[FilterId],
) -> Option<NodeFacts> {
    let row = prepared.fleet.row(index)?.clone();
    let row = mends.iter().try_fold(row, |row, id| mended(&row, *id, prepared))?;
    required_changes::facts_of(prepared.fleet, &row)
}

/// A new node that could take the request, if a new node can help at all.
fn propose_node(prepared: &PreparedRequest<'_>) -> Option<Fix> {
    let facts = smallest_node(prepared, 1)?;
    let shape = facts.capacity.unwrap_or_default();
    Some(Fix::AddNode { shape, count: 1, facts: Box::new(facts) })
}
