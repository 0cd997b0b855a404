//! Taking in what others committed.
//!
//! A server alone on its ledger has nothing to follow: what it committed itself it knows. Once
//! another writer's events were seen, every event is taken in, the own ones too, since only their
//! order says which of two is the newer.

use berth_ledger::{LedgerError, Text};

use super::planner::Planner;

/// Events read at once.
const PAGE: usize = 5000;

impl Planner {
    /// Looks for others' events; errors wait for the next time.
    pub(super) fn follow(&mut self) {
        self.follow_now();
    }

    /// Takes in all events there are. Returns whether others' were among them.
    pub(super) fn follow_now(&mut self) -> bool {
        let mut learnt = false;
        loop {
            match self.page() {
                Ok(Some(others)) => learnt |= others,
                Ok(None) => return learnt,
                Err(LedgerError::CursorTooOld { .. } | LedgerError::CursorInFuture { .. }) => {
                    self.start_anew();
                    return true;
                }
                Err(_) => return learnt,
            }
        }
    }

    /// One page of events; absent at the end of the log.
    fn page(&mut self) -> Result<Option<bool>, LedgerError> {
        let segments = self.ledger.segments_after(self.mirror.cursor, PAGE)?;
        let Some(last) = segments.last() else { return Ok(None) };
        let end = last.first + last.count - 1;
        let is_own = |origin: &Text| self.ledger.origins().contains(origin);
        let others = segments.iter().any(|segment| !is_own(&segment.origin));
        self.has_company |= others;
        if self.has_company {
            for segment in &segments {
                let corrupt = |error: serde_json::Error| LedgerError::Corrupt(error.to_string());
                for event in segment.events().map_err(corrupt)? {
                    if event.seq > self.mirror.cursor {
                        self.mirror.apply(&event.body)?;
                    }
                }
            }
        }
        self.mirror.cursor = end;
        Ok(Some(others))
    }

    /// The log does not reach back to where we were: load everything anew.
    fn start_anew(&mut self) {
        let policy = self.mirror.engine().policy().clone();
        let mut fresh = crate::mirror::Mirror::new(policy);
        if let Ok(cursor) = self.ledger.snapshot(|item| fresh.load(item)) {
            fresh.cursor = cursor;
            self.mirror = fresh;
        }
    }
}
