//! What was sent to a thread and not taken in yet: who sends more waits until there is room.
//!
//! For what must never be dropped, such as reports of commits. It knows nothing of what is sent, and a
//! thread that is waited for must never wait for the sender.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Events of commits that may wait for the planner, and as many for the catalogue.
pub(crate) const REPORTED_EVENTS_MAX: usize = 200_000;

/// Changes of the fleet that may wait for the explainer.
pub(crate) const FLEET_CHANGES_MAX: usize = 1_000_000;

/// A bounded backlog, counted in whatever takes memory.
pub(crate) struct Backlog {
    most: usize,
    state: Mutex<BacklogState>,
    taken: Condvar,
}

#[derive(Default)]
struct BacklogState {
    waiting: usize,
    closed: bool,
}

impl Backlog {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), taken: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BacklogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what is about to be sent, once there is room for it. What is larger than the limit is let
    /// in when nothing else waits.
    pub(crate) fn add(&self, size: usize) {
        let mut state = self.lock();
        while !state.closed && state.waiting > 0 && state.waiting.saturating_add(size) > self.most {
            state = self.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting = state.waiting.saturating_add(size);
    }

    /// Counts what was taken in.
    pub(crate) fn remove(&self, size: usize) {
        let mut state = self.lock();
        state.waiting = state.waiting.saturating_sub(size);
        drop(state);
        self.taken.notify_all();
    }

    /// How much waits.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Most that may wait.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    fn close(&self) {
        self.lock().closed = true;
        self.taken.notify_all();
    }
}

/// Held by the thread that takes in: when it ends, however it does, senders no longer wait.
pub(crate) struct BacklogReceiver(pub(crate) std::sync::Arc<Backlog>);

impl Drop for BacklogReceiver {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_sender_waits_at_the_limit_until_something_is_taken_in() {
        let backlog = Arc::new(Backlog::new(10));
        backlog.add(25);
        backlog.remove(25);
        backlog.add(6);
        backlog.add(4);
        let ((sent, is_sent), other) = (channel(), Arc::clone(&backlog));
        let sender = std::thread::spawn(move || {
            other.add(1);
            sent.send(())
        });
        let nothing = is_sent.recv_timeout(Duration::from_millis(20));
        assert_eq!(nothing, Err(RecvTimeoutError::Timeout));
        backlog.remove(6);
        assert!(is_sent.recv_timeout(Duration::from_secs(120)).is_ok());
        assert!(sender.join().is_ok());
        assert_eq!(backlog.waiting(), 5);
    }

    #[test]
    fn no_sender_waits_for_a_thread_that_ended() {
        let backlog = Arc::new(Backlog::new(1));
        backlog.add(1);
        let other = Arc::clone(&backlog);
        let sender = std::thread::spawn(move || other.add(1));
        drop(BacklogReceiver(Arc::clone(&backlog)));
        assert!(sender.join().is_ok());
    }
}
