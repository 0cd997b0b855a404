//! A world in which steps are done: members start, run, stop and are gone.
//!
//! It checks every outlook and every step by rules that hold whatever the scenario.

use std::collections::BTreeSet;

use super::super::reconcile::{is_as_desired, reconcile_in_full};
use super::super::{
    CapacityRule, Cause, DesiredState, HostState, Member, MemberState, Rolling, Share, Step,
    Strategy, WorkloadPlan, reconcile, slot_class,
};
use crate::model::CapacityType::{self, OnDemand, Spot};
use crate::model::InstanceId;

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) replicas: u32,
    pub(super) revision: i64,
    pub(super) rule: Option<CapacityRule>,
    pub(super) pinned: Option<CapacityType>,
    pub(super) rolling: Rolling,
    pub(super) paused: bool,
    pub(super) single_writer: bool,
    pub(super) failing: bool,
    pub(super) members: Vec<Member>,
    created: i64,
}

/// A rule with this many on-demand slots.
pub(super) fn limit(max_on_demand: u32) -> CapacityRule {
    CapacityRule { max_on_demand: Some(max_on_demand), ..CapacityRule::default() }
}

pub(super) fn rolling(max_surge: u32, max_unavailable: u32) -> Rolling {
    Rolling {
        strategy: Strategy::Rolling,
        max_surge: Share::Count(max_surge),
        max_unavailable: Share::Count(max_unavailable),
    }
}

impl World {
    pub(super) fn empty(replicas: u32, rule: Option<CapacityRule>) -> Self {
        Self {
            replicas,
            revision: 1,
            rule,
            pinned: None,
            rolling: Rolling::default(),
            paused: false,
            single_writer: false,
            failing: false,
            members: Vec::new(),
            created: 0,
        }
    }

    /// So many replicas, so many of them on-demand, all running.
    pub(super) fn settled(replicas: u32, max_on_demand: u32) -> Self {
        let mut world = Self::empty(replicas, Some(limit(max_on_demand)));
        world.settle();
        world
    }

    pub(super) fn desired(&self) -> DesiredState<'_> {
        DesiredState {
            replicas: self.replicas,
            revision: self.revision,
            capacity: self.rule.as_ref(),
            pinned: self.pinned,
            rolling: &self.rolling,
            paused: self.paused,
            single_writer: self.single_writer,
            failing: self.failing,
        }
    }

    /// What comes next, after checking that it makes sense.
    pub(super) fn plan(&self) -> WorkloadPlan {
        let desired = self.desired();
        let plan = reconcile(&desired, &self.members);
        let mirrored: Vec<Member> = self.members.iter().rev().copied().collect();
        assert_eq!(plan, reconcile(&desired, &mirrored), "the order of members matters");
        if is_as_desired(&desired, &self.members) {
            assert_eq!(reconcile_in_full(&desired, &self.members), WorkloadPlan::default());
        }
        let mut slots = BTreeSet::new();
        let mut released = BTreeSet::new();
        for step in &plan.steps {
            match *step {
                Step::Create { revision, slot, .. } => {
                    assert!(slots.insert((revision, slot)), "{step:?} twice");
                    self.check_create(step);
                }
                Step::Release { instance, .. } => {
                    assert!(released.insert(instance), "{step:?} twice");
                    assert_ne!(self.member(instance).state, MemberState::Leaving);
                }
            }
        }
        for blocked in &plan.blocked {
            let unique = plan.blocked.iter().filter(|it| it.instance == blocked.instance);
            assert_eq!(unique.count(), 1, "{blocked:?} twice");
            assert!(!released.contains(&blocked.instance), "{blocked:?} and released");
        }
        plan
    }

    fn check_create(&self, step: &Step) {
        let Step::Create { revision, slot, class, in_place_of, .. } = *step else { return };
        let rule = self.rule.filter(|_| self.pinned.is_none());
        let expected = rule.and_then(|rule| slot_class(&rule, Some(self.replicas), slot));
        assert_eq!(class, expected, "{step:?}");
        let holder = self.holder(revision, slot);
        assert_eq!(in_place_of, holder.map(|it| it.id), "{step:?} of {holder:?}");
        if let Some(holder) = holder {
            let misplaced = class.is_some_and(|class| class != holder.class);
            let stays = holder.state != MemberState::Leaving && holder.host == HostState::Fine;
            assert!(!stays || misplaced, "{step:?} of {holder:?}");
        }
    }

    pub(super) fn apply(&mut self, step: &Step) {
        match *step {
            Step::Create { revision, slot, class, .. } => {
                self.check_create(step);
                self.add(revision, slot, class.unwrap_or_default());
            }
            Step::Release { instance, .. } => {
                let member = self.members.iter_mut().find(|it| it.id == instance);
                member.expect("someone to release").state = MemberState::Leaving;
            }
        }
        if self.single_writer {
            assert!(self.members.len() <= 1, "two writers: {:?}", self.members);
        }
    }

    pub(super) fn add(&mut self, revision: i64, slot: u32, class: CapacityType) {
        self.created += 1;
        self.members.push(Member {
            id: InstanceId::from_u128(u128::from(self.created.unsigned_abs())),
            revision,
            slot,
            fence: self.created,
            class,
            state: MemberState::Starting,
            host: HostState::Fine,
        });
    }

    /// Everyone who starts runs.
    pub(super) fn start(&mut self) {
        for member in self.members.iter_mut().filter(|it| it.state == MemberState::Starting) {
            member.state = MemberState::Ready;
        }
    }

    /// Everyone who leaves is gone.
    pub(super) fn stop(&mut self) {
        self.members.retain(|it| it.state != MemberState::Leaving);
    }

    /// One round: all steps are done, then all starts and stops. Says what was done.
    pub(super) fn round(&mut self) -> Vec<Step> {
        let steps = self.plan().steps;
        for step in &steps {
            self.apply(step);
        }
        self.start();
        self.stop();
        steps
    }

    pub(super) fn settle(&mut self) -> Vec<Step> {
        let mut done = Vec::new();
        for _ in 0..100 {
            done.extend(self.round());
            if self.plan().is_settled() {
                return done;
            }
        }
        panic!("never settles: {:?} of {self:?}", self.plan());
    }

    /// The next steps without a word about what waits.
    pub(super) fn steps(&self) -> Vec<Step> {
        self.plan().steps
    }

    pub(super) fn member(&self, id: InstanceId) -> &Member {
        self.members.iter().find(|it| it.id == id).expect("a member")
    }

    pub(super) fn holder(&self, revision: i64, slot: u32) -> Option<&Member> {
        let occupied = self.members.iter().filter(|it| (it.revision, it.slot) == (revision, slot));
        occupied.max_by_key(|it| it.fence)
    }

    /// Who has the slot in the current revision.
    pub(super) fn at(&mut self, slot: u32) -> &mut Member {
        let id = self.id(slot);
        self.members.iter_mut().find(|it| it.id == id).expect("a member")
    }

    pub(super) fn id(&self, slot: u32) -> InstanceId {
        self.holder(self.revision, slot).expect("a holder").id
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let id = self.id(slot);
        self.members.retain(|it| it.id != id);
    }

    /// The classes of a revision's live members, by slot: `O`, `S`, or `.` for an empty one.
    pub(super) fn row(&self, revision: i64) -> String {
        let of_revision = self.members.iter().filter(|it| it.revision == revision);
        let slots = of_revision.map(|it| it.slot + 1).max().unwrap_or(0);
        let letter = |slot| match self.holder(revision, slot).filter(|it| it.is_live()) {
            Some(member) if member.class == OnDemand => 'O',
            Some(_) => 'S',
            None => '.',
        };
        (0..slots).map(letter).collect()
    }

    /// Slots in which someone runs.
    pub(super) fn available(&self, of: impl Fn(&Member) -> bool) -> usize {
        let runs =
            |it: &&Member| it.state == MemberState::Ready && it.host != HostState::Lost && of(it);
        let slots = self.members.iter().filter(runs).map(|it| (it.revision, it.slot));
        slots.collect::<BTreeSet<_>>().len()
    }

    pub(super) fn live(&self, class: CapacityType) -> usize {
        self.members.iter().filter(|it| it.is_live() && it.class == class).count()
    }
}

/// A step into a free slot of revision 1.
pub(super) fn into_free_slot(slot: u32, class: CapacityType) -> Step {
    let (class, in_place_of) = (Some(class), None);
    Step::Create { revision: 1, slot, class, in_place_of, cause: Cause::Missing }
}

/// A step into a slot of revision 1 that someone hands over.
pub(super) fn in_place_of(member: &Member, class: CapacityType, cause: Cause) -> Step {
    let in_place_of = Some(member.id);
    Step::Create { revision: 1, slot: member.slot, class: Some(class), in_place_of, cause }
}

pub(super) fn released(steps: &[Step]) -> Vec<(InstanceId, Cause)> {
    let release = |step: &Step| match *step {
        Step::Release { instance, cause } => Some((instance, cause)),
        Step::Create { .. } => None,
    };
    steps.iter().filter_map(release).collect()
}

pub(super) fn created_slots(steps: &[Step]) -> Vec<u32> {
    let create = |step: &Step| match *step {
        Step::Create { slot, .. } => Some(slot),
        Step::Release { .. } => None,
    };
    steps.iter().filter_map(create).collect()
}

/// The class that a letter of `World::row` stands for.
pub(super) fn class(letter: char) -> CapacityType {
    if letter == 'O' { OnDemand } else { Spot }
}
