//! A private database, and plain SQL on it without the ledger.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use berth_ledger::Backend;
use berth_pgtemp::TempPostgres;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

use crate::wait::wait_until;

/// The database of a test; removed after it.
pub enum Fixture {
    /// A file in a folder.
    Sqlite {
        /// The database.
        file: PathBuf,
        /// The folder, unless the caller owns it.
        folder: Option<TempDir>,
    },
    /// A server.
    Postgres(Box<TempPostgres>),
}

impl Fixture {
    /// A new SQLite database.
    ///
    /// # Errors
    /// When there is no temporary folder.
    pub fn sqlite() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("berth-faults-").tempdir()?;
        Ok(Self::Sqlite { file: folder.path().join("ledger.db"), folder: Some(folder) })
    }

    /// A new SQLite database in a folder.
    #[must_use]
    pub fn sqlite_in(folder: &Path) -> Self {
        Self::Sqlite { file: folder.join("ledger.db"), folder: None }
    }

    /// A new PostgreSQL server.
    ///
    /// # Errors
    /// When it does not start.
    pub fn postgres(options: berth_pgtemp::Options) -> anyhow::Result<Self> {
        Ok(Self::Postgres(Box::new(TempPostgres::start(options)?)))
    }

    /// The address of the database.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite { file, .. } => format!("sqlite:{}", file.display()),
            Self::Postgres(server) => server.url(),
        }
    }

    /// The database as the ledger takes it.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self {
            Self::Sqlite { file, .. } => Backend::Sqlite(file.clone()),
            Self::Postgres(server) => Backend::Postgres(server.url()),
        }
    }

    /// The server, where there is one.
    pub fn server(&mut self) -> Option<&mut TempPostgres> {
        match self {
            Self::Sqlite { .. } => None,
            Self::Postgres(server) => Some(server),
        }
    }

    /// An expression that gives bytes as text.
    #[must_use]
    pub fn hex(&self, column: &str) -> String {
        match self {
            Self::Sqlite { .. } => format!("lower(hex({column}))"),
            Self::Postgres(_) => format!("encode({column}, 'hex')"),
        }
    }

    /// Rows of a query, as text.
    ///
    /// # Errors
    /// When the database does not take it.
    pub fn rows(&self, sql: &str) -> anyhow::Result<Vec<Vec<String>>> {
        match self {
            Self::Sqlite { file, .. } => sqlite_rows(file, sql).with_context(|| sql.to_owned()),
            Self::Postgres(server) => {
                let printed = server.psql(sql)?;
                let row = |line: &str| line.split('|').map(str::to_owned).collect();
                Ok(printed.lines().map(row).collect())
            }
        }
    }

    /// Changes something behind the ledger's back.
    ///
    /// # Errors
    /// When the database does not take it.
    pub fn execute(&self, sql: &str) -> anyhow::Result<()> {
        match self {
            Self::Sqlite { file, .. } => Ok(Connection::open(file)?.execute_batch(sql)?),
            Self::Postgres(server) => Ok(server.psql(sql).map(drop)?),
        }
    }

    /// Waits until a server has noticed that its clients are gone: what a killed client sent last
    /// may still be in progress.
    ///
    /// # Errors
    /// When they are still there after half a minute.
    pub fn wait_until_left(&self) -> anyhow::Result<()> {
        let Self::Postgres(server) = self else { return Ok(()) };
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'berth'";
        let left = || server.psql(sessions).is_ok_and(|count| count == "0");
        if !wait_until(Duration::from_secs(90), left) {
            bail!("sessions of a killed process are still there");
        }
        Ok(())
    }
}

fn sqlite_rows(file: &Path, sql: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let mut cells = Vec::with_capacity(columns);
        for column in 0..columns {
            cells.push(match row.get_ref(column)? {
                ValueRef::Null => String::new(),
                ValueRef::Integer(number) => number.to_string(),
                ValueRef::Real(number) => number.to_string(),
                ValueRef::Text(text) | ValueRef::Blob(text) => {
                    String::from_utf8_lossy(text).into_owned()
                }
            });
        }
        found.push(cells);
    }
    Ok(found)
}
