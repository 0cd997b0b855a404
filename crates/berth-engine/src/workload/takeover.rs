//! Roll-outs: which old members are released now, and how many new ones may be created.
//!
//! It never creates a member of an old revision, and is not used while roll-outs are paused.

use std::cmp::Reverse;

use super::planner::Planner;
use super::reconcile::{Blocker, Cause, HostState, Member, MemberState};
use super::rule::Strategy;
use super::slots::deletion_cost;
use super::view::{OccupiedSlot, count};
use crate::model::CapacityType;

impl<'a> Planner<'a> {
    /// Releases old members as far as the strategy allows now, and returns how many new ones may be
    /// created. Both are counted from the actual members, because steps are done in any order.
    pub(super) fn take_over(&mut self) -> u32 {
        let room = self.room();
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

    /// Members that do not run are released at once; running ones while enough others run.
    fn roll(&mut self) {
        let (_, unavailable) = self.desired.rolling.surge_and_unavailable(self.desired.replicas);
        let floor = self.desired.replicas.saturating_sub(unavailable);
        let mut running = self.old_slots();
        for occupied in &running {
            for member in occupied.staying().filter(|it| it.state != MemberState::Ready) {
                self.release(member, Cause::RollOut);
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
