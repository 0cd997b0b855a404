//! One handle to one ledger, on either database.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use berth_engine::{InstanceId, NodeId};
use rustc_hash::FxHasher;

use crate::backend::{Backend, Options};
use crate::database::{Database, SnapshotItem};
use crate::error::{Fault, LedgerError};
use crate::model::{
    Adopt, Advance, Answer, Claim, ClaimKey, ClaimRejection, ClaimStatus, Drift, EventPage, Expect,
    Move, Op, Outcome, Plan, Release, Resize, Segment, Text, UnmetDemand, Verdict,
};
use crate::retention::{Retention, RetentionCutoffs};
use crate::transaction::{RetryBudget, WriterChains};
use crate::writer::{self, Job, Observer, Queue, Reply, WriteStats, WriterMetrics, WriterSettings};

struct Inner {
    backend: Backend,
    options: Options,
    queues: Vec<Arc<Queue>>,
    metrics: Arc<WriterMetrics>,
    origins: Vec<Text>,
    readers: Mutex<Vec<Box<dyn Database>>>,
    writers: Mutex<Vec<JoinHandle<()>>>,
}

/// A point in the work of this process: see [`Ledger::writer_position`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterPosition(Vec<u64>);

/// A ledger. Copies are the same ledger; it closes when the last is dropped.
#[derive(Clone)]
pub struct Ledger(Arc<Inner>);

impl Drop for Inner {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.close());
        let writers =
            std::mem::take(self.writers.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A writer whose reply held the last handle cannot be joined here: it ends by itself.
        if !writer::is_reply_thread() {
            for thread in writers {
                let _ = thread.join();
            }
        }
    }
}

impl Ledger {
    /// Opens a ledger, and creates or migrates its schema.
    ///
    /// # Errors
    /// When the database cannot be opened, or was made by a newer Berth.
    pub fn open(backend: Backend, options: Options) -> Result<Self, LedgerError> {
        Self::open_with(backend, options, None)
    }

    /// Opens a ledger with an observer that is called for every commit of this process.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_with(
        backend: Backend,
        options: Options,
        observer: Option<Observer>,
    ) -> Result<Self, LedgerError> {
        let settings = WriterSettings {
            most: options.group.max(1),
            retry_budget: RetryBudget(options.retry_budget),
            observer,
        };
        let metrics = Arc::new(WriterMetrics::default());
        let writers = match &backend {
            Backend::Sqlite(_) => 1,
            Backend::Postgres(_) => options.writers.max(1),
        };
        let (mut handles, mut origins, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..writers {
            let tables = backend.open(options.isolation)?;
            let (settings, chains) = (settings.clone(), WriterChains::new());
            let queue = Arc::new(Queue::new(Arc::clone(&metrics)));
            queues.push(Arc::clone(&queue));
            origins.push(Text::clone(chains.origin()));
            let work = move || writer::run_writer(&queue, tables, chains, &settings);
            let thread = std::thread::Builder::new().name(format!("ledger-{number}"));
            handles.push(thread.spawn(work).map_err(|error| {
                LedgerError::Database(format!("a thread could not be started: {error}"))
            })?);
        }
        Ok(Self(Arc::new(Inner {
            backend,
            options,
            queues,
            metrics,
            origins,
            readers: Mutex::new(Vec::new()),
            writers: Mutex::new(handles),
        })))
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

    /// Releases every claim whose lease has expired, node by node. Any process may do so at any time.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn reap(&self) -> Result<Vec<InstanceId>, LedgerError> {
        let mut reaped = Vec::new();
        for node in self.read(|tables| tables.expired_nodes())? {
            reaped.extend(self.reap_node(&node)?);
        }
        Ok(reaped)
    }

    /// Releases the expired claims of one node, for a planner that found no room there.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn reap_node(&self, node: &NodeId) -> Result<Vec<InstanceId>, LedgerError> {
        match self.call(Op::Reap(node.clone()))? {
            Answer::Reaped(instances) => Ok(instances),
            other => Err(unexpected(&other)),
        }
    }

    /// Finds counters that are not the sum of their claims, recomputes those under their row's
    /// lock, and reports every difference: each is a bug.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn reconcile(&self) -> Result<Vec<Drift>, LedgerError> {
        let drifted = self.read(|tables| tables.drifted())?;
        let nodes = drifted.nodes.into_iter().map(Op::ReconcileNode);
        let groups = drifted.groups.into_iter().map(Op::ReconcileGroup);
        let tenants = drifted.tenants.into_iter().map(Op::ReconcileTenant);
        let mut drifts = Vec::new();
        for op in nodes.chain(groups).chain(tenants) {
            match self.call(op)? {
                Answer::Drifts(found) => drifts.extend(found),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(drifts)
    }

    /// Deletes a tenant: its claims, its workloads, its own groups and its limits. Returns how many
    /// claims were released.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn delete_tenant(&self, tenant: &str) -> Result<usize, LedgerError> {
        let released = self.delete_claims(tenant, None, "tenant_deleted")?;
        let (workloads, groups) = self.read(|tables| tables.owned_by(tenant))?;
        let tenant = Text::from(tenant);
        for name in workloads {
            self.administer(Op::RemoveWorkload {
                tenant: Text::clone(&tenant),
                name,
                expect: Expect::Any,
            })?;
        }
        for group in groups {
            self.administer(Op::RemoveGroup(group))?;
        }
        self.administer(Op::RemoveQuota(tenant))?;
        Ok(released)
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

    /// Waits until this process has committed something since `seen`, or the timeout ends. Other
    /// processes' commits are found by polling.
    #[must_use]
    pub fn wait_for_commit(&self, seen: u64, timeout: Duration) -> u64 {
        self.0.metrics.wait_for_commit(seen, timeout)
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
        let snapshot = tables.snapshot(&mut |item| take(item).map_err(Fault::Fatal));
        snapshot.map_err(|fault| fault.into_error(1))
    }

    /// A new connection, for a read that cannot be retried.
    pub(crate) fn open_database(&self) -> Result<Box<dyn Database>, LedgerError> {
        self.0.backend.open(self.0.options.isolation)
    }

    /// Nodes heard since a moment, in whole seconds.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn heartbeats_since(&self, at: i64) -> Result<Vec<(NodeId, i64)>, LedgerError> {
        self.read(|tables| tables.heartbeats_since(at))
    }

    /// Unmet demand, most recent first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn demand(&self) -> Result<Vec<UnmetDemand>, LedgerError> {
        self.read(|tables| tables.demand())
    }

    /// Deletes what has passed its retention. Returns the number of deleted rows.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub fn forget(&self, retention: &Retention) -> Result<u64, LedgerError> {
        self.read(|tables| {
            let (now, ends) = (tables.clock()?, tables.number_events()?);
            tables.forget(&RetentionCutoffs {
                events_before: ends.next - retention.events,
                answers_before: now.plus_seconds(-retention.answers_s),
                receipts_before: retention.receipts_s.map(|age| now.plus_seconds(-age)),
                refusals_before: retention.refusals_s.map(|age| now.plus_seconds(-age)),
                audit_before: retention.audit_s.map(|age| now.plus_seconds(-age)),
                now,
            })
        })
    }

    /// Counts of writes and retries.
    #[must_use]
    pub fn stats(&self) -> WriteStats {
        self.0.metrics.stats()
    }

    /// Reads on a pooled connection, and retries when the connection was lost.
    pub(crate) fn read<T>(
        &self,
        mut read: impl FnMut(&mut dyn Database) -> Result<T, Fault>,
    ) -> Result<T, LedgerError> {
        let kept = self.0.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut tables = match kept {
            Some(tables) => tables,
            None => self.0.backend.open(self.0.options.isolation)?,
        };
        for tries in 1..=20 {
            match read(&mut *tables) {
                Ok(found) => {
                    self.0.readers.lock().unwrap_or_else(PoisonError::into_inner).push(tables);
                    return Ok(found);
                }
                Err(Fault::Disconnected(_)) if tries < 20 => {
                    tables.rollback();
                    std::thread::sleep(Duration::from_millis(10 * tries));
                    let _ = tables.reconnect();
                }
                Err(Fault::Retry(_)) if tries < 20 => tables.rollback(),
                Err(fault) => {
                    tables.rollback();
                    return Err(fault.into_error(u32::try_from(tries).unwrap_or(u32::MAX)));
                }
            }
        }
        Err(LedgerError::Unreachable("the database went away again and again".to_owned()))
    }
}

/// The writer of an operation. Those about one node go to one writer, so that writers of a server do
/// not wait for each other's locks; those about several may go to any, since locks are taken in
/// one order.
fn writer_of(op: &Op, writers: usize) -> usize {
    let mut hasher = FxHasher::default();
    match op.bare() {
        Op::Commit(plan) | Op::DryRun(plan) => {
            plan.claims.first().map(|claim| &claim.node).hash(&mut hasher)
        }
        Op::Move(to) => to.to.node.hash(&mut hasher),
        Op::Adopt(adopt) => adopt.node.hash(&mut hasher),
        Op::Reap(node) | Op::ReconcileNode(node) => node.hash(&mut hasher),
        Op::Advance(advance) => advance.key.hash(&mut hasher),
        Op::Release(release) => release.key.hash(&mut hasher),
        Op::Resize(resize) => resize.key.hash(&mut hasher),
        _ => return 0,
    }
    let writers = u64::try_from(writers).unwrap_or(1).max(1);
    // The low bits of this hash are weak.
    usize::try_from((hasher.finish() >> 32) % writers).unwrap_or(0)
}

fn unexpected(answer: &Answer) -> LedgerError {
    LedgerError::Corrupt(format!("an answer of another kind: {answer:?}"))
}
