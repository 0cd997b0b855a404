//! Time and settings: the only place that reads clock and environment.

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

/// A setting from the environment, if it is there.
#[allow(clippy::disallowed_methods, reason = "how long a soak is, its caller says")]
#[must_use]
pub fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
