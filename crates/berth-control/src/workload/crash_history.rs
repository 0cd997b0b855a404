//! Members that end without a release: how often, and how long to wait before the next try.

use std::time::Duration;

use berth_ledger::Micros;

/// The wait after the second death; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// CrashHistory of a workload's members, lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashHistory {
    /// How many in a row.
    pub count: u32,
    /// When the last one was.
    pub last: Micros,
}

impl CrashHistory {
    /// How long a member must run, or nothing must go wrong, for everything before to be forgotten.
    pub const FORGOTTEN_AFTER_S: i64 = 600;

    /// Counts one more.
    pub fn add(&mut self, at: Micros) {
        if at.0 > self.last.plus_seconds(Self::FORGOTTEN_AFTER_S).0 {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = at;
    }

    /// Until when nothing is tried: one death is no loop, from the second on the wait doubles.
    #[must_use]
    pub fn wait_until(&self) -> Option<Micros> {
        let doublings = self.count.checked_sub(2)?.min(16);
        let wait = FIRST_WAIT.saturating_mul(1 << doublings).min(LONGEST_WAIT);
        Some(self.last.plus_seconds(i64::try_from(wait.as_secs()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(times: &[i64]) -> CrashHistory {
        let mut crashes = CrashHistory::default();
        for at in times {
            crashes.add(Micros(at * 1_000_000));
        }
        crashes
    }

    #[test]
    fn the_first_death_costs_nothing_and_each_further_one_doubles_the_wait() {
        let start = 1_000_000;
        let wait = |crashes: CrashHistory| crashes.wait_until().map(|until| until.seconds());
        assert_eq!(wait(after(&[start])), None);
        assert_eq!(wait(after(&[start, start + 1])), Some(start + 11));
        assert_eq!(wait(after(&[start, start + 1, start + 11])), Some(start + 31));
        let many: Vec<i64> = (0..30).map(|n| start + n).collect();
        assert_eq!(wait(after(&many)), Some(start + 29 + 300));
    }

    #[test]
    fn a_quiet_time_is_a_new_beginning() {
        let start = 1_000_000;
        assert_eq!(after(&[start, start + 1, start + 700]).count, 1);
    }
}
