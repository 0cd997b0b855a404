//! Reconciliation of one workload: the next steps from the actual to the desired state.
//!
//! Pure: the same members, in any order, give the same steps. It never chooses a node, and never
//! assumes that an earlier step was done.

use super::planner::Planner;
use super::rule::{CapacityRule, OnChange, Rolling};
use super::slots::{on_demand_slots, slot_class};
use super::view::{group_by_slot, sorted};
use super::volume::one_at_a_time;
use crate::model::{CapacityType, InstanceId};

/// What should run.
#[derive(Clone, Copy, Debug)]
pub struct DesiredState<'a> {
    /// How many.
    pub replicas: u32,
    /// The revision that should run.
    pub revision: i64,
    /// How members are shared between on-demand and spot; absent: not at all.
    pub capacity: Option<&'a CapacityRule>,
    /// The kind of capacity that the template itself asks for: then the rule chooses none.
    pub pinned: Option<CapacityType>,
    /// How changes are made.
    pub rolling: &'a Rolling,
    /// Whether roll-outs are paused.
    pub paused: bool,
    /// Whether it has a volume, which one instance at a time may use.
    pub single_writer: bool,
    /// Whether members of the revision that should run keep ending, or find no place.
    pub failing: bool,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberState {
    /// Placed, not running yet.
    Starting,
    /// Runs.
    Ready,
    /// Stopping; still holds its place.
    Leaving,
}

/// The state of a member's node, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostState {
    /// It is fine.
    Fine,
    /// It is being emptied.
    Draining,
    /// It is being emptied and its deadline has passed: members are released whether or not others
    /// run.
    Overdue,
    /// It will be taken away: replacements are wanted at once.
    Reclaimed,
    /// It has been silent for so long that its members count as gone.
    Lost,
}

/// One member of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Which.
    pub id: InstanceId,
    /// The revision it runs.
    pub revision: i64,
    /// Its slot. Of two members in one slot, the one with the higher fence holds it, and the other is
    /// being replaced.
    pub slot: u32,
    /// Rises with every new holder.
    pub fence: i64,
    /// The kind of node it is on.
    pub class: CapacityType,
    /// Its state.
    pub state: MemberState,
    /// Its node.
    pub host: HostState,
}

/// Why a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// More are wanted, or one was lost.
    Missing,
    /// Fewer are wanted.
    ScaleDown,
    /// A new revision takes over.
    RollOut,
    /// The slot is of the other kind now.
    Rebuild,
    /// The node is being emptied.
    Drain,
    /// The node will be taken away.
    Reclaim,
    /// The node is lost.
    NodeLost,
    /// Its replacement runs.
    Replaced,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Place a member in a slot.
    Create {
        /// Of this revision.
        revision: i64,
        /// In this slot.
        slot: u32,
        /// On this kind of capacity; absent: any.
        class: Option<CapacityType>,
        /// The member that has the slot now and hands it over; absent: the slot is free.
        in_place_of: Option<InstanceId>,
        /// Why.
        cause: Cause,
    },
    /// Release a member.
    Release {
        /// Which.
        instance: InstanceId,
        /// Why.
        cause: Cause,
    },
}

/// Why a member that should be released stays for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blocker {
    /// Its replacement is not running yet.
    Replacement,
    /// Too many others are not running.
    MaxUnavailable,
    /// The surge limit is reached.
    MaxSurge,
    /// Members are replaced one at a time, and another one is being replaced.
    OneAtATime,
    /// It has a volume, which must be moved first.
    Volume,
}

/// A member that should be released and cannot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedMember {
    /// Which.
    pub instance: InstanceId,
    /// Why it should be released.
    pub cause: Cause,
    /// Why it stays.
    pub blocker: Blocker,
}

/// The next steps for a workload.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WorkloadPlan {
    /// What to do now, in this order; the steps do not depend on each other.
    pub steps: Vec<Step>,
    /// Members that should be released and cannot yet.
    pub blocked: Vec<BlockedMember>,
}

impl WorkloadPlan {
    /// Whether everything is as it should be.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.steps.is_empty() && self.blocked.is_empty()
    }
}

/// The next steps towards what is desired.
///
/// Steps may be done in any order, some of them or none: a new call with the resulting members returns
/// what is left to do. A creation whose cause is [`Cause::Rebuild`] must wait for its class even when
/// the rule lets members take the other kind, or it would be rebuilt forever.
///
/// `Member::host` is `Lost` only once the time to wait for the node is over.
#[must_use]
pub fn reconcile(desired: &DesiredState<'_>, members: &[Member]) -> WorkloadPlan {
    if is_as_desired(desired, members) {
        return WorkloadPlan::default();
    }
    reconcile_in_full(desired, members)
}

/// The same without the shortcut.
pub(super) fn reconcile_in_full(desired: &DesiredState<'_>, members: &[Member]) -> WorkloadPlan {
    if desired.single_writer {
        return one_at_a_time(desired, members);
    }
    let sorted = sorted(members);
    let slots = group_by_slot(&sorted);
    Planner::new(desired, &slots).plan()
}

/// Whether there is nothing to do. That is the usual case, so it does not allocate; when in doubt it
/// returns false.
pub(super) fn is_as_desired(desired: &DesiredState<'_>, members: &[Member]) -> bool {
    if u32::try_from(members.len()) != Ok(desired.replicas)
        || desired.single_writer && desired.replicas > 1
    {
        return false;
    }
    let rule = rule_in_force(desired).filter(|rule| rule.on_change == OnChange::Rebuild);
    let on_demand_slots = rule.map_or(0, |rule| on_demand_slots(rule, Some(desired.replicas)));
    let (mut on_demand, mut taken, mut next, mut ascending) = (0, 0_u128, 0_u32, true);
    let mut distinct = true;
    for member in members {
        let quiet = member.revision == desired.revision
            && member.host == HostState::Fine
            && member.state != MemberState::Leaving;
        if !quiet || rule.is_some() && is_misplaced(desired, member) {
            return false;
        }
        on_demand += u32::from(member.slot < on_demand_slots);
        // Slots are distinct when they ascend, or when all are below 128 and none repeats.
        ascending &= member.slot >= next;
        next = member.slot.saturating_add(1);
        let bit = 1_u128.checked_shl(member.slot).unwrap_or(0);
        distinct &= bit != 0 && taken & bit == 0;
        taken |= bit;
    }
    (ascending || distinct) && on_demand >= on_demand_slots.min(desired.replicas)
}

/// The rule that assigns capacity kinds to slots; none when the template names the kind itself.
pub(super) fn rule_in_force<'a>(desired: &DesiredState<'a>) -> Option<&'a CapacityRule> {
    desired.capacity.filter(|rule| rule.enabled && desired.pinned.is_none())
}

/// The kind of capacity that a slot requires.
pub(super) fn slot_kind(desired: &DesiredState<'_>, slot: u32) -> Option<CapacityType> {
    slot_class(rule_in_force(desired)?, Some(desired.replicas), slot)
}

/// Whether a member is on another kind of capacity than its slot requires. Members of another
/// revision never are: they are released anyway.
pub(super) fn is_misplaced(desired: &DesiredState<'_>, member: &Member) -> bool {
    member.revision == desired.revision
        && slot_kind(desired, member.slot).is_some_and(|class| class != member.class)
}
