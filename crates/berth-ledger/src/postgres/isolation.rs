//! How far transactions are kept apart. Only names: which level a transaction needs is said where
//! it begins, and no guard may rest on it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// PostgreSQL's level of isolation for the ledger's writes.
///
/// Every guard holds at every level, since each reads only rows that it has locked. The higher
/// levels cost retries and buy nothing; they are for databases that offer no other.
///
/// ```
/// use berth_ledger::Isolation;
///
/// assert_eq!("repeatable-read".parse(), Ok(Isolation::RepeatableRead));
/// assert_eq!(Isolation::default().to_string(), "read-committed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// Each statement sees what was committed before it: writers wait for each other, and go on.
    #[default]
    ReadCommitted,
    /// A transaction sees one moment: one that finds a row changed since is retried.
    RepeatableRead,
    /// The same, and it is retried when the order of transactions would matter.
    Serializable,
}

/// A name that is no level of isolation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid isolation level {0:?}; accepted are read-committed, repeatable-read, serializable"
)]
pub struct InvalidIsolation(pub String);

impl Isolation {
    /// Every level, from the weakest to the strongest.
    pub const ALL: [Self; 3] = [Self::ReadCommitted, Self::RepeatableRead, Self::Serializable];

    /// The level's name as it stands in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read-committed",
            Self::RepeatableRead => "repeatable-read",
            Self::Serializable => "serializable",
        }
    }

    /// The statement that begins a transaction at this level.
    pub(super) const fn begin(self) -> &'static str {
        match self {
            Self::ReadCommitted => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Self::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            Self::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isolation {
    type Err = InvalidIsolation;

    fn from_str(name: &str) -> Result<Self, InvalidIsolation> {
        let found = Self::ALL.into_iter().find(|level| level.name() == name);
        found.ok_or_else(|| InvalidIsolation(name.to_owned()))
    }
}
