//! Group commit: operations queue while a transaction is in flight, then share the next one.
//!
//! Each writer is a thread with its own connection and chain. A writer never waits for more work
//! to arrive: it takes what is queued when it becomes free. What is queued is bounded, and so is what is
//! committed and not delivered yet.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::commit_hints::CommitHints;
use crate::database::Database;
use crate::error::LedgerError;
use crate::model::{Answer, Op};
use crate::transaction::{
    CommitRecord, Retries, RetryBudget, TransactionResult, WriterChains, run, tick,
};

/// Called with the answer once it is durable. It must return quickly.
pub type Reply = Box<dyn FnOnce(Result<Answer, LedgerError>) + Send>;

/// Called with whether the database takes commits. It must return quickly.
pub type ProbeReply = Box<dyn FnOnce(Result<(), LedgerError>) + Send>;

/// An operation and the callback for its answer.
pub struct Job {
    /// What to do.
    pub op: Op,
    /// The callback.
    pub reply: Reply,
}

/// Most operations that may wait for one writer; further ones are refused, and nothing of them is written.
/// Placements are turned away long before, by the claim path.
pub const WAITING_MAX: usize = 100_000;

/// Most groups that are committed and not delivered; beyond that the writer waits.
pub const UNDELIVERED_MAX: usize = 16;

/// How long after a failure a writer that nobody asks anything tries to commit again.
const PROBE_AGAIN_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// Operations, each with when it was submitted.
    waiting: VecDeque<(Instant, Job)>,
    /// Since when the writer has been working on its present group.
    busy_since: Option<Instant>,
    /// When the writer began what the database did not answer; none once it has committed something since.
    failing_since: Option<Instant>,
    /// When the last attempt failed that the database did not answer.
    failed_at: Option<Instant>,
    /// When the writer last committed something.
    committed_at: Option<Instant>,
    /// Those who asked whether the database takes commits.
    probes: Vec<ProbeReply>,
    closed: bool,
}

/// What a writer does next.
enum Task {
    Group(Vec<Job>),
    /// Commits something that leaves nothing, to see whether it can.
    Probe {
        /// Whether it failed the last time.
        is_failing: bool,
    },
}

/// Counts of writes and retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteStats {
    /// Transactions that committed.
    pub transactions: u64,
    /// Operations in them.
    pub operations: u64,
    /// Attempts that had to be retried.
    pub retries: Retries,
    /// Counters that differed from their claims: each is a bug.
    pub drifts: u64,
    /// Groups of operations, and callbacks for answers, that panicked: each is a bug.
    pub panics: u64,
}

/// What all writers of a ledger have done.
#[derive(Default)]
pub(crate) struct WriterMetrics {
    stats: Mutex<WriteStats>,
    /// Rises with every commit, for callers that wait for events.
    commits: Mutex<u64>,
    committed: Condvar,
    /// Shared with the connection for hints.
    pub(crate) hints: Arc<CommitHints>,
}

/// Operations queued for one writer.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    metrics: Arc<WriterMetrics>,
    /// Groups that the writer has started, and those that the observer has seen.
    started: AtomicU64,
    observed: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data stays valid if a thread panics while it holds the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WriterMetrics {
    pub(crate) fn stats(&self) -> WriteStats {
        *lock(&self.stats)
    }

    /// The hints, which from now on wake those who wait for commits.
    pub(crate) fn wake_on_hints(self: &Arc<Self>) -> Arc<CommitHints> {
        let metrics = Arc::downgrade(self);
        self.hints.add_listener(Box::new(move || {
            if let Some(metrics) = metrics.upgrade() {
                metrics.wake_waiting();
            }
        }));
        Arc::clone(&self.hints)
    }

    /// Wakes those who wait for commits.
    fn wake_waiting(&self) {
        *lock(&self.commits) += 1;
        self.committed.notify_all();
    }

    /// Waits until something was committed since `seen`, or the timeout ends.
    pub(crate) fn wait_for_commit(&self, seen: u64, timeout: Duration) -> u64 {
        let commits = lock(&self.commits);
        let waited = self.committed.wait_timeout_while(commits, timeout, |now| *now == seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Counts a transaction that committed or failed, and what had to be retried for it.
    fn note(&self, outcome: &Result<TransactionResult, LedgerError>, retries: Retries) {
        let mut stats = lock(&self.stats);
        if let Ok(TransactionResult { answers, .. }) = outcome {
            stats.transactions += 1;
            stats.operations += u64::try_from(answers.len()).unwrap_or(0);
            let drifts = answers.iter().map(|answer| match answer {
                Answer::Drifts(drifts) => drifts.len(),
                _ => 0,
            });
            stats.drifts += u64::try_from(drifts.sum::<usize>()).unwrap_or(u64::MAX);
        }
        stats.retries.conflicts += retries.conflicts;
        stats.retries.duplicates += retries.duplicates;
        stats.retries.guards += retries.guards;
        stats.retries.lost += retries.lost;
        drop(stats);
        self.wake_waiting();
        self.hints.note_commit();
    }

    /// Calls something that others gave us. If it panics, that is counted, and ends nothing else.
    /// Returns whether it did not.
    fn guard(&self, call: impl FnOnce()) -> bool {
        let called = std::panic::catch_unwind(AssertUnwindSafe(call));
        if called.is_err() {
            lock(&self.stats).panics += 1;
        }
        called.is_ok()
    }

    /// Counts a connection as lost: what was committed may not be known everywhere.
    fn note_lost(&self) {
        lock(&self.stats).retries.lost += 1;
    }
}

impl Queue {
    /// The queue of one writer.
    pub(crate) fn new(metrics: Arc<WriterMetrics>) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// How many operations wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).waiting.len()
    }

    /// Adds operations in the order given; what exceeds the limit is refused.
    pub(crate) fn submit(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            jobs.into_iter().for_each(|job| (job.reply)(Err(LedgerError::Closed)));
            return;
        }
        let now = tick();
        let mut jobs = jobs.into_iter();
        let free = WAITING_MAX.saturating_sub(state.waiting.len());
        state.waiting.extend(jobs.by_ref().take(free).map(|job| (now, job)));
        let waiting = state.waiting.len();
        drop(state);
        self.arrived.notify_one();
        for job in jobs {
            (job.reply)(Err(LedgerError::Overloaded { what: "operations", waiting }));
        }
    }

    /// Rejects further operations; queued ones are still run.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.arrived.notify_all();
    }

    /// How long the database has not answered the writer: since it began its present group, or one that
    /// failed and was followed by no commit.
    pub(crate) fn unanswered_for(&self) -> Option<Duration> {
        let state = lock(&self.state);
        let since = state.failing_since.into_iter().chain(state.busy_since).min();
        since.map(|since| since.elapsed())
    }

    /// Whether the writer committed something as recently as this, and nothing failed since.
    pub(crate) fn has_committed_within(&self, time: Duration) -> bool {
        let state = lock(&self.state);
        let is_recent = state.committed_at.is_some_and(|at| at.elapsed() < time);
        is_recent && state.failing_since.is_none()
    }

    /// Says whether the database takes commits, as soon as the writer has tried.
    pub(crate) fn probe(&self, reply: ProbeReply) {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            return reply(Err(LedgerError::Closed));
        }
        state.probes.push(reply);
        drop(state);
        self.arrived.notify_one();
    }

    /// Notes that the writer has committed something, or that the database did not answer it.
    fn note_outcome(&self, outcome: Result<(), &LedgerError>) {
        let mut state = lock(&self.state);
        if outcome.is_ok() {
            (state.failing_since, state.committed_at) = (None, Some(tick()));
        } else {
            state.failing_since = state.failing_since.or(state.busy_since);
            state.failed_at = Some(tick());
        }
        let probes = std::mem::take(&mut state.probes);
        drop(state);
        for probe in probes {
            let outcome = outcome.map_err(LedgerError::clone);
            self.metrics.guard(|| probe(outcome));
        }
    }

    /// Answers operations that have waited for longer than this: nothing of them was written. Called
    /// when the database cannot be reached, so that what waits for it is bounded.
    fn expire(&self, after: Duration) {
        let mut expired = Vec::new();
        let mut state = lock(&self.state);
        while state.waiting.front().is_some_and(|(since, _)| since.elapsed() >= after) {
            expired.extend(state.waiting.pop_front());
        }
        drop(state);
        for (since, job) in expired {
            let waited = since.elapsed().as_millis();
            let why = format!("waited {waited} ms for the database; nothing was written");
            self.metrics.guard(|| (job.reply)(Err(LedgerError::Unreachable(why))));
        }
    }

    /// Notes that the writer has ended. Returns whether it should not have: then operations that wait for
    /// it are answered, and no more are taken.
    fn writer_ended(&self) -> bool {
        let mut state = lock(&self.state);
        let is_unexpected = !std::mem::replace(&mut state.closed, true);
        let waiting = std::mem::take(&mut state.waiting);
        let probes = std::mem::take(&mut state.probes);
        drop(state);
        for (_, job) in waiting {
            self.metrics.guard(|| (job.reply)(Err(LedgerError::Closed)));
        }
        for probe in probes {
            self.metrics.guard(|| probe(Err(LedgerError::Closed)));
        }
        is_unexpected
    }

    /// How many groups the writer has started.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }

    /// Whether the observer has seen this many groups.
    pub(crate) fn is_observed(&self, groups: u64) -> bool {
        self.observed.load(Ordering::SeqCst) >= groups
    }

    /// What to do next: a group, or a probe if nothing waits and somebody asks, or the last attempt failed.
    fn next_task(&self, most: usize) -> Option<Task> {
        let mut state = lock(&self.state);
        state.busy_since = None;
        loop {
            if !state.waiting.is_empty() {
                let started = state.waiting.len().min(most);
                let group = state.waiting.drain(..started).map(|(_, job)| job).collect();
                let more = !state.waiting.is_empty();
                state.busy_since = Some(tick());
                drop(state);
                self.started.fetch_add(1, Ordering::SeqCst);
                if more {
                    self.arrived.notify_one();
                }
                return Some(Task::Group(group));
            }
            if state.closed {
                return None;
            }
            let is_failing = state.failing_since.is_some();
            // By the clock: others may wake the writer for nothing, as often as they like.
            let since_failure = state.failed_at.filter(|_| is_failing).map(|at| at.elapsed());
            let left = since_failure.map(|time| PROBE_AGAIN_AFTER.saturating_sub(time));
            if !state.probes.is_empty() || left.is_some_and(|left| left.is_zero()) {
                state.busy_since = Some(tick());
                return Some(Task::Probe { is_failing });
            }
            state = match left {
                Some(left) => {
                    let woken = self.arrived.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Settings of a writer.
#[derive(Clone)]
pub(crate) struct WriterSettings {
    /// Most operations in one transaction.
    pub(crate) most: usize,
    pub(crate) retry_budget: RetryBudget,
    pub(crate) hooks: WriterHooks,
}

/// Called for every commit of this process that has events, before its answers are delivered.
pub type Observer = Arc<dyn Fn(CommitRecord) + Send + Sync>;

/// What the owner of a ledger is told about its writers.
#[derive(Clone, Default)]
pub struct WriterHooks {
    /// Called for every commit.
    pub observer: Option<Observer>,
    /// Called if a writer ends before the ledger is closed: it cannot write any more.
    pub ended: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Reports the end of a writer, whatever ends it.
struct EndReport<'a> {
    queue: &'a Queue,
    hooks: &'a WriterHooks,
}

impl Drop for EndReport<'_> {
    fn drop(&mut self) {
        if self.queue.writer_ended()
            && let Some(ended) = &self.hooks.ended
        {
            ended();
        }
    }
}

thread_local! {
    /// Whether this thread delivers a writer's answers.
    static REPLY_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread delivers answers. Its writer joins it, so it must not join its writer: a callback
/// may own the ledger's last handle, and drop it here.
pub(crate) fn is_reply_thread() -> bool {
    REPLY_THREAD.get()
}

/// What is left to do once a transaction is durable. Done on another thread, so that the writer
/// can continue with the next transaction.
struct FinishedGroup {
    ops: Vec<Op>,
    replies: Vec<Reply>,
    outcome: Result<TransactionResult, LedgerError>,
    /// Whether it is the last part of its group.
    ends_group: bool,
}

/// Hands over what was committed and the answers. A callback that panics fails its own caller only.
fn deliver(finished: FinishedGroup, observer: Option<&Observer>, metrics: &WriterMetrics) {
    let FinishedGroup { ops, replies, outcome, ends_group: _ } = finished;
    match outcome {
        Ok(TransactionResult { answers, commits }) => {
            for committed in commits {
                let observed = observer.is_none_or(|it| metrics.guard(|| it(committed)));
                if !observed {
                    // It is not known what the observer has taken in.
                    metrics.note_lost();
                }
            }
            for (reply, answer) in replies.into_iter().zip(answers) {
                metrics.guard(|| reply(Ok(answer)));
            }
        }
        Err(error) => {
            for reply in replies {
                metrics.guard(|| reply(Err(error.clone())));
            }
        }
    }
    drop(ops);
}

/// Runs operations; a panic fails them and nothing else.
fn run_guarded(
    tables: &mut dyn Database,
    chains: &mut WriterChains,
    ops: &[Op],
    retry_budget: RetryBudget,
    retries: &mut Retries,
    metrics: &WriterMetrics,
) -> Result<TransactionResult, LedgerError> {
    let work = AssertUnwindSafe(|| run(tables, chains, ops, retry_budget, retries));
    match std::panic::catch_unwind(work) {
        Ok(outcome) => outcome,
        Err(panic) => {
            // Neither the transaction nor what was prepared for it may be gone on with. Whether it was
            // committed is unknown, so the chains are read again.
            tables.rollback();
            chains.set_uncertain();
            lock(&metrics.stats).panics += 1;
            retries.lost += 1;
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
            Err(LedgerError::Corrupt(format!("panic in a writer: {text}")))
        }
    }
}

/// Runs operations and counts what was retried before anybody is answered: a lost connection means that a
/// commit may be known to nobody here.
fn run_counted(
    queue: &Queue,
    tables: &mut dyn Database,
    chains: &mut WriterChains,
    ops: &[Op],
    retry_budget: RetryBudget,
) -> Result<TransactionResult, LedgerError> {
    let (metrics, mut retries) = (&*queue.metrics, Retries::default());
    let outcome = run_guarded(tables, chains, ops, retry_budget, &mut retries, metrics);
    metrics.note(&outcome, retries);
    match &outcome {
        // What leaves no event may have changed nothing, and so have waited for no disk and no standby.
        Ok(result) if !result.commits.is_empty() => queue.note_outcome(Ok(())),
        Err(error @ LedgerError::Unreachable(_)) => queue.note_outcome(Err(error)),
        Ok(_) | Err(_) => {}
    }
    outcome
}

/// Finds out whether the database takes commits. One that refuses a probe has answered.
fn run_probe(
    queue: &Queue,
    tables: &mut dyn Database,
    is_failing: bool,
    RetryBudget(patience): RetryBudget,
) {
    let reconnected = if is_failing { tables.reconnect() } else { Ok(()) };
    let fault = match reconnected.and_then(|()| tables.probe_write(is_failing)) {
        Ok(()) => return queue.note_outcome(Ok(())),
        Err(fault) => fault,
    };
    tables.rollback();
    match fault.into_error(1) {
        error @ LedgerError::Unreachable(_) => {
            queue.note_outcome(Err(&error));
            queue.expire(patience);
        }
        error => {
            tracing::debug!(%error, "write probe refused");
            queue.note_outcome(Ok(()));
        }
    }
}

/// Runs a writer until its queue is closed and empty.
pub(crate) fn run_writer(
    queue: &Arc<Queue>,
    mut tables: Box<dyn Database>,
    mut chains: WriterChains,
    settings: &WriterSettings,
) {
    let _report = EndReport { queue, hooks: &settings.hooks };
    let (retry_budget, metrics) = (settings.retry_budget, &*queue.metrics);
    let (finished, to_deliver) = mpsc::sync_channel::<FinishedGroup>(UNDELIVERED_MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            REPLY_THREAD.set(true);
            // The receiver is dropped with this thread, and so the writer notices its end.
            for finished in to_deliver {
                let ends_group = finished.ends_group;
                deliver(finished, settings.hooks.observer.as_ref(), metrics);
                queue.observed.fetch_add(u64::from(ends_group), Ordering::SeqCst);
            }
        });
        while let Some(task) = queue.next_task(settings.most) {
            let group = match task {
                Task::Group(group) => group,
                Task::Probe { is_failing } => {
                    run_probe(queue, &mut *tables, is_failing, retry_budget);
                    continue;
                }
            };
            let mut run =
                |ops: &[Op]| run_counted(queue, &mut *tables, &mut chains, ops, retry_budget);
            let (ops, replies): (Vec<Op>, Vec<Reply>) =
                group.into_iter().map(|job| (job.op, job.reply)).unzip();
            let outcome = run(&ops);
            if matches!(outcome, Err(LedgerError::Unreachable(_))) {
                queue.expire(retry_budget.0);
            }
            // An operation that the database rejects must not fail the others of its group.
            let poisoned =
                matches!(outcome, Err(LedgerError::Database(_) | LedgerError::Corrupt(_)));
            let sent = if poisoned && ops.len() > 1 {
                let mut left = ops.len();
                ops.into_iter().zip(replies).try_for_each(|(op, reply)| {
                    left -= 1;
                    let ops = vec![op];
                    let outcome = run(&ops);
                    let replies = vec![reply];
                    finished.send(FinishedGroup { ops, replies, outcome, ends_group: left == 0 })
                })
            } else {
                finished.send(FinishedGroup { ops, replies, outcome, ends_group: true })
            };
            if sent.is_err() {
                // Nobody delivers answers any more: what is written would be known to no caller.
                break;
            }
        }
        drop(finished);
    });
}

#[cfg(test)]
mod tests;
