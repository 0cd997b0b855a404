//! Which of this server's own commits the log has delivered already.
//!
//! Own commits come by two ways: reported by the writer, at once, and from the log, later. The order of
//! the log is the truth: a report that comes after the log is not applied, or it would undo what others
//! wrote in between.

use berth_ledger::{CommitRecord, Micros, Text};
use rustc_hash::FxHashSet;

/// Own segments that are remembered as applied from the log.
pub(crate) const APPLIED: usize = 65_536;

/// Segments of our own writers that the log delivered before the writers reported them.
#[derive(Default)]
pub(crate) struct AppliedFromLog {
    by_log: FxHashSet<(Text, Micros)>,
    by_writer: FxHashSet<(Text, Micros)>,
}

impl AppliedFromLog {
    /// Notes a segment of the log.
    pub(crate) fn note_segment(&mut self, origin: &Text, at: Micros) {
        let key = (Text::clone(origin), at);
        if !self.by_writer.remove(&key) {
            if self.by_log.len() >= APPLIED {
                self.by_log.clear();
            }
            self.by_log.insert(key);
        }
    }

    /// Notes a writer's report. Returns whether the log delivered it before.
    pub(crate) fn note_report(&mut self, report: &CommitRecord) -> bool {
        let key = (Text::clone(&report.origin), report.at);
        let is_applied = self.by_log.remove(&key);
        if !is_applied {
            if self.by_writer.len() >= APPLIED {
                self.by_writer.clear();
            }
            self.by_writer.insert(key);
        }
        is_applied
    }
}
