//! A circuit breaker for the slot store: while its database is away, requests fail at once instead of each
//! waiting for a timeout. No request finds out whether it is back; a probe does, in the background.

use tokio::sync::watch;

/// See the module.
#[derive(Debug)]
pub(super) struct Breaker {
    answers: watch::Sender<bool>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { answers: watch::Sender::new(true) }
    }
}

impl Breaker {
    /// Whether the database answered when it was last asked.
    pub(super) fn is_available(&self) -> bool {
        *self.answers.borrow()
    }

    /// Records whether the database answered.
    pub(super) fn record(&self, answered: bool) {
        let changed = self
            .answers
            .send_if_modified(|answers| std::mem::replace(answers, answered) != answered);
        match (changed, answered) {
            (true, true) => tracing::info!("the slot database answers again"),
            (true, false) => tracing::warn!("the slot database does not answer"),
            (false, _) => {}
        }
    }

    /// Whether the database answers, and each change of it.
    pub(super) fn subscribe(&self) -> watch::Receiver<bool> {
        self.answers.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failure_nothing_passes_until_the_database_answered() {
        let breaker = Breaker::default();
        let mut changes = breaker.subscribe();
        assert!(breaker.is_available());
        breaker.record(false);
        breaker.record(false);
        assert!(!breaker.is_available());
        assert!(!*changes.borrow_and_update());
        breaker.record(true);
        assert!(breaker.is_available() && changes.has_changed().unwrap_or(false));
    }
}
