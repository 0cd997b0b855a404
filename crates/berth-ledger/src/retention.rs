//! What is kept, and for how long.

use crate::model::Micros;

/// How long the ledger remembers what no longer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Events, in number; older ones are dropped, and a follower that needs them starts again.
    pub events: i64,
    /// Answers that a retry gets again, in seconds.
    pub answers_s: i64,
    /// Receipts, in seconds; absent: forever.
    pub receipts_s: Option<i64>,
    /// Refusals, in seconds; absent: as long as other receipts.
    pub refusals_s: Option<i64>,
    /// The audit log, in seconds; absent: forever.
    pub audit_s: Option<i64>,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            events: 10_000_000,
            answers_s: 7 * 86_400,
            receipts_s: None,
            refusals_s: Some(7 * 86_400),
            audit_s: None,
        }
    }
}

/// What is to be dropped now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetentionCutoffs {
    /// Segments that end before this event.
    pub(crate) events_before: i64,
    /// Answers given before this.
    pub(crate) answers_before: Micros,
    /// Receipts made before this.
    pub(crate) receipts_before: Option<Micros>,
    /// Receipts of refusals made before this.
    pub(crate) refusals_before: Option<Micros>,
    /// Entries of the audit log made before this, all but the newest: numbers must grow.
    pub(crate) audit_before: Option<Micros>,
    /// The database's clock, for values at rest.
    pub(crate) now: Micros,
}
