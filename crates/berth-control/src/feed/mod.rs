//! The change feed: one reader of the log for all streams of a server.
//!
//! Events are read once, made into JSON once, and kept for a while; ten thousand streams share
//! them. A stream that falls behind what is kept reads from the ledger until it has caught up.
//! The log is not read while there are no streams.

mod view;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_ledger::{Ledger, LedgerError};
use tokio::sync::watch;

pub use view::{FeedEvent, Reader};

/// Events kept for streams.
const KEPT: usize = 20_000;

/// Events read at once.
const PAGE: usize = 1000;

/// How long the reader waits for this server's own commits before it looks for others'.
const POLL_PERIOD: Duration = Duration::from_millis(50);

struct FeedState {
    events: Mutex<VecDeque<Arc<FeedEvent>>>,
    newest: watch::Sender<i64>,
    streams: AtomicUsize,
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
    pub fn start(ledger: Ledger) -> std::io::Result<Self> {
        let shared = Arc::new(FeedState {
            events: Mutex::default(),
            newest: watch::Sender::new(0),
            streams: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&shared);
        let reading = ledger.clone();
        std::thread::Builder::new().name("feed".to_owned()).spawn(move || {
            let mut seen = 0;
            // Ends with the feed.
            while let Some(shared) = weak.upgrade() {
                seen = reading.wait_for_commit(seen, POLL_PERIOD);
                if shared.streams.load(Ordering::Relaxed) > 0 {
                    shared.read_new_events(&reading);
                }
            }
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
    pub async fn page(
        &self,
        cursor: i64,
        limit: usize,
    ) -> Result<Vec<Arc<FeedEvent>>, LedgerError> {
        let ledger = self.ledger.clone();
        let read = move || {
            let page = ledger.events_after(cursor, limit)?;
            Ok(page.events.into_iter().map(|event| Arc::new(FeedEvent::of(event))).collect())
        };
        tokio::task::spawn_blocking(read).await.unwrap_or(Err(LedgerError::Closed))
    }

    /// The number of the newest event.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn newest(&self) -> Result<i64, LedgerError> {
        let ledger = self.ledger.clone();
        let read = move || ledger.newest_event();
        tokio::task::spawn_blocking(read).await.unwrap_or(Err(LedgerError::Closed))
    }
}

impl FeedState {
    /// Reads what came since, as long as there is more.
    fn read_new_events(&self, ledger: &Ledger) {
        loop {
            let cursor = match self.last() {
                Some(cursor) => cursor,
                // The first stream starts at the end; it reads what was before by itself.
                None => match ledger.newest_event() {
                    Ok(newest) => {
                        self.newest
                            .send_if_modified(|known| std::mem::replace(known, newest) < newest);
                        newest
                    }
                    Err(_) => return,
                },
            };
            let Ok(page) = ledger.events_after(cursor.max(*self.newest.borrow()), PAGE) else {
                // The log was cut or replaced: streams find out for themselves.
                self.lock().clear();
                return;
            };
            if page.events.is_empty() {
                return;
            }
            {
                let mut ring = self.lock();
                ring.extend(page.events.into_iter().map(|e| Arc::new(FeedEvent::of(e))));
                let surplus = ring.len().saturating_sub(KEPT);
                ring.drain(..surplus);
            }
            self.newest.send_replace(page.cursor);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<FeedEvent>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> Option<i64> {
        self.lock().back().map(|event| event.seq)
    }

    /// Kept events after a cursor; absent when they are no longer, or not yet, kept.
    fn kept_after(&self, cursor: i64, most: usize) -> Option<Vec<Arc<FeedEvent>>> {
        let ring = self.lock();
        let first = ring.front()?.seq;
        let next = cursor.saturating_add(1);
        if next < first {
            return None;
        }
        let skip = usize::try_from(next - first).unwrap_or(usize::MAX);
        Some(ring.iter().skip(skip).take(most).cloned().collect())
    }
}

impl Subscription {
    /// The events after a cursor, as soon as there are any.
    ///
    /// # Errors
    /// When the cursor is older than the log reaches, or newer; or the ledger cannot be read.
    pub async fn next(&mut self, cursor: i64) -> Result<Vec<Arc<FeedEvent>>, LedgerError> {
        loop {
            // Seen before looking, so that nothing that comes meanwhile is slept through.
            let newest = *self.newest.borrow_and_update();
            if cursor < newest || newest == 0 {
                let kept = self.feed.shared.kept_after(cursor, PAGE);
                let events = match kept {
                    Some(events) => events,
                    None => self.feed.page(cursor, PAGE).await?,
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
