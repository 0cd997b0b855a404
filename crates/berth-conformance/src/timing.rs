//! Where the harness reads the clock and the environment. Nothing else here may.

use std::time::Instant;

/// The moment it is called, to measure from.
#[allow(clippy::disallowed_methods, reason = "a harness measures time")]
#[must_use]
pub fn stopwatch() -> Instant {
    Instant::now()
}

/// Whole seconds since the Unix epoch by this machine's clock.
#[allow(clippy::disallowed_methods, reason = "a harness states when nodes were heard of")]
pub(crate) fn wall_clock_s() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// A number of seconds that a variable asks for.
#[allow(clippy::disallowed_methods, reason = "how long a soak runs is asked for from outside")]
#[must_use]
pub fn seconds_from_environment(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
