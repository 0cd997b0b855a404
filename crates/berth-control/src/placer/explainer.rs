//! The explainer: a thread that decides what takes long, so that the planner need not.
//!
//! The planner finds a node, or finds that there is none, in microseconds. To say why there is none,
//! to search for a way to place a batch, or to show every term of a choice takes a thousand times as
//! long. That is done here, on a copy of the fleet that follows the planner's: the planner sends every
//! change, its own plans in flight included, in the order in which it made them.
//!
//! A decision is made on the copy as it is when its turn comes, which is a little later than when the
//! planner found no room. So a refusal is true of the fleet that it is recorded with. If there is room
//! by then, the choice goes back to the planner, which checks and claims it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError};

use berth_engine::{
    Batch, Engine, Explanation, Fleet, FleetChange, InstanceRequest, PlaceError, Placement, Policy,
    Refusal, Timestamp,
};
use berth_ledger::{Basis, Ledger, Plan, PlannedClaim, RefusalReason};

use super::limit_fixes::limit_fixes;
use super::moving::RefusedMove;
use super::pending_plan::{ExplainerChoice, PendingPlan};
use super::recording::{refuse, refuse_by_limit};
use super::turns::{Lane, QUERY_COST, Turns, cost_of};
use super::{Clock, Message, PlacerOptions, tick};
use crate::backlog::{Backlog, BacklogReceiver};
use crate::fleet_replica::FleetReplica;
use crate::metrics::Metrics;
use crate::supervision::{ThreadMonitor, ThreadWork};

/// Requests that are answered by one explanation at most.
const SHARED: usize = 256;

/// What the planner sends.
pub(super) enum ToExplainer {
    /// What changed in the fleet since the last one.
    Changes(FleetUpdate),
    /// Another fleet: it was loaded again; and the planner's former one, to be freed.
    Fleet(Box<Fleet>, FleetUpdate, Box<FleetReplica>),
    /// Something to do when its turn comes.
    Task(Lane, Task),
}

/// What changed, and which fleet it is then.
pub(super) struct FleetUpdate {
    pub(super) changes: Vec<FleetChange>,
    /// The policy, if it is another.
    pub(super) policy: Option<Policy>,
    /// The last event that is in it.
    pub(super) cursor: i64,
    /// Instances in it that the planner claimed and the ledger has not granted yet.
    pub(super) in_flight: usize,
}

/// Something that takes long.
pub(super) enum Task {
    /// A request to decide.
    Decide(Box<OpenDecision>),
    /// A move to explain that found no place.
    Move(Box<RefusedMove>),
    /// A request that the ledger refused for a limit, to find what would help.
    Limit(Box<LimitedRequest>),
    /// A question by another part of the server.
    Query(Box<dyn FnOnce(&mut Engine) + Send>),
}

/// A request that a quota or a pool refused.
pub(super) struct LimitedRequest {
    pub(super) pending: PendingPlan,
    /// What would be granted without the limit.
    pub(super) plan: Plan,
    pub(super) by: RefusalReason,
    pub(super) basis: Basis,
}

impl LimitedRequest {
    /// Whether the same would help another request, which a limit refused for the same numbers.
    fn is_like(&self, other: &Self) -> bool {
        let parts = |limited: &Self| {
            let request = &limited.pending.job.request;
            (limited.plan.claims.len(), request.instances.len(), request.pools.clone())
        };
        let is_same = |(one, other): (&PlannedClaim, &PlannedClaim)| {
            one.node == other.node
                && one.pools == other.pools
                && one.request.same_class(&other.request)
        };
        self.by == other.by
            && parts(self) == parts(other)
            && self.plan.claims.iter().zip(&other.plan.claims).all(is_same)
    }
}

/// A request that the planner did not decide.
pub(super) struct OpenDecision {
    pub(super) pending: PendingPlan,
    /// The instances as they are to be placed: with the capacity of their slots, without nodes that
    /// denied them.
    pub(super) instances: Vec<Arc<InstanceRequest>>,
}

impl OpenDecision {
    /// Whether another request has the same answer on the same fleet, but for the ids of its instances.
    fn is_like(&self, other: &Self) -> bool {
        let (mine, others) = (&self.instances, &other.instances);
        let request = |open: &Self| {
            let request = &open.pending.job.request;
            (request.mode, request.explain)
        };
        // Rules and hints may tell instances of one request apart by name or id.
        let is_plain = |instance: &Arc<InstanceRequest>| {
            instance.locality.is_empty()
                && (instance.affinity.is_empty() || instance.name.is_none())
        };
        mine.len() == others.len()
            && request(self) == request(other)
            && (mine.len() == 1 || mine.iter().chain(others).all(is_plain))
            && mine.iter().zip(others).all(|(mine, other)| mine.same_class(other))
    }
}

/// What a decision came to.
enum Outcome {
    Placed(Vec<Placement>, Vec<Refusal>, Option<Box<Explanation>>),
    NoRoom(Vec<Refusal>),
    /// The planner knows better.
    Invalid,
}

/// The thread's state.
pub(super) struct Explainer {
    engine: Engine,
    cursor: i64,
    in_flight: usize,
    ledger: Ledger,
    inbox: Sender<Message>,
    clock: Clock,
    metrics: Option<Arc<Metrics>>,
    turns: Turns<Task>,
    /// Changes of the fleet that wait here.
    changes: BacklogReceiver,
    monitor: ThreadMonitor,
    /// Whether a panic may have left the fleet half changed: nothing is decided on it.
    is_damaged: bool,
}

impl Explainer {
    pub(super) fn new(
        engine: Engine,
        cursor: i64,
        ledger: Ledger,
        inbox: Sender<Message>,
        changes: Arc<Backlog>,
        options: &PlacerOptions,
    ) -> Self {
        Self {
            engine,
            cursor,
            in_flight: 0,
            ledger,
            inbox,
            clock: Arc::clone(&options.clock),
            metrics: options.metrics.clone(),
            turns: Turns::new(),
            changes: BacklogReceiver(changes),
            monitor: options.monitor("explainer", ThreadWork::Computes),
            is_damaged: false,
        }
    }

    /// Works until the planner is gone.
    pub(super) fn run(mut self, outbox: &Receiver<ToExplainer>) {
        while self.work(outbox).is_ok() {}
        self.monitor.stop();
    }

    /// Takes what was sent, and does what is first in line.
    fn work(&mut self, outbox: &Receiver<ToExplainer>) -> Result<(), RecvError> {
        if self.turns.is_empty() || self.is_damaged {
            self.monitor.idle();
            let message = outbox.recv()?;
            self.monitor.begin();
            self.guarded(|explainer| explainer.receive(message));
        } else {
            self.monitor.begin();
        }
        loop {
            match outbox.try_recv() {
                Ok(message) => self.guarded(|explainer| explainer.receive(message)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(RecvError),
            }
        }
        if !self.is_damaged
            && let Some(task) = self.turns.pop()
        {
            self.guarded(|explainer| explainer.serve(task));
        }
        Ok(())
    }

    /// Does one thing. If it panics, its caller gets no answer, and the others wait until the whole fleet
    /// comes again.
    fn guarded(&mut self, act: impl FnOnce(&mut Self)) {
        let monitor = self.monitor.clone();
        if monitor.guard(|| act(self)).is_err() {
            self.is_damaged = true;
            // A planner that stopped needs no explainer.
            let _ = self.inbox.send(Message::ExplainerPanicked);
        }
    }

    fn receive(&mut self, message: ToExplainer) {
        match message {
            ToExplainer::Changes(mut update) => {
                self.changes.0.remove(update.changes.len());
                if self.is_damaged {
                    // The fleet that comes has them.
                    update.changes.clear();
                }
                self.follow(update);
            }
            ToExplainer::Fleet(fleet, update, replaced) => {
                self.changes.0.remove(update.changes.len());
                *self.engine.fleet_mut() = *fleet;
                self.is_damaged = false;
                self.follow(update);
                drop(replaced);
            }
            ToExplainer::Task(lane, task) => {
                let fleet = self.engine.fleet();
                let cost = match &task {
                    Task::Decide(open) => cost_of(open.instances.iter().map(|it| &**it), fleet),
                    // It waits for the ledger several times.
                    Task::Limit(limited) => QUERY_COST.max(limited.plan.claims.len()),
                    Task::Move(refused) => cost_of([&refused.asked], fleet),
                    Task::Query(_) => QUERY_COST,
                };
                self.turns.push(lane, cost, task);
            }
        }
    }

    fn follow(&mut self, update: FleetUpdate) {
        for change in &update.changes {
            self.engine.fleet_mut().apply_change(change);
        }
        if let Some(policy) = update.policy {
            self.engine.set_policy(policy);
        }
        (self.cursor, self.in_flight) = (update.cursor, update.in_flight);
    }

    fn serve(&mut self, task: Task) {
        let began = tick();
        match task {
            Task::Query(query) => query(&mut self.engine),
            Task::Move(refused) => self.explain_move(*refused),
            // Nothing is claimed for a request here, and its caller hears of nothing any more.
            Task::Limit(limited) if limited.pending.presence.is_gone() => self.count_abandoned(),
            Task::Decide(open) if open.pending.presence.is_gone() => self.count_abandoned(),
            Task::Limit(limited) => self.explain_limit(*limited),
            Task::Decide(open) => self.decide(*open),
        }
        if let Some(metrics) = &self.metrics {
            metrics.stage("explained", began.elapsed());
        }
    }

    fn count_abandoned(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.abandoned();
        }
    }

    fn decide(&mut self, open: OpenDecision) {
        let alike = self.take_alike(&open);
        let now = (self.clock)();
        let outcome = self.outcome(&open, now);
        let basis = self.basis(now);
        match outcome {
            Outcome::Placed(placements, left_out, explanation) => {
                let choice = ExplainerChoice { placements, left_out, explanation, basis };
                let message = Message::Chosen(Box::new(open.pending), Box::new(choice));
                // A planner that stopped has dropped the callers that waited.
                let _ = self.inbox.send(message);
                // They cannot all have the same place.
                alike.into_iter().for_each(|other| self.send_back(other.pending));
            }
            Outcome::Invalid => {
                alike.into_iter().chain([open]).for_each(|other| self.send_back(other.pending));
            }
            Outcome::NoRoom(refusals) => {
                let mut jobs = Vec::new();
                for other in alike {
                    let refusals = with_ids_of(&refusals, &open.instances, &other.instances);
                    jobs.extend(self.refuse(other.pending, refusals, &basis));
                }
                jobs.extend(self.refuse(open.pending, refusals, &basis));
                self.ledger.submit(jobs);
            }
        }
    }

    fn refuse(
        &self,
        pending: PendingPlan,
        refusals: Vec<Refusal>,
        basis: &Basis,
    ) -> Vec<berth_ledger::Job> {
        // What was granted once is never refused later: the planner asks the ledger first.
        if pending.may_have_an_answer() {
            self.send_back(pending);
            return Vec::new();
        }
        refuse(pending, refusals, basis.clone())
    }

    fn send_back(&self, pending: PendingPlan) {
        // A planner that stopped has dropped the callers that waited.
        let _ = self.inbox.send(Message::PlanAgain(Box::new(pending)));
    }

    /// Further requests in line that have the same answer.
    fn take_alike(&mut self, open: &OpenDecision) -> Vec<OpenDecision> {
        if self.engine.fleet().has_rules_on_instances() {
            return Vec::new();
        }
        let lane = Lane::of(&open.pending.job.request);
        let is_alike = |task: &Task| match task {
            Task::Decide(other) => other.pending.looked && other.is_like(open),
            Task::Move(_) | Task::Limit(_) | Task::Query(_) => false,
        };
        let alike = self.turns.take_alike(&lane, SHARED, is_alike);
        let alike = alike.into_iter().filter_map(|task| match task {
            Task::Decide(other) => Some(*other),
            Task::Move(_) | Task::Limit(_) | Task::Query(_) => None,
        });
        alike.collect()
    }

    /// The same for requests that a limit refused.
    fn take_alike_limits(&mut self, limited: &LimitedRequest) -> Vec<LimitedRequest> {
        let lane = Lane::of(&limited.pending.job.request);
        let is_alike = |task: &Task| match task {
            Task::Limit(other) => other.is_like(limited),
            Task::Move(_) | Task::Decide(_) | Task::Query(_) => false,
        };
        let alike = self.turns.take_alike(&lane, SHARED, is_alike);
        let alike = alike.into_iter().filter_map(|task| match task {
            Task::Limit(other) => Some(*other),
            Task::Move(_) | Task::Decide(_) | Task::Query(_) => None,
        });
        alike.collect()
    }

    fn outcome(&mut self, open: &OpenDecision, now: Timestamp) -> Outcome {
        let request = &open.pending.job.request;
        let explanation = match (open.instances.first(), request.explain) {
            // What cannot be explained cannot be placed either, which is said below.
            (Some(first), Some(nodes)) => {
                self.engine.explain_first(first, now, nodes).ok().map(Box::new)
            }
            _ => None,
        };
        if let [one] = open.instances.as_slice() {
            return match self.engine.place(one, now) {
                Ok(placement) => Outcome::Placed(vec![placement], Vec::new(), explanation),
                Err(PlaceError::Refused(refusal)) => Outcome::NoRoom(vec![*refusal]),
                Err(PlaceError::Invalid(_)) => Outcome::Invalid,
            };
        }
        let requests = open.instances.iter().map(|instance| (**instance).clone()).collect();
        let batch = Batch::new(requests).with_mode(request.mode);
        match self.engine.place_batch(&batch, now) {
            Ok(outcome) => {
                let refusals = outcome.refused.into_iter().map(|(_, refusal)| refusal).collect();
                if outcome.placements.is_empty() {
                    return Outcome::NoRoom(refusals);
                }
                Outcome::Placed(outcome.placements, refusals, explanation)
            }
            Err(PlaceError::Refused(refusal)) => Outcome::NoRoom(vec![*refusal]),
            Err(PlaceError::Invalid(_)) => Outcome::Invalid,
        }
    }

    fn basis(&self, now: Timestamp) -> Basis {
        Basis {
            policy: self.engine.policy().hash().to_string(),
            fleet_version: self.cursor,
            now: now.0,
            in_flight: Some(u32::try_from(self.in_flight).unwrap_or(u32::MAX)),
        }
    }

    /// Finds what would help a request that a quota or a pool refused, and answers it and all like it.
    fn explain_limit(&mut self, limited: LimitedRequest) {
        let alike = self.take_alike_limits(&limited);
        let request = &limited.pending.job.request;
        let (asked, pools) = (request.instances.len(), &request.pools);
        let plan = limited.plan.clone();
        let found = limit_fixes(&self.ledger, &self.engine, plan, &limited.by, asked, pools);
        if let Some(error) = &found.failed {
            tracing::warn!(%error, "failed to search for fixes of a refusal by a limit; answering without them");
        }
        if let Some(metrics) = &self.metrics {
            metrics.limit_trials(found.trials, found.failed.is_some());
        }
        for LimitedRequest { pending, by, basis, .. } in alike.into_iter().chain([limited]) {
            self.ledger.submit(refuse_by_limit(pending, by, found.fixes.clone(), basis));
        }
    }

    /// Explains why an instance can go nowhere else: as if it were not where it is.
    fn explain_move(&mut self, refused: RefusedMove) {
        let now = (self.clock)();
        let id = refused.asked.id;
        match self.engine.as_if_released(id, |engine| engine.place(&refused.asked, now)) {
            Err(PlaceError::Refused(refusal)) => refused.moving.answer_no_room(refusal),
            // A planner that stopped has dropped the callers that waited.
            Ok(_) | Err(PlaceError::Invalid(_)) => {
                let _ = self.inbox.send(Message::Move(Box::new(refused.moving)));
            }
        }
    }
}

/// Refusals of one request, as those of another that asks for the same under other ids and names.
fn with_ids_of(
    refusals: &[Refusal],
    of: &[Arc<InstanceRequest>],
    other: &[Arc<InstanceRequest>],
) -> Vec<Refusal> {
    let mut refusals = refusals.to_vec();
    for refusal in &mut refusals {
        let place = of.iter().position(|instance| instance.id == refusal.instance);
        if let Some(instance) = place.and_then(|place| other.get(place)) {
            refusal.instance = instance.id;
            refusal.name.clone_from(&instance.name);
        }
    }
    refusals
}
