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
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use berth_engine::{
    Batch, Engine, Explanation, Fleet, FleetChange, InstanceRequest, PlaceError, Placement, Policy,
    Refusal, Timestamp,
};
use berth_ledger::{Basis, Ledger};

use super::moving::RefusedMove;
use super::pending_plan::{Decided, PendingPlan};
use super::recording::refuse;
use super::turns::{Lane, Turns};
use super::{Clock, Message, tick};
use crate::metrics::Metrics;

/// Requests that are answered by one explanation at most.
const SHARED: usize = 256;

/// Segments of the log read at once, to see whether others wrote.
const PAGE: usize = 1000;

/// What the planner sends.
pub(super) enum ToExplainer {
    /// What changed in the fleet since the last one.
    Changes(FleetUpdate),
    /// Another fleet: it was loaded again.
    Fleet(Box<Fleet>, FleetUpdate),
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
    /// A question by another part of the server.
    Query(Box<dyn FnOnce(&mut Engine) + Send>),
}

/// A request that the planner did not decide.
pub(super) struct OpenDecision {
    pub(super) pending: PendingPlan,
    /// The instances as they are to be placed: with the capacity of their slots, without nodes that
    /// denied them.
    pub(super) instances: Vec<Arc<InstanceRequest>>,
    /// Whether the planner found room for it, and only an explanation is missing.
    pub(super) has_room: bool,
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
    /// The last event that was read to see whether others wrote, and the last that they wrote.
    read_to: i64,
    others_at: i64,
}

impl Explainer {
    pub(super) fn new(
        engine: Engine,
        cursor: i64,
        ledger: Ledger,
        inbox: Sender<Message>,
        clock: Clock,
        metrics: Option<Arc<Metrics>>,
    ) -> Self {
        // Tenants' jobs are bounded by the planner's lines and by who waits for an answer.
        let turns = Turns::new(usize::MAX);
        Self {
            engine,
            cursor,
            in_flight: 0,
            ledger,
            inbox,
            clock,
            metrics,
            turns,
            read_to: cursor,
            others_at: 0,
        }
    }

    /// Works until the planner is gone.
    pub(super) fn run(mut self, outbox: &Receiver<ToExplainer>) {
        loop {
            if self.turns.is_empty() {
                let Ok(message) = outbox.recv() else { return };
                self.receive(message);
            }
            loop {
                match outbox.try_recv() {
                    Ok(message) => self.receive(message),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if let Some(task) = self.turns.pop() {
                self.serve(task);
            }
        }
    }

    fn receive(&mut self, message: ToExplainer) {
        match message {
            ToExplainer::Changes(update) => self.follow(update),
            ToExplainer::Fleet(fleet, update) => {
                *self.engine.fleet_mut() = *fleet;
                self.follow(update);
            }
            ToExplainer::Task(lane, task) => {
                let cost = match &task {
                    Task::Decide(open) => open.instances.len(),
                    Task::Move(_) | Task::Query(_) => 1,
                };
                // Its lines have no limit.
                let _ = self.turns.push(lane, cost, task);
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
            Task::Decide(open) => self.decide(*open),
        }
        if let Some(metrics) = &self.metrics {
            metrics.stage("explained", began.elapsed());
        }
    }

    fn decide(&mut self, mut open: OpenDecision) {
        // What waits is tried again when something makes room: no need to look for it now.
        let looks = !open.pending.looked && !open.has_room && !open.pending.job.request.quiet;
        if looks && self.look() {
            // The planner applies what others wrote, and plans again.
            open.pending.looked = true;
            open.pending.follow_to = self.others_at;
            self.send_back(open.pending);
            return;
        }
        let alike = self.take_alike(&open);
        let now = (self.clock)();
        let outcome = self.outcome(&open, now);
        let basis = self.basis(now);
        match outcome {
            Outcome::Placed(placements, left_out, explanation) => {
                let decided = Decided { placements, left_out, explanation, basis };
                let message = Message::Decided(Box::new(open.pending), Box::new(decided));
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
            Task::Move(_) | Task::Query(_) => false,
        };
        let alike = self.turns.take_alike(&lane, SHARED, is_alike);
        let alike = alike.into_iter().filter_map(|task| match task {
            Task::Decide(other) => Some(*other),
            Task::Move(_) | Task::Query(_) => None,
        });
        alike.collect()
    }

    fn outcome(&mut self, open: &OpenDecision, now: Timestamp) -> Outcome {
        let request = &open.pending.job.request;
        let explanation = match open.instances.first().filter(|_| request.explain) {
            // What cannot be explained cannot be placed either, which is said below.
            Some(first) => self.engine.explain(first, now).ok().map(Box::new),
            None => None,
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

    /// Looks whether room may have been made that the planner does not know of: by other servers, or
    /// by leases that ran out. It is done once for everything that waits.
    fn look(&mut self) -> bool {
        let reaped = self.ledger.reap().is_ok_and(|reaped| !reaped.is_empty());
        let has_news = self.others_wrote() || reaped;
        if !has_news {
            for task in self.turns.iter_mut() {
                if let Task::Decide(open) = task {
                    open.pending.looked = true;
                }
            }
        }
        has_news
    }

    /// Whether other servers wrote what is not in the fleet yet.
    fn others_wrote(&mut self) -> bool {
        loop {
            let after = self.read_to.max(self.cursor);
            let Ok(segments) = self.ledger.segments_after(after, PAGE) else { break };
            let Some(last) = segments.last() else { break };
            self.read_to = last.first + last.count - 1;
            let is_own = |origin| self.ledger.origins().contains(origin);
            if let Some(of_others) = segments.iter().rfind(|it| !is_own(&it.origin)) {
                self.others_at = of_others.first + of_others.count - 1;
            }
        }
        self.others_at > self.cursor
    }

    /// Explains why an instance can go nowhere else: as if it were not where it is.
    fn explain_move(&mut self, refused: RefusedMove) {
        let now = (self.clock)();
        let id = refused.asked.id;
        let from = self.engine.fleet_mut().release(id);
        let outcome = self.engine.place(&refused.asked, now);
        if let Some(from) = &from {
            // It was there a moment ago, so it can be there again.
            let _ = self.engine.fleet_mut().claim(refused.moving.instance(), from);
        }
        match outcome {
            Err(PlaceError::Refused(refusal)) => refused.moving.answer_no_room(refusal),
            // A planner that stopped has dropped the callers that waited.
            Ok(_) | Err(PlaceError::Invalid(_)) => {
                let _ = self.inbox.send(Message::Move(Box::new(refused.moving)));
            }
        }
    }
}

/// Refusals of one request, as those of another that asks for the same.
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
        }
    }
    refusals
}
