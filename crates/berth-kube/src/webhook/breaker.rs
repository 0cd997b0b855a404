//! A circuit breaker for the slot store: while its database is away, admissions fail at once instead of each
//! waiting for a timeout; one at a time finds out whether it is back.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long nothing is tried after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// When something may be tried next; absent: at any time.
    closed_until: Mutex<Option<Instant>>,
}

impl Breaker {
    /// Whether something may be tried now. If it failed before, the one that is told so is the only one for a
    /// while.
    pub(super) fn try_pass(&self, now: Instant) -> bool {
        let mut until = self.closed_until.lock().unwrap_or_else(PoisonError::into_inner);
        match *until {
            None => true,
            Some(at) if now < at => false,
            Some(_) => {
                *until = Some(now + PAUSE);
                true
            }
        }
    }

    /// Records whether the database answered.
    pub(super) fn record(&self, answered: bool, now: Instant) {
        let mut until = self.closed_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (!answered).then(|| now + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failure_one_at_a_time_is_let_through_until_there_is_an_answer() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        assert!(breaker.try_pass(at(0)) && breaker.try_pass(at(0)));
        breaker.record(false, at(10));
        assert!(!breaker.try_pass(at(20)) && !breaker.try_pass(at(1_009)));
        assert!(breaker.try_pass(at(1_010)), "one finds out");
        assert!(!breaker.try_pass(at(1_011)), "the others do not wait for it");
        breaker.record(true, at(1_500));
        assert!(breaker.try_pass(at(1_501)) && breaker.try_pass(at(1_501)));
    }
}
