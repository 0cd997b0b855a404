//! Group commit: operations queue while a transaction is in flight, then share the next one.
//!
//! Each writer is a thread with its own connection and chain. A writer never waits for more work
//! to arrive: it takes what is queued when it becomes free.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use crate::database::Database;
use crate::error::LedgerError;
use crate::model::{Answer, Op};
use crate::transaction::{
    CommitRecord, Retries, RetryBudget, TransactionResult, WriterChains, run,
};

/// Called with the answer once it is durable. It must return quickly.
pub type Reply = Box<dyn FnOnce(Result<Answer, LedgerError>) + Send>;

/// An operation and the callback for its answer.
pub struct Job {
    /// What to do.
    pub op: Op,
    /// The callback.
    pub reply: Reply,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    closed: bool,
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
}

/// What all writers of a ledger have done.
#[derive(Default)]
pub(crate) struct WriterMetrics {
    stats: Mutex<WriteStats>,
    /// Rises with every commit, for callers that wait for events.
    commits: Mutex<u64>,
    committed: Condvar,
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

    /// Waits until something was committed here since `seen`, or the timeout ends.
    pub(crate) fn wait_for_commit(&self, seen: u64, timeout: Duration) -> u64 {
        let commits = lock(&self.commits);
        let waited = self.committed.wait_timeout_while(commits, timeout, |now| *now == seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Counts the drifts among these answers.
    fn note_drifts(&self, answers: &[Answer]) {
        let found = answers.iter().map(|answer| match answer {
            Answer::Drifts(drifts) => drifts.len(),
            _ => 0,
        });
        let found: usize = found.sum();
        if found > 0 {
            lock(&self.stats).drifts += u64::try_from(found).unwrap_or(u64::MAX);
        }
    }

    fn note(&self, operations: usize, retries: Retries) {
        let mut stats = lock(&self.stats);
        stats.transactions += 1;
        stats.operations += u64::try_from(operations).unwrap_or(0);
        stats.retries.conflicts += retries.conflicts;
        stats.retries.duplicates += retries.duplicates;
        stats.retries.guards += retries.guards;
        stats.retries.lost += retries.lost;
        drop(stats);
        *lock(&self.commits) += 1;
        self.committed.notify_all();
    }
}

impl Queue {
    /// The queue of one writer.
    pub(crate) fn new(metrics: Arc<WriterMetrics>) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// Adds operations in the order given.
    pub(crate) fn submit(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            jobs.into_iter().for_each(|job| (job.reply)(Err(LedgerError::Closed)));
            return;
        }
        state.waiting.extend(jobs);
        drop(state);
        self.arrived.notify_one();
    }

    /// Rejects further operations; queued ones are still run.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.arrived.notify_all();
    }

    /// How many groups the writer has started.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }

    /// Whether the observer has seen this many groups.
    pub(crate) fn is_observed(&self, groups: u64) -> bool {
        self.observed.load(Ordering::SeqCst) >= groups
    }

    fn next_group(&self, most: usize) -> Option<Vec<Job>> {
        let mut state = lock(&self.state);
        loop {
            if !state.waiting.is_empty() {
                let started = state.waiting.len().min(most);
                let group = state.waiting.drain(..started).collect();
                let more = !state.waiting.is_empty();
                drop(state);
                self.started.fetch_add(1, Ordering::SeqCst);
                if more {
                    self.arrived.notify_one();
                }
                return Some(group);
            }
            if state.closed {
                return None;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Settings of a writer.
#[derive(Clone)]
pub(crate) struct WriterSettings {
    /// Most operations in one transaction.
    pub(crate) most: usize,
    pub(crate) retry_budget: RetryBudget,
    pub(crate) observer: Option<Observer>,
}

/// Called for every commit of this process that has events, before its answers are delivered.
pub type Observer = Arc<dyn Fn(CommitRecord) + Send + Sync>;

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

fn deliver(finished: FinishedGroup, observer: Option<&Observer>) {
    let FinishedGroup { ops, replies, outcome, ends_group: _ } = finished;
    match outcome {
        Ok(TransactionResult { answers, commits }) => {
            if let Some(observer) = observer {
                commits.into_iter().for_each(|committed| observer(committed));
            }
            replies.into_iter().zip(answers).for_each(|(reply, answer)| reply(Ok(answer)));
        }
        Err(error) => replies.into_iter().for_each(|reply| reply(Err(error.clone()))),
    }
    drop(ops);
}

/// Runs a writer until its queue is closed and empty.
pub(crate) fn run_writer(
    queue: &Arc<Queue>,
    mut tables: Box<dyn Database>,
    mut chains: WriterChains,
    settings: &WriterSettings,
) {
    let retry_budget = settings.retry_budget;
    let (finished, to_deliver) = mpsc::channel::<FinishedGroup>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            REPLY_THREAD.set(true);
            for finished in to_deliver {
                let ends_group = finished.ends_group;
                deliver(finished, settings.observer.as_ref());
                queue.observed.fetch_add(u64::from(ends_group), Ordering::SeqCst);
            }
        });
        while let Some(group) = queue.next_group(settings.most) {
            let (ops, replies): (Vec<Op>, Vec<Reply>) =
                group.into_iter().map(|job| (job.op, job.reply)).unzip();
            let mut retries = Retries::default();
            let outcome = run(&mut *tables, &mut chains, &ops, retry_budget, &mut retries);
            queue.metrics.note(ops.len(), retries);
            if let Ok(done) = &outcome {
                queue.metrics.note_drifts(&done.answers);
            }
            // An operation that the database rejects must not fail the others of its group.
            let poisoned =
                matches!(outcome, Err(LedgerError::Database(_) | LedgerError::Corrupt(_)));
            let _ = if poisoned && ops.len() > 1 {
                let mut left = ops.len();
                ops.into_iter().zip(replies).try_for_each(|(op, reply)| {
                    left -= 1;
                    let ops = vec![op];
                    let outcome = run(&mut *tables, &mut chains, &ops, retry_budget, &mut retries);
                    let replies = vec![reply];
                    finished.send(FinishedGroup { ops, replies, outcome, ends_group: left == 0 })
                })
            } else {
                finished.send(FinishedGroup { ops, replies, outcome, ends_group: true })
            };
        }
        drop(finished);
    });
}
