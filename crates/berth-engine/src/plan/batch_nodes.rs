//! New nodes that would help a batch that was refused: how many, and how small they may be. Each is tried
//! with the whole batch, and taken out of the fleet again.

use super::batch::{Batch, BatchMode};
use super::batch_fixes::BatchSearch;
use crate::engine::{
    LIMITS, RequestChange, Room, changed, changes_for_new_node, least_amount, least_shape,
    new_name, numbered, smallest_node,
};
use crate::explain::Fix;
use crate::fleet::TriedNode;
use crate::model::{InstanceRequest, NodeFacts, NodeId};

/// Most nodes that are proposed for one class of a batch that does not fit as a whole.
const MAX_NODES_FOR_SOME: usize = 64;

/// Most kinds of nodes that are proposed together: nobody registers more by hand, and each is found with
/// the others in mind.
const MAX_KINDS: usize = 64;

/// How often one node less is tried.
const MAX_FEWER_NODES: usize = 4;

/// Tries that it may take to make nodes smaller.
const TRIES_TO_CUT: usize = 64;

impl BatchSearch<'_> {
    /// The fewest new nodes that are enough: as large as the largest of the fleet if that helps, each
    /// no larger than it need be.
    pub(super) fn nodes(&mut self) -> Option<Fix> {
        let missing = self.refused.batch.quorum().saturating_sub(self.best.0);
        let missing = u32::try_from(missing).ok().filter(|missing| *missing > 0)?;
        let most = self.most_on_one_node().clamp(1, missing);
        let ways = if most > 1 { vec![most, 1] } else { vec![1] };
        for members in ways {
            let fewest = missing.div_ceil(members);
            // Where they are spread evenly, none has more than this many.
            let members = missing.div_ceil(fewest);
            let Some(mut facts) = smallest_node(&self.prepared(), members) else { continue };
            // One that is asked for by name keeps it.
            if self.refused.member.required_place.is_none() {
                facts.id = new_name(self.engine.fleet(), fewest + 1, &[]);
            }
            if let Some(count) = self.fewest_nodes(&facts, fewest) {
                let facts = self.smallest_nodes(facts, count);
                let shape = facts.capacity.unwrap_or_default();
                return Some(Fix::AddNode { shape, count, facts: Box::new(facts) });
            }
        }
        None
    }

    /// New nodes for every class of which some are missing, and what these must do without to be
    /// placed on them.
    pub(super) fn nodes_and_changes(&mut self) -> Option<Fix> {
        let as_it_is = self.refused.batch.requests.iter().zip(&self.best.1);
        let missing = as_it_is.filter(|(_, picked)| picked.is_none()).map(|(request, _)| request);
        let mut changes: Vec<(RequestChange, &InstanceRequest)> = Vec::new();
        for class in classes(missing)? {
            for mut change in changes_for_new_node(&self.prepare(class)) {
                // A fix changes what is one class's own of the refused class alone.
                if !change.is_for_all() && !class.same_class(self.refused.member) {
                    return None;
                }
                // What another class does without already is not named twice.
                if let RequestChange::DropVolumes(volumes) = &mut change {
                    let dropped = |id: &String| {
                        let of_volumes = |(other, _): &(RequestChange, _)| matches!(other, RequestChange::DropVolumes(ids) if ids.contains(id));
                        changes.iter().any(of_volumes)
                    };
                    volumes.retain(|id| !dropped(id));
                    if volumes.is_empty() {
                        continue;
                    }
                }
                if !changes.iter().any(|(other, _)| *other == change) {
                    changes.push((change, class));
                }
            }
        }
        if changes.len() >= LIMITS.changes_of_combined {
            return None;
        }
        let relaxations: Vec<RequestChange> = changes.iter().map(|(one, _)| one.clone()).collect();
        let relaxed = self.refused.changed(&relaxations);
        if relaxed.requests.iter().any(|request| request.validate().is_err()) {
            return None;
        }
        let fixes = changes.iter().map(|(change, class)| change.fix(class, None));
        let effort = Batch { mode: BatchMode::BestEffort, ..relaxed };
        let (placed, assignment) = self.engine.try_greedily(&effort, self.now);
        let wanted = self.refused.batch.quorum().saturating_sub(placed);
        if wanted == 0 {
            return (!changes.is_empty()).then(|| Fix::all_of(fixes.collect()));
        }
        let left = effort.requests.iter().zip(&assignment).filter(|(_, at)| at.is_none());
        let left: Vec<&InstanceRequest> = left.map(|(request, _)| request).take(wanted).collect();
        let nodes = self.nodes_of_classes(&left)?;
        self.works_with(&nodes, &relaxations).then(|| {
            let added = nodes.into_iter().map(|(facts, count)| Fix::AddNode {
                shape: facts.capacity.unwrap_or_default(),
                count,
                facts: Box::new(facts),
            });
            Fix::all_of(added.chain(fixes).collect())
        })
    }

    /// New nodes for the refused class alone, and as many of the batch as fit then: where others are in
    /// the way for reasons of their own.
    pub(super) fn nodes_for_some(&mut self) -> Option<Fix> {
        let (member, best) = (self.refused.member, self.best.0);
        let changes = changes_for_new_node(&self.prepare(member));
        if self.refused.is_rest() || changes.len() + 2 > LIMITS.changes_of_combined {
            return None;
        }
        let relaxed = self.refused.changed(&changes);
        let class = changed(member, &changes);
        if relaxed.requests.iter().any(|request| request.validate().is_err()) {
            return None;
        }
        let members = self.refused.members_of_class().min(MAX_NODES_FOR_SOME);
        let count = u32::try_from(members).ok()?;
        let id = new_name(self.engine.fleet(), count, &[]);
        let mut facts = smallest_node(&self.prepare(&class), 1)?;
        if member.required_place.is_none() {
            facts.id = id;
        }
        let tried = self.add_nodes(&[(facts.clone(), count)]);
        let effort = Batch { mode: BatchMode::BestEffort, ..relaxed };
        let now = self.now;
        let placed =
            self.budget.try_with(self.engine, |engine| engine.try_greedily(&effort, now).0);
        tried.into_iter().rev().for_each(|node| self.engine.fleet.take_back_node(node));
        let placed = placed.filter(|placed| *placed > best)?;
        let shape = facts.capacity.unwrap_or_default();
        let added = Fix::AddNode { shape, count, facts: Box::new(facts) };
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (count, of) = (number(placed), number(self.refused.batch.requests.len()));
        let fewer = (placed < self.refused.batch.quorum()).then_some(Fix::Fewer { count, of });
        let changes = changes.iter().map(|change| change.fix(member, None));
        Some(Fix::all_of(std::iter::once(added).chain(changes).chain(fewer).collect()))
    }

    /// One node for each of these, alike for equal ones.
    fn nodes_of_classes(&self, members: &[&InstanceRequest]) -> Option<Vec<(NodeFacts, u32)>> {
        let mut nodes: Vec<(NodeFacts, u32)> = Vec::new();
        for class in classes(members.iter().copied())? {
            let count = members.iter().filter(|member| member.same_class(class)).count();
            let count = u32::try_from(count).ok()?;
            let taken: Vec<NodeId> = nodes.iter().map(|(facts, _)| facts.id.clone()).collect();
            let id = new_name(self.engine.fleet(), count, &taken);
            nodes.push((NodeFacts { id, ..smallest_node(&self.prepare(class), 1)? }, count));
        }
        Some(nodes)
    }

    /// How many of the refused class the roomiest node would hold with nothing else on it.
    fn most_on_one_node(&self) -> u32 {
        let prepared = self.prepared();
        let fleet = prepared.fleet;
        let rows = fleet.nodes_in_order().filter_map(|(_, index)| fleet.row(index));
        let holds =
            rows.map(|row| Room::of(&prepared, row, true).holds(self.refused.member.resources));
        holds.max().and_then(|most| u32::try_from(most).ok()).unwrap_or(1)
    }

    /// The least number of such nodes with which the batch fits, near the fewest that may do.
    fn fewest_nodes(&mut self, facts: &NodeFacts, fewest: u32) -> Option<u32> {
        let mut works = |count| self.works_with(&[(facts.clone(), count)], &[]);
        let mut count = [fewest, fewest + 1].into_iter().find(|&count| works(count))?;
        // What greedy left out may need fewer nodes than there are members left out.
        for _ in 0..MAX_FEWER_NODES {
            if count == 1 || !works(count - 1) {
                break;
            }
            count -= 1;
        }
        Some(count)
    }

    /// So many nodes with as little as is enough in each dimension: others of the batch may leave room
    /// on nodes that are there.
    fn smallest_nodes(&mut self, facts: NodeFacts, count: u32) -> NodeFacts {
        let tries_left = std::mem::replace(&mut self.tries_left, TRIES_TO_CUT);
        let mut cut = facts;
        if let Some(found) = cut.capacity {
            let enough = cut.clone();
            let shape = least_shape(found, &mut |shape| {
                let capacity = Some(*shape);
                self.works_with(&[(NodeFacts { capacity, ..enough.clone() }, count)], &[])
            });
            cut.capacity = Some(shape);
        }
        for (class, has) in cut.extra.clone() {
            let least = least_amount(has, &mut |amount| {
                let mut less = cut.clone();
                less.extra.insert(class.clone(), amount);
                self.works_with(&[(less, count)], &[])
            });
            cut.extra.insert(class, least);
        }
        cut.extra.retain(|_, amount| *amount > 0);
        self.tries_left = tries_left;
        cut
    }

    /// Whether the changed batch fits with so many nodes of each kind added.
    fn works_with(&mut self, nodes: &[(NodeFacts, u32)], changes: &[RequestChange]) -> bool {
        let tried = self.add_nodes(nodes);
        let works = self.works(changes);
        tried.into_iter().rev().for_each(|node| self.engine.fleet.take_back_node(node));
        works
    }

    /// Adds so many nodes of each kind, to be taken back from last to first.
    fn add_nodes(&mut self, nodes: &[(NodeFacts, u32)]) -> Vec<TriedNode> {
        let mut tried: Vec<TriedNode> = Vec::new();
        for (facts, count) in nodes {
            for place in 0..*count {
                let id = numbered(&facts.id, place);
                tried.extend(self.engine.fleet.try_node(&NodeFacts { id, ..facts.clone() }));
            }
        }
        tried
    }
}

/// One request of each class; absent if there are too many for a node each.
fn classes<'a>(
    requests: impl Iterator<Item = &'a InstanceRequest>,
) -> Option<Vec<&'a InstanceRequest>> {
    let mut classes: Vec<&InstanceRequest> = Vec::new();
    for request in requests {
        if !classes.iter().any(|class| class.same_class(request)) {
            if classes.len() == MAX_KINDS {
                return None;
            }
            classes.push(request);
        }
    }
    Some(classes)
}
