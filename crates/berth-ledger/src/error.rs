//! Errors of the ledger itself. None of them ever means "no room": see [`crate::Verdict`].

use thiserror::Error;

/// The ledger could not do what was asked, or does not know whether it did. It says nothing about
/// the fleet. A write may have happened; a retry with the same request id finds out.
#[derive(Debug, Clone, Error)]
pub enum LedgerError {
    /// The database cannot be reached.
    #[error("database unreachable: {0}; retry with the same request id")]
    Unreachable(String),
    /// More work waits for the database than may. Nothing of this was begun.
    #[error("{waiting} {what} wait for the database; nothing was written, retry")]
    Overloaded {
        /// What waits.
        what: &'static str,
        /// How many.
        waiting: usize,
    },
    /// The database has no space left.
    #[error("database out of disk space: {0}; nothing was written, free some space and retry")]
    StorageFull(String),
    /// Every attempt conflicted with other transactions.
    #[error(
        "transaction failed after {tries} attempts because of conflicts with other transactions: {last}"
    )]
    Contention {
        /// Attempts.
        tries: u32,
        /// The last conflict.
        last: String,
    },
    /// The database was written by a newer Berth.
    #[error(
        "the database has schema version {found}, but this Berth supports versions up to {known}; use a newer Berth"
    )]
    NewerSchema {
        /// The database's version.
        found: i64,
        /// The newest version that this binary supports.
        known: i64,
    },
    /// The URL is not that of a supported database.
    #[error(
        "invalid database URL {url:?}; accepted are a file path, sqlite:PATH and postgres://USER@HOST/NAME"
    )]
    InvalidUrl {
        /// What was given.
        url: String,
    },
    /// A parameter of the URL has an invalid value.
    #[error("invalid value {value:?} for {name} in the database URL; accepted is {accepted}")]
    InvalidUrlSetting {
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// Accepted values.
        accepted: String,
    },
    /// The connection goes through a pooler that changes its session between transactions.
    #[error(
        "the database is behind a connection pooler in transaction mode (such as pgbouncer with pool_mode = transaction), \
         which gives every transaction another session; Berth's advisory locks and prepared statements belong to a session. \
         Set pool_mode = session for this database, or connect to PostgreSQL directly"
    )]
    TransactionPooling,
    /// A cursor points before the oldest stored event.
    #[error("event {cursor} has been deleted, the oldest event is {oldest}; start from a snapshot")]
    CursorTooOld {
        /// What was asked for.
        cursor: i64,
        /// The oldest stored event.
        oldest: i64,
    },
    /// A cursor points past the end: it belongs to another ledger, or this one was restored.
    #[error(
        "event {cursor} does not exist yet, the newest event is {newest}; start from a snapshot"
    )]
    CursorInFuture {
        /// What was asked for.
        cursor: i64,
        /// The newest event.
        newest: i64,
    },
    /// A text that is not the id of a decision.
    #[error("invalid decision id {cursor:?}; accepted is CHAIN/NUMBER/PLACE")]
    InvalidCursor {
        /// What was given.
        cursor: String,
    },
    /// Stored data cannot be read.
    #[error("stored data is corrupt: {0}")]
    Corrupt(String),
    /// The ledger is being closed.
    #[error("the ledger is closed")]
    Closed,
    /// The database rejected a statement, which indicates a bug.
    #[error("database error: {0}")]
    Database(String),
}

/// Why one attempt at a transaction failed, and so how to proceed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A serialization failure, a deadlock or a busy database: retry.
    Retry(String),
    /// A unique key already exists: retry, and look for it first.
    Duplicate(String),
    /// A guarded write did not find the row as it was read: retry; indicates a bug.
    Guard(String),
    /// The connection was lost; whether a commit happened is unknown.
    Disconnected(String),
    /// The disk is full.
    StorageFull(String),
    /// An error that retrying would not change.
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

    /// The error that callers get when there is no further attempt.
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
