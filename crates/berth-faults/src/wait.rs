//! Time and settings: the only place that reads clock and environment.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// How long between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Measures how long something took.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[allow(clippy::disallowed_methods, reason = "restarts are timed")]
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// How long since.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Looks until something holds; false when it did not within the time.
pub fn wait_until(most: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let watch = Stopwatch::start();
    loop {
        if holds() {
            return true;
        }
        if watch.elapsed() >= most {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

/// How long service took to resume, each time, as a test prints it: the median and the longest.
#[derive(Debug, Default)]
pub struct RecoveryTimes(Vec<Duration>);

impl RecoveryTimes {
    /// Waits until service has resumed, which is timed from now on: from when its cause was mended. Returns whether it
    /// did in time.
    pub fn wait_until(&mut self, most: Duration, has_resumed: impl FnMut() -> bool) -> bool {
        let watch = Stopwatch::start();
        let resumed = wait_until(most, has_resumed);
        self.0.push(watch.elapsed());
        resumed
    }

    /// The median; of an even number the longer of the two in the middle. Zero if nothing was timed.
    #[must_use]
    pub fn median(&self) -> Duration {
        let mut times = self.0.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

impl fmt::Display for RecoveryTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, most) = (self.median(), self.0.iter().max().copied().unwrap_or_default());
        write!(f, "{} recoveries, median {median:.0?}, longest {most:.0?}", self.0.len())
    }
}

/// A setting from the environment, if it is there.
#[allow(clippy::disallowed_methods, reason = "how long a soak is, its caller says")]
#[must_use]
pub fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
