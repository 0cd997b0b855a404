//! The log reader: the thread that reads the ledger for the planner, so that a slow database never
//! holds up a decision.
//!
//! One pass reads the log to its end, for everyone who asked for it since the last pass started, and
//! sends what it read to the planner. Passes do not overlap, and the next one starts only when the
//! planner has taken in the last: however slow the database or the planner is, at most one message of
//! the reader waits. It decides nothing and never changes the fleet itself.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_engine::{Fleet, Policy};
use berth_ledger::{
    Claim, ClaimKey, Event, Ledger, LedgerError, Micros, Segment, SnapshotItem, Text,
};

use super::follow::AfterLookup;
use super::{CatalogSender, Message, tick};
use crate::catalog::{CatalogState, CatalogUpdate, LogSegment};
use crate::clock::DatabaseClock;
use crate::fleet_replica::FleetReplica;
use crate::metrics::{LoopFailure, Metrics};
use crate::supervision::{ThreadMonitor, WorkPanicked};

/// Name of the thread and its loop in metrics and logs.
pub(super) const NAME: &str = "follower";

/// Segments read at once.
pub(crate) const PAGE: usize = 5000;

/// Time between two reads of heartbeats, and of the database's clock.
const HEARTBEATS_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after the first failed pass; doubled after each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// The longest wait after a failed pass.
const BACKOFF_LONGEST: Duration = Duration::from_secs(1);

/// Part of the log, in order.
pub(super) struct LogPage {
    /// What happened; empty if only this server writes, since it knows that already.
    pub(super) segments: Vec<PageSegment>,
    /// The last event of the page.
    pub(super) end: i64,
    /// Whether other servers' events are among them.
    pub(super) has_others: bool,
}

/// What one transaction wrote.
pub(super) struct PageSegment {
    pub(super) at: Micros,
    pub(super) origin: Text,
    pub(super) events: Vec<Event>,
}

/// How a pass ended.
pub(super) struct PassResult {
    /// Requests up to this number are answered by it.
    pub(super) ticket: u64,
    /// Whether the log was read to its end.
    pub(super) at_end: bool,
    /// Whether expired leases were found and released.
    pub(super) reaped: bool,
}

/// What the reader is asked for.
#[derive(Default)]
struct RequestQueue {
    /// The number of the last request.
    requested: u64,
    reap: bool,
    reload: bool,
    lookups: Vec<(Vec<ClaimKey>, AfterLookup)>,
    /// Whether another server says that the log has grown.
    is_hinted: bool,
    /// Whether the planner has not taken in the last message yet.
    is_unacknowledged: bool,
    closed: bool,
}

/// The planner's end of the reader. The reader stops when it is dropped.
pub(super) struct LogReaderHandle(Arc<ReaderChannel>);

#[derive(Default)]
struct ReaderChannel {
    queue: Mutex<RequestQueue>,
    changed: Condvar,
}

impl ReaderChannel {
    fn lock(&self) -> MutexGuard<'_, RequestQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        queue: MutexGuard<'a, RequestQueue>,
        timeout: Duration,
    ) -> MutexGuard<'a, RequestQueue> {
        self.changed.wait_timeout(queue, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl ReaderChannel {
    /// Has the next pass start early.
    fn hint(&self) {
        self.lock().is_hinted = true;
        self.changed.notify_all();
    }
}

impl LogReaderHandle {
    /// Asks for the log up to its end as of now, and for expired leases to be released before. Returns
    /// the number of the request: a pass with this ticket or a later one answers it.
    pub(super) fn request_pass(&self, reap: bool) -> u64 {
        let mut queue = self.0.lock();
        queue.requested += 1;
        queue.reap |= reap;
        let ticket = queue.requested;
        drop(queue);
        self.0.changed.notify_all();
        ticket
    }

    /// Asks for claims as the ledger has them.
    pub(super) fn look_up(&self, keys: Vec<ClaimKey>, then: AfterLookup) {
        self.0.lock().lookups.push((keys, then));
        self.0.changed.notify_all();
    }

    /// Asks for the whole fleet.
    pub(super) fn request_reload(&self) {
        self.0.lock().reload = true;
        self.0.changed.notify_all();
    }

    /// Tells the reader that its last message was taken in.
    pub(super) fn acknowledge(&self) {
        self.0.lock().is_unacknowledged = false;
        self.0.changed.notify_all();
    }
}

impl Drop for LogReaderHandle {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

/// What a reader needs.
pub(super) struct LogReaderSettings {
    pub(super) ledger: Ledger,
    /// The planner's inbox.
    pub(super) inbox: Sender<Message>,
    pub(super) catalog_sender: CatalogSender,
    /// The last event that the planner knows.
    pub(super) cursor: i64,
    /// The policy until the ledger names one.
    pub(super) policy: Policy,
    /// Time between two passes, if none is requested.
    pub(super) every: Duration,
    /// The database's clock as all of the server knows it.
    pub(super) clock: Arc<DatabaseClock>,
    pub(super) metrics: Option<Arc<Metrics>>,
    pub(super) monitor: ThreadMonitor,
}

/// The thread's state.
pub(super) struct LogReader {
    settings: LogReaderSettings,
    shared: Arc<ReaderChannel>,
    /// The last event that was read.
    cursor: i64,
    /// Whether others write to this ledger too. Then our own events are sent as well: only the log
    /// says which of two is the newer.
    multi_writer: bool,
    /// Connections that had been lost when the fleet was last known to be whole: a commit may have
    /// happened whose answer was lost, so that it is not known here.
    lost: u64,
    heard_until: i64,
    heard_at: Option<Instant>,
    /// The last request that was taken.
    answered: u64,
    /// Whether the last pass failed.
    is_failing: bool,
}

/// How long to wait after a pass.
#[derive(Clone, Copy, Default)]
struct Pause {
    /// If another server says that it has committed.
    least: Duration,
    /// Otherwise.
    most: Duration,
}

/// The planner is gone.
struct ReaderStopped;

impl LogReader {
    pub(super) fn new(settings: LogReaderSettings) -> (Self, LogReaderHandle) {
        let shared = Arc::new(ReaderChannel::default());
        let (cursor, lost) = (settings.cursor, settings.ledger.stats().retries.lost);
        let handle = LogReaderHandle(Arc::clone(&shared));
        let hinted = Arc::downgrade(&shared);
        settings.ledger.listen_for_hints(Box::new(move || {
            if let Some(shared) = hinted.upgrade() {
                shared.hint();
            }
        }));
        let reader = Self {
            settings,
            shared,
            cursor,
            multi_writer: false,
            lost,
            heard_until: 0,
            heard_at: None,
            answered: 0,
            is_failing: false,
        };
        (reader, handle)
    }

    /// Reads until the planner is gone.
    pub(super) fn run(mut self) {
        let monitor = self.settings.monitor.clone();
        let (mut pause, mut failures) = (Pause::default(), 0_u32);
        while let Ok(requests) = self.next_requests(pause) {
            let began = tick();
            monitor.begin();
            let outcome = monitor.guard(|| self.pass(requests));
            monitor.idle();
            let failure = match outcome {
                Ok(Err(ReaderStopped)) => break,
                Ok(Ok(Ok(()))) => None,
                Ok(Ok(Err(error))) => Some(error.to_string()),
                Err(WorkPanicked) => Some("panic".to_owned()),
            };
            self.is_failing = failure.is_some();
            let Some(error) = failure else {
                failures = 0;
                monitor.succeeded();
                if let Some(metrics) = &self.settings.metrics {
                    metrics.loop_ran(NAME);
                }
                // Half of the time at most, if the database is slow.
                let least = began.elapsed();
                pause = Pause { least, most: self.settings.every.max(least) };
                continue;
            };
            monitor.failed();
            if let Some(metrics) = &self.settings.metrics {
                metrics.loop_failed(NAME, LoopFailure::Error);
            }
            let backoff = (BACKOFF_FIRST * 2_u32.pow(failures.min(10))).min(BACKOFF_LONGEST);
            pause = Pause { least: backoff, most: backoff };
            failures = failures.saturating_add(1);
            tracing::warn!(
                error,
                cursor = self.cursor,
                failures,
                retry_in_ms = backoff.as_millis(),
                "failed to read the log"
            );
        }
        monitor.stop();
    }

    /// Waits until something is asked for, or the pause ends: early if another server has committed.
    fn next_requests(&mut self, pause: Pause) -> Result<RequestQueue, ReaderStopped> {
        let now = tick();
        let mut queue = self.shared.lock();
        loop {
            if queue.closed {
                return Err(ReaderStopped);
            }
            let is_asked =
                queue.requested > self.answered || queue.reload || !queue.lookups.is_empty();
            let pause = if queue.is_hinted { pause.least } else { pause.most };
            let left = pause.saturating_sub(now.elapsed());
            // After a failure requests wait too, so that the database is not overrun.
            if left.is_zero() || (is_asked && !self.is_failing) {
                break;
            }
            queue = self.shared.wait(queue, left);
        }
        self.answered = queue.requested;
        Ok(RequestQueue {
            requested: queue.requested,
            reap: std::mem::take(&mut queue.reap),
            reload: std::mem::take(&mut queue.reload),
            lookups: std::mem::take(&mut queue.lookups),
            is_hinted: std::mem::take(&mut queue.is_hinted),
            is_unacknowledged: false,
            closed: false,
        })
    }

    /// Sends the planner something, and waits until it was taken in.
    fn send(&self, message: Message) -> Result<(), ReaderStopped> {
        self.shared.lock().is_unacknowledged = true;
        self.settings.inbox.send(message).map_err(|_| ReaderStopped)?;
        // From here on it is the planner that takes its time, not the database.
        self.settings.monitor.idle();
        let mut queue = self.shared.lock();
        while queue.is_unacknowledged {
            if queue.closed {
                return Err(ReaderStopped);
            }
            queue = self.shared.wait(queue, Duration::from_secs(1));
        }
        self.settings.monitor.begin();
        Ok(())
    }

    /// One pass. Requests are answered even if it fails, and continue with what is known.
    fn pass(&mut self, requests: RequestQueue) -> Result<Result<(), LedgerError>, ReaderStopped> {
        let ticket = requests.requested;
        for (keys, then) in requests.lookups {
            let claims = keys.into_iter().map(|key| self.settings.ledger.claim(key));
            let claims: Result<Vec<Option<Claim>>, LedgerError> = claims.collect();
            let claims = claims.map(|claims| claims.into_iter().flatten().collect());
            self.send(Message::ClaimsRead(claims, Box::new(then)))?;
        }
        let mut result = PassResult { ticket, at_end: false, reaped: false };
        let outcome = self.read(requests.reap, requests.reload, &mut result)?;
        self.settings.catalog_sender.send(|| CatalogUpdate::PassEnded);
        self.send(Message::PassEnded(result))?;
        Ok(outcome)
    }

    fn read(
        &mut self,
        reap: bool,
        reload: bool,
        result: &mut PassResult,
    ) -> Result<Result<(), LedgerError>, ReaderStopped> {
        let lost = self.settings.ledger.stats().retries.lost;
        let reload = self.settings.monitor.supervisor().take_reload_request() || reload;
        if reload || lost != self.lost {
            match self.reload()? {
                Ok(()) => self.lost = lost,
                Err(error) => {
                    // Asked for again with the next pass.
                    self.shared.lock().reload |= reload;
                    return Ok(Err(error));
                }
            }
        }
        if reap {
            match self.settings.ledger.reap() {
                Ok(reaped) => result.reaped = !reaped.is_empty(),
                Err(error) => return Ok(Err(error)),
            }
        }
        let mut read = self.read_to_end()?;
        if let Err(LedgerError::CursorTooOld { .. } | LedgerError::CursorInFuture { .. }) = read {
            read = match self.reload()? {
                Ok(()) => self.read_to_end()?,
                Err(error) => Err(error),
            };
        }
        if let Err(error) = read {
            return Ok(Err(error));
        }
        result.at_end = true;
        self.read_heartbeats()
    }

    /// Sends all events there are.
    fn read_to_end(&mut self) -> Result<Result<(), LedgerError>, ReaderStopped> {
        loop {
            let segments = match self.settings.ledger.segments_after(self.cursor, PAGE) {
                Ok(segments) => segments,
                Err(error) => return Ok(Err(error)),
            };
            let Some(last) = segments.last() else { return Ok(Ok(())) };
            let end = last.first + last.count - 1;
            let origins = self.settings.ledger.origins();
            let has_others = segments.iter().any(|segment| !origins.contains(&segment.origin));
            self.multi_writer |= has_others;
            let count: i64 = segments.iter().map(|segment| segment.count).sum();
            let segments = if self.multi_writer { self.decode(&segments) } else { Vec::new() };
            self.send_to_catalog(&segments);
            if usize::try_from(count).is_ok_and(|count| count < PAGE) {
                // That was all: who waits for it in the catalogue need not wait for the planner.
                self.settings.catalog_sender.send(|| CatalogUpdate::PassEnded);
            }
            self.send(Message::LogPage(Box::new(LogPage { segments, end, has_others })))?;
            self.cursor = end;
        }
    }

    /// Sends part of the log to the catalogue, which has it before the planner.
    fn send_to_catalog(&self, segments: &[PageSegment]) {
        if segments.is_empty() {
            return;
        }
        let origins = self.settings.ledger.origins();
        self.settings.catalog_sender.send(|| {
            let logged = segments.iter().map(|segment| LogSegment {
                at: segment.at,
                origin: Text::clone(&segment.origin),
                is_own: origins.contains(&segment.origin),
                events: segment.events.iter().map(|event| event.body.clone()).collect(),
            });
            CatalogUpdate::Log(logged.collect())
        });
    }

    /// Decodes segments. One that cannot be read is skipped, and the fleet is loaded again: it must not
    /// keep this server from everything that comes after it.
    fn decode(&self, segments: &[Segment]) -> Vec<PageSegment> {
        let mut decoded = Vec::with_capacity(segments.len());
        for segment in segments {
            match segment.events() {
                Ok(mut events) => {
                    self.settings.ledger.observe_events(&events);
                    events.retain(|event| event.seq > self.cursor);
                    let origin = Text::clone(&segment.origin);
                    decoded.push(PageSegment { at: segment.at, origin, events });
                }
                Err(error) => {
                    self.settings.monitor.supervisor().note_unreadable(
                        segment.first,
                        segment.count,
                        &segment.origin,
                        &error,
                    );
                    if let Some(metrics) = &self.settings.metrics {
                        metrics.loop_failed(NAME, LoopFailure::Error);
                    }
                    self.shared.lock().reload = true;
                }
            }
        }
        decoded
    }

    /// Reads the heartbeats that any server received: they are too many for the log.
    fn read_heartbeats(&mut self) -> Result<Result<(), LedgerError>, ReaderStopped> {
        let is_due = |at: Instant| at.elapsed() >= HEARTBEATS_EVERY;
        if !self.heard_at.is_none_or(is_due) {
            return Ok(Ok(()));
        }
        if let Err(error) = self.settings.clock.set(&self.settings.ledger) {
            return Ok(Err(error));
        }
        let heard = match self.settings.ledger.heartbeats_since(self.heard_until) {
            Ok(heard) => heard,
            Err(error) => return Ok(Err(error)),
        };
        self.heard_at = Some(tick());
        // Heard in the same second again, at worst. A time that has not come yet is wrong, and would
        // hide what is heard until then.
        let newest = heard.iter().map(|(_, at)| *at).max().unwrap_or(0);
        let newest = newest.min(self.settings.clock.now().as_second());
        self.heard_until = newest.max(self.heard_until);
        if !heard.is_empty() {
            self.settings.catalog_sender.send(|| CatalogUpdate::Heartbeats(heard.clone()));
            self.send(Message::Heartbeats(heard))?;
        }
        Ok(Ok(()))
    }

    /// Loads everything, when the log does not reach back to where we were or lacks what we missed.
    fn reload(&mut self) -> Result<Result<(), LedgerError>, ReaderStopped> {
        let progressed = || self.settings.monitor.begin();
        let policy = self.settings.policy.clone();
        let has_catalog = self.settings.catalog_sender.is_connected();
        let loaded = match load(&self.settings.ledger, policy, has_catalog, progressed) {
            Ok(loaded) => loaded,
            Err(error) => return Ok(Err(error)),
        };
        let LoadedFleet { replica, fleet, catalog } = loaded;
        // Reports of our own commits that are in the snapshot must reach planner and catalogue before it
        // does: after it, an allocation that ended since would be taken for a new one.
        let position = self.settings.ledger.writer_position();
        while !self.settings.ledger.is_observed(&position) {
            if self.shared.lock().closed {
                return Err(ReaderStopped);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.cursor = replica.cursor;
        // What was committed here since the snapshot is in the log only, as far as the new fleet goes.
        self.multi_writer = true;
        self.send(Message::Reloaded(replica, fleet))?;
        // The catalogue last: until it has read the log to its end, nobody is told that it has what was
        // committed here, and that must not wait for the planner.
        if let Some(catalog) = catalog {
            self.settings.catalog_sender.send(|| CatalogUpdate::Replace(catalog));
        }
        Ok(Ok(()))
    }
}

/// The fleet as the ledger has it, once for each who needs a copy.
pub(super) struct LoadedFleet {
    /// The planner's.
    pub(super) replica: Box<FleetReplica>,
    /// The explainer's.
    pub(super) fleet: Box<Fleet>,
    /// The readers', if there are any.
    pub(super) catalog: Option<Box<CatalogState>>,
}

/// Loads the fleet as the ledger has it. All copies are made here, on a thread that nobody waits for.
pub(super) fn load(
    ledger: &Ledger,
    policy: Policy,
    has_catalog: bool,
    progressed: impl Fn(),
) -> Result<LoadedFleet, LedgerError> {
    let mut replica = Box::new(FleetReplica::new(policy));
    let mut catalog = has_catalog.then(Box::<CatalogState>::default);
    replica.cursor = ledger.snapshot(|item: SnapshotItem| {
        progressed();
        if let Some(catalog) = &mut catalog {
            catalog.load(item.clone());
        }
        replica.load(item)
    })?;
    let engine = replica.engine();
    engine.fleet_mut().record_changes();
    let fleet = Box::new(engine.fleet().clone());
    Ok(LoadedFleet { replica, fleet, catalog })
}
