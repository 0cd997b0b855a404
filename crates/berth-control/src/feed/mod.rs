//! The change feed: one reader of the log for all streams of a server.
//!
//! Events are read once, written once for each kind of reader, and kept for a while; ten thousand streams
//! share them. A stream that falls behind what is kept reads from the ledger until it has caught up. It
//! holds only a window of events, so a slow reader costs little. The log is not read while there are
//! no streams.

#[cfg(test)]
mod tests;
mod view;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_ledger::{Ledger, LedgerError};
use tokio::sync::watch;

use crate::metrics::{LoopFailure, Metrics};
use crate::patience::read_within_patience;
use crate::supervision::{Supervisor, ThreadMonitor, ThreadWork};

pub use view::{FeedEvent, Reader, StreamEvent};

/// Events kept for streams, and bytes that they may take.
pub(crate) const KEPT: usize = 20_000;
pub(crate) const KEPT_BYTES: usize = 8 << 20;

/// Events that a stream holds at once.
pub(crate) const WINDOW: usize = 100;

/// Events read at once.
const PAGE: usize = 1000;

/// How long the reader waits for this server's own commits before it looks for others'.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Name of the thread and its loop in metrics and logs.
const NAME: &str = "feed";

/// How long to wait after a failed read; doubled after each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// The longest wait after a failed read.
const BACKOFF_LONGEST: Duration = Duration::from_secs(1);

/// The newest events.
#[derive(Default)]
struct Ring {
    events: VecDeque<Arc<StreamEvent>>,
    bytes: usize,
}

impl Ring {
    fn push(&mut self, event: StreamEvent) {
        self.bytes += event.bytes();
        self.events.push_back(Arc::new(event));
        while self.events.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.bytes();
        }
    }
}

struct FeedState {
    ring: Mutex<Ring>,
    newest: watch::Sender<i64>,
    streams: AtomicUsize,
    supervisor: Arc<Supervisor>,
}

/// The change feed.
#[derive(Clone)]
pub struct Feed {
    ledger: Ledger,
    shared: Arc<FeedState>,
}

/// A stream's share in the feed; the log is read while there is one.
pub struct Subscription {
    feed: Feed,
    newest: watch::Receiver<i64>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.feed.shared.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Feed {
    /// A feed of a ledger.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        ledger: Ledger,
        supervisor: &Arc<Supervisor>,
        metrics: Option<Arc<Metrics>>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(FeedState {
            ring: Mutex::default(),
            newest: watch::Sender::new(0),
            streams: AtomicUsize::new(0),
            supervisor: Arc::clone(supervisor),
        });
        let weak = Arc::downgrade(&shared);
        let reading = ledger.clone();
        let monitor = supervisor.monitor(NAME, ThreadWork::ReadsDatabase, metrics.clone());
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            let (mut seen, mut failures) = (0, 0_u32);
            // Ends with the feed.
            while let Some(shared) = weak.upgrade() {
                seen = reading.wait_for_commit(seen, POLL_PERIOD);
                if shared.streams.load(Ordering::Relaxed) == 0 {
                    // Nobody waits for it.
                    monitor.succeeded();
                    continue;
                }
                let Err(error) = shared.read_guarded(&reading, &monitor) else {
                    failures = 0;
                    continue;
                };
                drop(shared);
                if let Some(metrics) = &metrics {
                    metrics.loop_failed(NAME, LoopFailure::Error);
                }
                let pause = (BACKOFF_FIRST * 2_u32.pow(failures.min(10))).min(BACKOFF_LONGEST);
                failures = failures.saturating_add(1);
                let retry_in_ms = pause.as_millis();
                tracing::warn!(error, failures, retry_in_ms, "failed to read the log for streams");
                std::thread::sleep(pause);
            }
            monitor.stop();
        })?;
        Ok(Self { ledger, shared })
    }

    /// How many streams there are.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.shared.streams.load(Ordering::Relaxed)
    }

    /// Takes part in the feed.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.shared.streams.fetch_add(1, Ordering::Relaxed);
        Subscription { feed: self.clone(), newest: self.shared.newest.subscribe() }
    }

    /// Events after a cursor from the ledger, for lists and for streams that fell behind.
    ///
    /// # Errors
    /// When the cursor is older than the log reaches, or newer; or the ledger cannot be read.
    pub async fn page(&self, cursor: i64, limit: usize) -> Result<Vec<FeedEvent>, LedgerError> {
        let shared = Arc::clone(&self.shared);
        read_within_patience(&self.ledger, move |ledger| shared.read_page(ledger, cursor, limit))
            .await
    }

    /// The number of the newest event.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn newest(&self) -> Result<i64, LedgerError> {
        read_within_patience(&self.ledger, Ledger::newest_event).await
    }
}

impl FeedState {
    /// Reads what came since. A panic ends only this read.
    fn read_guarded(&self, ledger: &Ledger, monitor: &ThreadMonitor) -> Result<(), String> {
        monitor.begin();
        let read = monitor.guard(|| self.read_new_events(ledger));
        monitor.idle();
        match read {
            Ok(Ok(())) => {
                monitor.succeeded();
                Ok(())
            }
            Ok(Err(error)) => {
                monitor.failed();
                Err(error.to_string())
            }
            Err(_) => Err("panic".to_owned()),
        }
    }

    /// Reads what came since, as long as there is more.
    fn read_new_events(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        loop {
            let cursor = match self.last() {
                Some(cursor) => cursor,
                // The first stream starts at the end; it reads what was before by itself.
                None => {
                    let newest = ledger.newest_event()?;
                    self.newest.send_if_modified(|known| std::mem::replace(known, newest) < newest);
                    newest
                }
            };
            let page = match self.read_page(ledger, cursor.max(*self.newest.borrow()), PAGE) {
                Ok(page) => page,
                // The log was cut or replaced: streams find out for themselves.
                Err(LedgerError::CursorTooOld { .. } | LedgerError::CursorInFuture { .. }) => {
                    *self.lock() = Ring::default();
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let Some(last) = page.last().map(|event| event.seq) else { return Ok(()) };
            let events: Vec<StreamEvent> = page.into_iter().map(StreamEvent::of).collect();
            let mut ring = self.lock();
            events.into_iter().for_each(|event| ring.push(event));
            drop(ring);
            self.newest.send_replace(last);
        }
    }

    /// Events after a cursor, without gaps. In place of one that cannot be read there is an event that says
    /// so, or no stream would get past it.
    fn read_page(
        &self,
        ledger: &Ledger,
        cursor: i64,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, LedgerError> {
        let limit = limit.max(1);
        let mut page = Vec::new();
        for segment in ledger.segments_after(cursor, limit)? {
            match segment.events() {
                Ok(events) => page.extend(events.into_iter().map(|event| {
                    let (seq, at) = (event.seq, event.at);
                    FeedEvent::of(event).unwrap_or_else(|error| {
                        self.supervisor.note_unreadable(seq, 1, &segment.origin, &error);
                        FeedEvent::unreadable(seq, at)
                    })
                })),
                Err(error) => {
                    let (first, count) = (segment.first, segment.count);
                    self.supervisor.note_unreadable(first, count, &segment.origin, &error);
                    let numbers = segment.first..segment.first + segment.count;
                    page.extend(numbers.map(|seq| FeedEvent::unreadable(seq, segment.at)));
                }
            }
        }
        page.retain(|event| event.seq > cursor);
        page.truncate(limit);
        Ok(page)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> Option<i64> {
        self.lock().events.back().map(|event| event.seq)
    }

    /// Kept events after a cursor; absent when they are no longer, or not yet, kept.
    fn kept_after(&self, cursor: i64, most: usize) -> Option<Vec<Arc<StreamEvent>>> {
        let ring = self.lock();
        let first = ring.events.front()?.seq;
        let next = cursor.saturating_add(1);
        if next < first {
            return None;
        }
        let skip = usize::try_from(next - first).unwrap_or(usize::MAX);
        Some(ring.events.iter().skip(skip).take(most).cloned().collect())
    }
}

impl Subscription {
    /// The next events after a cursor, as soon as there are any.
    ///
    /// # Errors
    /// When the cursor is older than the log reaches, or newer; or the ledger cannot be read.
    pub async fn next(&mut self, cursor: i64) -> Result<Vec<Arc<StreamEvent>>, LedgerError> {
        loop {
            // Seen before looking, so that nothing that comes meanwhile is slept through.
            let newest = *self.newest.borrow_and_update();
            if cursor < newest || newest == 0 {
                let kept = self.feed.shared.kept_after(cursor, WINDOW);
                let events = match kept {
                    Some(events) => events,
                    None => {
                        let page = self.feed.page(cursor, WINDOW).await?;
                        page.into_iter().map(|event| Arc::new(StreamEvent::of(event))).collect()
                    }
                };
                if !events.is_empty() {
                    return Ok(events);
                }
            }
            if self.newest.changed().await.is_err() {
                return Err(LedgerError::Closed);
            }
        }
    }
}
