//! The claim path: one planner thread owns the fleet in memory and plans requests in the order in
//! which they come, on the fleet as of the ledger's log plus its own plans in flight. The ledger
//! grants or finds a conflict; a conflict is planned again, on fresh knowledge, a bounded number of
//! times.
//!
//! The planner never waits for the database: plans go out in groups, answers come in as messages. In
//! front of it tenants take turns (`turns`). What takes long, such as saying why there is no room, is
//! done on another thread, on a copy of the fleet (`explainer`).

mod explainer;
mod follow;
mod moving;
mod offload;
mod pending_plan;
mod planner;
mod recording;
mod slot_assignment;
mod turns;

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_engine::{
    BatchMode, Engine, Explanation, InstanceRequest, InvalidRequest, Policy, Refusal, Timestamp,
};
use berth_ledger::{
    Answer, Backend, ClaimKey, CommitRecord, Conflict, Grant, Ledger, LedgerError, Options,
    RefusalReason, Slot, Text, Verdict,
};

use crate::catalog::CatalogUpdate;
use crate::error::StartError;
use crate::fleet_replica::FleetReplica;
use crate::metrics::Metrics;
use explainer::Explainer;
use pending_plan::{Decided, PendingPlan};
use planner::Planner;

pub use moving::{MoveAnswer, MoveRequest};

/// Where the planner gets the time from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Instances to be placed together.
#[derive(Clone, Debug, Default)]
pub struct PlaceRequest {
    /// A retry under the same id gets the first answer.
    pub request_id: Text,
    /// The tenant.
    pub tenant: Text,
    /// The instances.
    pub instances: Vec<Arc<InstanceRequest>>,
    /// How many must be placed.
    pub mode: BatchMode,
    /// How long the claims may stay unbound.
    pub lease_s: u32,
    /// Pools that each instance takes a value from.
    pub pools: Vec<Text>,
    /// Who asks, for the audit log; absent: the server itself.
    pub by: Option<Actor>,
    /// Whether to say why, when it is granted. A refusal always says why.
    pub explain: bool,
    /// Decide, and claim nothing.
    pub dry_run: bool,
    /// If there is no room, say only that: it was explained and recorded before.
    pub quiet: bool,
    /// Slots that the instances must have, one for each; empty: an instance of a workload gets the
    /// lowest that is free.
    pub slots: Vec<RequestedSlot>,
    /// The release that the instances will run.
    pub release: Option<Text>,
}

/// A slot that an instance must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedSlot {
    /// Which.
    pub slot: Slot,
    /// The claim that has it now and hands it over.
    pub takes_over: Option<ClaimKey>,
}

/// Who asks, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Who.
    pub name: Text,
    /// From where.
    pub origin: Text,
}

/// A request that was granted, or in a dry run would be.
#[derive(Debug)]
pub struct Granted {
    /// The claims; in a dry run without fences and leases.
    pub grant: Grant,
    /// Why others of the batch have no place, one for each class.
    pub left_out: Vec<Refusal>,
    /// Why the first instance is where it is, if asked for.
    pub explanation: Option<Box<Explanation>>,
}

/// What became of a request.
#[derive(Debug)]
pub enum PlaceAnswer {
    /// Claimed, or in a dry run found a place.
    Granted(Granted),
    /// No node can take it, or too few instances can be placed; the refusals say why.
    NoRoom(Vec<Refusal>),
    /// The ledger refused it for a reason that another node would not change.
    Refused(RefusalReason),
    /// Others were faster every time.
    Contended(Box<Conflict>),
    /// The request means nothing.
    Invalid(InvalidRequest),
    /// Too many requests of its tenant wait for the planner already.
    Busy,
    /// The ledger does not know: retry with the same request id.
    Unknown(LedgerError),
}

/// A request and who waits for its answer.
pub struct PlaceJob {
    /// What to place.
    pub request: PlaceRequest,
    /// Called when the answer is durable. It must be quick.
    pub reply: Box<dyn FnOnce(PlaceAnswer) + Send>,
}

/// How a placer works.
#[derive(Clone)]
pub struct PlacerOptions {
    /// How the ledger is used.
    pub ledger: Options,
    /// The policy until the ledger names one.
    pub policy: Policy,
    /// How often other servers' events are looked for.
    pub follow_every: Duration,
    /// Where the planner gets the time from.
    pub clock: Clock,
    /// Sends everything that the planner applies to the catalogue, if there is one.
    pub notes: Option<Sender<CatalogUpdate>>,
    /// What is counted; absent: nothing.
    pub metrics: Option<Arc<Metrics>>,
    /// Most requests of one tenant that may wait for the planner.
    pub tenant_queue: usize,
}

impl PlacerOptions {
    /// Options with a policy and this machine's clock.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            ledger: Options::default(),
            policy,
            follow_every: Duration::from_millis(50),
            clock: Arc::new(system_time),
            notes: None,
            metrics: None,
            tenant_queue: 4096,
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the server is where time comes in")]
fn system_time() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)))
}

/// A moment, to measure from; it decides nothing.
#[allow(clippy::disallowed_methods, reason = "measures how long decisions take")]
fn tick() -> Instant {
    Instant::now()
}

/// What the planner receives.
enum Message {
    /// Requests to place, and since when.
    Place(PlaceJob, Instant),
    /// The ledger's answer to a plan of several tries.
    Answered(Box<PendingPlan>, Result<Verdict, LedgerError>),
    /// The explainer found a place.
    Decided(Box<PendingPlan>, Box<Decided>),
    /// The explainer found that something changed.
    PlanAgain(Box<PendingPlan>),
    /// An instance to move.
    Move(Box<moving::PendingMove>),
    /// The ledger's answer to a move.
    MoveAnswered(Box<moving::PendingMove>, Result<Answer, LedgerError>),
    /// What was committed here.
    Committed(CommitRecord),
    /// Reads or changes the replica between two plans.
    Inspect(Box<dyn FnOnce(&mut FleetReplica) + Send>),
    /// Reads the fleet on the explainer's thread.
    Query(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Answered when everything before it was taken in.
    Barrier(tokio::sync::oneshot::Sender<()>),
    /// Time to read other servers' events.
    Follow,
    /// Everything that was sent before this seal has been applied.
    SealReached(u64),
    /// No more.
    Stop,
}

/// The claim path of one server.
pub struct Placer {
    ledger: Ledger,
    inbox: Sender<Message>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Placer {
    /// Opens the ledger, loads the fleet and starts to plan.
    ///
    /// # Errors
    /// When the ledger cannot be opened or read.
    pub fn start(backend: Backend, options: &PlacerOptions) -> Result<Self, StartError> {
        let (inbox, outbox) = mpsc::channel();
        let committed = Mutex::new(inbox.clone());
        let observer = move |happened| {
            let inbox = committed.lock().unwrap_or_else(PoisonError::into_inner);
            // The planner may have stopped first.
            let _ = inbox.send(Message::Committed(happened));
        };
        let ledger = Ledger::open_with(backend, options.ledger, Some(Arc::new(observer)))?;
        let catalog_sender = CatalogSender(options.notes.clone());
        let mut replica = follow::load(&ledger, options.policy.clone(), &catalog_sender)?;
        let (to_explainer, from_planner) = mpsc::channel();
        let engine = replica.engine();
        engine.fleet_mut().record_changes();
        let explainer = Explainer::new(
            Engine::with_fleet(engine.fleet().clone(), engine.policy().clone()),
            replica.cursor,
            ledger.clone(),
            inbox.clone(),
            Arc::clone(&options.clock),
            options.metrics.clone(),
        );
        let planner = Planner::new(
            replica,
            ledger.clone(),
            inbox.clone(),
            to_explainer,
            catalog_sender,
            options,
        );
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let planning = spawn("planner").spawn(move || planner.run(&outbox))?;
        // Ends when the planner is gone.
        let explaining = spawn("explainer").spawn(move || explainer.run(&from_planner))?;
        let (ticks, every) = (inbox.clone(), options.follow_every);
        let following = spawn("follower").spawn(move || {
            // Ends when the planner is gone.
            while ticks.send(Message::Follow).is_ok() {
                std::thread::sleep(every);
            }
        })?;
        drop(following);
        Ok(Self { ledger, inbox, threads: Mutex::new(vec![planning, explaining]) })
    }

    /// Hands a request over; the answer comes when it is durable.
    pub fn submit(&self, job: PlaceJob) {
        let message = Message::Place(job, tick());
        if let Err(mpsc::SendError(Message::Place(job, _))) = self.inbox.send(message) {
            (job.reply)(PlaceAnswer::Unknown(LedgerError::Closed));
        }
    }

    /// Hands a request over. The receiver gets the answer, or nothing if the placer stops.
    pub(crate) fn send(
        &self,
        request: PlaceRequest,
    ) -> tokio::sync::oneshot::Receiver<PlaceAnswer> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.submit(PlaceJob { request, reply });
        receiver
    }

    /// Places and waits for the answer.
    #[must_use]
    pub fn place(&self, request: PlaceRequest) -> PlaceAnswer {
        let (sender, receiver) = mpsc::sync_channel(1);
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.submit(PlaceJob { request, reply });
        receiver.recv().unwrap_or(PlaceAnswer::Unknown(LedgerError::Closed))
    }

    /// The ledger behind it.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Reads the fleet as the planner knows it.
    pub fn inspect<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut FleetReplica) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let look = Box::new(move |replica: &mut FleetReplica| drop(sender.send(look(replica))));
        self.inbox.send(Message::Inspect(look)).ok()?;
        receiver.recv().ok()
    }
}

impl Placer {
    /// Changes the replica between two plans, and does not wait for it.
    pub fn update_replica(&self, update: impl FnOnce(&mut FleetReplica) + Send + 'static) {
        // A planner that stopped has no more use for it.
        let _ = self.inbox.send(Message::Inspect(Box::new(update)));
    }

    /// Reads the fleet as the planner knows it, without blocking a thread.
    pub async fn query_replica<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut FleetReplica) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.update_replica(move |replica| drop(sender.send(query(replica))));
        receiver.await.ok()
    }

    /// Asks what takes long of the fleet as the planner knows it now, without holding up the planner.
    pub async fn query_explainer<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let query = Box::new(move |engine: &mut Engine| drop(sender.send(query(engine))));
        self.inbox.send(Message::Query(query)).ok()?;
        receiver.await.ok()
    }

    /// Waits until everything committed here so far was applied, by the catalogue as well.
    pub async fn wait_for_read_your_writes(&self) {
        let (reached, waits) = tokio::sync::oneshot::channel();
        if self.inbox.send(Message::Barrier(reached)).is_ok() {
            // A planner that stops meanwhile takes in nothing more.
            let _ = waits.await;
        }
    }
}

/// Sends everything that the planner applies to the catalogue, if there is one.
struct CatalogSender(Option<Sender<CatalogUpdate>>);

impl CatalogSender {
    fn send(&self, update: impl FnOnce() -> CatalogUpdate) {
        if let Some(sender) = &self.0 {
            // It lives as long as the process.
            let _ = sender.send(update());
        }
    }

    fn is_connected(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Placer {
    fn drop(&mut self) {
        let _ = self.inbox.send(Message::Stop);
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }
}
