//! What can go wrong with the ledger itself. None of it ever means "full": see [`crate::Verdict`].

use thiserror::Error;

/// The ledger does not know, or cannot do, what was asked. Nothing may be concluded from it about
/// the fleet; a write may or may not have happened, and a retry with the same request id finds out.
#[derive(Debug, Clone, Error)]
pub enum LedgerError {
    /// The database cannot be reached.
    #[error(
        "the database cannot be reached: {0}; Berth keeps trying, retry with the same request id"
    )]
    Unreachable(String),
    /// The database has no space left.
    #[error("the database has no space left: {0}; free some, nothing was written")]
    StorageFull(String),
    /// Others kept getting in the way.
    #[error("the transaction was retried {tries} times and others kept getting in the way: {last}")]
    Contention {
        /// How often.
        tries: u32,
        /// The last reason.
        last: String,
    },
    /// The database was made by a newer Berth.
    #[error(
        "the database has schema version {found}, this Berth knows up to {known}: use a newer Berth"
    )]
    NewerSchema {
        /// The database's version.
        found: i64,
        /// The newest this binary knows.
        known: i64,
    },
    /// The URL names no database that Berth knows.
    #[error(
        "{url:?} is not a database URL; accepted are a file path, sqlite:PATH and postgres://USER@HOST/NAME"
    )]
    InvalidUrl {
        /// What was given.
        url: String,
    },
    /// The URL has a setting that means nothing.
    #[error("{name} of the database URL is {value:?}; accepted is {accepted}")]
    InvalidUrlSetting {
        /// Which setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        accepted: String,
    },
    /// A cursor points before the oldest event that is kept.
    #[error("event {cursor} is no longer kept, the oldest is {oldest}: start from a snapshot")]
    CursorTooOld {
        /// What was asked for.
        cursor: i64,
        /// The oldest kept event.
        oldest: i64,
    },
    /// A cursor points past the end: of another ledger, or of one that was restored.
    #[error("event {cursor} is not yet written, the newest is {newest}: start from a snapshot")]
    CursorInFuture {
        /// What was asked for.
        cursor: i64,
        /// The newest event.
        newest: i64,
    },
    /// A place in the list of decisions that is none.
    #[error(
        "{cursor:?} is not the id of a decision; accepted is CHAIN/NUMBER/PLACE, as a decision carries it"
    )]
    InvalidCursor {
        /// What was given.
        cursor: String,
    },
    /// Stored data cannot be read.
    #[error("stored data cannot be read: {0}")]
    Corrupt(String),
    /// The ledger is being closed.
    #[error("the ledger is closed")]
    Closed,
    /// The database refused a statement; a defect of Berth or of the database.
    #[error("the database refused: {0}")]
    Database(String),
}

/// Why one attempt at a transaction failed, and so what to do next.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A serialization failure, a deadlock or a busy database: begin again.
    Retry(String),
    /// A unique key was taken: begin again, and look first.
    Duplicate(String),
    /// A guarded write did not find the row as it was read: begin again, and wonder.
    Guard(String),
    /// The connection is gone; whether a commit happened is not known.
    Disconnected(String),
    /// No space is left.
    StorageFull(String),
    /// Nothing that another attempt would change.
    Fatal(LedgerError),
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::Fatal(LedgerError::Corrupt(error.to_string()))
    }
}

impl Fault {
    pub(crate) fn corrupt(what: impl std::fmt::Display) -> Self {
        Self::Fatal(LedgerError::Corrupt(what.to_string()))
    }

    /// What a caller is told when there is no further attempt.
    pub(crate) fn into_error(self, tries: u32) -> LedgerError {
        match self {
            Self::Retry(last) | Self::Duplicate(last) | Self::Guard(last) => {
                LedgerError::Contention { tries, last }
            }
            Self::Disconnected(why) => LedgerError::Unreachable(why),
            Self::StorageFull(why) => LedgerError::StorageFull(why),
            Self::Fatal(error) => error,
        }
    }
}
