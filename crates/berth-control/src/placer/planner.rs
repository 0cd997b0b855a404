//! The planner's loop: take what waits, plan it, hand the plans over as one group.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use berth_engine::{
    Batch, Explanation, InstanceId, InstanceRequest, InvalidRequest, NodeId, PlaceError, Placement,
    Refusal, Timestamp,
};
use berth_ledger::{
    Answer, Audited, Basis, ClaimKey, DecisionOutcome, DecisionRecord, Grant, Guard, Job, Ledger,
    LedgerError, Op, Plan, PlannedClaim, RefusalReason, Slot, Spec, Text, UnmetDemand, Verdict,
    hash_of_asked,
};

use super::follow::SealedTombstones;
use super::slot_assignment::SlotAssignment;
use super::{CatalogSender, Clock, Granted, Message, PlaceAnswer, PlaceJob, PlaceRequest, tick};
use crate::catalog::CatalogUpdate;
use crate::error::describe_limit;
use crate::fleet_replica::FleetReplica;
use crate::metrics::Metrics;

/// Most plans for one request before it is answered as contended.
pub(super) const TRIES: u32 = 16;

/// Messages taken at once, so that plans go out even while requests keep coming.
const DRAIN: usize = 512;

/// Plans handed over at once.
const CHUNK: usize = 16;

/// A plan that the ledger has, and whose it is.
pub(super) struct PendingPlan {
    pub(super) job: PlaceJob,
    /// The instances that were claimed in memory.
    claimed: Vec<InstanceId>,
    /// Nodes whose rules the plan is expected to raise.
    raised: Vec<NodeId>,
    tries: u32,
    /// The last event that was known when it was planned.
    planned_at: i64,
    /// The time it was planned at.
    now: Timestamp,
    /// Whether the ledger was asked for an earlier answer to this request.
    asked: bool,
    /// Nodes that denied the request though the replica was up to date.
    denied: Vec<NodeId>,
    /// Since when it waits for the planner, then for the ledger.
    since: Instant,
    /// Why some of the batch have no place in the plan.
    left_out: Vec<Refusal>,
    /// Why the first instance is where it is.
    explanation: Option<Box<Explanation>>,
    /// The slot that each instance is being assigned.
    pub(super) slots: Vec<Option<SlotAssignment>>,
    /// Slots that another had though the replica was up to date.
    pub(super) denied_slots: Vec<Slot>,
}

impl PendingPlan {
    fn new(job: PlaceJob, since: Instant) -> Self {
        Self {
            job,
            claimed: Vec::new(),
            raised: Vec::new(),
            tries: 0,
            planned_at: 0,
            now: Timestamp(0),
            asked: false,
            denied: Vec::new(),
            since,
            left_out: Vec::new(),
            explanation: None,
            slots: Vec::new(),
            denied_slots: Vec::new(),
        }
    }

    /// Answers the caller that it is granted.
    fn granted(self, grant: Grant) {
        let Self { job, left_out, explanation, .. } = self;
        (job.reply)(PlaceAnswer::Granted(Granted { grant, left_out, explanation }));
    }
}

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
    stopping: bool,
}

/// Classes whose stored form is kept.
const SPECS: usize = 64;

/// What planning came to.
enum PlanOutcome {
    Plan(Plan, Vec<InstanceId>),
    NoRoom(Vec<Refusal>),
    Invalid(InvalidRequest),
}

impl Planner {
    pub(super) fn new(
        replica: FleetReplica,
        ledger: Ledger,
        inbox: Sender<Message>,
        clock: Clock,
        catalog_sender: CatalogSender,
        metrics: Option<Arc<Metrics>>,
    ) -> Self {
        Self {
            replica,
            ledger,
            inbox,
            clock,
            catalog_sender,
            metrics,
            specs: Vec::new(),
            outgoing: Vec::new(),
            multi_writer: false,
            lost: 0,
            follows: 0,
            heard_until: 0,
            sealed: None,
            seals: 0,
            stopping: false,
        }
    }

    pub(super) fn run(mut self, outbox: &Receiver<Message>) {
        while !self.stopping {
            let Ok(first) = outbox.recv() else { return };
            self.handle(first);
            for message in outbox.try_iter().take(DRAIN) {
                self.handle(message);
                // The ledger starts on the first plans while the rest are still being made.
                if self.outgoing.len() >= CHUNK {
                    self.ledger.submit(self.outgoing.drain(..));
                }
            }
            self.ledger.submit(self.outgoing.drain(..));
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Place(job, since) => {
                self.timed("queued", since);
                self.plan(PendingPlan::new(job, tick()));
            }
            Message::Answered(pending, answer) => self.answered(*pending, answer),
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
            Message::Follow => self.follow(),
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
    fn plan(&mut self, mut pending: PendingPlan) {
        pending.tries += 1;
        pending.planned_at = self.replica.cursor;
        let chosen = self.choose(&mut pending);
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
                if matches!(invalid, InvalidRequest::AlreadyPlaced { .. }) && !pending.asked {
                    self.ask(pending);
                    return;
                }
                (pending.job.reply)(PlaceAnswer::Invalid(invalid));
            }
            PlanOutcome::NoRoom(refusals) => self.refuse(pending, refusals),
        }
    }

    fn choose(&mut self, pending: &mut PendingPlan) -> PlanOutcome {
        let now = (self.clock)();
        pending.now = now;
        let mut instances: Vec<Arc<InstanceRequest>> = pending.job.request.instances.clone();
        self.assign_slots(pending, &mut instances);
        let request = &pending.job.request;
        for instance in instances.iter_mut().filter(|_| !pending.denied.is_empty()) {
            Arc::make_mut(instance).excluded_nodes.extend(pending.denied.iter().cloned());
        }
        pending.explanation = None;
        if let Some(first) = instances.first().filter(|_| request.explain) {
            // What cannot be explained cannot be placed either, which is said below.
            pending.explanation = self.replica.engine().explain(first, now).ok().map(Box::new);
        }
        if let [one] = instances.as_slice() {
            if request.quiet && matches!(self.replica.engine().try_place(one, now), Ok(None)) {
                return PlanOutcome::NoRoom(Vec::new());
            }
            return match self.replica.engine().place(one, now) {
                Ok(placement) => self.planned(pending, &instances, &[placement]),
                Err(PlaceError::Invalid(invalid)) => PlanOutcome::Invalid(invalid),
                Err(PlaceError::Refused(refusal)) => PlanOutcome::NoRoom(vec![*refusal]),
            };
        }
        let requests = instances.iter().map(|instance| (**instance).clone()).collect();
        let batch = Batch::new(requests).with_mode(request.mode);
        match self.replica.engine().place_batch(&batch, now) {
            Ok(outcome) if outcome.placements.is_empty() => PlanOutcome::NoRoom(
                outcome.refused.into_iter().map(|(_, refusal)| refusal).collect(),
            ),
            Ok(outcome) => {
                pending.left_out =
                    outcome.refused.into_iter().map(|(_, refusal)| refusal).collect();
                self.planned(pending, &instances, &outcome.placements)
            }
            Err(PlaceError::Invalid(invalid)) => PlanOutcome::Invalid(invalid),
            Err(PlaceError::Refused(refusal)) => PlanOutcome::NoRoom(vec![*refusal]),
        }
    }

    /// Claims placements in memory and makes the plan of them.
    fn planned(
        &mut self,
        pending: &PendingPlan,
        instances: &[Arc<InstanceRequest>],
        placements: &[Placement],
    ) -> PlanOutcome {
        let request = &pending.job.request;
        let mut claims = Vec::with_capacity(placements.len());
        for placement in placements {
            let place = instances.iter().position(|instance| instance.id == placement.instance);
            let Some((place, instance)) = place.map(|place| (place, &instances[place])) else {
                continue;
            };
            self.replica.plan(instance, &placement.node);
            let mut claim = self.claim(instance, placement.node.clone());
            claim.score = placement.score;
            claim.pools.clone_from(&request.pools);
            claim.release_id.clone_from(&request.release);
            let env = instance.env.as_deref().filter(|_| instance.needs_secrets);
            claim.secrets_version = env.and_then(|env| self.replica.secrets_of(env));
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
    fn ask(&mut self, mut pending: PendingPlan) {
        pending.asked = true;
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
        plan.basis = self.basis(pending.now);
        plan
    }

    fn basis(&mut self, now: Timestamp) -> Basis {
        let policy = self.replica.engine().policy().hash().to_string();
        Basis { policy, fleet_version: self.replica.cursor, now: now.0 }
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
            Err(error) => (pending.job.reply)(PlaceAnswer::Unknown(error)),
            Ok(Verdict::Conflict(conflict)) => {
                // A plan that only asks for an earlier answer names no node.
                if let Some(metrics) = self.metrics.as_ref().filter(|_| !pending.asked) {
                    metrics.conflict(conflict.guard.code());
                }
                pending.since = tick();
                let requested_slot = !pending.job.request.slots.is_empty();
                let lost_slot = matches!(conflict.guard, Guard::SlotTaken { .. });
                // Another server filled the slot: there is nothing left to do.
                if pending.tries >= TRIES || (requested_slot && lost_slot) {
                    (pending.job.reply)(PlaceAnswer::Contended(conflict));
                    return;
                }
                // The faster one has committed, so its events are in the log. A node that denies a
                // plan based on the whole log is not planned on again.
                self.follow_now();
                if self.replica.cursor == pending.planned_at {
                    match &conflict.guard {
                        Guard::SlotTaken { slot, .. } => {
                            pending.denied_slots.push(slot.in_workload())
                        }
                        _ => pending.denied.push(conflict.node.clone()),
                    }
                }
                self.plan(pending);
            }
        }
    }

    /// The ledger refused for a reason that another node would not change: recorded like any other.
    fn refused(&mut self, pending: PendingPlan, by: RefusalReason) {
        let is_a_decision =
            matches!(by, RefusalReason::Quota { .. } | RefusalReason::PoolExhausted { .. });
        if !is_a_decision || pending.job.request.quiet {
            (pending.job.reply)(PlaceAnswer::Refused(by));
            return;
        }
        let code = by.code();
        let reason = serde_json::json!({ "reason": describe_limit(&by) }).to_string();
        let detail = Some(reason.into_boxed_str());
        let outcome = DecisionOutcome::Refused { code: code.to_owned(), detail };
        let op = self.record(&pending, code, outcome);
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| {
            let answer = answer.map_or_else(PlaceAnswer::Unknown, |_| PlaceAnswer::Refused(by));
            (pending.job.reply)(answer);
        });
        self.outgoing.push(Job { op, reply });
    }

    /// The record of a decision that placed nothing.
    fn record(&mut self, pending: &PendingPlan, code: &str, outcome: DecisionOutcome) -> Op {
        let request = &pending.job.request;
        let instances = request.instances.clone();
        let asked = instances.iter().map(|instance| (instance.id, self.spec(instance))).collect();
        let (id, tenant) = (Text::clone(&request.request_id), Text::clone(&request.tenant));
        let basis = self.basis(pending.now);
        let record = DecisionRecord::new(id, tenant, basis, asked, outcome);
        named(request, "refuse", code, Op::Record(vec![record]))
    }

    /// Has the ledger say whether it would grant a plan, by the same code that would.
    fn rehearse(&mut self, pending: PendingPlan, plan: Plan) {
        let reply = Box::new(move |answer: Result<Answer, LedgerError>| match answer {
            Ok(Answer::Plan(Verdict::Granted(grant)) | Answer::Repeated(grant)) => {
                pending.granted(grant);
            }
            Ok(Answer::Plan(Verdict::Refused(by))) => (pending.job.reply)(PlaceAnswer::Refused(by)),
            Ok(Answer::Plan(Verdict::Conflict(conflict))) => {
                (pending.job.reply)(PlaceAnswer::Contended(conflict));
            }
            Ok(other) => {
                let error = LedgerError::Corrupt(format!("{other:?}"));
                (pending.job.reply)(PlaceAnswer::Unknown(error));
            }
            Err(error) => (pending.job.reply)(PlaceAnswer::Unknown(error)),
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

    /// No room: records the refusal, counts the demand, and answers the caller.
    fn refuse(&mut self, mut pending: PendingPlan, refusals: Vec<Refusal>) {
        // What waits is tried again when something makes room: no need to look for it now, and the
        // planner would stand still for each of many.
        if pending.job.request.quiet {
            (pending.job.reply)(PlaceAnswer::NoRoom(refusals));
            return;
        }
        // Others may have made room since: look once before saying no.
        if pending.tries == 1 && self.follow_now() {
            self.plan(pending);
            return;
        }
        // Expired leases hold room that is not used.
        if pending.tries <= 2 && self.ledger.reap().is_ok_and(|reaped| !reaped.is_empty()) {
            pending.tries = pending.tries.max(2);
            self.follow_now();
            self.plan(pending);
            return;
        }
        // A dry run leaves no trace, and what was recorded once need not be again.
        if pending.job.request.dry_run {
            (pending.job.reply)(PlaceAnswer::NoRoom(refusals));
            return;
        }
        // What was granted once is never refused later, though it may be gone and its room taken.
        if !pending.asked {
            self.ask(pending);
            return;
        }
        let code = refusals.first().map_or("no_nodes_active", |refusal| refusal.code.as_ref());
        let code = code.to_owned();
        let detail = serde_json::to_string(&refusals).ok().map(String::into_boxed_str);
        let outcome = DecisionOutcome::Refused { code: code.clone(), detail };
        let mut ops = vec![self.record(&pending, &code, outcome)];
        let instances = pending.job.request.instances.clone();
        for instance in &instances {
            ops.push(Op::Demand(UnmetDemand {
                tenant: instance.tenant.clone(),
                code: code.clone(),
                spec: self.spec(instance).as_str().to_owned(),
                times: 1,
                first_at: 0,
                last_at: 0,
            }));
        }
        let mut reply = Some(pending.job.reply);
        let mut refusals = Some(refusals);
        let last = ops.len() - 1;
        for (number, op) in ops.into_iter().enumerate() {
            // The caller is answered when the last of it is durable.
            let done = if number == last { reply.take().zip(refusals.take()) } else { None };
            let reply = Box::new(move |answer: Result<Answer, LedgerError>| {
                if let Some((reply, refusals)) = done {
                    reply(
                        answer.map_or_else(PlaceAnswer::Unknown, |_| PlaceAnswer::NoRoom(refusals)),
                    );
                }
            });
            self.outgoing.push(Job { op, reply });
        }
    }
}

/// An operation under the name of its caller.
fn named(request: &PlaceRequest, action: &str, subject: &str, op: Op) -> Op {
    let Some(by) = &request.by else { return op };
    let (actor, origin) = (Text::clone(&by.name), Text::clone(&by.origin));
    let request_id = Some(Text::clone(&request.request_id));
    let (action, subject) = (Text::from(action), Text::from(subject));
    Op::Audited(Box::new(Audited { actor, origin, action, subject, request_id, op }))
}

/// Nodes whose rules a plan raises, once for each claim that does.
pub(super) fn raised_by(claims: &[PlannedClaim]) -> Vec<NodeId> {
    let raising = claims.iter().filter(|claim| claim.has_hard_rules());
    let nodes = raising.flat_map(|claim| {
        std::iter::once(&claim.node).chain(claim.neighbours.iter().map(|(node, _)| node))
    });
    nodes.cloned().collect()
}
