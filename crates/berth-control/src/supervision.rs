//! Supervision of everything that runs as long as the server does: the threads that all requests share
//! (planner, explainer, log reader, catalogue, feed, writers) and the background loops.
//!
//! A panic in one piece of work is counted and ends that piece only. A shared thread that ended or stalled,
//! or a database that no longer answers, is a reason not to be ready; what ended also ends the server.
//! Nothing here decides or restarts anything.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::metrics::{LoopFailure, Metrics};

/// A thread that works on one thing for longer than this has stalled.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// A pass of a background loop that takes longer than this has stalled. It is no reason not to be ready.
const PASS_STALLED_AFTER: Duration = Duration::from_mins(5);

/// Unreadable parts of the log that are remembered.
pub(crate) const UNREADABLE_MAX: usize = 1000;

/// After this long without an answer, the database counts as away.
const UNANSWERED_AFTER: Duration = Duration::from_millis(1500);

/// No moment.
const NEVER: u64 = u64::MAX;

/// Why a server cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A thread ended that must not.
    Ended(&'static str),
    /// A thread has been working on one thing for too long.
    Stalled(&'static str, Duration),
    /// The database has not answered for too long.
    Unanswered(&'static str, Duration),
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(name) => write!(formatter, "thread {name} has ended; restart the server"),
            Self::Stalled(name, time) => {
                write!(formatter, "thread {name} has been busy for {} s", time.as_secs())
            }
            Self::Unanswered(name, time) => write!(
                formatter,
                "the database has not answered the {name} for {}.{} s",
                time.as_secs(),
                time.subsec_millis() / 100
            ),
        }
    }
}

/// What a thread does while it is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadWork {
    /// It computes.
    Computes,
    /// It waits for the database.
    ReadsDatabase,
    /// It is a background loop: a pass takes as long as there is work.
    RunsPasses,
}

/// What is known of one thread. Moments are milliseconds since the supervisor started.
struct ThreadState {
    name: &'static str,
    work: ThreadWork,
    busy_since: AtomicU64,
    failing_since: AtomicU64,
    has_ended: AtomicBool,
}

impl ThreadState {
    fn problem(&self, now: u64) -> Option<Problem> {
        let since = |moment: &AtomicU64| match moment.load(Ordering::Relaxed) {
            NEVER => Duration::ZERO,
            at => Duration::from_millis(now.saturating_sub(at)),
        };
        if self.has_ended.load(Ordering::Relaxed) {
            return Some(Problem::Ended(self.name));
        }
        let (busy, failing) = (since(&self.busy_since), since(&self.failing_since));
        let is_stalled = match self.work {
            ThreadWork::Computes => busy > STALLED_AFTER,
            ThreadWork::RunsPasses => busy > PASS_STALLED_AFTER,
            ThreadWork::ReadsDatabase => false,
        };
        match self.work {
            _ if is_stalled => Some(Problem::Stalled(self.name, busy)),
            ThreadWork::ReadsDatabase if busy.max(failing) > UNANSWERED_AFTER => {
                Some(Problem::Unanswered(self.name, busy.max(failing)))
            }
            ThreadWork::Computes | ThreadWork::ReadsDatabase | ThreadWork::RunsPasses => None,
        }
    }

    /// Whether a problem of it keeps the server from serving. A loop that takes long does not.
    fn is_needed_to_serve(&self) -> bool {
        self.work != ThreadWork::RunsPasses || self.has_ended.load(Ordering::Relaxed)
    }
}

/// Events that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableEvents {
    /// The number of the first.
    pub first: i64,
    /// How many there are.
    pub count: i64,
}

/// The threads of one server.
pub struct Supervisor {
    started: Instant,
    threads: Mutex<Vec<Arc<ThreadState>>>,
    reload: AtomicBool,
    ended: CancellationToken,
    /// Parts of the log that could not be read: how many events, by the first.
    unreadable: Mutex<BTreeMap<i64, i64>>,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self {
            started: tick(),
            threads: Mutex::default(),
            reload: AtomicBool::new(false),
            ended: CancellationToken::new(),
            unreadable: Mutex::default(),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "measures how long threads are busy")]
fn tick() -> Instant {
    Instant::now()
}

impl Supervisor {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    /// The monitor of a thread, to be kept by the thread as long as it runs.
    #[must_use]
    pub fn monitor(
        self: &Arc<Self>,
        name: &'static str,
        work: ThreadWork,
        metrics: Option<Arc<Metrics>>,
    ) -> ThreadMonitor {
        self.add_monitor(name, work, metrics, true)
    }

    /// The monitor of the ledger's writers, which report their end by themselves.
    #[must_use]
    pub(crate) fn monitor_of_writers(self: &Arc<Self>) -> ThreadMonitor {
        self.add_monitor("ledger", ThreadWork::Computes, None, false)
    }

    fn add_monitor(
        self: &Arc<Self>,
        name: &'static str,
        work: ThreadWork,
        metrics: Option<Arc<Metrics>>,
        is_kept_by_thread: bool,
    ) -> ThreadMonitor {
        let state = Arc::new(ThreadState {
            name,
            work,
            busy_since: AtomicU64::new(NEVER),
            failing_since: AtomicU64::new(NEVER),
            has_ended: AtomicBool::new(false),
        });
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&state));
        let supervisor = Arc::clone(self);
        let is_stopping = AtomicBool::new(!is_kept_by_thread);
        ThreadMonitor(Arc::new(MonitorInner { supervisor, state, metrics, is_stopping }))
    }

    /// Everything that keeps this server from serving.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let now = self.now_ms();
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = threads.iter().filter(|thread| thread.is_needed_to_serve());
        needed.filter_map(|thread| thread.problem(now)).collect()
    }

    /// Every thread and loop by name, and whether it runs, neither stalled nor without its database.
    #[must_use]
    pub fn threads(&self) -> BTreeMap<&'static str, bool> {
        let now = self.now_ms();
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut named = BTreeMap::new();
        for thread in threads.iter() {
            // Several may have one name.
            *named.entry(thread.name).or_insert(true) &= thread.problem(now).is_none();
        }
        named
    }

    /// The thread that has been busy with one thing for longer than this, and for how long; of several the
    /// one that has been for the longest time. One that waits for the database or has much to do is not
    /// stalled.
    #[must_use]
    pub fn stalled_thread(&self, limit: Duration) -> Option<(&'static str, Duration)> {
        let stalled = self.problems().into_iter().filter_map(|problem| match problem {
            Problem::Stalled(name, time) => (time >= limit).then_some((name, time)),
            Problem::Ended(_) | Problem::Unanswered(..) => None,
        });
        stalled.max_by_key(|(_, time)| *time)
    }

    /// Records that a part of the log cannot be read. Each is logged once, whoever meets it.
    pub(crate) fn note_unreadable(
        &self,
        first: i64,
        count: i64,
        origin: &str,
        error: &dyn fmt::Display,
    ) {
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if unreadable.len() < UNREADABLE_MAX && unreadable.insert(first, count).is_none() {
            tracing::error!(
                first, count, origin, %error,
                "failed to decode events of the log; skipping them"
            );
        }
    }

    /// Parts of the log that could not be read, in order.
    #[must_use]
    pub fn unreadable_events(&self) -> Vec<UnreadableEvents> {
        let unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = unreadable.iter().map(|(first, count)| (*first, *count));
        parts.map(|(first, count)| UnreadableEvents { first, count }).collect()
    }

    /// For how long the database has not answered; absent while it does.
    #[must_use]
    pub fn database_away_for(&self) -> Option<Duration> {
        let away = self.problems().into_iter().filter_map(|problem| match problem {
            Problem::Unanswered(_, time) => Some(time),
            Problem::Ended(_) | Problem::Stalled(..) => None,
        });
        away.max()
    }

    /// Has the copies of the fleet loaded again: one of them may be half changed.
    pub(crate) fn request_reload(&self) {
        self.reload.store(true, Ordering::Relaxed);
    }

    /// Takes the request of [`Supervisor::request_reload`], if there is one.
    pub(crate) fn take_reload_request(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Cancelled when a thread ended that must not.
    #[must_use]
    pub const fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

/// A piece of work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkPanicked;

/// What a thread reports to its supervisor. If the last copy is dropped before [`ThreadMonitor::stop`],
/// the thread has ended unexpectedly.
#[derive(Clone)]
pub struct ThreadMonitor(Arc<MonitorInner>);

struct MonitorInner {
    supervisor: Arc<Supervisor>,
    state: Arc<ThreadState>,
    metrics: Option<Arc<Metrics>>,
    /// Whether it is no sign of an end that nobody keeps this any more.
    is_stopping: AtomicBool,
}

impl ThreadMonitor {
    /// Notes that the thread starts to work.
    pub fn begin(&self) {
        self.0.state.busy_since.store(self.0.supervisor.now_ms(), Ordering::Relaxed);
    }

    /// Notes that the thread waits for work.
    pub fn idle(&self) {
        self.0.state.busy_since.store(NEVER, Ordering::Relaxed);
    }

    /// Notes that what the thread last tried succeeded.
    pub fn succeeded(&self) {
        self.0.state.failing_since.store(NEVER, Ordering::Relaxed);
    }

    /// Notes that what the thread last tried failed.
    pub fn failed(&self) {
        let now = self.0.supervisor.now_ms();
        let failing = &self.0.state.failing_since;
        // Since the first failure in a row.
        let _ = failing.compare_exchange(NEVER, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The supervisor.
    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.0.supervisor
    }

    /// Does a piece of work. A panic is counted and ends only this piece.
    ///
    /// # Errors
    /// When it panicked: what it worked on may be half done.
    pub fn guard<T>(&self, work: impl FnOnce() -> T) -> Result<T, WorkPanicked> {
        let done = std::panic::catch_unwind(AssertUnwindSafe(work));
        done.map_err(|panic| self.note_panic(&*panic))
    }

    /// Does a piece of work of a task, as [`ThreadMonitor::guard`] does.
    ///
    /// # Errors
    /// When it panicked: what it worked on may be half done.
    pub async fn guard_async<T>(&self, work: impl Future<Output = T>) -> Result<T, WorkPanicked> {
        let done = AssertUnwindSafe(work).catch_unwind().await;
        done.map_err(|panic| self.note_panic(&*panic))
    }

    /// Counts a failure of the thread that ends nothing.
    pub fn count_error(&self) {
        if let Some(metrics) = &self.0.metrics {
            metrics.loop_failed(self.0.state.name, LoopFailure::Error);
        }
    }

    fn note_panic(&self, panic: &(dyn Any + Send)) -> WorkPanicked {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("");
        tracing::error!(thread = self.0.state.name, panic = text, "panic in shared thread");
        if let Some(metrics) = &self.0.metrics {
            metrics.loop_failed(self.0.state.name, LoopFailure::Panic);
        }
        WorkPanicked
    }

    /// Notes that the thread has ended and should not have, though its monitor is still there.
    pub(crate) fn report_end(&self) {
        self.0.note_end();
    }

    /// Notes that the thread is about to end as it should.
    pub fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Relaxed);
        self.idle();
        self.succeeded();
    }
}

impl MonitorInner {
    fn note_end(&self) {
        if !self.state.has_ended.swap(true, Ordering::Relaxed) {
            tracing::error!(thread = self.state.name, "shared thread ended unexpectedly");
            self.supervisor.ended.cancel();
        }
    }
}

impl Drop for MonitorInner {
    fn drop(&mut self) {
        if !self.is_stopping.load(Ordering::Relaxed) {
            self.note_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_dies_is_named_and_one_that_stops_is_not() {
        let supervisor = Arc::new(Supervisor::default());
        let stopping = supervisor.monitor("explainer", ThreadWork::Computes, None);
        let dying = supervisor.monitor("planner", ThreadWork::Computes, None);
        assert_eq!(supervisor.problems(), []);
        let died = std::thread::spawn(move || {
            dying.begin();
            panic!("on purpose");
        });
        assert!(died.join().is_err());
        stopping.stop();
        drop(stopping);
        assert_eq!(supervisor.problems(), [Problem::Ended("planner")]);
        assert!(supervisor.ended().is_cancelled());
    }

    #[test]
    fn a_loop_that_takes_long_is_not_up_and_keeps_nobody_from_being_served_until_it_ends() {
        let supervisor = Arc::new(Supervisor::default());
        let monitor = supervisor.monitor("drains", ThreadWork::RunsPasses, None);
        monitor.begin();
        let late = u64::try_from(PASS_STALLED_AFTER.as_millis()).unwrap() + 60_000;
        assert!(matches!(monitor.0.state.problem(late), Some(Problem::Stalled("drains", _))));
        assert!(!monitor.0.state.is_needed_to_serve());
        assert_eq!(supervisor.threads(), BTreeMap::from([("drains", true)]));
        drop(monitor);
        assert_eq!(supervisor.problems(), [Problem::Ended("drains")]);
        assert_eq!(supervisor.threads(), BTreeMap::from([("drains", false)]));
    }

    #[test]
    fn of_two_tasks_with_one_name_the_end_of_either_shows() {
        let supervisor = Arc::new(Supervisor::default());
        let [one, other] =
            ["listener"; 2].map(|name| supervisor.monitor(name, ThreadWork::RunsPasses, None));
        assert_eq!(supervisor.threads(), BTreeMap::from([("listener", true)]));
        drop(one);
        assert_eq!(supervisor.threads(), BTreeMap::from([("listener", false)]));
        other.stop();
    }

    #[test]
    fn writers_that_end_are_reported_by_the_ledger_and_end_the_server() {
        let supervisor = Arc::new(Supervisor::default());
        let writers = supervisor.monitor_of_writers();
        let reporting = writers.clone();
        drop(writers);
        assert_eq!(supervisor.problems(), []);
        reporting.report_end();
        assert_eq!(supervisor.problems(), [Problem::Ended("ledger")]);
        assert!(supervisor.ended().is_cancelled());
    }

    #[test]
    fn a_panic_in_a_piece_of_work_ends_only_that_piece() {
        let supervisor = Arc::new(Supervisor::default());
        let metrics = Arc::new(Metrics::new());
        let counted = Some(Arc::clone(&metrics));
        let monitor = supervisor.monitor("planner", ThreadWork::Computes, counted);
        assert_eq!(monitor.guard(|| -> u32 { panic!("on purpose") }), Err(WorkPanicked));
        assert_eq!(monitor.guard(|| 7), Ok(7));
        assert_eq!(supervisor.problems(), []);
        let counted = "loop_failures_total{loop=\"planner\",cause=\"panic\"} 1";
        assert!(metrics.text().contains(counted), "{}", metrics.text());
    }

    #[test]
    fn a_thread_is_a_problem_while_it_is_busy_or_failing_for_too_long() {
        let supervisor = Arc::new(Supervisor::default());
        let monitor = supervisor.monitor("follower", ThreadWork::ReadsDatabase, None);
        let (state, late) = (Arc::clone(&monitor.0.state), 60_000);
        assert_eq!(state.problem(late), None);
        let unanswered = |problem| matches!(problem, Some(Problem::Unanswered("follower", _)));
        monitor.begin();
        assert!(unanswered(state.problem(late)));
        monitor.idle();
        assert_eq!(state.problem(late), None);
        monitor.failed();
        monitor.failed();
        assert!(unanswered(state.problem(late)));
        monitor.succeeded();
        assert_eq!(state.problem(late), None);
        let planner = supervisor.monitor("planner", ThreadWork::Computes, None);
        planner.begin();
        let problem = planner.0.state.problem(late).map(|problem| problem.to_string());
        assert!(problem.is_some_and(|text| text.starts_with("thread planner has been busy for ")));
    }
}
