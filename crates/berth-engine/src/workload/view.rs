//! Members by slot: the holder, those being replaced, and whether the slot is available.
//!
//! Only reads; it never decides which members are created or released.

use super::reconcile::{Cause, HostState, Member, MemberState};

impl Member {
    /// Whether it exists and is meant to stay. A member that is not still holds its slot.
    pub(super) fn is_live(&self) -> bool {
        self.state != MemberState::Leaving && self.host != HostState::Lost
    }

    /// Whether it runs and may keep running: members of an overdue node are released at once, so they
    /// do not count.
    pub(super) fn is_available(&self) -> bool {
        self.state == MemberState::Ready
            && !matches!(self.host, HostState::Lost | HostState::Overdue)
    }

    /// Why its node requires its release, or else the given cause.
    pub(super) fn cause_or(&self, otherwise: Cause) -> Cause {
        match self.host {
            HostState::Fine => otherwise,
            HostState::Draining | HostState::Overdue => Cause::Drain,
            HostState::Reclaimed => Cause::Reclaim,
            HostState::Lost => Cause::NodeLost,
        }
    }
}

/// One slot and all its members.
#[derive(Clone, Copy, Debug)]
pub(super) struct OccupiedSlot<'a> {
    /// The holder: the member with the highest fence.
    pub(super) holder: &'a Member,
    /// Members that handed it over and are not released yet; highest fence first.
    pub(super) outgoing: &'a [Member],
}

impl<'a> OccupiedSlot<'a> {
    pub(super) fn members(self) -> impl Iterator<Item = &'a Member> {
        std::iter::once(self.holder).chain(self.outgoing)
    }

    pub(super) fn is_live(self) -> bool {
        self.holder.is_live()
    }

    /// Whether a member in it runs. A slot counts once, however many run in it: all but one of them
    /// are about to be released.
    pub(super) fn is_available(self) -> bool {
        self.members().any(Member::is_available)
    }

    /// Whether it was handed over and the new holder does not run yet.
    pub(super) fn is_handing_over(self) -> bool {
        !self.holder.is_available() && self.outgoing.iter().any(Member::is_live)
    }

    /// Why a member is released now, whatever else happens to the workload.
    pub(super) fn goes_anyway(self, member: &Member) -> Option<Cause> {
        match member.host {
            HostState::Lost => Some(Cause::NodeLost),
            HostState::Overdue => Some(Cause::Drain),
            HostState::Fine | HostState::Draining | HostState::Reclaimed => {
                let replaced = member.id != self.holder.id && self.holder.is_available();
                replaced.then_some(Cause::Replaced)
            }
        }
    }

    /// Members whose release is still to be decided.
    pub(super) fn staying(self) -> impl Iterator<Item = &'a Member> {
        self.members().filter(move |member| {
            member.state != MemberState::Leaving && self.goes_anyway(member).is_none()
        })
    }
}

/// Sorts members as `group_by_slot` needs them: by revision and slot, the holder first.
pub(super) fn sorted(members: &[Member]) -> Vec<Member> {
    let mut sorted = members.to_vec();
    sorted.sort_unstable_by_key(|it| (it.revision, it.slot, std::cmp::Reverse(it.fence), it.id));
    sorted
}

/// The slots of members that are `sorted`.
pub(super) fn group_by_slot(sorted: &[Member]) -> Vec<OccupiedSlot<'_>> {
    let same_slot = |a: &Member, b: &Member| (a.revision, a.slot) == (b.revision, b.slot);
    let chunks = sorted.chunk_by(same_slot).filter_map(<[Member]>::split_first);
    chunks.map(|(holder, outgoing)| OccupiedSlot { holder, outgoing }).collect()
}

/// How many there are.
pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    items.fold(0, |count, _| count + 1)
}
