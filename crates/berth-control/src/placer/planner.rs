//! The planner's loop: take what waits, plan it, hand the plans over as one group.
//!
//! Tenants take turns. What takes long is left to the explainer: the planner only finds out that there
//! is no room.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use berth_engine::{
    Batch, InstanceId, InstanceRequest, InvalidRequest, NodeId, PlaceError, Placement, Refusal,
};
use berth_ledger::{
    Answer, Basis, ClaimKey, Grant, Guard, Job, Ledger, LedgerError, Op, Plan, PlannedClaim,
    RefusalReason, Spec, Verdict, hash_of_asked,
};

use super::explainer::{Task, ToExplainer};
use super::follow::SealedTombstones;
use super::pending_plan::PendingPlan;
use super::recording::{named, record_refusal, refuse};
use super::turns::{Lane, Turns};
use super::{CatalogSender, Clock, Message, PlaceAnswer, PlaceJob, tick};
use crate::catalog::CatalogUpdate;
use crate::fleet_replica::FleetReplica;
use crate::metrics::Metrics;

/// Most plans for one request before it is answered as contended.
pub(super) const TRIES: u32 = 16;

/// Messages taken at once, so that plans go out even while requests keep coming.
const DRAIN: usize = 4096;

/// Plans handed over at once.
const CHUNK: usize = 16;

/// Changes after which the explainer gets them though it has nothing to explain.
const CHANGES: usize = 1024;

/// Instances of a batch with rules about neighbours that the planner places itself.
const BATCH_WITH_RULES: usize = 16;

/// How often the explainer may find room for a request that is gone when it is to be claimed, before
/// the planner searches itself.
const OUTRUN: u32 = 4;

pub(super) struct Planner {
    pub(super) replica: FleetReplica,
    pub(super) ledger: Ledger,
    pub(super) inbox: Sender<Message>,
    pub(super) clock: Clock,
    pub(super) catalog_sender: CatalogSender,
    pub(super) metrics: Option<Arc<Metrics>>,
    /// The stored form of requests, for the classes asked for last.
    specs: Vec<(Arc<InstanceRequest>, Spec)>,
    /// Jobs of this round.
    pub(super) outgoing: Vec<Job>,
    /// Whether others write to this ledger too.
    pub(super) multi_writer: bool,
    /// Connections that had been lost when the fleet was last known to be whole.
    pub(super) lost: u64,
    /// How often others' events were looked for.
    pub(super) follows: u64,
    /// The last heartbeat that was taken in, in whole seconds.
    pub(super) heard_until: i64,
    /// Claims that are gone and about to be forgotten, and how often there were any.
    pub(super) sealed: Option<SealedTombstones>,
    pub(super) seals: u64,
    /// Requests that were taken and not planned yet.
    turns: Turns<(PlaceJob, Instant)>,
    pub(super) explainer: Sender<ToExplainer>,
    /// The policy that the explainer has, by hash.
    pub(super) explainer_policy: String,
    stopping: bool,
}

/// Classes whose stored form is kept.
const SPECS: usize = 64;

/// What planning came to.
pub(super) enum PlanOutcome {
    Plan(Plan, Vec<InstanceId>),
    /// There is no room, as far as can be told without a search.
    NoRoom,
    /// There is room, and the caller wants to know why there.
    Unexplained,
    /// There is no room, and these say why.
    Refused(Vec<Refusal>),
    Invalid(InvalidRequest),
}

impl Planner {
    pub(super) fn new(
        mut replica: FleetReplica,
        ledger: Ledger,
        inbox: Sender<Message>,
        explainer: Sender<ToExplainer>,
        catalog_sender: CatalogSender,
        options: &super::PlacerOptions,
    ) -> Self {
        let explainer_policy = replica.engine().policy().hash().to_string();
        Self {
            replica,
            ledger,
            inbox,
            clock: Arc::clone(&options.clock),
            catalog_sender,
            metrics: options.metrics.clone(),
            specs: Vec::new(),
            outgoing: Vec::new(),
            multi_writer: false,
            lost: 0,
            follows: 0,
            heard_until: 0,
            sealed: None,
            seals: 0,
            turns: Turns::new(options.tenant_queue),
            explainer,
            explainer_policy,
            stopping: false,
        }
    }

    pub(super) fn run(mut self, outbox: &Receiver<Message>) {
        while !self.stopping {
            if self.turns.is_empty() {
                let Ok(first) = outbox.recv() else { return };
                self.handle(first);
            }
            // All of it, so that whoever came last is in line before the next turn is given.
            for message in outbox.try_iter().take(DRAIN) {
                self.handle(message);
            }
            // The ledger starts on these plans while the next are being made.
            for _ in 0..CHUNK {
                let Some((job, since)) = self.turns.pop() else { break };
                self.timed("queued", since);
                self.plan(PendingPlan::new(job, tick()));
            }
            self.ledger.submit(self.outgoing.drain(..));
            if self.replica.engine().fleet().recorded_changes() >= CHANGES {
                self.update_explainer();
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Place(job, since) => {
                let (lane, cost) = (Lane::of(&job.request), job.request.instances.len());
                if let Err((job, _)) = self.turns.push(lane, cost, (job, since)) {
                    if let Some(metrics) = &self.metrics {
                        metrics.limited("planner");
                    }
                    (job.reply)(PlaceAnswer::Busy);
                }
            }
            Message::Answered(pending, answer) => self.answered(*pending, answer),
            Message::Decided(pending, decided) => self.claim_decided(*pending, *decided),
            Message::PlanAgain(pending) => {
                if self.replica.cursor < pending.follow_to {
                    self.follow_now();
                }
                self.plan(*pending);
            }
            Message::Move(moving) => self.plan_move(*moving),
            Message::MoveAnswered(moving, answer) => self.move_answered(*moving, answer),
            Message::Committed(happened) => {
                for event in &happened.events {
                    // What the ledger just wrote can be read.
                    let _ = self.replica.apply(event);
                }
                self.catalog_sender.send(|| CatalogUpdate::Events(happened.at, happened.events));
            }
            Message::Barrier(reached) => {
                if self.catalog_sender.is_connected() {
                    self.catalog_sender.send(|| CatalogUpdate::Barrier(reached));
                } else {
                    // The caller may have stopped waiting.
                    let _ = reached.send(());
                }
            }
            Message::Inspect(look) => look(&mut self.replica),
            Message::Query(query) => self.leave(Lane::Internal, Task::Query(query)),
            Message::Follow => {
                self.follow();
                self.update_explainer();
            }
            Message::SealReached(seal) => self.finish_gc(seal),
            Message::Stop => self.stopping = true,
        }
    }

    fn timed(&self, stage: &'static str, since: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.stage(stage, since.elapsed());
        }
    }

    /// Plans a request, and sends the plan or the refusal on its way.
    pub(super) fn plan(&mut self, mut pending: PendingPlan) {
        pending.tries += 1;
        pending.planned_at = self.replica.cursor;
        pending.now = (self.clock)();
        (pending.basis, pending.explanation) = (None, None);
        pending.left_out.clear();
        let instances = self.instances(&mut pending);
        let chosen = if pending.outrun < OUTRUN && pending.tries < TRIES {
            self.choose(&pending, &instances)
        } else {
            self.search(&mut pending, &instances)
        };
        self.dispatch(pending, instances, chosen);
    }

    /// The instances as they are to be placed, with slots and without nodes that denied them.
    pub(super) fn instances(&mut self, pending: &mut PendingPlan) -> Vec<Arc<InstanceRequest>> {
        let mut instances: Vec<Arc<InstanceRequest>> = pending.job.request.instances.clone();
        self.assign_slots(pending, &mut instances);
        for instance in instances.iter_mut().filter(|_| !pending.denied.is_empty()) {
            Arc::make_mut(instance).excluded_nodes.extend(pending.denied.iter().cloned());
        }
        instances
    }

    pub(super) fn dispatch(
        &mut self,
        mut pending: PendingPlan,
        instances: Vec<Arc<InstanceRequest>>,
        chosen: PlanOutcome,
    ) {
        let placed =
            if let PlanOutcome::Plan(_, placed) = &chosen { placed.as_slice() } else { &[] };
        self.release_slots(&pending, placed);
        match chosen {
            PlanOutcome::Plan(plan, claimed) if pending.job.request.dry_run => {
                for id in claimed {
                    self.replica.take_back(id);
                }
                self.rehearse(pending, plan);
            }
            PlanOutcome::Plan(plan, claimed) => {
                pending.claimed = claimed;
                pending.raised = raised_by(&plan.claims);
                self.replica.expect_rules(pending.raised.iter(), 1);
                self.send(pending, plan);
            }
            PlanOutcome::Invalid(invalid) => {
                let is_placed = matches!(invalid, InvalidRequest::AlreadyPlaced { .. });
                if is_placed && !pending.asked_when_placed {
                    pending.asked_when_placed = true;
                    self.ask(pending);
                    return;
                }
                pending.answer(PlaceAnswer::Invalid(invalid));
            }
            PlanOutcome::Unexplained => self.leave_decision(pending, instances, true),
            PlanOutcome::NoRoom => self.no_room(pending, instances),
            PlanOutcome::Refused(_) if pending.may_have_an_answer() => self.ask(pending),
            PlanOutcome::Refused(refusals) => {
                let basis = self.basis(&pending);
                self.outgoing.extend(refuse(pending, refusals, basis));
            }
        }
    }

    /// Finds nodes, or that there are none, without a search and without saying why.
    fn choose(&mut self, pending: &PendingPlan, instances: &[Arc<InstanceRequest>]) -> PlanOutcome {
        let request = &pending.job.request;
        let found = if let [one] = instances {
            let placed = self.replica.engine().try_place(one, pending.now);
            placed.map(|placed| placed.map(|placed| vec![placed]))
        } else {
            let requests = instances.iter().map(|instance| (**instance).clone()).collect();
            let batch = Batch::new(requests).with_mode(request.mode);
            if is_left_to_the_explainer(instances) {
                self.replica.engine().validate_batch(&batch).map(|()| None)
            } else {
                self.replica.engine().try_batch(&batch, pending.now)
            }
        };
        match found {
            Ok(Some(_)) if request.explain => PlanOutcome::Unexplained,
            Ok(Some(placements)) => self.planned(pending, instances, &placements),
            Ok(None) => PlanOutcome::NoRoom,
            Err(invalid) => PlanOutcome::Invalid(invalid),
        }
    }

    /// Decides all of it here: for a request whose place was gone each time that the explainer had
    /// found one.
    fn search(
        &mut self,
        pending: &mut PendingPlan,
        instances: &[Arc<InstanceRequest>],
    ) -> PlanOutcome {
        let outcome = if let [one] = instances {
            let placed = self.replica.engine().place(one, pending.now);
            placed.map(|placement| (vec![placement], Vec::new()))
        } else {
            let requests = instances.iter().map(|instance| (**instance).clone()).collect();
            let batch = Batch::new(requests).with_mode(pending.job.request.mode);
            let outcome = self.replica.engine().place_batch(&batch, pending.now);
            outcome.map(|outcome| {
                let refusals = outcome.refused.into_iter().map(|(_, refusal)| refusal).collect();
                (outcome.placements, refusals)
            })
        };
        match outcome {
            Ok((placements, refusals)) if placements.is_empty() => PlanOutcome::Refused(refusals),
            Ok((placements, refusals)) => {
                pending.left_out = refusals;
                self.planned(pending, instances, &placements)
            }
            Err(PlaceError::Invalid(invalid)) => PlanOutcome::Invalid(invalid),
            Err(PlaceError::Refused(refusal)) => PlanOutcome::Refused(vec![*refusal]),
        }
    }

    /// Claims placements in memory and makes the plan of them.
    pub(super) fn planned(
        &mut self,
        pending: &PendingPlan,
        instances: &[Arc<InstanceRequest>],
        placements: &[Placement],
    ) -> PlanOutcome {
        let request = &pending.job.request;
        let mut claims = Vec::with_capacity(placements.len());
        // Placements come in the order of the instances, some of which may be left out.
        let mut asked = instances.iter().enumerate();
        for placement in placements {
            let Some((place, instance)) = asked.find(|(_, it)| it.id == placement.instance) else {
                continue;
            };
            self.replica.plan(instance, &placement.node);
            let mut claim = self.claim(instance, placement.node.clone());
            claim.score = placement.score;
            claim.pools.clone_from(&request.pools);
            claim.pools.extend(self.replica.overlay_pool(&placement.node, &request.pools));
            claim.release_id.clone_from(&request.release);
            claim.secrets_version = self.replica.secrets_of(instance);
            if let Some(Some(assigned)) = pending.slots.get(place) {
                claim.slot = Some(assigned.key.clone());
                claim.takes_over = assigned.takes_over;
            }
            claims.push(claim);
        }
        let claimed = placements.iter().map(|placement| placement.instance).collect();
        PlanOutcome::Plan(self.plan_of(pending, claims), claimed)
    }

    pub(super) fn claim(&mut self, instance: &Arc<InstanceRequest>, node: NodeId) -> PlannedClaim {
        let spec = self.spec(instance);
        let seen = self.replica.seen(&node);
        let neighbours = self.replica.neighbours(instance, &node);
        let policy = self.replica.engine().policy();
        let claim = PlannedClaim::with_spec(Arc::clone(instance), spec, policy, node, seen);
        PlannedClaim { neighbours, ..claim }
    }

    /// The stored form of a request; requests of one class share it.
    fn spec(&mut self, instance: &Arc<InstanceRequest>) -> Spec {
        let same = |kept: &&(Arc<InstanceRequest>, Spec)| kept.0.same_class(instance);
        if let Some((_, spec)) = self.specs.iter().find(same) {
            return spec.clone();
        }
        let spec = Spec::of(instance);
        if self.specs.len() >= SPECS {
            self.specs.remove(0);
        }
        self.specs.push((Arc::clone(instance), spec.clone()));
        spec
    }

    /// Perhaps it is a retry of what was granted before: the ledger has the answer.
    pub(super) fn ask(&mut self, mut pending: PendingPlan) {
        pending.asked = true;
        pending.is_question = true;
        let plan = self.bare_plan(&pending);
        self.send(pending, plan);
    }

    /// A plan that names no new place: it serves to ask for an earlier answer.
    fn bare_plan(&mut self, pending: &PendingPlan) -> Plan {
        let instances = pending.job.request.instances.clone();
        let claims = instances.iter().map(|instance| {
            // No node: were it one, the plan might be granted, without what belongs to it.
            self.claim(instance, NodeId::new(""))
        });
        let claims = claims.collect();
        self.plan_of(pending, claims)
    }

    fn plan_of(&mut self, pending: &PendingPlan, claims: Vec<PlannedClaim>) -> Plan {
        let request = &pending.job.request;
        let mut plan = Plan::new(&request.request_id, &request.tenant, claims);
        plan.lease_s = request.lease_s;
        // A plan may place only some, and asks for the kind of capacity that a slot is; a retry
        // asks for all as it did, and must be known again.
        let has_slots = pending.slots.iter().any(Option::is_some);
        if has_slots || plan.claims.len() != request.instances.len() {
            let instances = request.instances.clone();
            let asked: Vec<(InstanceId, Spec)> =
                instances.iter().map(|instance| (instance.id, self.spec(instance))).collect();
            plan.body_hash = hash_of_asked(asked.iter().map(|(id, spec)| (*id, spec)));
        }
        plan.basis = self.basis(pending);
        plan
    }

    /// What a request is decided on: the fleet as it is here, unless it was decided elsewhere.
    fn basis(&mut self, pending: &PendingPlan) -> Basis {
        if let Some(basis) = &pending.basis {
            return basis.clone();
        }
        let policy = self.replica.engine().policy().hash().to_string();
        let (fleet_version, now) = (self.replica.cursor, pending.now.0);
        Basis { policy, fleet_version, now, in_flight: None }
    }

    fn send(&mut self, pending: PendingPlan, plan: Plan) {
        let inbox = self.inbox.clone();
        self.timed("planned", pending.since);
        let (metrics, sent) = (self.metrics.clone(), tick());
        // The ledger says which node won.
        let op = named(&pending.job.request, "place", "", Op::Commit(plan));
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| {
            let verdict = answer.map(|answer| match answer {
                Answer::Plan(verdict) => Ok((verdict, false)),
                Answer::Repeated(grant) => Ok((Verdict::Granted(grant), true)),
                other => Err(LedgerError::Corrupt(format!("{other:?}"))),
            });
            match verdict {
                // Straight to the caller: the planner learns of it by the commit.
                Ok(Ok((Verdict::Granted(grant), false))) => {
                    if let Some(metrics) = &metrics {
                        metrics.stage("committed", sent.elapsed());
                    }
                    pending.granted(grant);
                }
                Ok(verdict) => {
                    let verdict = verdict.map(|(verdict, _)| verdict);
                    let _ = inbox.send(Message::Answered(Box::new(pending), verdict));
                }
                Err(error) => {
                    let _ = inbox.send(Message::Answered(Box::new(pending), Err(error)));
                }
            }
        });
        self.outgoing.push(Job { op, reply });
    }

    /// A plan that was not granted, or was granted before.
    fn answered(&mut self, mut pending: PendingPlan, answer: Result<Verdict, LedgerError>) {
        self.replica.expect_rules(pending.raised.iter(), -1);
        pending.raised.clear();
        for id in pending.claimed.drain(..) {
            self.replica.take_back(id);
        }
        match answer {
            Ok(Verdict::Granted(grant)) => {
                self.apply_claim(&grant);
                pending.granted(grant);
            }
            Ok(Verdict::Refused(by)) => self.refused(pending, by),
            Err(error) => pending.answer(PlaceAnswer::Unknown(error)),
            // There was no earlier answer.
            Ok(Verdict::Conflict(_)) if pending.is_question => {
                pending.is_question = false;
                pending.since = tick();
                let fleet = self.replica.engine().fleet();
                let is_placed = |it: &Arc<InstanceRequest>| fleet.node_of(it.id).is_some();
                if pending.job.request.instances.iter().any(is_placed) {
                    // Another server may have released it.
                    self.follow_now();
                }
                self.plan(pending);
            }
            Ok(Verdict::Conflict(conflict)) => self.plan_around(pending, conflict),
        }
    }

    /// Others were faster, or a node denied the plan.
    fn plan_around(&mut self, mut pending: PendingPlan, conflict: Box<berth_ledger::Conflict>) {
        if let Some(metrics) = &self.metrics {
            metrics.conflict(conflict.guard.code());
        }
        pending.since = tick();
        let requested_slot = !pending.job.request.slots.is_empty();
        let lost_slot = matches!(conflict.guard, Guard::SlotTaken { .. });
        // Another server filled the slot: there is nothing left to do.
        if pending.tries >= TRIES || (requested_slot && lost_slot) {
            pending.answer(PlaceAnswer::Contended(conflict));
            return;
        }
        // The faster one has committed, so its events are in the log. A node that denies a plan based
        // on the whole log is not planned on again.
        self.follow_now();
        if self.replica.cursor == pending.planned_at {
            match &conflict.guard {
                Guard::SlotTaken { slot, .. } => pending.denied_slots.push(slot.in_workload()),
                _ => pending.denied.push(conflict.node.clone()),
            }
        }
        self.plan(pending);
    }

    /// The ledger refused for a reason that another node would not change: recorded like any other.
    fn refused(&mut self, pending: PendingPlan, by: RefusalReason) {
        let basis = self.basis(&pending);
        let Some(op) = record_refusal(&pending, &by, basis) else {
            pending.answer(PlaceAnswer::Refused(by));
            return;
        };
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| {
            let answer = answer.map_or_else(PlaceAnswer::Unknown, |_| PlaceAnswer::Refused(by));
            pending.answer(answer);
        });
        self.outgoing.push(Job { op, reply });
    }

    /// Has the ledger say whether it would grant a plan, by the same code that would.
    fn rehearse(&mut self, pending: PendingPlan, plan: Plan) {
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| match answer {
            Ok(Answer::Plan(Verdict::Granted(grant)) | Answer::Repeated(grant)) => {
                pending.granted(grant);
            }
            Ok(Answer::Plan(Verdict::Refused(by))) => pending.answer(PlaceAnswer::Refused(by)),
            Ok(Answer::Plan(Verdict::Conflict(conflict))) => {
                pending.answer(PlaceAnswer::Contended(conflict));
            }
            Ok(other) => {
                let error = LedgerError::Corrupt(format!("{other:?}"));
                pending.answer(PlaceAnswer::Unknown(error));
            }
            Err(error) => pending.answer(PlaceAnswer::Unknown(error)),
        });
        self.outgoing.push(Job { op: Op::DryRun(plan), reply });
    }

    /// Applies a grant of an earlier time: its claims may be gone or elsewhere, and if the answer to
    /// our own commit was lost, they are not known here yet.
    fn apply_claim(&mut self, grant: &Grant) {
        for claim in &grant.claims {
            let key = ClaimKey { instance: claim.instance, role: claim.role };
            if let Ok(Some(claim)) = self.ledger.claim(key) {
                // What the ledger just read can be read.
                let _ = self.replica.apply_claim(&claim);
            }
        }
    }
}

/// Whether a batch takes too long for the planner, even without a search: rules about neighbours are
/// evaluated again after each instance.
fn is_left_to_the_explainer(instances: &[Arc<InstanceRequest>]) -> bool {
    let has_rules = |instance: &Arc<InstanceRequest>| {
        !instance.groups.is_empty()
            || !instance.affinity.is_empty()
            || !instance.locality.is_empty()
    };
    instances.len() > BATCH_WITH_RULES && instances.iter().any(has_rules)
}

/// Nodes whose rules a plan raises, once for each claim that does.
pub(super) fn raised_by(claims: &[PlannedClaim]) -> Vec<NodeId> {
    let raising = claims.iter().filter(|claim| claim.has_hard_rules());
    let nodes = raising.flat_map(|claim| {
        std::iter::once(&claim.node).chain(claim.neighbours.iter().map(|(node, _)| node))
    });
    nodes.cloned().collect()
}
