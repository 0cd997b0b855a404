//! Relieving a node under pressure: who leaves, and where each of them fits.
//!
//! The choice of who is arithmetic (`elastic`); the choice of where is that of any placement, among
//! nodes that stay at or below their own watermark, for otherwise two nodes could pass an instance
//! to and fro for ever. A place is tried as a migration takes it: the target is held while the
//! source still counts. What is tried in the fleet is taken back.

use rustc_hash::FxHashMap;

use super::evacuate::spare_id;
use crate::elastic::{Account, Free, Leaver, ReliefGuest, ReliefMove, ReliefPlan, Size, cheapest};
use crate::engine::Engine;
use crate::fleet::Slot;
use crate::model::{InstanceId, InstanceRequest, NodeId, Timestamp};

/// A destination should keep this part of itself free below its watermark. Whoever is sent to a node
/// that is almost there has soon to be sent on.
const MARGIN: i64 = 10;

/// What a plan is made under.
struct Terms<'a> {
    from: Slot,
    guests: &'a [ReliefGuest],
    below_watermark: &'a dyn Fn(&NodeId) -> Free,
    closed: &'a dyn Fn(&NodeId) -> bool,
    now: Timestamp,
}

/// What each node may still take; nothing where it must take nobody. Asked once per node.
type Rooms = FxHashMap<Slot, Option<Free>>;

impl Engine {
    /// Plans to bring a node under its watermark in both resources, as cheaply as can be.
    ///
    /// `below_watermark` says what may be added to a node before it passes its watermark, `closed`
    /// which nodes must take nobody: those with enough migrations, and those under pressure
    /// themselves. The set is chosen for the whole excess; at most `most` of it go now. Whoever
    /// finds no place is left out, and the set is chosen anew. The fleet is as before when this
    /// returns.
    #[expect(clippy::too_many_arguments, reason = "each is a question of its own")]
    pub fn plan_relief(
        &mut self,
        node: &NodeId,
        account: &Account,
        guests: &[ReliefGuest],
        below_watermark: &dyn Fn(&NodeId) -> Free,
        closed: &dyn Fn(&NodeId) -> bool,
        most: usize,
        now: Timestamp,
    ) -> ReliefPlan {
        let Some(from) = self.fleet.slot_of(node).filter(|_| account.must_shed()) else {
            return ReliefPlan::default();
        };
        let need = account.excess();
        let mut plan = ReliefPlan { left: need, ..ReliefPlan::default() };
        if most == 0 {
            return plan;
        }
        let terms = Terms { from, guests, below_watermark, closed, now };
        let mut rooms = Rooms::default();
        let mut leavers = self.leavers(&terms);
        // Each round leaves somebody out, or is the last.
        loop {
            let mut set = cheapest(&leavers, need);
            set.truncate(most);
            let places = self.land(&terms, &mut rooms, &mut set);
            if places.iter().all(Option::is_some) {
                let moved = set.iter().zip(places);
                plan.moves = moved.filter_map(|(one, slot)| self.relief_move(one, slot)).collect();
                break;
            }
            let stuck = set.iter().zip(places).filter(|(_, place)| place.is_none());
            let stuck: Vec<InstanceId> = stuck.map(|(one, _)| one.id).collect();
            leavers.retain(|one| !stuck.contains(&one.id));
            plan.landless.extend(stuck);
        }
        plan.left = plan.moves.iter().fold(need, |left, one| left.less(one.frees));
        plan.landless.sort_unstable();
        plan
    }

    /// Those that may leave and are there.
    fn leavers(&self, terms: &Terms<'_>) -> Vec<Leaver> {
        let here = |guest: &&ReliefGuest| {
            let row = self.fleet.instance(guest.id);
            guest.movable && row.is_some_and(|row| row.host.slot() == terms.from)
        };
        let leaver =
            |guest: &ReliefGuest| Leaver { id: guest.id, frees: guest.frees(), cost: guest.cost() };
        terms.guests.iter().filter(here).map(leaver).collect()
    }

    fn relief_move(&self, one: &Leaver, slot: Option<Slot>) -> Option<ReliefMove> {
        let to = self.fleet.row(slot?)?.id.clone();
        Some(ReliefMove { instance: one.id, to, cost: one.cost, frees: one.frees })
    }

    /// Finds a place for everybody, in the order of the set. If that leaves somebody without, once
    /// more with those first; the set is then in that order.
    fn land(
        &mut self,
        terms: &Terms<'_>,
        rooms: &mut Rooms,
        set: &mut Vec<Leaver>,
    ) -> Vec<Option<Slot>> {
        let places = self.land_in_order(terms, rooms, set);
        let stuck = places.iter().filter(|place| place.is_none()).count();
        if stuck == 0 || stuck == set.len() {
            return places;
        }
        let mut order: Vec<(bool, Leaver)> =
            places.iter().map(Option::is_some).zip(set.iter().copied()).collect();
        order.sort_by_key(|(landed, _)| *landed);
        *set = order.into_iter().map(|(_, one)| one).collect();
        self.land_in_order(terms, rooms, set)
    }

    fn land_in_order(
        &mut self,
        terms: &Terms<'_>,
        rooms: &mut Rooms,
        set: &[Leaver],
    ) -> Vec<Option<Slot>> {
        let mut held: Vec<InstanceId> = Vec::new();
        let mut taken: FxHashMap<Slot, Size> = FxHashMap::default();
        let mut places = Vec::new();
        for one in set {
            let replacement = self.replacement(terms, one.id);
            let place = replacement.and_then(|replacement| {
                let slot = self.landing(terms, rooms, &taken, &replacement)?;
                let overhead = self.fleet.row(slot).map_or(0, |row| row.vmm_overhead_mib);
                let added = Size::of(&replacement.resources).plus(Size::new(0, overhead));
                let before = taken.get(&slot).copied().unwrap_or_default();
                taken.insert(slot, before.plus(added));
                self.fleet.claim_at(&replacement, slot);
                held.push(replacement.id);
                Some(slot)
            });
            places.push(place);
        }
        for id in held {
            self.fleet.release(id);
        }
        places
    }

    /// The best node for a replacement that stays at or below its watermark with it, and with a
    /// margin if there is one.
    fn landing(
        &mut self,
        terms: &Terms<'_>,
        rooms: &mut Rooms,
        taken: &FxHashMap<Slot, Size>,
        replacement: &InstanceRequest,
    ) -> Option<Slot> {
        let wanted = Size::of(&replacement.resources);
        let mut without_margin = None;
        let landing = self.pick_where(replacement, terms.now, &mut |slot, row| {
            let room = rooms.entry(slot).or_insert_with(|| {
                let open = slot != terms.from && !(terms.closed)(&row.id);
                open.then(|| (terms.below_watermark)(&row.id))
            });
            let Some(free) = room else { return false };
            let taken = taken.get(&slot).copied().unwrap_or_default();
            let added = wanted.plus(taken).plus(Size::new(0, row.vmm_overhead_mib));
            let rest = free.recharged(Size::ZERO, added);
            if rest.cpu < 0 || rest.memory < 0 {
                return false;
            }
            without_margin = without_margin.or(Some(slot));
            let keeps = |rest: i64, limit: i64| rest >= limit / MARGIN;
            keeps(rest.cpu, row.limits.cpu) && keeps(rest.memory, row.limits.memory)
        });
        landing.or(without_margin)
    }

    /// The same again, under another id: both are there for a while. Nothing if it could not be
    /// asked for as things are.
    fn replacement(&self, terms: &Terms<'_>, id: InstanceId) -> Option<InstanceRequest> {
        let guest = terms.guests.iter().find(|guest| guest.id == id)?;
        let row = self.fleet.instance(id)?;
        let mut replacement = InstanceRequest::clone(&guest.request);
        replacement.id = spare_id(self, id);
        replacement.resources = guest.charge.within(row.resources);
        // Its bounds are about what it uses, not about what that is charged.
        replacement.elastic = None;
        let name = row.rare.as_ref().and_then(|rare| rare.name);
        replacement.name = name.map(|name| self.fleet.texts().text(name).to_owned());
        self.validate(&replacement).is_ok().then_some(replacement)
    }
}

#[cfg(test)]
mod tests;
