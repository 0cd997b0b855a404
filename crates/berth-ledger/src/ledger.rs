//! One handle to one ledger, on either database.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use berth_engine::NodeId;
use rustc_hash::FxHasher;

use crate::backend::{Backend, Options};
use crate::commit_hints::{CommitHints, HintCounts, HintListener};
use crate::database::{Database, SnapshotItem};
use crate::error::{Fault, LedgerError};
use crate::model::{
    Adopt, Advance, Answer, Assumptions, Claim, ClaimKey, ClaimRejection, ClaimStatus, Event,
    EventPage, Expect, Move, Op, Outcome, Plan, Release, Resize, Segment, Text, Verdict,
};
use crate::readers::{ReaderPool, read_with_retries};
use crate::sqlite::{LogLimits, WriteAheadLog};
use crate::transaction::{HighestFence, RetryBudget, WriterChains};
use crate::writer::{
    self, Job, Queue, Reply, WriteStats, WriterHooks, WriterMetrics, WriterSettings,
};

struct Inner {
    backend: Backend,
    options: Options,
    queues: Vec<Arc<Queue>>,
    metrics: Arc<WriterMetrics>,
    origins: Vec<Text>,
    highest_fence: Arc<HighestFence>,
    readers: ReaderPool,
    /// Writers, the thread that copies the log of SQLite, and the one for hints on PostgreSQL.
    writers: Mutex<Vec<JoinHandle<()>>>,
    log: Arc<WriteAheadLog>,
}

/// A point in the work of this process: see [`Ledger::writer_position`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterPosition(Vec<u64>);

/// A place among the reads for callers; another may have it when this is dropped.
pub struct ReadPlace(Ledger);

impl Drop for ReadPlace {
    fn drop(&mut self) {
        self.0.0.readers.end_read();
    }
}

/// A ledger. Copies are the same ledger; it closes when the last is dropped.
#[derive(Clone)]
pub struct Ledger(Arc<Inner>);

impl Drop for Inner {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.close());
        self.log.close();
        self.metrics.hints.close();
        let writers =
            std::mem::take(self.writers.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A writer whose reply held the last handle cannot be joined here: it ends by itself.
        if !writer::is_reply_thread() {
            for thread in writers {
                crate::invariant!(thread.join().is_ok(), "writer_ends_without_panic");
            }
        }
    }
}

impl Ledger {
    /// Opens a ledger, and creates or migrates its schema.
    ///
    /// # Errors
    /// When the database cannot be opened, was made by a newer Berth, or is behind a connection pooler in
    /// transaction mode.
    pub fn open(backend: Backend, options: Options) -> Result<Self, LedgerError> {
        Self::open_with(backend, options, WriterHooks::default())
    }

    /// Opens a ledger whose owner is told of every commit of this process.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_with(
        backend: Backend,
        options: Options,
        hooks: WriterHooks,
    ) -> Result<Self, LedgerError> {
        Self::open_limited(backend, options, hooks, LogLimits::DEFAULT)
    }

    /// The same with other limits on the log of SQLite.
    pub(crate) fn open_limited(
        backend: Backend,
        options: Options,
        hooks: WriterHooks,
        log: LogLimits,
    ) -> Result<Self, LedgerError> {
        let log = Arc::new(WriteAheadLog::new(log));
        let settings = WriterSettings {
            most: options.group.max(1),
            retry_budget: RetryBudget(options.retry_budget),
            hooks,
        };
        backend.verify(&options)?;
        let metrics = Arc::new(WriterMetrics::default());
        let writers = match &backend {
            Backend::Sqlite(_) => 1,
            Backend::Postgres(_) => options.writers.max(1),
        };
        let highest_fence = Arc::<HighestFence>::default();
        let (mut handles, mut origins, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..writers {
            let mut tables = backend.open_writer(&options, &log)?;
            if number == 0 {
                let highest = tables.highest_fence().map_err(|fault| fault.into_error(1))?;
                highest_fence.raise(highest);
            }
            let (settings, mut chains) = (settings.clone(), WriterChains::new());
            chains.highest_fence = Arc::clone(&highest_fence);
            let queue = Arc::new(Queue::new(Arc::clone(&metrics)));
            queues.push(Arc::clone(&queue));
            origins.push(Text::clone(chains.origin()));
            let work = move || writer::run_writer(&queue, tables, chains, &settings);
            handles.push(spawn(format!("ledger-{number}"), work)?);
        }
        if let Backend::Sqlite(path) = &backend {
            let (log, path, ended) = (Arc::clone(&log), path.clone(), settings.hooks.ended.clone());
            handles.push(spawn("ledger-log".to_owned(), move || {
                let copying = std::panic::AssertUnwindSafe(|| log.run_copier(&path));
                // It ends with the ledger, or by a panic.
                if std::panic::catch_unwind(copying).is_err()
                    && let Some(ended) = ended
                {
                    ended();
                }
            })?);
        }
        if options.hints
            && let Some(exchange) = backend.hint_exchange(&origins, metrics.wake_on_hints())
        {
            handles.push(spawn("ledger-hints".to_owned(), exchange)?);
        }
        Ok(Self(Arc::new(Inner {
            backend,
            options,
            queues,
            metrics,
            origins,
            highest_fence,
            readers: ReaderPool::default(),
            writers: Mutex::new(handles),
            log,
        })))
    }

    /// The database that holds it: `sqlite` or `postgres`.
    #[must_use]
    pub fn database(&self) -> &'static str {
        match self.0.backend {
            Backend::Sqlite(_) => "sqlite",
            Backend::Postgres(_) => "postgres",
        }
    }

    /// The version of its schema, which is the newest one once it is open.
    #[must_use]
    pub fn schema_version(&self) -> i64 {
        match self.0.backend {
            Backend::Sqlite(_) => crate::sqlite::schema_version(),
            Backend::Postgres(_) => crate::postgres::schema_version(),
        }
    }

    /// The chains that this process writes; events name the chain they come from.
    #[must_use]
    pub fn origins(&self) -> &[Text] {
        &self.0.origins
    }

    /// The current position of all writers, to ask later whether the observer has seen everything that
    /// this process had committed by then.
    #[must_use]
    pub fn writer_position(&self) -> WriterPosition {
        WriterPosition(self.0.queues.iter().map(|queue| queue.started()).collect())
    }

    /// Whether the observer has seen everything that this process had committed by a position.
    #[must_use]
    pub fn is_observed(&self, position: &WriterPosition) -> bool {
        self.0.queues.iter().zip(&position.0).all(|(queue, groups)| queue.is_observed(*groups))
    }

    /// Submits operations in order; answers arrive once they are durable.
    pub fn submit(&self, jobs: impl IntoIterator<Item = Job>) {
        let queues = &self.0.queues;
        if let [queue] = queues.as_slice() {
            queue.submit(jobs);
            return;
        }
        let mut by_writer: Vec<Vec<Job>> = queues.iter().map(|_| Vec::new()).collect();
        for job in jobs {
            by_writer[writer_of(&job.op, queues.len())].push(job);
        }
        for (queue, jobs) in queues.iter().zip(by_writer) {
            if !jobs.is_empty() {
                queue.submit(jobs);
            }
        }
    }

    /// Does one operation and waits for its answer.
    ///
    /// # Errors
    /// When the outcome is unknown.
    pub fn call(&self, op: Op) -> Result<Answer, LedgerError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let reply: Reply = Box::new(move |answer| drop(sender.send(answer)));
        self.submit([Job { op, reply }]);
        receiver.recv().unwrap_or(Err(LedgerError::Closed))
    }

    /// Claims a plan: all of it, or nothing.
    ///
    /// # Errors
    /// As [`Ledger::call`]; that it does not fit is an answer, not an error.
    pub fn commit(&self, plan: Plan) -> Result<Verdict, LedgerError> {
        match self.call(Op::Commit(plan))? {
            Answer::Plan(verdict) => Ok(verdict),
            Answer::Repeated(grant) => Ok(Verdict::Granted(grant)),
            other => Err(unexpected(&other)),
        }
    }

    /// Says whether a plan would be granted if some things were otherwise. Claims nothing.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn rehearse(&self, plan: Plan, assumed: Assumptions) -> Result<Verdict, LedgerError> {
        match self.call(Op::DryRun(plan, assumed))? {
            Answer::Plan(verdict) => Ok(verdict),
            other => Err(unexpected(&other)),
        }
    }

    /// Renews, binds or activates a claim.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn advance(
        &self,
        advance: Advance,
    ) -> Result<Result<ClaimStatus, ClaimRejection>, LedgerError> {
        self.claim_answer(Op::Advance(advance))
    }

    /// Ends a claim.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn release(
        &self,
        release: Release,
    ) -> Result<Result<ClaimStatus, ClaimRejection>, LedgerError> {
        self.claim_answer(Op::Release(release))
    }

    /// Changes what a claim is charged.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn resize(
        &self,
        resize: Resize,
    ) -> Result<Result<ClaimStatus, ClaimRejection>, LedgerError> {
        self.claim_answer(Op::Resize(resize))
    }

    /// Moves an instance, both nodes in one transaction.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn relocate(&self, to: Move) -> Result<Result<ClaimStatus, ClaimRejection>, LedgerError> {
        self.claim_answer(Op::Move(Box::new(to)))
    }

    /// Records an instance that an agent found.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn adopt(&self, adopt: Adopt) -> Result<Result<ClaimStatus, ClaimRejection>, LedgerError> {
        self.claim_answer(Op::Adopt(adopt))
    }

    fn claim_answer(&self, op: Op) -> Result<Result<ClaimStatus, ClaimRejection>, LedgerError> {
        match self.call(op)? {
            Answer::Claim(answer) => Ok(answer),
            other => Err(unexpected(&other)),
        }
    }

    /// Does an administrative operation.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn administer(&self, op: Op) -> Result<Outcome, LedgerError> {
        match self.call(op)? {
            Answer::Outcome(outcome) => Ok(outcome),
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes a workload and releases its claims. Returns how many claims were released.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn delete_workload(&self, tenant: &str, name: &str) -> Result<usize, LedgerError> {
        let released = self.delete_claims(tenant, Some(name), "workload_deleted")?;
        let (tenant, name) = (Text::from(tenant), Text::from(name));
        self.administer(Op::RemoveWorkload { tenant, name, expect: Expect::Any })?;
        Ok(released)
    }

    /// Releases everything a workload or a tenant holds. Returns how many claims.
    ///
    /// Claims that are granted meanwhile are released too, until none is found.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn delete_claims(
        &self,
        tenant: &str,
        workload: Option<&str>,
        reason: &str,
    ) -> Result<usize, LedgerError> {
        let mut released = 0;
        loop {
            let keys = self.read(|tables| tables.claims_of(tenant, workload))?;
            if keys.is_empty() {
                return Ok(released);
            }
            for key in keys {
                released += usize::from(self.force_release(key, reason)?);
            }
        }
    }

    /// Releases one claim, regardless of its holder. Returns whether it was there.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn force_release(&self, key: ClaimKey, reason: &str) -> Result<bool, LedgerError> {
        let release = Release {
            request_id: Text::from(format!("delete-{:032x}", fastrand::u128(..))),
            key,
            tenant: None,
            fence: None,
            confirmed: true,
            reason: Text::from(reason),
        };
        Ok(self.release(release)?.is_ok())
    }

    /// One claim.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn claim(&self, key: ClaimKey) -> Result<Option<Claim>, LedgerError> {
        self.read(|tables| tables.claim(key))
    }

    /// Events after a cursor, in order, without gaps. An empty page means: nothing new.
    ///
    /// # Errors
    /// When the cursor is older than the log reaches, or newer; or the database cannot be read.
    pub fn events_after(&self, cursor: i64, limit: usize) -> Result<EventPage, LedgerError> {
        let limit = limit.max(1);
        let mut events = Vec::new();
        for segment in self.segments_after(cursor, limit)? {
            let corrupt = |error: serde_json::Error| LedgerError::Corrupt(error.to_string());
            events.extend(segment.events().map_err(corrupt)?);
        }
        events.retain(|event| event.seq > cursor);
        events.truncate(limit);
        let cursor = events.last().map_or(cursor, |event| event.seq);
        Ok(EventPage { events, cursor })
    }

    /// The segments that hold the events after a cursor, unread: for followers that skip their own.
    ///
    /// # Errors
    /// As [`Ledger::events_after`].
    pub fn segments_after(&self, cursor: i64, limit: usize) -> Result<Vec<Segment>, LedgerError> {
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read(|tables| {
            let ends = tables.number_events()?;
            let (oldest, newest) = (ends.first, ends.next - 1);
            if cursor.saturating_add(1) < oldest {
                return Err(Fault::Fatal(LedgerError::CursorTooOld { cursor, oldest }));
            }
            if cursor > newest {
                return Err(Fault::Fatal(LedgerError::CursorInFuture { cursor, newest }));
            }
            if cursor == newest { Ok(Vec::new()) } else { tables.segments_after(cursor, wanted) }
        })
    }

    /// The number of the newest event; 0 when there is none.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn newest_event(&self) -> Result<i64, LedgerError> {
        Ok(self.read(|tables| tables.number_events())?.next - 1)
    }

    /// The number of the oldest event that is kept.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn oldest_event(&self) -> Result<i64, LedgerError> {
        Ok(self.read(|tables| tables.number_events())?.first)
    }

    /// Waits until something was committed since `seen`, or the timeout ends. Commits of other processes
    /// count if they were hinted at; otherwise they are found by polling.
    #[must_use]
    pub fn wait_for_commit(&self, seen: u64, timeout: Duration) -> u64 {
        self.0.metrics.wait_for_commit(seen, timeout)
    }

    /// Has a listener called whenever another process says that it has committed. Only with
    /// [`Options::hints`], and never to be relied on: a hint may be lost.
    pub fn listen_for_hints(&self, listener: HintListener) {
        self.0.metrics.hints.add_listener(listener);
    }

    /// How many hints were exchanged with other processes.
    #[must_use]
    pub fn hint_counts(&self) -> HintCounts {
        self.0.metrics.hints.counts()
    }

    /// Everything as of one moment, in the order in which a fleet can apply it. Returns the cursor
    /// from which events go on.
    ///
    /// # Errors
    /// When the database cannot be read, or `take` refuses.
    pub fn snapshot(
        &self,
        mut take: impl FnMut(SnapshotItem) -> Result<(), LedgerError>,
    ) -> Result<i64, LedgerError> {
        let mut tables = self.open_database()?;
        let snapshot = tables.snapshot(&mut |item| {
            if let SnapshotItem::Node(_, version) = &item {
                self.0.highest_fence.raise(version.fence);
            }
            take(item).map_err(Fault::Fatal)
        });
        snapshot.map_err(|fault| fault.into_error(1))
    }

    /// SQLite's write-ahead log.
    pub(crate) fn log(&self) -> &WriteAheadLog {
        &self.0.log
    }

    /// A new connection, for a read that cannot be retried.
    pub(crate) fn open_database(&self) -> Result<Box<dyn Database>, LedgerError> {
        self.0.backend.open(&self.0.options)
    }

    /// Records events that another process wrote: fences that are given out here are above theirs.
    pub fn observe_events(&self, events: &[Event]) {
        let fences = events.iter().filter_map(|event| event.body.fence());
        fences.for_each(|fence| self.0.highest_fence.raise(fence));
    }

    /// Nodes heard since a moment, in whole seconds.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn heartbeats_since(&self, at: i64) -> Result<Vec<(NodeId, i64)>, LedgerError> {
        self.read(|tables| tables.heartbeats_since(at))
    }

    /// How long callers should wait for an answer.
    #[must_use]
    pub fn retry_budget(&self) -> Duration {
        self.0.options.retry_budget
    }

    /// The queues of the writers.
    pub(crate) fn queues(&self) -> &[Arc<Queue>] {
        &self.0.queues
    }

    /// The hints; absent if none are exchanged.
    pub(crate) fn hints(&self) -> Option<&CommitHints> {
        let is_used = self.0.options.hints && matches!(self.0.backend, Backend::Postgres(_));
        is_used.then_some(&*self.0.metrics.hints)
    }

    /// Counts of writes and retries.
    #[must_use]
    pub fn stats(&self) -> WriteStats {
        self.0.metrics.stats()
    }

    /// How many operations wait for the writers.
    #[must_use]
    pub fn waiting_operations(&self) -> usize {
        self.0.queues.iter().map(|queue| queue.waiting()).sum()
    }

    /// Connections for reads that are open, and reads for callers that are under way or wait.
    #[must_use]
    pub fn reader_counts(&self) -> (usize, usize) {
        self.0.readers.counts()
    }

    /// A place among the reads for callers, to be taken before a thread is.
    ///
    /// # Errors
    /// When too many are under way or wait.
    pub fn begin_read(&self) -> Result<ReadPlace, LedgerError> {
        self.0.readers.begin_read()?;
        Ok(ReadPlace(self.clone()))
    }

    /// Reads on a pooled connection, and retries when the connection was lost.
    pub(crate) fn read<T>(
        &self,
        read: impl FnMut(&mut dyn Database) -> Result<T, Fault>,
    ) -> Result<T, LedgerError> {
        let patience = self.0.options.retry_budget;
        let mut slot = self.0.readers.acquire(patience)?;
        let mut tables = slot.take(|| self.0.backend.open(&self.0.options))?;
        let found = read_with_retries(&mut *tables, patience, read)?;
        slot.keep(tables);
        Ok(found)
    }

    /// The same on a connection of its own, for maintenance that goes through whole tables and may take
    /// longer than the database has to answer anybody who waits.
    pub(crate) fn read_at_leisure<T>(
        &self,
        read: impl FnMut(&mut dyn Database) -> Result<T, Fault>,
    ) -> Result<T, LedgerError> {
        let options = Options { retry_budget: MAINTENANCE_TIME, ..self.0.options };
        read_with_retries(&mut *self.0.backend.open(&options)?, MAINTENANCE_TIME, read)
    }
}

fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, LedgerError> {
    std::thread::Builder::new()
        .name(name)
        .spawn(work)
        .map_err(|error| LedgerError::Database(format!("a thread could not be started: {error}")))
}

/// As long as the database lets a statement run.
const MAINTENANCE_TIME: Duration = Duration::from_secs(30);

/// The writer of an operation. Those about one node go to one writer, so that writers of a server do
/// not wait for each other's locks; those about several may go to any, since locks are taken in
/// one order.
fn writer_of(op: &Op, writers: usize) -> usize {
    let mut hasher = FxHasher::default();
    match op.bare() {
        Op::Commit(plan) | Op::DryRun(plan, _) => {
            plan.claims.first().map(|claim| &claim.node).hash(&mut hasher)
        }
        Op::Preempt(preempt) => {
            preempt.plan.claims.first().map(|claim| &claim.node).hash(&mut hasher)
        }
        Op::Move(to) => to.to.node.hash(&mut hasher),
        Op::Adopt(adopt) => adopt.node.hash(&mut hasher),
        Op::Reap(node) | Op::ReconcileNode(node) => node.hash(&mut hasher),
        Op::Advance(advance) => advance.key.hash(&mut hasher),
        Op::Release(release) => release.key.hash(&mut hasher),
        // Those of one workload lock the same claims.
        Op::StopMember(stop) => stop.guard.workload.hash(&mut hasher),
        Op::Resize(resize) => resize.key.hash(&mut hasher),
        _ => return 0,
    }
    let writers = u64::try_from(writers).unwrap_or(1).max(1);
    // The low bits of this hash are weak.
    usize::try_from((hasher.finish() >> 32) % writers).unwrap_or(0)
}

pub(crate) fn unexpected(answer: &Answer) -> LedgerError {
    LedgerError::Corrupt(format!("an answer of another kind: {answer:?}"))
}
