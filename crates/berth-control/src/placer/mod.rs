//! The claim path: one planner thread owns the fleet in memory and plans requests in the order in
//! which they come, on the fleet as of the ledger's log plus its own plans in flight. The ledger
//! grants or finds a conflict; a conflict is planned again, on fresh knowledge, a bounded number of
//! times.
//!
//! The planner never waits for the database: plans go out in groups, answers come in as messages, and
//! what others wrote is read by a thread of its own (`log_reader`). Who asks for more than can be served
//! in time is turned away at the door (`admission`); in front of the planner tenants take turns (`turns`).
//! What takes long, such as saying why there is no room, is
//! done on another thread, on a copy of the fleet (`explainer`).

mod admission;
mod attempt_order;
mod conflict;
mod explainer;
mod follow;
mod limit_fixes;
mod log_reader;
mod moving;
mod offload;
mod pending_plan;
mod planner;
mod pool_ranges;
mod preemption;
mod recording;
mod slot_assignment;
mod turns;
mod wait_window;

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_engine::policy::PolicyHash;
use berth_engine::{
    BatchMode, Engine, Explanation, Fix, Fleet, InstanceRequest, InvalidRequest, NodeId, Notice,
    Policy, Refusal, Timestamp,
};
use berth_ledger::{
    Answer, Backend, Claim, ClaimKey, CommitRecord, Conflict, Grant, Ledger, LedgerError, Options,
    RefusalReason, Slot, Text, Verdict, WriterHooks,
};

use crate::backlog::{Backlog, FLEET_CHANGES_MAX, REPORTED_EVENTS_MAX};
use crate::catalog::{CatalogUpdate, CatalogUpdateSender};
use crate::clock::DatabaseClock;
use crate::error::StartError;
use crate::fleet_replica::FleetReplica;
use crate::metrics::Metrics;
use crate::patience::within_patience;
use crate::supervision::{Supervisor, ThreadMonitor, ThreadWork};
use admission::{Admission, AdmissionLimits};
use explainer::Explainer;
use follow::AfterLookup;
use log_reader::{LoadedFleet, LogPage, LogReader, LogReaderSettings, PassResult};
use pending_plan::{CallerPresence, ExplainerChoice, PendingPlan, QueuedJob};
use planner::{Planner, PlannerLinks};
use turns::Lane;

pub(crate) use admission::{LEAST_EXPLAINED, LEAST_PLANNED};
pub use admission::{Overload, OverloadCause, QueueLength};
pub use attempt_order::{AttemptOrder, OrderedAttempt};
pub(crate) use log_reader::PAGE as LOG_PAGE;
pub use moving::{MoveAnswer, MoveRequest};
pub use preemption::PreemptionPlan;

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
    /// Whether to say why, when it is granted, and for how many nodes. A refusal always says why.
    pub explain: Option<usize>,
    /// Decide, and claim nothing.
    pub dry_run: bool,
    /// If there is no room, say only that: it was explained and recorded before.
    pub quiet: bool,
    /// Slots that the instances must have, one for each; empty: an instance of a workload gets the
    /// lowest that is free.
    pub slots: Vec<RequestedSlot>,
    /// The version of the workload by which the slots were chosen; absent: the planner chooses.
    pub workload_version: Option<i64>,
    /// The policy whose defaults the instances were given; absent: none were.
    pub defaults_of: Option<PolicyHash>,
    /// The release that the instances will run.
    pub release: Option<Text>,
    /// In whose room the one instance is placed; absent: in none.
    pub preemption: Option<Arc<PreemptionPlan>>,
    /// Hash of the request as its caller wrote it, by which a ticket of the same id is known.
    pub request_hash: Option<[u8; 16]>,
    /// Whether it waits under a ticket.
    pub has_ticket: bool,
    /// Its place among requests that are tried together; absent: it is tried by itself.
    pub attempt: Option<OrderedAttempt>,
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
    /// Whether it is a tenant, and no operator.
    pub is_tenant: bool,
}

/// A request that was granted, or in a dry run would be.
#[derive(Debug)]
pub struct Granted {
    /// The claims; in a dry run without fences and leases.
    pub grant: Grant,
    /// Why others of the batch have no place, one for each class.
    pub left_out: Vec<Refusal>,
    /// What the caller should know of its request; nothing for a retry of what was granted.
    pub notices: Vec<Notice>,
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
    /// The ledger refused it for a reason that another node would not change; what would help, each
    /// tried.
    Refused(RefusalReason, Vec<Fix>),
    /// Others were faster every time.
    Contended(Box<Conflict>),
    /// The request means nothing.
    Invalid(InvalidRequest),
    /// Too much is under way, or whatever place was found was gone when it was to be claimed. Nothing was
    /// claimed.
    Busy(Overload),
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
    /// Where the planner gets the time from: the database's clock, unless it is replaced.
    pub clock: Clock,
    /// The database's clock, which the log reader sets.
    pub database_clock: Arc<DatabaseClock>,
    /// Sends what was committed, here and elsewhere, to the catalogue, if there is one.
    pub notes: Option<CatalogUpdateSender>,
    /// What is counted; absent: nothing.
    pub metrics: Option<Arc<Metrics>>,
    /// Most requests of one tenant that may wait for the planner, and as many for the explainer.
    pub tenant_queue: usize,
    /// Most instances of all tenants that may be under way, and as many that wait for the explainer; zero:
    /// any number.
    pub in_flight: usize,
    /// How long requests should wait at most: beyond it, tenants are turned away. Zero: as long as it takes.
    pub queue_delay: Duration,
    /// Watches over the threads.
    pub supervisor: Arc<Supervisor>,
}

impl PlacerOptions {
    /// Options with a policy and the database's clock.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let database_clock = Arc::new(DatabaseClock::default());
        let clock = Arc::clone(&database_clock);
        Self {
            ledger: Options::default(),
            policy,
            follow_every: Duration::from_millis(50),
            clock: Arc::new(move || Timestamp(clock.now().as_second())),
            database_clock,
            notes: None,
            metrics: None,
            tenant_queue: 4096,
            in_flight: 20_000,
            queue_delay: Duration::from_millis(500),
            supervisor: Arc::default(),
        }
    }
}

impl PlacerOptions {
    const fn admission(&self) -> AdmissionLimits {
        let (tenant_queue, in_flight) = (self.tenant_queue, self.in_flight);
        AdmissionLimits { tenant_queue, in_flight, queue_delay: self.queue_delay }
    }

    fn monitor(&self, name: &'static str, work: ThreadWork) -> ThreadMonitor {
        self.supervisor.monitor(name, work, self.metrics.clone())
    }
}

/// A moment, to measure from; it decides nothing.
#[allow(clippy::disallowed_methods, reason = "measures how long decisions take")]
fn tick() -> Instant {
    Instant::now()
}

/// How much less of a busy CPU the explainer gets than other threads, as `nice` counts it.
#[cfg(target_os = "linux")]
const EXPLAINER_NICENESS: i32 = 10;

/// Lowers the priority of this thread: where there are fewer cores than threads with work, an
/// explanation waits rather than a placement.
fn yield_cpu_to_others() {
    // On Linux, and only there, this is about the calling thread alone.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, EXPLAINER_NICENESS) {
        tracing::debug!(%error, "failed to lower the priority of the explainer");
    }
}

/// What the planner receives.
enum Message {
    /// A request to place.
    Place(Box<QueuedJob>),
    /// The ledger's answer to a plan of several tries.
    Answered(Box<PendingPlan>, Result<Verdict, LedgerError>),
    /// The explainer found a place.
    Chosen(Box<PendingPlan>, Box<ExplainerChoice>),
    /// The explainer found that something changed.
    PlanAgain(Box<PendingPlan>),
    /// The explainer panicked: its copy of the fleet may be half changed.
    ExplainerPanicked,
    /// An instance to move.
    Move(Box<moving::PendingMove>),
    /// The ledger's answer to a move.
    MoveAnswered(Box<moving::PendingMove>, Result<Answer, LedgerError>),
    /// What was committed here.
    Committed(Arc<CommitRecord>),
    /// Reads or changes the replica between two plans.
    Inspect(Box<dyn FnOnce(&mut FleetReplica) + Send>),
    /// Reads the fleet on the explainer's thread.
    Query(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Answered when the log was read to its end, and is in the catalogue.
    CatchUp(tokio::sync::oneshot::Sender<()>),
    /// Part of the log.
    LogPage(Box<LogPage>),
    /// The log was read to its end, or as far as it could be.
    PassEnded(PassResult),
    /// When agents were last heard, by any server.
    Heartbeats(Vec<(NodeId, i64)>),
    /// Claims as the ledger has them.
    ClaimsRead(Result<Vec<Claim>, LedgerError>, Box<AfterLookup>),
    /// A fleet that was loaded again, and a copy of it for the explainer.
    Reloaded(Box<FleetReplica>, Box<Fleet>),
    /// Everything that was sent before this seal has been applied.
    SealReached(u64),
    /// No more.
    Stop,
}

/// The claim path of one server.
pub struct Placer {
    ledger: Ledger,
    inbox: Sender<Message>,
    catalog_sender: CatalogSender,
    admission: Arc<Admission>,
    backlogs: Backlogs,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Placer {
    /// Opens the ledger, loads the fleet and starts to plan.
    ///
    /// # Errors
    /// When the ledger cannot be opened or read.
    pub fn start(backend: Backend, options: &PlacerOptions) -> Result<Self, StartError> {
        let (inbox, outbox) = mpsc::channel();
        let catalog_sender = CatalogSender(options.notes.clone());
        let backlogs = Backlogs::new();
        let writers = options.supervisor.monitor_of_writers();
        let hooks = writer_hooks(&inbox, &catalog_sender, &backlogs.planner, writers);
        let ledger = Ledger::open_with(backend, options.ledger, hooks)?;
        options.database_clock.set(&ledger)?;
        let has_catalog = catalog_sender.is_connected();
        let loaded = log_reader::load(&ledger, options.policy.clone(), has_catalog, || ())?;
        let LoadedFleet { mut replica, fleet, catalog } = loaded;
        if let Some(catalog) = catalog {
            catalog_sender.send(|| CatalogUpdate::Replace(catalog));
        }
        let (to_explainer, from_planner) = mpsc::channel();
        let explainer = Explainer::new(
            Engine::with_fleet(*fleet, replica.engine().policy().clone()),
            replica.cursor,
            ledger.clone(),
            inbox.clone(),
            Arc::clone(&backlogs.explainer),
            options,
        );
        let (log_reader, reader_handle) = LogReader::new(LogReaderSettings {
            ledger: ledger.clone(),
            inbox: inbox.clone(),
            catalog_sender: catalog_sender.clone(),
            cursor: replica.cursor,
            policy: options.policy.clone(),
            every: options.follow_every,
            clock: Arc::clone(&options.database_clock),
            metrics: options.metrics.clone(),
            monitor: options.monitor(log_reader::NAME, ThreadWork::ReadsDatabase),
        });
        let links = PlannerLinks {
            inbox: inbox.clone(),
            explainer: to_explainer,
            log_reader: reader_handle,
            catalog_sender: catalog_sender.clone(),
            backlogs: backlogs.clone(),
        };
        let planner = Planner::new(*replica, ledger.clone(), links, options);
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let planning = spawn("planner").spawn(move || planner.run(&outbox))?;
        // These end when the planner is gone.
        let explaining = spawn("explainer").spawn(move || {
            yield_cpu_to_others();
            explainer.run(&from_planner);
        })?;
        let reading = spawn("follower").spawn(move || log_reader.run())?;
        let threads = Mutex::new(vec![planning, explaining, reading]);
        let admission = Arc::new(Admission::new(options.admission(), options.metrics.clone()));
        Ok(Self { ledger, inbox, catalog_sender, admission, backlogs, threads })
    }

    /// Hands a request over; the answer comes when it is durable.
    pub fn submit(&self, job: PlaceJob) {
        self.submit_for(job, CallerPresence::always());
    }

    /// Hands a request over if there is room for it, or answers at once that there is not.
    fn submit_for(&self, job: PlaceJob, presence: CallerPresence) {
        let lane = Lane::of(&job.request);
        let admitted = match self.admission.admit(lane, job.request.instances.len()) {
            Ok(admitted) => admitted,
            Err(overload) => return (job.reply)(PlaceAnswer::Busy(overload)),
        };
        let queued = Box::new(QueuedJob { job, since: tick(), admitted, presence });
        if let Err(mpsc::SendError(Message::Place(queued))) =
            self.inbox.send(Message::Place(queued))
        {
            (queued.job.reply)(PlaceAnswer::Unknown(LedgerError::Closed));
        }
    }

    /// Whether a request would be let in now, before it was read: of a tenant, or of somebody of whom only
    /// the request says for which tenant.
    ///
    /// # Errors
    /// When it would be turned away.
    pub(crate) fn check_admission(&self, tenant: Option<&Text>) -> Result<(), Overload> {
        let lane = tenant.map(|tenant| Lane::of_caller(tenant, true));
        self.admission.check(lane.as_ref())
    }

    /// How long the queues of the claim path are.
    pub(crate) fn queue_lengths(&self) -> Vec<QueueLength> {
        let mut lengths = self.admission.lengths().to_vec();
        lengths.extend(self.backlogs.lengths());
        lengths.extend(self.catalog_sender.length());
        lengths
    }

    /// Hands a request over at once. Its answer comes when it is durable; if that takes longer than the
    /// ledger's patience, the outcome is unknown.
    pub(crate) fn send(
        &self,
        request: PlaceRequest,
    ) -> impl Future<Output = PlaceAnswer> + Send + use<> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        let held = Arc::new(());
        self.submit_for(PlaceJob { request, reply }, CallerPresence::while_held(&held));
        let ledger = self.ledger.clone();
        async move {
            // As long as somebody waits here.
            let _held = held;
            let answer = within_patience(&ledger, async { receiver.await.map(Ok) }).await;
            answer.unwrap_or_else(PlaceAnswer::Unknown)
        }
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
        self.update_replica(move |replica| {
            if !sender.is_closed() {
                drop(sender.send(query(replica)));
            }
        });
        receiver.await.ok()
    }

    /// Asks what takes long of the fleet as the planner knows it now, without holding up the planner.
    pub async fn query_explainer<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let query = Box::new(move |engine: &mut Engine| {
            // It may have waited for so long that nobody waits for it.
            if !sender.is_closed() {
                drop(sender.send(query(engine)));
            }
        });
        self.inbox.send(Message::Query(query)).ok()?;
        receiver.await.ok()
    }

    /// Waits until everything that any server committed so far was applied, by the catalogue as well.
    pub async fn catch_up(&self) {
        let (reached, waits) = tokio::sync::oneshot::channel();
        if self.inbox.send(Message::CatchUp(reached)).is_ok() {
            // A planner that stops meanwhile takes in nothing more.
            let _ = waits.await;
        }
    }

    /// Waits until everything committed here so far is in the catalogue. The planner has it when it gets to
    /// it: what it is sent after the commit comes after the report of the commit.
    pub async fn wait_for_read_your_writes(&self) {
        if !self.catalog_sender.is_connected() {
            return;
        }
        let (reached, waits) = tokio::sync::oneshot::channel();
        self.catalog_sender.send(|| CatalogUpdate::Barrier(reached));
        // A catalogue that stops meanwhile takes in nothing more.
        let _ = waits.await;
    }
}

/// What the writers report: commits to the catalogue and the planner, and their own end to the supervisor.
fn writer_hooks(
    inbox: &Sender<Message>,
    catalog_sender: &CatalogSender,
    backlog: &Arc<Backlog>,
    writers: ThreadMonitor,
) -> WriterHooks {
    let (inbox, catalog_sender) = (inbox.clone(), catalog_sender.clone());
    let backlog = Arc::clone(backlog);
    let observer = move |report| {
        let report = Arc::new(report);
        // First the catalogue: whatever the planner knows, the catalogue has or is about to apply.
        catalog_sender.send(|| CatalogUpdate::Committed(Arc::clone(&report)));
        // A report is never dropped: the writer waits.
        backlog.add(size_of_report(&report));
        // The planner may have stopped first.
        let _ = inbox.send(Message::Committed(report));
    };
    let ended = move || writers.report_end();
    WriterHooks { observer: Some(Arc::new(observer)), ended: Some(Arc::new(ended)) }
}

/// What a report of a commit counts as in a backlog: its events.
fn size_of_report(report: &CommitRecord) -> usize {
    report.events.len().max(1)
}

/// What was sent to planner and explainer, and not taken in yet.
#[derive(Clone)]
struct Backlogs {
    planner: Arc<Backlog>,
    explainer: Arc<Backlog>,
}

impl Backlogs {
    fn new() -> Self {
        let planner = Arc::new(Backlog::new(REPORTED_EVENTS_MAX));
        Self { planner, explainer: Arc::new(Backlog::new(FLEET_CHANGES_MAX)) }
    }

    fn lengths(&self) -> [QueueLength; 2] {
        [
            QueueLength::of("planner_events", &self.planner),
            QueueLength::of("explainer_changes", &self.explainer),
        ]
    }
}

/// Sends updates to the catalogue, if there is one.
#[derive(Clone)]
struct CatalogSender(Option<CatalogUpdateSender>);

impl CatalogSender {
    fn send(&self, update: impl FnOnce() -> CatalogUpdate) {
        if let Some(sender) = &self.0 {
            // It lives as long as this; one that ended all the same was reported by its supervisor.
            let _ = sender.send(update());
        }
    }

    fn is_connected(&self) -> bool {
        self.0.is_some()
    }

    fn length(&self) -> Option<QueueLength> {
        self.0.as_ref().map(|sender| QueueLength::of("catalog_events", sender.backlog()))
    }
}

impl Drop for Placer {
    fn drop(&mut self) {
        // A thread that panicked was reported by its supervisor when it ended.
        let _ = self.inbox.send(Message::Stop);
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // Its supervisor counted it; what it still had to answer was dropped.
            if thread.join().is_err() {
                tracing::error!("a thread of the planner ended by a panic");
            }
        }
    }
}
