//! How a new revision takes over: which old members go now, and how many new ones may come.
//!
//! It never creates a member of an old revision, and is not asked while roll-outs stand still.

use std::cmp::Reverse;

use super::planner::Planner;
use super::reconcile::{Blocker, Cause, HostState, Member, MemberState};
use super::rule::Strategy;
use super::slots::deletion_cost;
use super::view::{SlotMembers, count};
use crate::model::CapacityType;

impl<'a> Planner<'a> {
    /// Lets go of old members as far as the strategy allows now, and says how many new ones may come.
    /// Both are counted from what is there now, because steps are done in any order.
    pub(super) fn take_over(&mut self) -> u32 {
        let room = self.room();
        match self.desired.rolling.strategy {
            Strategy::Recreate => self.release_old(),
            Strategy::BlueGreen => {
                let current = self.slots_of_current().filter(|seat| seat.is_available());
                if count(current) >= self.desired.replicas {
                    self.release_old();
                } else {
                    self.trim_old();
                }
            }
            Strategy::Rolling => self.roll(),
        }
        room
    }

    fn room(&self) -> u32 {
        match self.desired.rolling.strategy {
            Strategy::Recreate => 0,
            Strategy::BlueGreen => u32::MAX,
            Strategy::Rolling => {
                let (surge, _) = self.desired.rolling.surge_and_unavailable(self.desired.replicas);
                // An old member that will be taken away makes room at once: waiting for its end would
                // only make the gap longer.
                let counts = |it: &&Member| {
                    it.is_live() && (self.is_current(it) || it.host != HostState::Reclaimed)
                };
                let there = count(self.seats.iter().flat_map(|seat| seat.members()).filter(counts));
                self.desired.replicas.saturating_add(surge).saturating_sub(there)
            }
        }
    }

    fn old_slots(&self) -> Vec<SlotMembers<'a>> {
        let old = self.seats.iter().filter(|seat| !self.is_current(seat.holder));
        old.copied().filter(|seat| seat.staying().next().is_some()).collect()
    }

    fn release_old(&mut self) {
        for seat in self.old_slots() {
            self.release_slot(seat, Cause::RollOut);
        }
    }

    /// Old ones wait for the new ones, but no more of them than are wanted at all.
    fn trim_old(&mut self) {
        let old = self.old_slots();
        let surplus = self.first_to_go(old.iter().copied(), self.desired.replicas);
        let is_surplus =
            |seat: &SlotMembers<'_>| surplus.iter().any(|it| it.holder.id == seat.holder.id);
        self.scale_down(&surplus);
        for seat in old.into_iter().filter(|seat| !is_surplus(seat)) {
            self.block_slot(seat, Cause::RollOut, Blocker::Replacement);
        }
    }

    /// What does not run goes at once; what runs, while enough others do.
    fn roll(&mut self) {
        let (_, unavailable) = self.desired.rolling.surge_and_unavailable(self.desired.replicas);
        let floor = self.desired.replicas.saturating_sub(unavailable);
        let mut running = self.old_slots();
        for seat in &running {
            for member in seat.staying().filter(|it| it.state != MemberState::Ready) {
                self.release(member, Cause::RollOut);
            }
        }
        running.retain(|seat| seat.is_available());
        running.sort_by_key(|seat| self.roll_order(seat));
        for seat in running {
            let ready = seat.staying().filter(|it| it.state == MemberState::Ready);
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

    /// The first goes first: whose node wants it gone, then on-demand ones, because the new revision
    /// starts with its own on-demand seats and both together should be few.
    fn roll_order(&self, seat: &SlotMembers<'_>) -> (bool, u32, Reverse<u32>, i64) {
        let first = seat.staying().find(|it| it.is_available()).unwrap_or(seat.holder);
        let dearest = deletion_cost(CapacityType::OnDemand);
        let cost = if self.has_classes() { dearest - deletion_cost(first.class) } else { 0 };
        (first.host == HostState::Fine, cost, Reverse(first.slot), first.revision)
    }
}
