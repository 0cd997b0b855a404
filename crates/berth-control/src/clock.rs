//! Where the time of day enters the control plane.
//!
//! Several servers judge the same deadlines, leases and heartbeats. They agree only if they go by one
//! clock, and that is the database's: a [`DatabaseClock`] is set by it every few seconds and runs on
//! by itself in between, on a clock that never jumps. So a machine whose clock is wrong, or is put
//! right, judges like all others.

use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use berth_ledger::{Ledger, LedgerError};
use jiff::{SignedDuration, Timestamp};

/// A difference between the clocks of server and database that is reported.
const REPORTED: SignedDuration = SignedDuration::from_secs(1);

/// How much the clock may drift against the database's, as a part of the time since it was set.
const DRIFT_DIVISOR: u32 = 1000;

/// The time of this machine.
#[allow(clippy::disallowed_methods, reason = "the control plane is where time comes in")]
#[must_use]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// A moment of the ledger's clock, as callers read it.
#[must_use]
pub fn moment(at: berth_ledger::Micros) -> Timestamp {
    Timestamp::from_microsecond(at.0).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A moment that only measures.
#[allow(clippy::disallowed_methods, reason = "never jumps, and names no time of day")]
fn tick() -> Instant {
    Instant::now()
}

/// The database's time as this server knows it. Until it is first set, this machine's.
#[derive(Debug, Default)]
pub struct DatabaseClock(RwLock<ClockState>);

#[derive(Debug, Default)]
struct ClockState {
    reading: Option<ClockReading>,
    /// The difference that was last reported.
    reported: SignedDuration,
}

/// What the database's clock said, and when.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    time: Timestamp,
    at: Instant,
    /// It may be off by so much: the answer was on its way.
    error: Duration,
}

impl ClockReading {
    /// The database's time at a moment.
    fn time_at(&self, at: Instant) -> Timestamp {
        let elapsed = |later: Instant, earlier: Instant| {
            SignedDuration::try_from(later.saturating_duration_since(earlier))
                .unwrap_or(SignedDuration::MAX)
        };
        let passed = elapsed(at, self.at).saturating_sub(elapsed(self.at, at));
        self.time.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }

    /// How far it may be off at a moment.
    fn error_at(&self, at: Instant) -> Duration {
        self.error + at.saturating_duration_since(self.at) / DRIFT_DIVISOR
    }
}

impl DatabaseClock {
    /// The database's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let reading = self.0.read().unwrap_or_else(PoisonError::into_inner).reading;
        reading.map_or_else(now, |reading| reading.time_at(tick()))
    }

    /// How far the database's clock is ahead of this machine's.
    #[must_use]
    pub fn offset(&self) -> SignedDuration {
        self.now().duration_since(now())
    }

    /// Sets the clock by the database's.
    ///
    /// # Errors
    /// When the database cannot be read; the clock runs on.
    pub fn set(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let asked = tick();
        let time = moment(ledger.clock()?);
        let error = asked.elapsed() / 2;
        self.apply(ClockReading { time, at: asked + error, error });
        self.report(now());
        Ok(())
    }

    /// Takes a reading over, unless the clock is known more exactly already and the reading does not
    /// contradict it: one from a slow database says little.
    fn apply(&self, reading: ClockReading) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_no_news = state.reading.is_some_and(|known| {
            let apart = known.time_at(reading.at).duration_since(reading.time).unsigned_abs();
            known.error_at(reading.at) <= reading.error && apart <= reading.error
        });
        if !is_no_news {
            state.reading = Some(reading);
        }
    }

    /// Logs a difference between the clocks of database and machine when it appears, changes or ends.
    fn report(&self, machine: Timestamp) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some(reading) = state.reading else { return };
        let offset = reading.time_at(tick()).duration_since(machine);
        let change = offset.saturating_sub(state.reported).abs();
        let offset_ms = offset.as_millis();
        if offset.abs() > REPORTED && change > REPORTED {
            state.reported = offset;
            tracing::warn!(
                offset_ms,
                "this machine's clock differs from the database's; going by the database's"
            );
        } else if offset.abs() <= REPORTED && state.reported != SignedDuration::ZERO {
            state.reported = SignedDuration::ZERO;
            tracing::info!(offset_ms, "this machine's clock agrees with the database's again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap_or_default()
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_reading_of_a_slow_database_moves_nothing_that_it_does_not_contradict() {
        let (clock, began) = (DatabaseClock::default(), tick());
        let known = |at: Instant| {
            let state = clock.0.read().unwrap_or_else(PoisonError::into_inner);
            state.reading.map(|reading| reading.time_at(at))
        };
        clock.apply(ClockReading { time: time(1_000_000), at: began, error: millis(2) });
        assert_eq!(known(began + millis(500)), Some(time(1_000_500)));
        // Two seconds later by both clocks, but the answer took 800 ms.
        let at = began + millis(2000);
        clock.apply(ClockReading { time: time(1_002_300), at, error: millis(400) });
        assert_eq!(known(at), Some(time(1_002_000)));
        // A quick answer counts.
        clock.apply(ClockReading { time: time(1_002_003), at, error: millis(1) });
        assert_eq!(known(at), Some(time(1_002_003)));
        // The database's clock was put right: no error explains that.
        clock.apply(ClockReading { time: time(400_000), at, error: millis(400) });
        assert_eq!(known(at), Some(time(400_000)));
        assert_eq!(known(began), Some(time(398_000)));
    }

    #[test]
    fn a_difference_is_reported_when_it_appears_changes_or_ends() {
        let clock = DatabaseClock::default();
        let error = millis(1);
        clock.apply(ClockReading { time: time(1_000_000), at: tick(), error });
        let reported = |machine: i64| {
            clock.report(time(machine));
            let state = clock.0.read().unwrap_or_else(PoisonError::into_inner);
            state.reported.as_secs()
        };
        assert_eq!(reported(1_000_500), 0, "half a second is no difference");
        let hour_ahead = reported(4_600_000);
        assert!((-3601..=-3598).contains(&hour_ahead), "{hour_ahead}");
        assert_eq!(reported(4_600_300), hour_ahead, "reported once");
        assert!((990..=1003).contains(&reported(0)), "changed");
        assert_eq!(reported(1_000_000), 0, "ended");
    }
}
