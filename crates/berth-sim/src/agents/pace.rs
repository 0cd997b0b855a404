//! The speed of the demo.

use std::time::Duration;

use crate::fleet::SeededRng;

/// A factor on all times that a person would wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    percent: u32,
}

impl Pace {
    /// A speed in percent of the usual one, at least 1.
    pub(super) const fn new(percent: u32) -> Self {
        Self { percent: if percent == 0 { 1 } else { percent } }
    }

    /// A time that is given in milliseconds at the usual speed.
    pub(super) fn time(self, milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds.saturating_mul(100) / u64::from(self.percent))
    }

    /// A time between two, in milliseconds at the usual speed.
    pub(super) fn between(self, rng: &mut SeededRng, least: u64, most: u64) -> Duration {
        self.time(least + rng.below(most.saturating_sub(least) + 1))
    }
}
