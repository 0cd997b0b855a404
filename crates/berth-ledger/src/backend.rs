//! Which database a ledger is on, and how it is used.

use std::path::PathBuf;
use std::time::Duration;

use crate::database::Database;
use crate::error::{Fault, LedgerError};
use crate::postgres::{Isolation, Postgres};
use crate::sqlite::Sqlite;

/// Which database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A PostgreSQL server, by URL.
    Postgres(String),
}

impl Backend {
    /// Reads a database URL: `postgres://…`, `sqlite:PATH`, or a path.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(url: &str) -> Result<Self, LedgerError> {
        let invalid = || LedgerError::InvalidUrl { url: url.to_owned() };
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.to_owned()));
        }
        let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:"));
        match path {
            Some("") => Err(invalid()),
            Some(path) => Ok(Self::Sqlite(PathBuf::from(path))),
            None if url.is_empty() || url.contains("://") => Err(invalid()),
            None => Ok(Self::Sqlite(PathBuf::from(url))),
        }
    }

    pub(crate) fn open(&self, isolation: Isolation) -> Result<Box<dyn Database>, LedgerError> {
        let opened: Result<Box<dyn Database>, Fault> = match self {
            Self::Sqlite(path) => Sqlite::open(path).map(|tables| Box::new(tables) as _),
            Self::Postgres(url) => {
                Postgres::open(url, isolation).map(|tables| Box::new(tables) as _)
            }
        };
        opened.map_err(|fault| fault.into_error(1))
    }
}

/// How a ledger is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Transactions that may be in flight at once. SQLite always has one writer.
    pub writers: usize,
    /// Most operations in one transaction.
    pub group: usize,
    /// PostgreSQL's isolation level. Every level is safe; the higher ones retry more.
    pub isolation: Isolation,
    /// How long a write keeps trying while the database cannot be reached.
    pub retry_budget: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writers: default_writers(),
            group: 1000,
            isolation: Isolation::ReadCommitted,
            retry_budget: Duration::from_secs(10),
        }
    }
}

/// One writer for every two cores: on a small machine, larger groups pay off more than more writers.
fn default_writers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 8))
}
