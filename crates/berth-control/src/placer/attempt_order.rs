//! Requests that are tried together and in order, where one that finds no room may keep what room there is
//! from those after it. Here is only what they share; the planner asks it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One of the requests that are tried together.
#[derive(Clone, Debug)]
pub struct OrderedAttempt {
    is_stopped: Arc<AtomicBool>,
    /// Whether those after it must not be tried when it finds no room.
    holds_up_others: bool,
}

/// What requests that are tried together share.
#[derive(Debug, Default)]
pub struct AttemptOrder {
    is_stopped: Arc<AtomicBool>,
}

impl AttemptOrder {
    /// The next one, which may hold up those after it.
    #[must_use]
    pub fn next(&self, holds_up_others: bool) -> OrderedAttempt {
        OrderedAttempt { is_stopped: Arc::clone(&self.is_stopped), holds_up_others }
    }

    /// Whether one of them held up those after it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}

impl OrderedAttempt {
    /// Whether one before it found no room.
    pub(super) fn must_wait(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Notes that it found no room, or not yet.
    pub(super) fn found_no_room(&self) {
        if self.holds_up_others {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
    }
}
