//! Members that end without a release: how often, and how long to wait before the next try.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_ledger::Micros;
use serde::{Deserialize, Serialize};

/// The wait after the second death; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Deaths of the members of one revision, lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CrashHistory {
    /// When the last one was.
    pub last: Micros,
    /// How many in a row.
    pub count: u32,
}

impl CrashHistory {
    /// How long a member must run, or nothing must go wrong, for everything before to be forgotten.
    pub const FORGOTTEN_AFTER_S: i64 = 600;

    /// Counts one more.
    pub fn add(&mut self, at: Micros) {
        if self.is_forgotten(at) {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = self.last.max(at);
    }

    fn is_forgotten(&self, now: Micros) -> bool {
        now.0 > self.last.plus_seconds(Self::FORGOTTEN_AFTER_S).0
    }

    /// Until when nothing is tried: one death is no loop, from the second on the wait doubles.
    #[must_use]
    pub fn wait_until(&self) -> Option<Micros> {
        let doublings = self.count.checked_sub(2)?.min(16);
        let wait = FIRST_WAIT.saturating_mul(1 << doublings).min(LONGEST_WAIT);
        Some(self.last.plus_seconds(i64::try_from(wait.as_secs()).unwrap_or(i64::MAX)))
    }
}

/// Deaths of a workload's members, by revision: a revision that keeps ending must not keep members of
/// another from being replaced. It is a document of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashHistories {
    revisions: BTreeMap<i64, CrashHistory>,
}

impl CrashHistories {
    /// Those of a revision.
    #[must_use]
    pub fn of(&self, revision: i64) -> Option<CrashHistory> {
        self.revisions.get(&revision).copied()
    }

    /// Counts one more.
    pub fn add(&mut self, revision: i64, at: Micros) {
        self.revisions.entry(revision).or_default().add(at);
    }

    /// Forgets those of a revision: what ran for long is no crash loop when it ends.
    pub fn clear(&mut self, revision: i64) {
        self.revisions.remove(&revision);
    }

    /// What still counts; absent if nothing does.
    #[must_use]
    pub fn lately(&self, now: Micros) -> Option<Self> {
        let mut revisions = self.revisions.clone();
        revisions.retain(|_, history| !history.is_forgotten(now));
        (!revisions.is_empty()).then_some(Self { revisions })
    }

    /// Takes in what another server counted: of each revision whatever is later, or more.
    pub fn merge(&mut self, other: &Self) {
        for (revision, history) in &other.revisions {
            let known = self.revisions.entry(*revision).or_default();
            *known = (*known).max(*history);
        }
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

    #[test]
    fn revisions_are_counted_apart_and_merged_by_the_later_count() {
        let (first, second) = (Micros(1_000_000_000_000), Micros(1_000_010_000_000));
        let mut ours = CrashHistories::default();
        ours.add(1, first);
        ours.add(2, first);
        let mut theirs = ours.clone();
        theirs.add(2, second);
        ours.merge(&theirs);
        assert_eq!(ours, theirs);
        assert_eq!((ours.of(1).unwrap().count, ours.of(2).unwrap().count), (1, 2));
        let older = CrashHistories { revisions: [(2, CrashHistory::default())].into() };
        ours.merge(&older);
        assert_eq!(ours, theirs);
        let stored = serde_json::to_string(&ours).unwrap();
        assert_eq!(serde_json::from_str::<CrashHistories>(&stored).unwrap(), ours);
        let after = second.plus_seconds(CrashHistory::FORGOTTEN_AFTER_S);
        let left = ours.lately(after).unwrap();
        assert_eq!((left.of(1), left.of(2)), (None, ours.of(2)));
        assert_eq!(ours.lately(after.plus_seconds(1)), None);
    }
}
