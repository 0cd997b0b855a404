//! From what is to what should be: the next steps for one workload.

use super::rule::{CapacityRule, Rolling};
use crate::model::{CapacityType, InstanceId};

/// What should run.
#[derive(Clone, Copy, Debug)]
pub struct Desired<'a> {
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
    /// Whether roll-outs stand still.
    pub paused: bool,
    /// Whether it has a volume, which one instance at a time may use.
    pub single_writer: bool,
}

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberState {
    /// Placed, not running yet.
    Starting,
    /// Runs.
    Ready,
    /// Told to stop; still holds its place.
    Leaving,
}

/// What can be said of a member's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostState {
    /// It stays.
    Fine,
    /// It is being emptied.
    Draining,
    /// It is being emptied and the time for it is over: members go whether or not others run.
    Overdue,
    /// It will be taken away: replacements are wanted at once.
    Reclaimed,
    /// It has not been heard for so long that its members count as gone.
    Lost,
}

/// One member of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Which.
    pub id: InstanceId,
    /// The revision it runs.
    pub revision: i64,
    /// Its seat. Of two members in one seat, the one with the higher fence has it, and the other is
    /// on its way out.
    pub slot: u32,
    /// Rises with every new holder.
    pub fence: i64,
    /// The kind of node it is on.
    pub class: CapacityType,
    /// Where it stands.
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
    /// The seat is of the other kind now.
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
    /// Place a member in a seat.
    Create {
        /// Of this revision.
        revision: i64,
        /// In this seat.
        slot: u32,
        /// On this kind of capacity; absent: any.
        class: Option<CapacityType>,
        /// The member that has the seat now and hands it over; absent: the seat is free.
        in_place_of: Option<InstanceId>,
        /// Why.
        cause: Cause,
    },
    /// Let a member go.
    Release {
        /// Which.
        instance: InstanceId,
        /// Why.
        cause: Cause,
    },
}

/// Why a member that should go stays for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blocker {
    /// Its replacement is not running yet.
    Replacement,
    /// Too many others are not running.
    MaxUnavailable,
    /// As many as may be are there already.
    MaxSurge,
    /// One is replaced at a time, and another one is.
    OneAtATime,
    /// It has a volume, which must be moved first.
    Volume,
}

/// A member that should go and cannot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Which.
    pub instance: InstanceId,
    /// Why it should go.
    pub cause: Cause,
    /// Why it stays.
    pub blocker: Blocker,
}

/// What comes next for a workload.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outlook {
    /// What to do now, in this order; steps of one outlook do not depend on each other.
    pub steps: Vec<Step>,
    /// Members that should go and cannot yet.
    pub blocked: Vec<Blocked>,
}

impl Outlook {
    /// Whether everything is as it should be.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.steps.is_empty() && self.blocked.is_empty()
    }
}
