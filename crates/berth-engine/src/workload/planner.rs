//! The steps for a workload whose members may stand beside each other.
//!
//! Each seat is decided in one place only, so nobody is released twice and no seat is filled twice.
//! Nothing here looks at nodes: what matters of them is in `Member::host`.

use std::cmp::Reverse;

use super::reconcile::{
    BlockedMember, Blocker, Cause, DesiredState, HostState, Member, MemberState, Step,
    WorkloadPlan, is_misplaced, rule_in_force, slot_kind,
};
use super::rule::{OnChange, Strategy};
use super::slots::{deletion_cost, on_demand_slots};
use super::view::{SlotMembers, count};

/// Gathers the steps.
pub(super) struct Planner<'a> {
    pub(super) desired: &'a DesiredState<'a>,
    /// By revision and slot.
    pub(super) seats: &'a [SlotMembers<'a>],
    /// Seats in which someone still runs once the steps so far are done.
    pub(super) available: u32,
    /// Whether there are members of other revisions.
    has_old: bool,
    plan: WorkloadPlan,
}

impl<'a> Planner<'a> {
    pub(super) fn new(desired: &'a DesiredState<'a>, seats: &'a [SlotMembers<'a>]) -> Self {
        let available = count(seats.iter().filter(|seat| seat.is_available()));
        let has_old = seats.iter().any(|seat| seat.holder.revision != desired.revision);
        Self { desired, seats, available, has_old, plan: WorkloadPlan::default() }
    }

    pub(super) fn plan(mut self) -> WorkloadPlan {
        self.release_what_goes_anyway();
        if self.desired.replicas == 0 {
            for seat in self.seats {
                self.release_slot(*seat, Cause::ScaleDown);
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

    /// Whether a roll-out has begun and stands still: then every revision keeps what it has.
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
    ) -> impl Iterator<Item = SlotMembers<'a>> + Clone + use<'a> {
        let revision = self.desired.revision;
        self.seats.iter().copied().filter(move |seat| seat.holder.revision == revision)
    }

    /// Seats that should have a member: all of them while roll-outs stand still, else those of the
    /// current revision.
    fn slots_to_keep(&self) -> impl Iterator<Item = SlotMembers<'a>> + Clone + use<'a> {
        let (frozen, revision) = (self.is_frozen(), self.desired.revision);
        let keep = move |seat: &SlotMembers<'_>| frozen || seat.holder.revision == revision;
        self.seats.iter().copied().filter(keep)
    }

    fn live(&self) -> u32 {
        count(self.slots_to_keep().filter(|seat| seat.is_live()))
    }

    fn release_what_goes_anyway(&mut self) {
        for seat in self.seats {
            for member in seat.members().filter(|it| it.state != MemberState::Leaving) {
                if let Some(cause) = seat.goes_anyway(member) {
                    self.release(member, cause);
                }
            }
        }
    }

    /// Fills the lowest seats of the current revision, at most so many.
    fn fill(&mut self, room: u32) {
        let missing = self.desired.replicas.saturating_sub(self.live()).min(room);
        let otherwise = if self.has_old { Cause::RollOut } else { Cause::Missing };
        self.fill_lowest(self.desired.revision, missing, otherwise, |_| true);
    }

    /// While roll-outs stand still, a lost member comes back as what it was. Others that are missing
    /// are of the newest revision that has someone.
    fn fill_frozen(&mut self) {
        let mut missing = self.desired.replicas.saturating_sub(self.live());
        let lost = |seat: &SlotMembers<'_>| seat.holder.host == HostState::Lost;
        for seat in self.seats.iter().filter(|seat| lost(seat)) {
            if missing == 0 {
                return;
            }
            let cause = if self.is_current(seat.holder) { Cause::NodeLost } else { Cause::Missing };
            self.create(seat.holder.revision, seat.holder.slot, Some(seat.holder), cause);
            missing -= 1;
        }
        let newest = self
            .seats
            .iter()
            .map(|seat| seat.holder)
            .max_by_key(|holder| (holder.is_live(), self.is_current(holder), holder.revision));
        let revision = newest.map_or(self.desired.revision, |holder| holder.revision);
        // Seats of lost members have been filled above.
        self.fill_lowest(revision, missing, Cause::Missing, |seat| !lost(seat));
    }

    /// Creates in the lowest seats that nobody live has, and that are free or may be taken.
    fn fill_lowest(
        &mut self,
        revision: i64,
        mut missing: u32,
        otherwise: Cause,
        may_take: impl Fn(&SlotMembers<'_>) -> bool,
    ) {
        let seats = self.seats;
        let mut taken = seats.iter().filter(|seat| seat.holder.revision == revision).peekable();
        let mut slot = 0;
        while missing > 0 {
            let seat = taken.next_if(|seat| seat.holder.slot == slot);
            if seat.is_none_or(|seat| !seat.is_live() && may_take(seat)) {
                let holder = seat.map(|seat| seat.holder);
                let lost = holder.is_some_and(|it| it.host == HostState::Lost);
                let cause = if lost { Cause::NodeLost } else { otherwise };
                self.create(revision, slot, holder, cause);
                missing -= 1;
            }
            slot += 1;
        }
    }

    /// Lets go of what is too many, and names those seats, also the ones that must wait: a member
    /// that does not run yet is no reason to let one go that does.
    fn release_surplus(&mut self) -> Vec<(i64, u32)> {
        let victims = self.surplus();
        self.scale_down(&victims);
        victims.iter().map(|seat| (seat.holder.revision, seat.holder.slot)).collect()
    }

    /// Lets these go as long as enough others run.
    pub(super) fn scale_down(&mut self, victims: &[SlotMembers<'_>]) {
        for seat in victims {
            if !seat.is_available() || self.available > self.desired.replicas {
                self.release_slot(*seat, Cause::ScaleDown);
            } else {
                self.block_slot(*seat, Cause::ScaleDown, Blocker::Replacement);
            }
        }
    }

    /// What is too many. A roll-out that stands still keeps what it may have too many meanwhile:
    /// to let old ones go for new ones would be to go on with it.
    fn surplus(&self) -> Vec<SlotMembers<'a>> {
        let (replicas, rolling) = (self.desired.replicas, self.desired.rolling);
        if !self.is_frozen() {
            return self.first_to_go(self.slots_of_current(), replicas);
        }
        let keep = match rolling.strategy {
            Strategy::Recreate => replicas,
            Strategy::Rolling => replicas.saturating_add(rolling.surge_and_unavailable(replicas).0),
            Strategy::BlueGreen => {
                let old = self.slots_to_keep().filter(|seat| !self.is_current(seat.holder));
                let mut surplus = self.first_to_go(old, replicas);
                surplus.extend(self.first_to_go(self.slots_of_current(), replicas));
                return surplus;
            }
        };
        self.first_to_go(self.slots_to_keep(), keep)
    }

    /// The live ones of these seats that are more than so many, the first to go first.
    pub(super) fn first_to_go(
        &self,
        seats: impl Iterator<Item = SlotMembers<'a>> + Clone,
        keep: u32,
    ) -> Vec<SlotMembers<'a>> {
        let live = seats.filter(|seat| seat.is_live());
        let surplus = count(live.clone()).saturating_sub(keep);
        if surplus == 0 {
            return Vec::new();
        }
        let mut victims: Vec<_> = live.collect();
        victims.sort_by_key(|seat| self.deletion_order(seat));
        victims.truncate(usize::try_from(surplus).unwrap_or(usize::MAX));
        victims
    }

    /// The first goes first when fewer are wanted: old ones, misplaced ones that are not rebuilt,
    /// spot ones, then the highest seat.
    fn deletion_order(&self, seat: &SlotMembers<'_>) -> impl Ord + use<> {
        let holder = seat.holder;
        let rule = rule_in_force(self.desired);
        let lazy = rule.is_some_and(|rule| rule.on_change == OnChange::Lazy);
        let first = lazy && is_misplaced(self.desired, holder);
        let cost = if rule.is_some() { deletion_cost(holder.class) } else { 0 };
        (self.is_current(holder), !first, cost, Reverse(holder.slot), holder.revision)
    }

    /// Replaces members whose node wants them gone; the replacement comes first. Says whether any
    /// seat is being handed over, now or already.
    fn hand_over(&mut self, victims: &[(i64, u32)]) -> bool {
        let (mut handing_over, mut draining) = (false, 0);
        for seat in self.slots_to_keep().filter(|seat| seat.is_handing_over()) {
            handing_over = true;
            draining += count(seat.staying().filter(|member| {
                member.id != seat.holder.id && member.host == HostState::Draining
            }));
        }
        let limit = self.desired.rolling.max_surge.up(self.desired.replicas).max(1);
        for seat in self.slots_to_keep().filter(|seat| !is_among(victims, seat)) {
            let holder = seat.holder;
            for member in seat.staying().filter(|it| it.id != holder.id) {
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

    /// Brings members to the kind of capacity that their seats are of, one at a time, and only while
    /// nothing else is being replaced.
    fn rebuild(&mut self, victims: &[(i64, u32)], handing_over: bool) {
        let rule = rule_in_force(self.desired);
        let Some(rule) = rule.filter(|rule| rule.on_change == OnChange::Rebuild) else { return };
        let rolling_out = self.has_old && !self.is_frozen();
        let mut busy = handing_over || rolling_out || !victims.is_empty();
        for seat in self.slots_of_current().filter(|seat| !is_among(victims, seat)) {
            let holder = seat.holder;
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

    /// An on-demand seat can be empty while all members are there, in higher seats. Then one more
    /// comes, and a spot one goes as surplus once it runs.
    fn fill_on_demand_slot(&mut self, on_demand_slots: u32) {
        let live = self.slots_of_current().filter(|seat| seat.is_live());
        let on_demand = count(live.filter(|seat| seat.holder.slot < on_demand_slots));
        if on_demand < on_demand_slots.min(self.desired.replicas) {
            let cause = Cause::Rebuild;
            self.fill_lowest(self.desired.revision, 1, cause, |_| true);
        }
    }

    fn create(&mut self, revision: i64, slot: u32, holder: Option<&Member>, cause: Cause) {
        let class = slot_kind(self.desired, slot);
        let in_place_of = holder.map(|it| it.id);
        self.plan.steps.push(Step::Create { revision, slot, class, in_place_of, cause });
    }

    pub(super) fn release(&mut self, member: &Member, cause: Cause) {
        self.plan.steps.push(Step::Release { instance: member.id, cause });
    }

    /// A seat goes with everyone in it.
    pub(super) fn release_slot(&mut self, seat: SlotMembers<'_>, cause: Cause) {
        for member in seat.staying() {
            self.release(member, cause);
        }
        self.available -= u32::from(seat.is_available());
    }

    pub(super) fn block(&mut self, member: &Member, otherwise: Cause, blocker: Blocker) {
        let cause = member.cause_or(otherwise);
        self.plan.blocked.push(BlockedMember { instance: member.id, cause, blocker });
    }

    pub(super) fn block_slot(&mut self, seat: SlotMembers<'_>, otherwise: Cause, blocker: Blocker) {
        for member in seat.staying() {
            self.block(member, otherwise, blocker);
        }
    }
}

fn is_among(seats: &[(i64, u32)], seat: &SlotMembers<'_>) -> bool {
    seats.contains(&(seat.holder.revision, seat.holder.slot))
}
