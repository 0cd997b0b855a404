//! The steps for a workload that may have several members at once.
//!
//! Each slot is decided in one place only, so no member is released twice and no slot is filled
//! twice. Nodes are known only through `Member::host`.

use std::cmp::Reverse;

use super::reconcile::{
    BlockedMember, Blocker, Cause, DesiredState, HostState, Member, MemberState, Step,
    WorkloadPlan, is_misplaced, rule_in_force, slot_kind,
};
use super::rule::{OnChange, Strategy};
use super::slots::{deletion_cost, on_demand_slots};
use super::view::{OccupiedSlot, count};

/// Collects the steps.
pub(super) struct Planner<'a> {
    pub(super) desired: &'a DesiredState<'a>,
    /// By revision and slot.
    pub(super) slots: &'a [OccupiedSlot<'a>],
    /// Slots with a running member once the steps so far are done.
    pub(super) available: u32,
    /// Whether there are members of other revisions.
    has_old: bool,
    plan: WorkloadPlan,
}

impl<'a> Planner<'a> {
    pub(super) fn new(desired: &'a DesiredState<'a>, slots: &'a [OccupiedSlot<'a>]) -> Self {
        let available = count(slots.iter().filter(|occupied| occupied.is_available()));
        let has_old = slots.iter().any(|occupied| occupied.holder.revision != desired.revision);
        Self { desired, slots, available, has_old, plan: WorkloadPlan::default() }
    }

    pub(super) fn plan(mut self) -> WorkloadPlan {
        self.release_what_goes_anyway();
        if self.desired.replicas == 0 {
            for occupied in self.slots {
                self.release_slot(*occupied, Cause::ScaleDown);
            }
            return self.plan;
        }
        if self.is_frozen() {
            self.fill_frozen();
        } else {
            let room = if self.has_old { self.take_over() } else { u32::MAX };
            self.fill(room);
        }
        let victims = self.release_surplus();
        let handing_over = self.hand_over(&victims);
        self.rebuild(&victims, handing_over);
        self.plan
    }

    /// Whether a roll-out is paused halfway: then every revision keeps its members.
    fn is_frozen(&self) -> bool {
        self.desired.paused && self.has_old
    }

    pub(super) fn is_current(&self, member: &Member) -> bool {
        member.revision == self.desired.revision
    }

    pub(super) fn has_classes(&self) -> bool {
        rule_in_force(self.desired).is_some()
    }

    pub(super) fn slots_of_current(
        &self,
    ) -> impl Iterator<Item = OccupiedSlot<'a>> + Clone + use<'a> {
        let revision = self.desired.revision;
        self.slots.iter().copied().filter(move |occupied| occupied.holder.revision == revision)
    }

    /// Slots that should have a member: all of them while roll-outs are paused, else those of the
    /// current revision.
    fn slots_to_keep(&self) -> impl Iterator<Item = OccupiedSlot<'a>> + Clone + use<'a> {
        let (frozen, revision) = (self.is_frozen(), self.desired.revision);
        let keep =
            move |occupied: &OccupiedSlot<'_>| frozen || occupied.holder.revision == revision;
        self.slots.iter().copied().filter(keep)
    }

    fn live(&self) -> u32 {
        count(self.slots_to_keep().filter(|occupied| occupied.is_live()))
    }

    fn release_what_goes_anyway(&mut self) {
        for occupied in self.slots {
            for member in occupied.members().filter(|it| it.state != MemberState::Leaving) {
                if let Some(cause) = occupied.goes_anyway(member) {
                    self.release(member, cause);
                }
            }
        }
    }

    /// Fills the lowest slots of the current revision, at most `room` of them.
    fn fill(&mut self, room: u32) {
        let missing = self.desired.replicas.saturating_sub(self.live()).min(room);
        let otherwise = if self.has_old { Cause::RollOut } else { Cause::Missing };
        self.fill_lowest(self.desired.revision, missing, otherwise, |_| true);
    }

    /// While roll-outs are paused, a lost member is replaced by one of its own revision. Other missing
    /// members are of the newest revision that has one.
    fn fill_frozen(&mut self) {
        let mut missing = self.desired.replicas.saturating_sub(self.live());
        let lost = |occupied: &OccupiedSlot<'_>| occupied.holder.host == HostState::Lost;
        for occupied in self.slots.iter().filter(|occupied| lost(occupied)) {
            if missing == 0 {
                return;
            }
            let cause =
                if self.is_current(occupied.holder) { Cause::NodeLost } else { Cause::Missing };
            self.create(
                occupied.holder.revision,
                occupied.holder.slot,
                Some(occupied.holder),
                cause,
            );
            missing -= 1;
        }
        let newest = self
            .slots
            .iter()
            .map(|occupied| occupied.holder)
            .max_by_key(|holder| (holder.is_live(), self.is_current(holder), holder.revision));
        let revision = newest.map_or(self.desired.revision, |holder| holder.revision);
        // Slots of lost members have been filled above.
        self.fill_lowest(revision, missing, Cause::Missing, |occupied| !lost(occupied));
    }

    /// Creates members in the lowest slots without a live holder that are free or may be taken.
    fn fill_lowest(
        &mut self,
        revision: i64,
        mut missing: u32,
        otherwise: Cause,
        may_take: impl Fn(&OccupiedSlot<'_>) -> bool,
    ) {
        let slots = self.slots;
        let mut taken =
            slots.iter().filter(|occupied| occupied.holder.revision == revision).peekable();
        let mut slot = 0;
        while missing > 0 {
            let occupied = taken.next_if(|occupied| occupied.holder.slot == slot);
            if occupied.is_none_or(|occupied| !occupied.is_live() && may_take(occupied)) {
                let holder = occupied.map(|occupied| occupied.holder);
                let lost = holder.is_some_and(|it| it.host == HostState::Lost);
                let cause = if lost { Cause::NodeLost } else { otherwise };
                self.create(revision, slot, holder, cause);
                missing -= 1;
            }
            slot += 1;
        }
    }

    /// Releases the surplus and returns its slots, including those that must wait: a member that does
    /// not run yet is no reason to release one that does.
    fn release_surplus(&mut self) -> Vec<(i64, u32)> {
        let victims = self.surplus();
        self.scale_down(&victims);
        victims.iter().map(|occupied| (occupied.holder.revision, occupied.holder.slot)).collect()
    }

    /// Releases these as long as enough others run.
    pub(super) fn scale_down(&mut self, victims: &[OccupiedSlot<'_>]) {
        for occupied in victims {
            if !occupied.is_available() || self.available > self.desired.replicas {
                self.release_slot(*occupied, Cause::ScaleDown);
            } else {
                self.block_slot(*occupied, Cause::ScaleDown, Blocker::Replacement);
            }
        }
    }

    /// The surplus. A paused roll-out keeps its surge: releasing old members in favour of new ones
    /// would continue it.
    fn surplus(&self) -> Vec<OccupiedSlot<'a>> {
        let (replicas, rolling) = (self.desired.replicas, self.desired.rolling);
        if !self.is_frozen() {
            return self.first_to_go(self.slots_of_current(), replicas);
        }
        let keep = match rolling.strategy {
            Strategy::Recreate => replicas,
            Strategy::Rolling => replicas.saturating_add(rolling.surge_and_unavailable(replicas).0),
            Strategy::BlueGreen => {
                let old = self.slots_to_keep().filter(|occupied| !self.is_current(occupied.holder));
                let mut surplus = self.first_to_go(old, replicas);
                surplus.extend(self.first_to_go(self.slots_of_current(), replicas));
                return surplus;
            }
        };
        self.first_to_go(self.slots_to_keep(), keep)
    }

    /// The live ones of these slots beyond `keep`, in the order of release.
    pub(super) fn first_to_go(
        &self,
        slots: impl Iterator<Item = OccupiedSlot<'a>> + Clone,
        keep: u32,
    ) -> Vec<OccupiedSlot<'a>> {
        let live = slots.filter(|occupied| occupied.is_live());
        let surplus = count(live.clone()).saturating_sub(keep);
        if surplus == 0 {
            return Vec::new();
        }
        let mut victims: Vec<_> = live.collect();
        victims.sort_by_key(|occupied| self.deletion_order(occupied));
        victims.truncate(usize::try_from(surplus).unwrap_or(usize::MAX));
        victims
    }

    /// The order of release when fewer are wanted: old revisions, misplaced members that are not
    /// rebuilt, spot members, then the highest slot.
    fn deletion_order(&self, occupied: &OccupiedSlot<'_>) -> impl Ord + use<> {
        let holder = occupied.holder;
        let rule = rule_in_force(self.desired);
        let lazy = rule.is_some_and(|rule| rule.on_change == OnChange::Lazy);
        let first = lazy && is_misplaced(self.desired, holder);
        let cost = if rule.is_some() { deletion_cost(holder.class) } else { 0 };
        (self.is_current(holder), !first, cost, Reverse(holder.slot), holder.revision)
    }

    /// Replaces members whose node is being drained or reclaimed; the replacement comes first. Returns
    /// whether any slot is being handed over, now or already.
    fn hand_over(&mut self, victims: &[(i64, u32)]) -> bool {
        let (mut handing_over, mut draining) = (false, 0);
        for occupied in self.slots_to_keep().filter(|occupied| occupied.is_handing_over()) {
            handing_over = true;
            draining += count(occupied.staying().filter(|member| {
                member.id != occupied.holder.id && member.host == HostState::Draining
            }));
        }
        let limit = self.desired.rolling.max_surge.up(self.desired.replicas).max(1);
        for occupied in self.slots_to_keep().filter(|occupied| !is_among(victims, occupied)) {
            let holder = occupied.holder;
            for member in occupied.staying().filter(|it| it.id != holder.id) {
                self.block(member, Cause::Rebuild, Blocker::Replacement);
            }
            if !holder.is_live() || holder.host == HostState::Fine {
                continue;
            }
            if holder.host == HostState::Draining {
                if draining >= limit {
                    self.block(holder, Cause::Drain, Blocker::MaxSurge);
                    continue;
                }
                draining += 1;
            }
            handing_over = true;
            let cause = holder.cause_or(Cause::Drain);
            self.create(holder.revision, holder.slot, Some(holder), cause);
        }
        handing_over
    }

    /// Moves members to the kind of capacity that their slots require, one at a time, and only while
    /// nothing else is being replaced.
    fn rebuild(&mut self, victims: &[(i64, u32)], handing_over: bool) {
        let rule = rule_in_force(self.desired);
        let Some(rule) = rule.filter(|rule| rule.on_change == OnChange::Rebuild) else { return };
        let rolling_out = self.has_old && !self.is_frozen();
        let mut busy = handing_over || rolling_out || !victims.is_empty();
        for occupied in self.slots_of_current().filter(|occupied| !is_among(victims, occupied)) {
            let holder = occupied.holder;
            let stays = holder.is_live() && holder.host == HostState::Fine;
            if !stays || !is_misplaced(self.desired, holder) {
                continue;
            }
            if busy {
                self.block(holder, Cause::Rebuild, Blocker::OneAtATime);
                continue;
            }
            busy = true;
            self.create(holder.revision, holder.slot, Some(holder), Cause::Rebuild);
        }
        if !busy && !self.has_old && self.live() == self.desired.replicas {
            self.fill_on_demand_slot(on_demand_slots(rule, Some(self.desired.replicas)));
        }
    }

    /// An on-demand slot can be empty while all members exist, in higher slots. Then one more is
    /// created, and a spot member is released as surplus once it runs.
    fn fill_on_demand_slot(&mut self, on_demand_slots: u32) {
        let live = self.slots_of_current().filter(|occupied| occupied.is_live());
        let on_demand = count(live.filter(|occupied| occupied.holder.slot < on_demand_slots));
        if on_demand < on_demand_slots.min(self.desired.replicas) {
            let cause = Cause::Rebuild;
            self.fill_lowest(self.desired.revision, 1, cause, |_| true);
        }
    }

    pub(super) fn create(
        &mut self,
        revision: i64,
        slot: u32,
        holder: Option<&Member>,
        cause: Cause,
    ) {
        let class = slot_kind(self.desired, slot);
        let in_place_of = holder.map(|it| it.id);
        self.plan.steps.push(Step::Create { revision, slot, class, in_place_of, cause });
    }

    pub(super) fn release(&mut self, member: &Member, cause: Cause) {
        self.plan.steps.push(Step::Release { instance: member.id, cause });
    }

    /// Releases a slot with all its members.
    pub(super) fn release_slot(&mut self, occupied: OccupiedSlot<'_>, cause: Cause) {
        for member in occupied.staying() {
            self.release(member, cause);
        }
        self.available -= u32::from(occupied.is_available());
    }

    pub(super) fn block(&mut self, member: &Member, otherwise: Cause, blocker: Blocker) {
        let cause = member.cause_or(otherwise);
        self.plan.blocked.push(BlockedMember { instance: member.id, cause, blocker });
    }

    pub(super) fn block_slot(
        &mut self,
        occupied: OccupiedSlot<'_>,
        otherwise: Cause,
        blocker: Blocker,
    ) {
        for member in occupied.staying() {
            self.block(member, otherwise, blocker);
        }
    }
}

fn is_among(slots: &[(i64, u32)], occupied: &OccupiedSlot<'_>) -> bool {
    slots.contains(&(occupied.holder.revision, occupied.holder.slot))
}
