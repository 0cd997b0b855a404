//! The planner's loop: take what waits, plan it, hand the plans over as one group.
//!
//! Tenants take turns. What takes long is left to the explainer: the planner only finds out that there
//! is no room.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use berth_engine::{Batch, InstanceId, InstanceRequest, InvalidRequest, NodeId, Notice, Placement};
use berth_ledger::{
    Answer, Assumptions, Basis, Job, Ledger, LedgerError, Op, Plan, PlannedClaim, RefusalReason,
    Spec, Verdict, hash_of_asked,
};

use super::attempt_order::OrderedAttempt;
use super::explainer::{LimitedRequest, Task, ToExplainer};
use super::follow::{AfterPass, ParkedWork, SealedTombstones};
use super::log_reader::LogReaderHandle;
use super::offload::is_left_to_the_explainer;
use super::pending_plan::{PendingPlan, QueuedJob, notices_of, raised_by};
use super::preemption::claiming_op;
use super::recording::refuse_by_limit;
use super::turns::{Lane, Turns, cost_of};
use super::{Backlogs, CatalogSender, Clock, Message, PlaceAnswer, tick};
use crate::applied_from_log::{AheadOfLog, AppliedFromLog};
use crate::backlog::{Backlog, BacklogReceiver};
use crate::catalog::CatalogUpdate;
use crate::fleet_replica::FleetReplica;
use crate::metrics::Metrics;
use crate::supervision::{ThreadMonitor, ThreadWork};

/// Most plans for one request before it is answered as contended.
pub(super) const TRIES: u32 = 16;

/// Messages taken at once, so that plans go out even while requests keep coming.
const DRAIN: usize = 4096;

/// Plans handed over at once.
const CHUNK: usize = 16;

/// Changes after which the explainer gets them though it has nothing to explain.
const CHANGES: usize = 1024;

/// Choices of a batch that the planner makes by looking at every node: more are left to the explainer.
pub(super) const MAX_SCANS: usize = 16;

/// How often the explainer may find room for a request that is gone when it is to be claimed, before
/// the planner looks for some itself: without a search, which would hold up others.
const OUTRUN: u32 = 4;

pub(super) struct Planner {
    pub(super) replica: FleetReplica,
    pub(super) ledger: Ledger,
    pub(super) inbox: Sender<Message>,
    pub(super) clock: Clock,
    pub(super) catalog_sender: CatalogSender,
    pub(super) metrics: Option<Arc<Metrics>>,
    monitor: ThreadMonitor,
    /// The stored form of requests, for the classes asked for last.
    specs: Vec<(Arc<InstanceRequest>, Spec)>,
    /// Jobs of this round.
    pub(super) outgoing: Vec<Job>,
    /// Whether others write to this ledger too.
    pub(super) multi_writer: bool,
    /// Own segments that the log delivered before the writer's report, or the other way round.
    pub(super) applied_from_log: AppliedFromLog,
    /// What they changed that the log has not come to yet.
    pub(super) ahead_of_log: AheadOfLog,
    /// Segments of others that were applied.
    pub(super) others_applied: u64,
    pub(super) log_reader: LogReaderHandle,
    /// What waits for the log reader.
    pub(super) parked: Vec<ParkedWork>,
    /// Claims that are gone and about to be forgotten, and how often there were any.
    pub(super) sealed: Option<SealedTombstones>,
    pub(super) seals: u64,
    /// Requests that were taken and not planned yet.
    turns: Turns<QueuedJob>,
    pub(super) explainer: Sender<ToExplainer>,
    /// Changes that the explainer has not taken in yet.
    pub(super) explainer_backlog: Arc<Backlog>,
    /// Reports of commits that wait here.
    reports: BacklogReceiver,
    /// The policy that the explainer has, by hash.
    pub(super) explainer_policy: String,
    stopping: bool,
}

/// Classes whose stored form is kept.
const SPECS: usize = 64;

/// What planning came to.
pub(super) enum PlanOutcome {
    /// A plan, the instances that it places, and what their caller should know.
    Plan(Plan, Vec<InstanceId>, Vec<Notice>),
    /// There is no room, as far as can be told without a search.
    NoRoom,
    /// The explainer is to decide: there is room, and the caller wants to know why there, or it was tried
    /// too often.
    Unexplained,
    Invalid(InvalidRequest),
}

/// How the planner reaches other threads, and they it.
pub(super) struct PlannerLinks {
    pub(super) inbox: Sender<Message>,
    pub(super) explainer: Sender<ToExplainer>,
    pub(super) log_reader: LogReaderHandle,
    pub(super) catalog_sender: CatalogSender,
    pub(super) backlogs: Backlogs,
}

impl Planner {
    pub(super) fn new(
        mut replica: FleetReplica,
        ledger: Ledger,
        links: PlannerLinks,
        options: &super::PlacerOptions,
    ) -> Self {
        let PlannerLinks { inbox, explainer, log_reader, catalog_sender, backlogs } = links;
        let explainer_policy = replica.engine().policy().hash().to_string();
        Self {
            replica,
            ledger,
            inbox,
            clock: Arc::clone(&options.clock),
            catalog_sender,
            metrics: options.metrics.clone(),
            monitor: options.monitor("planner", ThreadWork::Computes),
            specs: Vec::new(),
            outgoing: Vec::new(),
            multi_writer: false,
            applied_from_log: AppliedFromLog::default(),
            ahead_of_log: AheadOfLog::default(),
            others_applied: 0,
            log_reader,
            parked: Vec::new(),
            sealed: None,
            seals: 0,
            turns: Turns::new(),
            explainer,
            explainer_backlog: backlogs.explainer,
            reports: BacklogReceiver(backlogs.planner),
            explainer_policy,
            stopping: false,
        }
    }

    pub(super) fn run(mut self, outbox: &Receiver<Message>) {
        while !self.stopping {
            if self.turns.is_empty() {
                self.monitor.idle();
                let Ok(first) = outbox.recv() else { break };
                self.monitor.begin();
                self.guarded(|planner| planner.handle(first));
            } else {
                self.monitor.begin();
            }
            // All of it, so that the last to come is in line before the next turn is given.
            for message in outbox.try_iter().take(DRAIN) {
                self.guarded(|planner| planner.handle(message));
            }
            // The ledger starts on these plans while the next are being made.
            for _ in 0..CHUNK {
                let Some(queued) = self.turns.pop() else { break };
                self.timed("queued", queued.since);
                if queued.presence.is_gone() {
                    // The caller sends it again if the outcome matters: nothing was done for it.
                    if let Some(metrics) = &self.metrics {
                        metrics.abandoned();
                    }
                    continue;
                }
                self.guarded(|planner| planner.plan(PendingPlan::new(queued, tick())));
            }
            self.ledger.submit(self.outgoing.drain(..));
            if self.replica.engine().fleet().recorded_changes() >= CHANGES {
                self.update_explainer();
            }
        }
        self.monitor.stop();
    }

    /// Does one thing. If it panics, its caller gets no answer, and the fleet, which may be
    /// half changed, is loaded again; other requests are not affected.
    fn guarded(&mut self, act: impl FnOnce(&mut Self)) {
        let monitor = self.monitor.clone();
        if monitor.guard(|| act(self)).is_err() {
            self.log_reader.request_reload();
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Place(queued) => {
                let request = &queued.job.request;
                let instances = request.instances.iter().map(|instance| &**instance);
                let cost = cost_of(instances, self.replica.engine().fleet());
                self.turns.push(Lane::of(request), cost, *queued);
            }
            Message::Answered(pending, answer) => self.answered(*pending, answer),
            Message::Chosen(pending, choice) => self.claim_choice(*pending, *choice),
            Message::PlanAgain(mut pending) => {
                pending.admitted.move_to_planner();
                self.plan(*pending);
            }
            // The explainer waits for the fleet that comes with it.
            Message::ExplainerPanicked => self.log_reader.request_reload(),
            Message::Move(moving) => self.plan_move(*moving),
            Message::MoveAnswered(moving, answer) => self.move_answered(*moving, answer),
            Message::Committed(report) => {
                self.reports.0.remove(super::size_of_report(&report));
                self.apply_report(&report);
            }
            Message::CatchUp(reached) => self.park(false, AfterPass::CatchUp(reached)),
            Message::Inspect(look) => look(&mut self.replica),
            Message::Query(query) => self.leave(Lane::Internal, Task::Query(query)),
            Message::LogPage(page) => self.apply_page(*page),
            Message::PassEnded(result) => self.pass_ended(&result),
            Message::Heartbeats(heard) => self.apply_heartbeats(&heard),
            Message::ClaimsRead(claims, then) => self.claims_read(claims, *then),
            Message::Reloaded(fresh, copy) => self.replace_fleet(*fresh, copy),
            Message::SealReached(seal) => self.finish_gc(seal),
            Message::Stop => self.stopping = true,
        }
    }

    /// Answers when everything that the log reader has sent is in the catalogue.
    pub(super) fn pass_barrier(&self, reached: tokio::sync::oneshot::Sender<()>) {
        if self.catalog_sender.is_connected() {
            self.catalog_sender.send(|| CatalogUpdate::Barrier(reached));
        } else {
            // The caller may have stopped waiting.
            let _ = reached.send(());
        }
    }

    fn timed(&self, stage: &'static str, since: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.stage(stage, since.elapsed());
        }
    }

    /// Plans a request, and sends the plan or the refusal on its way.
    pub(super) fn plan(&mut self, mut pending: PendingPlan) {
        let attempt = pending.job.request.attempt.as_ref();
        if pending.tries == 0 && attempt.is_some_and(OrderedAttempt::must_wait) {
            pending.answer(PlaceAnswer::NoRoom(Vec::new()));
            return;
        }
        pending.tries += 1;
        pending.planned_at = self.replica.cursor;
        pending.now = (self.clock)();
        if let Some(conflict) = self.outdated_defaults(&pending) {
            pending.answer(PlaceAnswer::Contended(conflict));
            return;
        }
        (pending.basis, pending.explanation) = (None, None);
        pending.left_out.clear();
        let instances = self.instances(&mut pending);
        if let Err(invalid) = self.check_rules(&instances) {
            if pending.may_have_an_answer() {
                self.release_slots(&pending, &[]);
                self.ask(pending);
            } else {
                self.dispatch(pending, instances, PlanOutcome::Invalid(invalid));
            }
            return;
        }
        let chosen = if let Some(preemption) = pending.job.request.preemption.clone() {
            self.choose_preempting(&pending, &instances, &preemption)
        } else if pending.tries < TRIES {
            self.choose(&pending, &instances)
        } else if pending.may_have_an_answer() {
            self.release_slots(&pending, &[]);
            self.ask(pending);
            return;
        } else {
            // Planned so often that it has to end: the explainer finds a place, or says why there is none.
            PlanOutcome::Unexplained
        };
        self.dispatch(pending, instances, chosen);
    }

    /// Refuses instances that would give their tenant too many rules to match every request with.
    fn check_rules(&mut self, instances: &[Arc<InstanceRequest>]) -> Result<(), InvalidRequest> {
        let Some(first) = instances.first() else { return Ok(()) };
        let requests = instances.iter().map(|instance| &**instance);
        self.replica.engine().fleet().check_resident_rules(&first.tenant, requests)
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
            if let PlanOutcome::Plan(_, placed, _) = &chosen { placed.as_slice() } else { &[] };
        self.release_slots(&pending, placed);
        if let (PlanOutcome::NoRoom, Some(attempt)) = (&chosen, &pending.job.request.attempt) {
            attempt.found_no_room();
        }
        match chosen {
            PlanOutcome::Plan(plan, claimed, notices) if pending.job.request.dry_run => {
                pending.notices = notices;
                for id in claimed {
                    self.replica.take_back(id);
                }
                self.rehearse(pending, plan);
            }
            PlanOutcome::Plan(plan, claimed, notices) => {
                pending.notices = notices;
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
            PlanOutcome::Unexplained => self.leave_decision(pending, instances),
            PlanOutcome::NoRoom => self.no_room(pending, instances),
        }
    }

    /// Finds nodes, or that there are none, without a search and without saying why.
    fn choose(&mut self, pending: &PendingPlan, instances: &[Arc<InstanceRequest>]) -> PlanOutcome {
        let request = &pending.job.request;
        let found = if let [one] = instances {
            let placed = self.replica.engine().try_place(one, pending.now);
            placed.map(|placed| placed.map(|placed| vec![placed]))
        } else if pending.outrun < OUTRUN && is_left_to_the_explainer(instances) {
            let members = instances.iter().map(|instance| &**instance);
            self.replica.engine().validate_members(members).map(|()| None)
        } else {
            let requests = instances.iter().map(|instance| (**instance).clone()).collect();
            let batch = Batch::new(requests).with_mode(request.mode);
            self.replica.engine().try_batch(&batch, pending.now)
        };
        match found {
            Ok(Some(_)) if request.explain.is_some() && pending.outrun < OUTRUN => {
                PlanOutcome::Unexplained
            }
            Ok(Some(placements)) => self.planned(pending, instances, &placements),
            Ok(None) => PlanOutcome::NoRoom,
            Err(invalid) => PlanOutcome::Invalid(invalid),
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
            claim.workload_version = self.workload_version(request, instance);
            if let Some(Some(assigned)) = pending.slots.get(place) {
                claim.slot = Some(assigned.key.clone());
                claim.takes_over = assigned.takes_over;
            }
            claims.push(claim);
        }
        let claimed = placements.iter().map(|placement| placement.instance).collect();
        PlanOutcome::Plan(self.plan_of(pending, claims), claimed, notices_of(placements))
    }

    pub(super) fn claim(&mut self, instance: &Arc<InstanceRequest>, node: NodeId) -> PlannedClaim {
        let spec = self.spec(instance);
        let seen = self.replica.seen(&node);
        let neighbours = self.replica.neighbours(instance, &node);
        let policy = self.replica.engine().policy();
        let claim = PlannedClaim::with_spec(Arc::clone(instance), spec, policy, node, seen);
        PlannedClaim { neighbours, policy: Some(self.replica.policy_in_force()), ..claim }
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
        (plan.request_hash, plan.has_ticket) = (request.request_hash, request.has_ticket);
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
        let op = claiming_op(&pending.job.request, plan, pending.is_question);
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| {
            let verdict = answer.map(|answer| match answer {
                Answer::Plan(verdict) => Ok((verdict, false)),
                Answer::Repeated(grant) => Ok((Verdict::Granted(grant), true)),
                other => Err(LedgerError::Corrupt(format!("{other:?}"))),
            });
            // Below, a planner that stopped has dropped the callers that waited.
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
            Ok(Verdict::Granted(grant)) => self.answer_earlier_grant(pending, grant),
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
                    self.park(false, AfterPass::Plan(Box::new(pending)));
                } else {
                    self.plan(pending);
                }
            }
            Ok(Verdict::Conflict(conflict)) => self.plan_around(pending, conflict),
        }
    }

    /// The ledger refused for a reason that another node would not change: recorded like any other.
    fn refused(&mut self, mut pending: PendingPlan, by: RefusalReason) {
        let basis = self.basis(&pending);
        let request = &pending.job.request;
        let is_limit = matches!(
            by,
            RefusalReason::Quota { .. }
                | RefusalReason::PoolExhausted { .. }
                | RefusalReason::UnknownPool(_)
        );
        // A workload's slots are not its caller's to change, and what waits was explained before.
        if is_limit && !request.quiet && request.slots.is_empty() {
            // Why there is no node is not the question.
            pending.job.request.explain = None;
            let instances = self.instances(&mut pending);
            let chosen = self.choose(&pending, &instances);
            self.release_slots(&pending, &[]);
            if let PlanOutcome::Plan(plan, claimed, _) = chosen {
                for id in claimed {
                    self.replica.take_back(id);
                }
                let Some(pending) = self.move_to_explainer(pending) else { return };
                let lane = Lane::of(&pending.job.request);
                let limited = LimitedRequest { pending, plan, by, basis };
                self.leave(lane, Task::Limit(Box::new(limited)));
                return;
            }
        }
        self.outgoing.extend(refuse_by_limit(pending, by, Vec::new(), basis));
    }

    /// Has the ledger say whether it would grant a plan, by the same code that would.
    fn rehearse(&mut self, pending: PendingPlan, plan: Plan) {
        let inbox = self.inbox.clone();
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| match answer {
            Ok(Answer::Plan(Verdict::Granted(grant)) | Answer::Repeated(grant)) => {
                pending.granted(grant);
            }
            Ok(Answer::Plan(refused @ Verdict::Refused(_))) => {
                // A planner that stopped has dropped the callers that waited.
                let _ = inbox.send(Message::Answered(Box::new(pending), Ok(refused)));
            }
            Ok(Answer::Plan(Verdict::Conflict(conflict))) => {
                pending.answer(PlaceAnswer::Contended(conflict));
            }
            Ok(other) => {
                let error = LedgerError::Corrupt(format!("{other:?}"));
                pending.answer(PlaceAnswer::Unknown(error));
            }
            Err(error) => pending.answer(PlaceAnswer::Unknown(error)),
        });
        self.outgoing.push(Job { op: Op::DryRun(plan, Assumptions::default()), reply });
    }
}
