//! The shapes in SQLite: a file with a write-ahead log that is synced at each commit.
//!
//! There is one writer at a time, so the shapes differ in when the writer's lock is taken. Only a
//! busy database is a conflict; any other error ends the benchmark.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, Error, ErrorCode, params};
use tempfile::TempDir;

use super::load::{Answer, Claim, Claimant};
use super::{Audit, Case, Database, Level, Shape};

/// How long a client waits for the lock before the database counts as busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

const TABLES: &str = "
    CREATE TABLE node (id INTEGER PRIMARY KEY, capacity INTEGER NOT NULL, used INTEGER NOT NULL)
        STRICT;
    CREATE TABLE claim (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, amount INTEGER NOT NULL)
        STRICT;
    CREATE INDEX claim_by_node ON claim (node, amount);";

const FILL: &str = "
    WITH RECURSIVE number (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM number WHERE id + 1 < ?2)
    INSERT INTO node SELECT id, ?1, 0 FROM number";

const AUDIT: &str = "
    WITH taken AS (
        SELECT node.capacity, node.used, coalesce(sum(claim.amount), 0) AS amount
        FROM node LEFT JOIN claim ON claim.node = node.id GROUP BY node.id)
    SELECT (SELECT count(*) FROM claim),
           coalesce(sum(max(amount - capacity, 0)), 0),
           coalesce(sum(abs(amount - used)), 0)
    FROM taken";

const GUARDED_UPDATE: &str =
    "UPDATE node SET used = used + 1 WHERE id = ?1 AND used + 1 <= capacity";
const INSERT: &str = "INSERT INTO claim VALUES (?1, ?2, 1)";
const READ: &str = "SELECT used < capacity FROM node WHERE id = ?1";
const COUNT: &str = "UPDATE node SET used = used + 1 WHERE id = ?1";
const CONDITIONAL_INSERT: &str = "
    INSERT INTO claim SELECT ?1, ?2, 1
    WHERE (SELECT coalesce(sum(amount), 0) FROM claim WHERE node = ?2) + 1
       <= (SELECT capacity FROM node WHERE id = ?2)";

/// A file with the tables of the benchmark.
pub(super) struct Sqlite {
    connection: Connection,
    path: PathBuf,
    /// Removes the file at the end.
    _folder: TempDir,
}

impl Sqlite {
    pub(super) fn new() -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let path = folder.path().join("shapes.db");
        let connection = open(&path)?;
        connection.execute_batch(TABLES)?;
        Ok(Self { connection, path, _folder: folder })
    }
}

fn open(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

impl Database for Sqlite {
    fn version(&self) -> anyhow::Result<String> {
        Ok(format!("SQLite {}", rusqlite::version()))
    }

    fn cases(&self) -> Vec<Case> {
        let ways = [
            (Shape::GuardedUpdate, Level::Immediate, false),
            (Shape::GuardedUpdate, Level::Deferred, false),
            (Shape::LockedCounter, Level::Immediate, false),
            (Shape::LockedCounter, Level::Deferred, false),
            (Shape::LockedCounter, Level::Deferred, true),
            (Shape::ConditionalInsert, Level::Deferred, false),
        ];
        ways.into_iter().map(|(shape, level, retries)| Case { shape, level, retries }).collect()
    }

    fn reset(&mut self, nodes: u64, capacity: i64) -> anyhow::Result<()> {
        self.connection.execute_batch("DELETE FROM node; DELETE FROM claim")?;
        self.connection.execute(FILL, params![capacity, i64::try_from(nodes)?])?;
        let checkpoint = "PRAGMA wal_checkpoint(truncate)";
        self.connection.query_row(checkpoint, [], |_| Ok(()))?;
        Ok(())
    }

    fn connect(&self, case: Case, pause: Duration) -> anyhow::Result<Box<dyn Claimant>> {
        let begin =
            if case.level == Level::Deferred { "BEGIN DEFERRED" } else { "BEGIN IMMEDIATE" };
        let connection = open(&self.path)?;
        Ok(Box::new(SqliteClient { connection, shape: case.shape, begin, pause }))
    }

    fn audit(&mut self) -> anyhow::Result<Audit> {
        let read = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
        let [claims, oversold, drift]: [i64; 3] = self.connection.query_row(AUDIT, [], read)?;
        Ok(Audit {
            claims: u64::try_from(claims)?,
            oversold: u64::try_from(oversold)?,
            drift: u64::try_from(drift)?,
        })
    }
}

struct SqliteClient {
    connection: Connection,
    shape: Shape,
    begin: &'static str,
    pause: Duration,
}

impl Claimant for SqliteClient {
    fn claim(&mut self, claim: Claim) -> anyhow::Result<Answer> {
        match self.attempt(claim) {
            Ok(true) => Ok(Answer::Granted),
            Ok(false) => Ok(Answer::Refused),
            Err(error) if is_conflict(&error) => {
                // Where BEGIN itself was turned away, no transaction is open.
                if !self.connection.is_autocommit() {
                    self.connection.execute_batch("ROLLBACK")?;
                }
                Ok(Answer::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

impl SqliteClient {
    fn attempt(&self, claim: Claim) -> Result<bool, Error> {
        self.connection.prepare_cached(self.begin)?.execute([])?;
        let both = params![claim.id, claim.node];
        let granted = match self.shape {
            Shape::ConditionalInsert => self.execute(CONDITIONAL_INSERT, both)? == 1,
            Shape::LockedCounter | Shape::LockedSum => {
                let fits: bool = self
                    .connection
                    .prepare_cached(READ)?
                    .query_row([claim.node], |row| row.get(0))?;
                if fits {
                    self.execute(COUNT, params![claim.node])?;
                    self.execute(INSERT, both)?;
                }
                fits
            }
            Shape::GuardedUpdate | Shape::GuardedStatement => {
                let fits = self.execute(GUARDED_UPDATE, params![claim.node])? == 1;
                if fits {
                    self.execute(INSERT, both)?;
                }
                fits
            }
        };
        if granted && !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(granted)
    }

    fn execute(&self, sql: &str, values: &[&dyn rusqlite::ToSql]) -> Result<usize, Error> {
        self.connection.prepare_cached(sql)?.execute(values)
    }
}
