//! How many instances may be under way at once, so that requests wait no longer than they should.
//!
//! By Little's law, what waits is what comes in per second times how long each waits. While waits are
//! short, the window is as large as configured. Once most requests have waited for too long, it
//! shrinks to what would have been served in time, and grows again when they do not. Only requests that
//! came in after the last change count: those before it waited by its former size. It decides for all
//! tenants together and never about a single request.

use std::time::{Duration, Instant};

/// Most by which the window shrinks at once: one slow commit must not close it.
const SHRINKS_AT_MOST: usize = 8;

/// Requests that must have ended before anything is concluded from them.
const ENDED_LEAST: u32 = 8;

/// Added to a quarter when the window grows.
const GROWS_BY: usize = 16;

/// Most steps of growth at once, after a time in which nothing ended.
const GROWTH_STEPS_MAX: u32 = 32;

/// The window of one stage.
pub(super) struct WaitWindow {
    /// The largest that it may be.
    most: usize,
    /// The smallest, so that a slow request alone is no overload.
    least: usize,
    /// How long a request should wait at most; zero: as long as it takes.
    target: Duration,
    limit: usize,
    /// When the limit was last looked at, and when it last shrank.
    decided_at: Instant,
    shrunk_at: Instant,
    /// What ended since: how many, how many of them late, how long they waited, behind how many.
    ended: u32,
    late: u32,
    waited: Duration,
    ahead: usize,
    /// How long requests waited on average, when this was last looked at.
    recent: Duration,
}

/// One that left a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) came_at: Instant,
    /// What was in the stage when it came, itself included.
    pub(super) ahead: usize,
}

impl WaitWindow {
    pub(super) const fn new(most: usize, least: usize, target: Duration, now: Instant) -> Self {
        Self {
            most,
            least: if least < most { least } else { most },
            target,
            limit: most,
            decided_at: now,
            shrunk_at: now,
            ended: 0,
            late: 0,
            waited: Duration::ZERO,
            ahead: 0,
            recent: Duration::ZERO,
        }
    }

    /// Instances that may be under way now.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// The largest that it may be.
    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// How long requests waited of late.
    pub(super) const fn recent(&self) -> Duration {
        self.recent
    }

    /// Takes in how long a request waited.
    pub(super) fn observe(&mut self, departure: Departure, now: Instant) {
        if self.target.is_zero() || departure.came_at < self.shrunk_at {
            return;
        }
        let waited = now.saturating_duration_since(departure.came_at);
        self.ended = self.ended.saturating_add(1);
        self.late += u32::from(waited > self.target);
        self.waited = self.waited.saturating_add(waited);
        self.ahead = self.ahead.saturating_add(departure.ahead);
        let elapsed = now.saturating_duration_since(self.decided_at);
        let interval = self.target / 2;
        if elapsed < interval || self.ended < ENDED_LEAST {
            return;
        }
        self.recent = self.waited / self.ended;
        if self.late * 2 > self.ended {
            self.shrink();
            self.shrunk_at = now;
        } else {
            let steps = elapsed.as_nanos() / interval.as_nanos().max(1);
            self.grow(u32::try_from(steps).unwrap_or(u32::MAX).min(GROWTH_STEPS_MAX));
        }
        self.decided_at = now;
        (self.ended, self.late, self.waited, self.ahead) = (0, 0, Duration::ZERO, 0);
    }

    /// To what would have been served within the target.
    fn shrink(&mut self) {
        let ahead = self.ahead / usize::try_from(self.ended).unwrap_or(1).max(1);
        let in_time =
            u128::try_from(ahead).unwrap_or(u128::MAX).saturating_mul(self.target.as_micros())
                / self.recent.as_micros().max(1);
        let in_time = usize::try_from(in_time).unwrap_or(usize::MAX);
        let smallest = self.least.max(self.limit.min(ahead) / SHRINKS_AT_MOST);
        self.limit = in_time.max(smallest).min(self.limit);
    }

    fn grow(&mut self, steps: u32) {
        for _ in 0..steps {
            self.limit = self.limit.saturating_add(self.limit / 4 + GROWS_BY).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placer::tick;

    const TARGET: Duration = Duration::from_millis(500);

    /// Has requests end, so many each millisecond, each after what is under way was served at that pace.
    fn serve(window: &mut WaitWindow, now: &mut Instant, under_way: usize, per_ms: usize, ms: u64) {
        let waited = Duration::from_micros(u64::try_from(under_way * 1000 / per_ms).unwrap_or(0));
        for _ in 0..ms {
            *now += Duration::from_millis(1);
            for _ in 0..per_ms {
                let departure = Departure { came_at: *now - waited, ahead: under_way };
                window.observe(departure, *now);
            }
        }
    }

    #[test]
    fn it_shrinks_to_what_is_served_in_time_and_grows_again() {
        let start = tick();
        let mut now = start + Duration::from_secs(60);
        let mut window = WaitWindow::new(20_000, 64, TARGET, start);
        serve(&mut window, &mut now, 400, 1, 2000);
        assert_eq!(window.limit(), 20_000, "400 at one a millisecond are served in time");
        serve(&mut window, &mut now, 2000, 1, 2000);
        assert_eq!(window.limit(), 500, "two seconds of work are four times too much");
        assert_eq!(window.recent(), Duration::from_secs(2));
        // Those that came before it shrank say nothing of its new size.
        let before = Departure { came_at: now - Duration::from_secs(3), ahead: 2000 };
        (0..1000).for_each(|_| window.observe(before, now));
        assert_eq!(window.limit(), 500);
        now += Duration::from_secs(3);
        serve(&mut window, &mut now, 100, 1, 5000);
        assert_eq!(window.limit(), 20_000);
    }

    #[test]
    fn a_few_slow_requests_among_many_are_no_overload() {
        let start = tick();
        let mut now = start + Duration::from_secs(60);
        let mut window = WaitWindow::new(1000, 64, TARGET, start);
        for _ in 0..5000 {
            let slow = Departure { came_at: now - Duration::from_secs(5), ahead: 3 };
            window.observe(slow, now);
            serve(&mut window, &mut now, 2, 2, 1);
        }
        assert_eq!(window.limit(), 1000);
    }

    #[test]
    fn it_never_shrinks_below_its_least_and_without_a_target_not_at_all() {
        let start = tick();
        for (target, least) in [(TARGET, 64), (Duration::ZERO, 1000)] {
            let mut now = start + Duration::from_secs(60);
            let mut window = WaitWindow::new(1000, 64, target, start);
            for _ in 0..1000 {
                now += Duration::from_secs(60);
                let departure = Departure { came_at: now - Duration::from_secs(59), ahead: 1000 };
                window.observe(departure, now);
            }
            assert_eq!(window.limit(), least);
        }
    }
}
