//! Roll-outs: which old members are released now, and how many new ones may be created.
//!
//! A member of an old revision is created only in place of one that was lost, and only while no
//! member of the new revision runs: a revision that never runs must not take the old one's
//! availability with it. Not used while roll-outs are paused.

use std::cmp::Reverse;

use super::planner::Planner;
use super::reconcile::{Blocker, Cause, HostState, Member, MemberState};
use super::rule::Strategy;
use super::slots::deletion_cost;
use super::view::{OccupiedSlot, count};
use crate::model::CapacityType;

/// What an old revision must make up for while no new member runs.
struct OldRefill {
    /// The revision that has run.
    revision: i64,
    /// Slots of it in which a member starts, and that stay for now.
    starting: Vec<u32>,
    /// How many more are needed.
    missing: u32,
}

impl OldRefill {
    fn keeps(&self, member: &Member) -> bool {
        member.revision == self.revision && self.starting.contains(&member.slot)
    }
}

impl<'a> Planner<'a> {
    /// Releases old members as far as the strategy allows now, and returns how many new ones may be
    /// created. Both are counted from the actual members, because steps are done in any order.
    pub(super) fn take_over(&mut self) -> u32 {
        let room = self.room();
        let refill = self.old_refill();
        match self.desired.rolling.strategy {
            Strategy::Recreate => self.release_old(),
            Strategy::BlueGreen => {
                let current = self.slots_of_current().filter(|occupied| occupied.is_available());
                if count(current) >= self.desired.replicas {
                    self.release_old();
                } else {
                    self.trim_old();
                }
            }
            Strategy::Rolling => self.roll(refill.as_ref()),
        }
        room - refill.map_or(0, |refill| self.refill_old(&refill, room))
    }

    /// How many members must run.
    fn floor(&self) -> u32 {
        let replicas = self.desired.replicas;
        match self.desired.rolling.strategy {
            Strategy::Recreate => 0,
            Strategy::BlueGreen => replicas,
            Strategy::Rolling => {
                replicas.saturating_sub(self.desired.rolling.surge_and_unavailable(replicas).1)
            }
        }
    }

    /// What the old revision must make up for, if no new member runs and too few old ones do. Only a
    /// revision that has run counts: another that never did would not help.
    fn old_refill(&self) -> Option<OldRefill> {
        let lacking = self.floor().saturating_sub(self.available);
        if lacking == 0 || self.slots_of_current().any(|occupied| occupied.is_available()) {
            return None;
        }
        let old = self.slots.iter().flat_map(|occupied| occupied.members());
        let ran = old.filter(|it| !self.is_current(it) && it.state == MemberState::Ready);
        let revision = ran.map(|it| it.revision).max()?;
        let is_starting = |occupied: &OccupiedSlot<'_>| {
            occupied.holder.revision == revision
                && occupied.holder.is_live()
                && !occupied.is_available()
        };
        let starting = self.slots.iter().copied().filter(is_starting);
        let usable = usize::try_from(lacking).unwrap_or(usize::MAX);
        let starting: Vec<u32> = starting.map(|it| it.holder.slot).take(usable).collect();
        let missing = lacking - count(starting.iter());
        Some(OldRefill { revision, starting, missing })
    }

    /// Creates the missing old members, at most `room` of them, and returns how many.
    fn refill_old(&mut self, refill: &OldRefill, room: u32) -> u32 {
        let mut missing = refill.missing.min(room);
        let of_revision = |it: &&OccupiedSlot<'a>| it.holder.revision == refill.revision;
        let highest = self.slots.iter().filter(of_revision).map(|it| it.holder.slot).max();
        // More replicas may be wanted than there were old members. Those that were never there are
        // not created: the new revision has its try first, and takes the room.
        let is_rolling = self.desired.rolling.strategy == Strategy::Rolling;
        let is_tried = self.desired.failing || self.slots_of_current().any(|it| it.is_live());
        let width = if is_rolling && is_tried { self.desired.replicas } else { 0 };
        let mut created = 0;
        for slot in 0..width.max(highest.map_or(0, |highest| highest + 1)) {
            let mut same = self.slots.iter().filter(of_revision);
            let occupied = same.find(|it| it.holder.slot == slot);
            if missing == 0 || occupied.is_some_and(|it| it.is_live() || it.is_available()) {
                continue;
            }
            let holder = occupied.map(|it| it.holder);
            let is_lost = holder.is_some_and(|it| it.host == HostState::Lost);
            let cause = if is_lost { Cause::NodeLost } else { Cause::Missing };
            self.create(refill.revision, slot, holder, cause);
            (missing, created) = (missing - 1, created + 1);
        }
        created
    }

    fn room(&self) -> u32 {
        match self.desired.rolling.strategy {
            Strategy::Recreate => 0,
            Strategy::BlueGreen => u32::MAX,
            Strategy::Rolling => {
                let (surge, _) = self.desired.rolling.surge_and_unavailable(self.desired.replicas);
                // An old member on a reclaimed node makes room at once: waiting for its end would only
                // make the gap longer.
                let counts = |it: &&Member| {
                    it.is_live() && (self.is_current(it) || it.host != HostState::Reclaimed)
                };
                let there =
                    count(self.slots.iter().flat_map(|occupied| occupied.members()).filter(counts));
                self.desired.replicas.saturating_add(surge).saturating_sub(there)
            }
        }
    }

    fn old_slots(&self) -> Vec<OccupiedSlot<'a>> {
        let old = self.slots.iter().filter(|occupied| !self.is_current(occupied.holder));
        old.copied().filter(|occupied| occupied.staying().next().is_some()).collect()
    }

    fn release_old(&mut self) {
        for occupied in self.old_slots() {
            self.release_slot(occupied, Cause::RollOut);
        }
    }

    /// Old members wait for the new ones, but no more of them than the desired replicas.
    fn trim_old(&mut self) {
        let old = self.old_slots();
        let surplus = self.first_to_go(old.iter().copied(), self.desired.replicas);
        let is_surplus = |occupied: &OccupiedSlot<'_>| {
            surplus.iter().any(|it| it.holder.id == occupied.holder.id)
        };
        self.scale_down(&surplus);
        for occupied in old.into_iter().filter(|occupied| !is_surplus(occupied)) {
            self.block_slot(occupied, Cause::RollOut, Blocker::Replacement);
        }
    }

    /// Members that do not run are released at once, unless they are needed; running ones while
    /// enough others run.
    fn roll(&mut self, refill: Option<&OldRefill>) {
        let floor = self.floor();
        let mut running = self.old_slots();
        for occupied in &running {
            for member in occupied.staying().filter(|it| it.state != MemberState::Ready) {
                if refill.is_some_and(|refill| refill.keeps(member)) {
                    self.block(member, Cause::RollOut, Blocker::MaxUnavailable);
                } else {
                    self.release(member, Cause::RollOut);
                }
            }
        }
        running.retain(|occupied| occupied.is_available());
        running.sort_by_key(|occupied| self.roll_order(occupied));
        for occupied in running {
            let ready = occupied.staying().filter(|it| it.state == MemberState::Ready);
            let goes = self.available > floor;
            for member in ready {
                if goes {
                    self.release(member, Cause::RollOut);
                } else {
                    self.block(member, Cause::RollOut, Blocker::MaxUnavailable);
                }
            }
            self.available -= u32::from(goes);
        }
    }

    /// The order of release: members whose node is drained or reclaimed, then on-demand ones, because
    /// the new revision starts with its own on-demand slots and both together should be few.
    fn roll_order(&self, occupied: &OccupiedSlot<'_>) -> (bool, u32, Reverse<u32>, i64) {
        let first = occupied.staying().find(|it| it.is_available()).unwrap_or(occupied.holder);
        let dearest = deletion_cost(CapacityType::OnDemand);
        let cost = if self.has_classes() { dearest - deletion_cost(first.class) } else { 0 };
        (first.host == HostState::Fine, cost, Reverse(first.slot), first.revision)
    }
}
