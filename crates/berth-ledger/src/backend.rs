//! Which database a ledger is on, and how it is used.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::commit_hints::CommitHints;
use crate::database::Database;
use crate::error::{Fault, LedgerError};
use crate::model::Text;
use crate::postgres::{self, Isolation, Postgres};
use crate::sqlite::{Sqlite, WriteAheadLog};

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

    pub(crate) fn open(&self, options: &Options) -> Result<Box<dyn Database>, LedgerError> {
        let opened: Result<Box<dyn Database>, Fault> = match self {
            Self::Sqlite(path) => Sqlite::open(path).map(|tables| Box::new(tables) as _),
            Self::Postgres(url) => {
                let opened = Postgres::open(url, options.isolation, Some(options.answer_within()));
                opened.map(|tables| Box::new(tables) as _)
            }
        };
        opened.map_err(|fault| fault.into_error(1))
    }

    /// Opens the database for a writer.
    pub(crate) fn open_writer(
        &self,
        options: &Options,
        log: &Arc<WriteAheadLog>,
    ) -> Result<Box<dyn Database>, LedgerError> {
        let Self::Sqlite(path) = self else { return self.open(options) };
        match Sqlite::open_writer(path, Arc::clone(log)) {
            Ok(tables) => Ok(Box::new(tables)),
            Err(fault) => Err(fault.into_error(1)),
        }
    }

    /// What exchanges hints with the other servers, on a thread of its own, until they are closed. Its end is
    /// not reported, since nothing depends on it.
    pub(crate) fn hint_exchange(
        &self,
        origins: &[Text],
        hints: Arc<CommitHints>,
    ) -> Option<impl FnOnce() + Send + 'static> {
        let Self::Postgres(url) = self else { return None };
        let (url, own) = (url.clone(), origins.first()?.to_string());
        Some(move || postgres::exchange_hints(&url, &own, &hints))
    }

    /// Fails if there is something between us and the database that makes a ledger unsafe.
    pub(crate) fn verify(&self, options: &Options) -> Result<(), LedgerError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(url) => postgres::verify(url, Some(options.answer_within()))
                .map_err(|fault| fault.into_error(1)),
        }
    }
}

/// How long a database may take to answer at least, however short the retry budget is: as long as a
/// transaction may wait for a lock. Beyond it the connection counts as lost.
const LEAST_ANSWER_TIME: Duration = Duration::from_secs(10);

/// What is added, so that the database's own timeouts come first.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);

/// How a ledger is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Transactions that may be in flight at once. SQLite always has one writer.
    pub writers: usize,
    /// Most operations in one transaction.
    pub group: usize,
    /// PostgreSQL's isolation level. Every level is safe; the higher ones retry more.
    pub isolation: Isolation,
    /// How long a write keeps trying while the database cannot be reached or does not answer.
    pub retry_budget: Duration,
    /// Whether to exchange hints with other servers on PostgreSQL, so that each reads the log as soon as
    /// another has committed. It takes a connection more.
    pub hints: bool,
}

impl Options {
    /// How long the database may take to answer before its connection counts as lost.
    fn answer_within(&self) -> Duration {
        self.retry_budget.max(LEAST_ANSWER_TIME) + ANSWER_MARGIN
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writers: default_writers(),
            group: 1000,
            isolation: Isolation::ReadCommitted,
            retry_budget: Duration::from_secs(10),
            hints: false,
        }
    }
}

/// One writer for every two cores: on a small machine, larger groups pay off more than more writers.
fn default_writers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 8))
}
