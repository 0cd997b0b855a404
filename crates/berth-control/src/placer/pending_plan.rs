//! A request on its way through planner, explainer and ledger.

use std::sync::{Arc, Weak};
use std::time::Instant;

use berth_engine::{Explanation, InstanceId, NodeId, Notice, Placement, Refusal, Timestamp};
use berth_ledger::{Basis, Grant, PlannedClaim, Slot};

use super::admission::{Admitted, Overload, OverloadCause};
use super::slot_assignment::SlotAssignment;
use super::{Granted, PlaceAnswer, PlaceJob};

/// A request that was let in and is to be planned.
pub(super) struct QueuedJob {
    pub(super) job: PlaceJob,
    /// Since when it waits.
    pub(super) since: Instant,
    pub(super) admitted: Admitted,
    pub(super) presence: CallerPresence,
}

/// Whether the caller of a request still waits for its answer.
pub(super) struct CallerPresence(Option<Weak<()>>);

impl CallerPresence {
    /// A caller that always waits.
    pub(super) const fn always() -> Self {
        Self(None)
    }

    /// A caller that waits as long as something lives that it holds.
    pub(super) fn while_held(held: &Arc<()>) -> Self {
        Self(Some(Arc::downgrade(held)))
    }

    /// Whether the caller disconnected, or gave up.
    pub(super) fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|held| held.strong_count() == 0)
    }
}

/// A request that is being placed, and what was found out about it so far.
pub(super) struct PendingPlan {
    pub(super) job: PlaceJob,
    pub(super) admitted: Admitted,
    pub(super) presence: CallerPresence,
    /// The instances that were claimed in memory.
    pub(super) claimed: Vec<InstanceId>,
    /// Nodes whose rules the plan is expected to raise.
    pub(super) raised: Vec<NodeId>,
    pub(super) tries: u32,
    /// How often the explainer found room for it that was gone when it was to be claimed.
    pub(super) outrun: u32,
    /// The last event that was known when it was planned.
    pub(super) planned_at: i64,
    /// The time it was planned at.
    pub(super) now: Timestamp,
    /// What it was decided on, if not on the planner's fleet as it is now.
    pub(super) basis: Option<Basis>,
    /// Whether the ledger was asked for an earlier answer to this request.
    pub(super) asked: bool,
    /// Whether it was asked again after an instance of the request was found to be placed: another
    /// sender of the same request may have been granted since the first question.
    pub(super) asked_when_placed: bool,
    /// Whether the plan that the ledger has serves only to ask for an earlier answer.
    pub(super) is_question: bool,
    /// Whether others' events and expired leases were looked for since it came.
    pub(super) looked: bool,
    /// Nodes that denied the request though the replica was up to date.
    pub(super) denied: Vec<NodeId>,
    /// Since when it waits for the planner, then for the ledger.
    pub(super) since: Instant,
    /// Why some of the batch have no place in the plan.
    pub(super) left_out: Vec<Refusal>,
    /// What the caller should know of its request.
    pub(super) notices: Vec<Notice>,
    /// Why the first instance is where it is.
    pub(super) explanation: Option<Box<Explanation>>,
    /// The slot that each instance is being assigned.
    pub(super) slots: Vec<Option<SlotAssignment>>,
    /// Slots that another had though the replica was up to date.
    pub(super) denied_slots: Vec<Slot>,
}

impl PendingPlan {
    pub(super) fn new(queued: QueuedJob, since: Instant) -> Self {
        let QueuedJob { job, since: _, mut admitted, presence } = queued;
        admitted.begin();
        Self {
            job,
            admitted,
            presence,
            claimed: Vec::new(),
            raised: Vec::new(),
            tries: 0,
            outrun: 0,
            planned_at: 0,
            now: Timestamp(0),
            basis: None,
            asked: false,
            asked_when_placed: false,
            is_question: false,
            looked: false,
            denied: Vec::new(),
            since,
            left_out: Vec::new(),
            notices: Vec::new(),
            explanation: None,
            slots: Vec::new(),
            denied_slots: Vec::new(),
        }
    }

    /// Whether it may be a retry of a request that was granted, which must be found out before it is
    /// refused. What is tried again and what leaves no trace is not asked for.
    pub(super) fn may_have_an_answer(&self) -> bool {
        let request = &self.job.request;
        !self.asked && !request.quiet && !request.dry_run
    }

    /// Answers the caller that it is granted.
    pub(super) fn granted(self, grant: Grant) {
        let Self { job, left_out, notices, explanation, admitted, .. } = self;
        // Before the caller can send the next one.
        drop(admitted);
        (job.reply)(PlaceAnswer::Granted(Granted { grant, left_out, notices, explanation }));
    }

    /// Answers the caller that whatever place was found was gone each time.
    pub(super) fn answer_outrun(self) {
        let overload = Overload { cause: OverloadCause::Outrun, retry_after_s: 1 };
        self.answer(PlaceAnswer::Busy(overload));
    }

    /// Answers the caller otherwise.
    pub(super) fn answer(self, answer: PlaceAnswer) {
        drop(self.admitted);
        (self.job.reply)(answer);
    }
}

/// What the explainer decided for a request, on its copy of the fleet.
pub(super) struct ExplainerChoice {
    /// Where instances go.
    pub(super) placements: Vec<Placement>,
    /// Why others of the batch have no place.
    pub(super) left_out: Vec<Refusal>,
    /// Why the first instance is where it is, if asked for.
    pub(super) explanation: Option<Box<Explanation>>,
    /// The fleet that it was decided on.
    pub(super) basis: Basis,
}

/// What the caller of these placements should know, each thing once.
pub(super) fn notices_of(placements: &[Placement]) -> Vec<Notice> {
    let mut notices: Vec<Notice> = Vec::new();
    for notice in placements.iter().flat_map(|placement| &placement.notices) {
        if !notices.contains(notice) {
            notices.push(notice.clone());
        }
    }
    notices
}

/// Nodes whose rules a plan raises, once for each claim that does.
pub(super) fn raised_by(claims: &[PlannedClaim]) -> Vec<NodeId> {
    let raising = claims.iter().filter(|claim| claim.has_hard_rules());
    let nodes = raising.flat_map(|claim| {
        std::iter::once(&claim.node).chain(claim.neighbours.iter().map(|(node, _)| node))
    });
    nodes.cloned().collect()
}
