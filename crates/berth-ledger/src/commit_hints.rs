//! Hints between the servers of one ledger: "the log has grown".
//!
//! A hint says nothing more and may be lost, late or doubled: whoever hears it reads the log earlier than
//! it would have, and the log is read periodically in any case. Nothing may be decided by a hint.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Called for each hint of another process. It must return quickly.
pub type HintListener = Box<dyn Fn() + Send + Sync>;

/// How many hints were exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintCounts {
    /// Sent to other processes.
    pub sent: u64,
    /// Received from other processes.
    pub received: u64,
}

/// What writers, the connection for hints and those who listen share.
#[derive(Default)]
pub(crate) struct CommitHints {
    /// Whether there is a connection for hints, and so a reason to note commits.
    is_connected: AtomicBool,
    committed: Notify,
    closed: AtomicBool,
    closing: Notify,
    sent: AtomicU64,
    received: AtomicU64,
    /// How many times the connection was lost or could not be opened.
    failures: AtomicU64,
    listeners: Mutex<Vec<Arc<HintListener>>>,
}

impl CommitHints {
    /// Notes a commit of this process, for others to hear of.
    pub(crate) fn note_commit(&self) {
        if self.is_connected.load(Ordering::Relaxed) {
            self.committed.notify_one();
        }
    }

    pub(crate) fn set_connected(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Notes that the connection was lost, or could not be opened. The first failure after it worked is
    /// logged as a warning.
    pub(crate) fn note_failure(&self, error: &dyn fmt::Display) {
        let is_first = self.is_connected.swap(false, Ordering::Relaxed);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        if is_first || failures == 0 {
            tracing::warn!(%error, "failed to exchange hints with other servers; reading the log periodically");
        } else {
            tracing::debug!(%error, "failed to exchange hints with other servers");
        }
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Waits for the next commit of this process. Several that came meanwhile count as one.
    pub(crate) async fn next_commit(&self) {
        self.committed.notified().await;
    }

    pub(crate) fn note_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Passes on a hint of another process.
    pub(crate) fn receive(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.iter().for_each(|listener| listener());
    }

    pub(crate) fn add_listener(&self, listener: HintListener) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push(Arc::new(listener));
    }

    pub(crate) fn counts(&self) -> HintCounts {
        HintCounts {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify_one();
    }

    /// Whether the connection has to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends when the connection has to.
    pub(crate) async fn closed(&self) {
        while !self.is_closed() {
            self.closing.notified().await;
        }
    }
}
