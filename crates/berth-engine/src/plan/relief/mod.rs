//! Relieving a node under pressure: which instances leave, and where each of them fits.
//!
//! Which instances leave is arithmetic (`elastic`); where they go is chosen like any placement, among
//! nodes that stay at or below their own watermark, or two nodes could move an instance back and forth
//! forever. A target is tried as a migration uses it: it is held while the source still counts.
//! Everything that is tried in the fleet is undone.

use rustc_hash::FxHashMap;

use super::evacuate::temporary_id;
use crate::elastic::{
    Account, Free, ReliefCandidate, ReliefInstance, ReliefMove, ReliefPlan, Size, cheapest_set,
};
use crate::engine::Engine;
use crate::fleet::NodeIndex;
use crate::model::{InstanceId, InstanceRequest, NodeId, Timestamp};

/// A destination should keep this part of its capacity free below its watermark. An instance that is
/// sent to an almost full node would soon have to be moved again.
const MARGIN: i64 = 10;

/// The inputs of a relief plan.
struct ReliefContext<'a> {
    from: NodeIndex,
    instances: &'a [ReliefInstance],
    below_watermark: &'a dyn Fn(&NodeId) -> Free,
    closed: &'a dyn Fn(&NodeId) -> bool,
    now: Timestamp,
}

/// What each node may still take; `None` where it must take nothing. Computed once per node.
type Rooms = FxHashMap<NodeIndex, Option<Free>>;

impl Engine {
    /// Plans to bring a node under its watermark in both resources, as cheaply as can be.
    ///
    /// `below_watermark` says what may be added to a node before it passes its watermark, `closed`
    /// which nodes must take nothing: those with enough migrations, and those under pressure
    /// themselves. The set is chosen for the whole excess; at most `most` of it are moved now. An
    /// instance without a target is left out, and the set is chosen again. The fleet is unchanged
    /// when this returns.
    #[expect(clippy::too_many_arguments, reason = "each is a question of its own")]
    pub fn plan_relief(
        &mut self,
        node: &NodeId,
        account: &Account,
        instances: &[ReliefInstance],
        below_watermark: &dyn Fn(&NodeId) -> Free,
        closed: &dyn Fn(&NodeId) -> bool,
        most: usize,
        now: Timestamp,
    ) -> ReliefPlan {
        let Some(from) = self.fleet.index_of(node).filter(|_| account.must_shed()) else {
            return ReliefPlan::default();
        };
        let need = account.excess();
        let mut plan = ReliefPlan { left: need, ..ReliefPlan::default() };
        if most == 0 {
            return plan;
        }
        let context = ReliefContext { from, instances, below_watermark, closed, now };
        let mut rooms = Rooms::default();
        let mut candidates = self.relief_candidates(&context);
        // Each round excludes an instance, or is the last.
        loop {
            let mut set = cheapest_set(&candidates, need);
            set.truncate(most);
            let places = self.find_targets(&context, &mut rooms, &mut set);
            if places.iter().all(Option::is_some) {
                let moved = set.iter().zip(places);
                plan.moves =
                    moved.filter_map(|(one, index)| self.relief_move(one, index)).collect();
                break;
            }
            let stuck = set.iter().zip(places).filter(|(_, place)| place.is_none());
            let stuck: Vec<InstanceId> = stuck.map(|(one, _)| one.id).collect();
            candidates.retain(|one| !stuck.contains(&one.id));
            plan.without_target.extend(stuck);
        }
        plan.left = plan.moves.iter().fold(need, |left, one| left.less(one.frees));
        plan.without_target.sort_unstable();
        plan
    }

    /// Instances on the node that may leave.
    fn relief_candidates(&self, context: &ReliefContext<'_>) -> Vec<ReliefCandidate> {
        let here = |instance: &&ReliefInstance| {
            let row = self.fleet.instance(instance.id);
            instance.movable && row.is_some_and(|row| row.host.index() == context.from)
        };
        let candidate = |instance: &ReliefInstance| ReliefCandidate {
            id: instance.id,
            frees: instance.frees(),
            cost: instance.cost(),
        };
        context.instances.iter().filter(here).map(candidate).collect()
    }

    fn relief_move(&self, one: &ReliefCandidate, index: Option<NodeIndex>) -> Option<ReliefMove> {
        let to = self.fleet.row(index?)?.id.clone();
        Some(ReliefMove { instance: one.id, to, cost: one.cost, frees: one.frees })
    }

    /// Finds a target for every instance, in the order of the set. If that leaves some without one,
    /// once more with those first; the set is then in that order.
    fn find_targets(
        &mut self,
        context: &ReliefContext<'_>,
        rooms: &mut Rooms,
        set: &mut Vec<ReliefCandidate>,
    ) -> Vec<Option<NodeIndex>> {
        let places = self.find_targets_in_order(context, rooms, set);
        let stuck = places.iter().filter(|place| place.is_none()).count();
        if stuck == 0 || stuck == set.len() {
            return places;
        }
        let mut order: Vec<(bool, ReliefCandidate)> =
            places.iter().map(Option::is_some).zip(set.iter().copied()).collect();
        order.sort_by_key(|(landed, _)| *landed);
        *set = order.into_iter().map(|(_, one)| one).collect();
        self.find_targets_in_order(context, rooms, set)
    }

    fn find_targets_in_order(
        &mut self,
        context: &ReliefContext<'_>,
        rooms: &mut Rooms,
        set: &[ReliefCandidate],
    ) -> Vec<Option<NodeIndex>> {
        let mut held: Vec<InstanceId> = Vec::new();
        let mut taken: FxHashMap<NodeIndex, Size> = FxHashMap::default();
        let mut places = Vec::new();
        for one in set {
            let replacement = self.replacement(context, one.id);
            let place = replacement.and_then(|replacement| {
                let index = self.find_target(context, rooms, &taken, &replacement)?;
                let overhead = self.fleet.row(index).map_or(0, |row| row.vmm_overhead_mib);
                let added = Size::of(&replacement.resources).plus(Size::new(0, overhead));
                let before = taken.get(&index).copied().unwrap_or_default();
                taken.insert(index, before.plus(added));
                self.fleet.claim_at(&replacement, index);
                held.push(replacement.id);
                Some(index)
            });
            places.push(place);
        }
        for id in held {
            self.fleet.undo_claim(id);
        }
        places
    }

    /// The best node for a replacement that stays at or below its watermark with it, and with a
    /// margin if there is one.
    fn find_target(
        &mut self,
        context: &ReliefContext<'_>,
        rooms: &mut Rooms,
        taken: &FxHashMap<NodeIndex, Size>,
        replacement: &InstanceRequest,
    ) -> Option<NodeIndex> {
        let wanted = Size::of(&replacement.resources);
        let mut without_margin = None;
        let find_target = self.pick_where(replacement, context.now, &mut |index, row| {
            let room = rooms.entry(index).or_insert_with(|| {
                let open = index != context.from && !(context.closed)(&row.id);
                open.then(|| (context.below_watermark)(&row.id))
            });
            let Some(free) = room else { return false };
            let taken = taken.get(&index).copied().unwrap_or_default();
            let added = wanted.plus(taken).plus(Size::new(0, row.vmm_overhead_mib));
            let rest = free.recharged(Size::ZERO, added);
            if rest.cpu < 0 || rest.memory < 0 {
                return false;
            }
            without_margin = without_margin.or(Some(index));
            let keeps = |rest: i64, limit: i64| rest >= limit / MARGIN;
            keeps(rest.cpu, row.limits.cpu) && keeps(rest.memory, row.limits.memory)
        });
        find_target.or(without_margin)
    }

    /// The same request under another id: both exist during the move. `None` if it is not valid
    /// anymore.
    fn replacement(&self, context: &ReliefContext<'_>, id: InstanceId) -> Option<InstanceRequest> {
        let instance = context.instances.iter().find(|instance| instance.id == id)?;
        let row = self.fleet.instance(id)?;
        let mut replacement = InstanceRequest::clone(&instance.request);
        replacement.id = temporary_id(self, id);
        replacement.resources = instance.charge.within(row.resources);
        // Its bounds are about what it uses, not about what that is charged.
        replacement.elastic = None;
        let name = row.rare.as_ref().and_then(|rare| rare.name);
        replacement.name = name.map(|name| self.fleet.texts().text(name).to_owned());
        self.validate(&replacement).is_ok().then_some(replacement)
    }
}

#[cfg(test)]
mod tests;
