//! Workloads with a volume, which one instance at a time may use.
//!
//! A member is never created while another one may still be writing, not even one on a lost node:
//! silence does not mean that it stopped.

use super::reconcile::{
    BlockedMember, Blocker, Cause, DesiredState, HostState, Member, MemberState, Step,
    WorkloadPlan, is_misplaced, slot_kind,
};
use super::rule::OnChange;
use super::view::sorted;

/// The next steps for a workload that may have one member at most.
pub(super) fn one_at_a_time(desired: &DesiredState<'_>, members: &[Member]) -> WorkloadPlan {
    let mut plan = WorkloadPlan::default();
    if members.is_empty() {
        if desired.replicas > 0 {
            plan.steps.push(Step::Create {
                revision: desired.revision,
                slot: 0,
                class: slot_kind(desired, 0),
                in_place_of: None,
                cause: Cause::Missing,
            });
        }
        return plan;
    }
    let members = sorted(members);
    let keeps = kept(desired, &members);
    // A member that was stopped on a node that is lost may still write.
    let silent = |it: &&Member| it.state == MemberState::Leaving && it.host == HostState::Lost;
    for member in members.iter().filter(silent) {
        let (instance, cause) = (member.id, Cause::NodeLost);
        plan.blocked.push(BlockedMember { instance, cause, blocker: Blocker::Volume });
    }
    for member in members.iter().filter(|it| it.state != MemberState::Leaving) {
        let stays = keeps.is_some_and(|it| it.id == member.id);
        let blocked =
            |cause| BlockedMember { instance: member.id, cause, blocker: Blocker::Volume };
        if member.host == HostState::Lost {
            plan.blocked.push(blocked(Cause::NodeLost));
        } else if !stays {
            let replaced = desired.replicas > 0 && member.revision != desired.revision;
            let cause = if replaced { Cause::RollOut } else { Cause::ScaleDown };
            plan.steps.push(Step::Release { instance: member.id, cause });
        } else if member.host != HostState::Fine {
            plan.blocked.push(blocked(member.cause_or(Cause::Drain)));
        } else if wants_rebuild(desired, member) {
            plan.blocked.push(blocked(Cause::Rebuild));
        }
    }
    plan
}

/// The member that stays. One of another revision does so only while roll-outs are paused.
fn kept<'a>(desired: &DesiredState<'_>, members: &'a [Member]) -> Option<&'a Member> {
    if desired.replicas == 0 {
        return None;
    }
    let may_stay = |it: &&Member| {
        it.state != MemberState::Leaving && (desired.paused || it.revision == desired.revision)
    };
    // Of several, which only a change of the template can have left: one that runs, then the
    // newest, then the lowest slot.
    members.iter().filter(may_stay).min_by_key(|it| {
        let newest = std::cmp::Reverse((it.revision == desired.revision, it.revision));
        (!it.is_live(), newest, it.slot, std::cmp::Reverse(it.fence))
    })
}

fn wants_rebuild(desired: &DesiredState<'_>, member: &Member) -> bool {
    let rebuilds = desired.capacity.is_some_and(|rule| rule.on_change == OnChange::Rebuild);
    rebuilds && is_misplaced(desired, member)
}
