//! Moving an instance: planned as if it were not where it is, then claimed off the one node and onto
//! the other in one commit.
//!
//! The planner looks as if the instance were off its node, as the ledger does: an instance must not be
//! in its own way, neither by its room nor by the rules of its groups.

use std::sync::Arc;
use std::sync::mpsc;

use berth_engine::{InstanceId, InstanceRequest, InvalidRequest, NodeId, PlaceError, Refusal};
use berth_ledger::{
    Answer, Audited, AvailabilityGuard, ClaimKey, ClaimRejection, ClaimStatus, Guard, Job,
    LedgerError, Move, Op, PlannedClaim, Text,
};

use super::explainer::Task;
use super::follow::{AfterLookup, AfterPass};
use super::planner::{Planner, TRIES};
use super::turns::Lane;
use super::{Actor, Message, Placer};

/// An instance that is to go to another node.
#[derive(Clone, Debug)]
pub struct MoveRequest {
    /// A retry under the same id gets the first answer.
    pub request_id: Text,
    /// The instance: its id, its name, and what it is charged now.
    pub instance: Arc<InstanceRequest>,
    /// The fence of the claim that is to move.
    pub fence: i64,
    /// What must hold if it is a member that others must stand in for meanwhile.
    pub guard: Option<Arc<AvailabilityGuard>>,
    /// Who moves it, for the audit log.
    pub by: Actor,
}

/// What became of a move.
#[derive(Debug)]
pub enum MoveAnswer {
    /// It is on another node, and starts there.
    Moved(ClaimStatus),
    /// No other node can take it.
    NoRoom(Box<Refusal>),
    /// The claim is not what it was: gone, moved by another, or stopping.
    Rejected(ClaimRejection),
    /// Others were faster every time.
    Contended(Box<Guard>),
    /// It cannot be planned at all.
    Invalid(InvalidRequest),
    /// The ledger does not know: look again.
    Unknown(LedgerError),
}

/// A move under way, and who waits for its end.
pub(super) struct PendingMove {
    request: MoveRequest,
    reply: Box<dyn FnOnce(MoveAnswer) + Send>,
    tries: u32,
    /// The last event that was known when it was planned.
    planned_at: i64,
    /// Where it was planned to go.
    to: NodeId,
    /// Nodes whose rules the plan is expected to raise.
    raised: Vec<NodeId>,
    /// Nodes that denied it though the replica was up to date.
    denied: Vec<NodeId>,
    /// Whether others' events and expired leases were looked for since it came.
    looked: bool,
}

impl PendingMove {
    fn id(&self) -> InstanceId {
        self.request.instance.id
    }

    fn key(&self) -> ClaimKey {
        ClaimKey::primary(self.id())
    }

    /// Answers the caller that no other node can take it.
    pub(super) fn answer_no_room(self, refusal: Box<Refusal>) {
        (self.reply)(MoveAnswer::NoRoom(refusal));
    }
}

/// A move that found no place, to be explained.
pub(super) struct RefusedMove {
    pub(super) moving: PendingMove,
    /// The instance as it was to be placed: without the nodes that it cannot go to.
    pub(super) asked: InstanceRequest,
}

impl Placer {
    /// Moves an instance to the best other node; the answer comes when it is durable.
    pub async fn relocate(&self, request: MoveRequest) -> MoveAnswer {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        let moving = PendingMove {
            request,
            reply,
            tries: 0,
            planned_at: 0,
            to: NodeId::new(""),
            raised: Vec::new(),
            denied: Vec::new(),
            looked: false,
        };
        let message = Message::Move(Box::new(moving));
        if let Err(mpsc::SendError(Message::Move(moving))) = self.inbox.send(message) {
            (moving.reply)(MoveAnswer::Unknown(LedgerError::Closed));
        }
        receiver.await.unwrap_or(MoveAnswer::Unknown(LedgerError::Closed))
    }
}

impl Planner {
    /// Plans a move, and sends the plan or the refusal on its way.
    pub(super) fn plan_move(&mut self, mut moving: PendingMove) {
        moving.tries += 1;
        moving.planned_at = self.replica.cursor;
        let id = moving.id();
        let Some(from) = self.replica.engine().fleet().node_of(id).cloned() else {
            let rejected = ClaimRejection::NoClaim(moving.key());
            (moving.reply)(MoveAnswer::Rejected(rejected));
            return;
        };
        if self.replica.is_planned(id) {
            let guard = Guard::AlreadyPlaced { key: moving.key(), node: from };
            (moving.reply)(MoveAnswer::Contended(Box::new(guard)));
            return;
        }
        let mut asked = InstanceRequest::clone(&moving.request.instance);
        asked.excluded_nodes.push(from.clone());
        asked.excluded_nodes.extend(moving.denied.iter().cloned());
        let now = (self.clock)();
        let explains = moving.tries >= TRIES;
        let found = self.replica.engine().as_if_released(id, |engine| match explains {
            // The explainer found a place each time that was gone when it was to be claimed.
            true => engine.place(&asked, now).map(Some),
            false => engine.try_place(&asked, now).map_err(PlaceError::Invalid),
        });
        if let Ok(Some(placement)) = found {
            self.replica.engine().fleet_mut().release(id);
            self.replica.plan(&moving.request.instance, &placement.node);
            moving.to = placement.node;
            self.send_move(moving, placement.score);
            return;
        }
        match found {
            Ok(_) => self.refuse_move(moving, asked),
            Err(PlaceError::Refused(refusal)) => moving.answer_no_room(refusal),
            Err(PlaceError::Invalid(invalid)) => (moving.reply)(MoveAnswer::Invalid(invalid)),
        }
    }

    fn send_move(&mut self, mut moving: PendingMove, score: i64) {
        let instance = Arc::clone(&moving.request.instance);
        let secrets_version = self.replica.secrets_of(&instance);
        let claim = self.claim(&instance, moving.to.clone());
        let to = PlannedClaim { score, secrets_version, ..claim };
        moving.raised = super::pending_plan::raised_by(std::slice::from_ref(&to));
        self.replica.expect_rules(moving.raised.iter(), 1);
        let request = &moving.request;
        let (request_id, fence) = (Text::clone(&request.request_id), Some(request.fence));
        let guard = request.guard.clone();
        let subject = format!("{} to {}", instance.id, moving.to);
        let op = Op::Audited(Box::new(Audited {
            actor: Text::clone(&request.by.name),
            origin: Text::clone(&request.by.origin),
            action: Text::from("move"),
            subject: Text::from(subject),
            request_id: Some(Text::clone(&request_id)),
            op: Op::Move(Box::new(Move { request_id, fence, to, restart: true, guard })),
        }));
        let inbox = self.inbox.clone();
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| {
            // A planner that stopped has dropped the callers that waited.
            let _ = inbox.send(Message::MoveAnswered(Box::new(moving), answer));
        });
        self.outgoing.push(Job { op, reply });
    }

    /// The ledger's answer. What was committed here has been taken in before it.
    pub(super) fn move_answered(
        &mut self,
        mut moving: PendingMove,
        answer: Result<Answer, LedgerError>,
    ) {
        let id = moving.id();
        let is_reported =
            !self.replica.is_planned(id) && matches!(answer, Ok(Answer::Claim(Ok(_))));
        if !is_reported {
            // Not granted, or granted at an earlier time.
            self.replica.expect_rules(moving.raised.iter(), -1);
            self.replica.take_back(id);
        }
        moving.raised.clear();
        if is_reported || self.replica.engine().fleet().node_of(id).is_some() {
            self.finish_move(moving, answer);
            return;
        }
        // It was taken off its node in memory: it is where the ledger has it.
        let key = moving.key();
        let then = AfterLookup::Move(Box::new(moving), Box::new(answer));
        self.log_reader.look_up(vec![key], then);
    }

    /// Answers a move, or plans it again.
    pub(super) fn finish_move(&mut self, moving: PendingMove, answer: Result<Answer, LedgerError>) {
        match answer {
            Ok(Answer::Claim(Ok(standing))) => (moving.reply)(MoveAnswer::Moved(standing)),
            Ok(Answer::Claim(Err(ClaimRejection::Guard(guard)))) => self.conflicted(moving, guard),
            Ok(Answer::Claim(Err(rejected))) => (moving.reply)(MoveAnswer::Rejected(rejected)),
            Ok(other) => {
                let error = LedgerError::Corrupt(format!("{other:?}"));
                (moving.reply)(MoveAnswer::Unknown(error));
            }
            Err(error) => (moving.reply)(MoveAnswer::Unknown(error)),
        }
    }

    fn conflicted(&mut self, moving: PendingMove, guard: Box<Guard>) {
        if let Some(metrics) = &self.metrics {
            metrics.conflict(guard.code());
        }
        // Another plan does not help where too few other members run.
        if moving.tries >= TRIES || matches!(*guard, Guard::TooFewRunning { .. }) {
            (moving.reply)(MoveAnswer::Contended(guard));
            return;
        }
        // Another node does not help where something else than the node changed.
        let is_about_node =
            !matches!(*guard, Guard::PolicyChanged { .. } | Guard::SecretsChanged { .. });
        self.park(false, AfterPass::MoveConflict(Box::new(moving), is_about_node));
    }

    /// As for any plan: a node that denies a plan made on all there is to know is not asked again.
    pub(super) fn move_after_conflict(&mut self, mut moving: PendingMove, is_about_node: bool) {
        if self.replica.cursor == moving.planned_at && is_about_node {
            moving.denied.push(moving.to.clone());
        }
        self.plan_move(moving);
    }

    fn refuse_move(&mut self, mut moving: PendingMove, asked: InstanceRequest) {
        // Others may have made room since, or leases have ended: look once before saying no.
        if moving.looked {
            self.explain_refused_move(moving, asked);
            return;
        }
        moving.looked = true;
        self.park(true, AfterPass::MoveNoRoom(Box::new(moving), Box::new(asked)));
    }

    pub(super) fn explain_refused_move(&mut self, moving: PendingMove, asked: InstanceRequest) {
        let refused = RefusedMove { moving, asked };
        self.leave(Lane::Internal, Task::Move(Box::new(refused)));
    }
}
