//! The ledger on SQLite: one file, one writer at a time, durable at every commit.
//!
//! Only SQL and its translation: no rule of the ledger is here.

mod cache;
mod checkpoint;
mod flush;
mod lists;
mod lock;
mod read;
mod rows;
mod service;
mod tenants;
mod values;

use std::fs::{File, OpenOptions, Permissions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use crate::database::{ChainRow, Database, LogEnds, NewReceipt, NewSegment, ReceiptRow, TakeItem};
use crate::error::{Fault, LedgerError};
use crate::model::{
    Claim, ClaimKey, Micros, Pool, Segment, TenantHoldings, TenantRemoval, Text, UnmetDemand,
};
use crate::pool_search::{PoolCursors, find_free_values};
use crate::retention::RetentionCutoffs;
use crate::schema::{NextRow, TakeRow, newest_version};
use crate::unit_of_work::{Keys, Rows, UnlockedReadKeys, UnlockedReads};
use cache::NodeCache;
pub use cache::ROWS_MAX as SQLITE_ROWS_MAX;
pub(crate) use checkpoint::{LogLimits, WriteAheadLog};

mod embedded {
    refinery::embed_migrations!("migrations/sqlite");
}

/// The newest version of the schema.
pub(crate) fn schema_version() -> i64 {
    newest_version(embedded::migrations::runner().get_migrations())
}

/// How long a writer waits for another process before it gives up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// What the log has in front of each page.
const FRAME_HEADER_BYTES: u64 = 24;

/// Bytes of a page of new ledgers: a lone commit writes whole pages, so smaller ones cost it less, and many claims
/// that share a commit more. A file keeps the size that it was made with.
const PAGE_BYTES: u32 = 2048;

/// Memory for pages of a connection, in KiB: of the writer, and of others.
const CACHE_KIB: (i32, i32) = (16_384, 2048);

/// One connection to a SQLite ledger.
pub(crate) struct Sqlite {
    path: PathBuf,
    connection: Connection,
    /// To whom the writer reports how long the log is.
    log: Option<Arc<WriteAheadLog>>,
    /// Where this writer draws values of large pools, pool by pool.
    cursors: PoolCursors,
    /// The last time that was read: it never goes back within a process.
    clock: i64,
    /// Counters of nodes as this connection last saw or wrote them.
    nodes: NodeCache,
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        let text = error.to_string();
        let rusqlite::Error::SqliteFailure(failure, _) = &error else {
            return Self::Fatal(LedgerError::Database(text));
        };
        match failure.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::Retry(text),
            ErrorCode::DiskFull => Self::StorageFull(text),
            // A disk that is full or gone also shows as a failed write.
            ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => Self::Disconnected(text),
            ErrorCode::ConstraintViolation
                if failure.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_CHECK =>
            {
                Self::Guard(text)
            }
            ErrorCode::ConstraintViolation => Self::Duplicate(text),
            _ => Self::Fatal(LedgerError::Database(text)),
        }
    }
}

impl Sqlite {
    /// Opens a ledger, and creates or migrates its schema.
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        let connection = Self::connect(path)?;
        let mut ledger = Self {
            path: path.to_owned(),
            connection,
            log: None,
            cursors: PoolCursors::default(),
            clock: 0,
            nodes: NodeCache::default(),
        };
        ledger.migrate()?;
        Ok(ledger)
    }

    /// Opens a ledger for the writer, which reports how long the log is.
    pub(crate) fn open_writer(path: &Path, log: Arc<WriteAheadLog>) -> Result<Self, Fault> {
        let mut ledger = Self::open(path)?;
        ledger.log = Some(log);
        ledger.prepare_writer()?;
        Ok(ledger)
    }

    fn connect(path: &Path) -> Result<Connection, Fault> {
        make_private(path)?;
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // First: once a file is in this mode, its pages stay as they are.
        connection.pragma_update(None, "page_size", PAGE_BYTES)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB.1)?;
        connection.pragma_update(None, "temp_store", "memory")?;
        connection.set_prepared_statement_cache_capacity(128);
        Ok(connection)
    }

    /// Sets up the writer's connection.
    fn prepare_writer(&mut self) -> Result<(), Fault> {
        let Some(log) = &self.log else { return Ok(()) };
        self.connection.pragma_update(None, "cache_size", -CACHE_KIB.0)?;
        let kept = i64::try_from(log.limits.truncate_to).unwrap_or(i64::MAX);
        self.connection.pragma_update(None, "journal_size_limit", kept)?;
        let page: u32 = self.connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let log = Arc::clone(log);
        self.connection.wal_hook(Some(move |wal: &mut Wal, pages| {
            let pages = u64::try_from(pages).unwrap_or(0);
            if log.report(pages * (u64::from(page) + FRAME_HEADER_BYTES)) {
                log.note_writer_copy(wal.checkpoint());
            }
            Ok(())
        }))?;
        Ok(())
    }

    /// Brings the schema up to date, one process at a time.
    fn migrate(&mut self) -> Result<(), Fault> {
        let known = schema_version();
        // Most starts find the schema as it should be, and need no lock.
        if self.schema_version()? == Some(known) {
            return Ok(());
        }
        let locked =
            |error: std::io::Error| Fault::Disconnected(format!("the migration lock: {error}"));
        let lock = File::create(self.path.with_extension("migrate.lock")).map_err(locked)?;
        lock.lock().map_err(locked)?;
        if let Some(found) = self.schema_version()?.filter(|found| *found > known) {
            return Err(Fault::Fatal(LedgerError::NewerSchema { found, known }));
        }
        // In one transaction: a process that is killed between a migration and its entry in the history
        // would leave a database that no server can open.
        let migrated = embedded::migrations::runner().set_grouped(true).run(&mut self.connection);
        let refused = |error: refinery::Error| LedgerError::Database(format!("migration: {error}"));
        migrated.map_err(|error| Fault::Fatal(refused(error)))?;
        Ok(())
    }

    /// Counts the statements of this connection from now on.
    #[cfg(test)]
    pub(crate) fn count_statements(&mut self) -> std::sync::Arc<std::sync::atomic::AtomicU32> {
        use rusqlite::trace::{TraceEvent, TraceEventCodes};
        let count = std::sync::Arc::<std::sync::atomic::AtomicU32>::default();
        let counted = std::sync::Arc::clone(&count);
        let trace = move |_: TraceEvent<'_>| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        self.connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(trace)).unwrap();
        count
    }

    /// A file as the first Berth made it.
    #[cfg(test)]
    pub(crate) fn make_first(path: &Path) {
        let first = embedded::migrations::runner().set_target(refinery::Target::Version(1));
        first.run(&mut Self::connect(path).unwrap()).unwrap();
    }

    fn schema_version(&self) -> Result<Option<i64>, Fault> {
        let table = "SELECT 1 FROM sqlite_master WHERE name = 'refinery_schema_history'";
        if self.connection.query_row(table, [], |_| Ok(())).optional()?.is_none() {
            return Ok(None);
        }
        let newest = "SELECT max(version) FROM refinery_schema_history";
        Ok(self.connection.query_row(newest, [], |row| row.get(0))?)
    }

    /// This machine's clock, which is the database's: it is in this process.
    #[allow(clippy::disallowed_methods, reason = "an embedded database has no other clock")]
    fn now(&mut self) -> Micros {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX));
        self.clock = self.clock.max(micros);
        Micros(self.clock)
    }
}

/// Creates a database that only its owner can access, whatever the umask and its folder: it has
/// keys and hashes of tokens. SQLite gives the files next to it the mode that it has. One that was
/// there is restricted, if it is ours.
fn make_private(path: &Path) -> Result<(), Fault> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let failed =
        |error: std::io::Error| Fault::Disconnected(format!("{}: {error}", path.display()));
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match created {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    for ending in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(ending);
        let Ok(found) = std::fs::metadata(&file) else { continue };
        if found.is_file() && found.permissions().mode() & 0o077 != 0 {
            // Another user's database may be shared on purpose.
            let _ = std::fs::set_permissions(&file, Permissions::from_mode(0o600));
        }
    }
    Ok(())
}

impl Database for Sqlite {
    fn begin(&mut self, _alone: bool) -> Result<(), Fault> {
        // A second writer waits here, not in the middle.
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut version = self.connection.prepare_cached("PRAGMA data_version")?;
        self.nodes.begin(version.query_row([], |row| row.get(0))?);
        Ok(())
    }

    fn read_unlocked(&mut self, keys: &UnlockedReadKeys) -> Result<UnlockedReads, Fault> {
        let now = self.now();
        lock::read_unlocked(&self.connection, keys, now)
    }

    fn lock(&mut self, keys: &Keys) -> Result<Rows, Fault> {
        let mut rows = lock::read(&self.connection, keys, &mut self.nodes)?;
        rows.now = self.now();
        let read_taken =
            |pool: &Pool, from, to| values::read_taken(&self.connection, pool, from, to);
        find_free_values(keys, &mut rows, &mut self.cursors, read_taken)?;
        Ok(rows)
    }

    fn flush(&mut self, rows: &Rows) -> Result<(), Fault> {
        let written = flush::write(&self.connection, rows);
        self.nodes.write(rows);
        if matches!(written, Err(Fault::Duplicate(_) | Fault::Guard(_))) {
            // Perhaps a value was taken after all: draw elsewhere.
            self.cursors.clear();
        }
        written
    }

    fn chains(&mut self) -> Result<Vec<ChainRow>, Fault> {
        read::chains(&self.connection)
    }

    fn add_chain(&mut self, id: &Text, at: Micros) -> Result<(), Fault> {
        self.connection.execute(
            "INSERT INTO chain (id, length, head, base, base_hash, started_at) \
             VALUES (?1, 0, x'', 0, x'', ?2)",
            (&**id, at.0),
        )?;
        Ok(())
    }

    fn append(
        &mut self,
        segment: Option<&NewSegment>,
        receipts: &[NewReceipt],
    ) -> Result<(), Fault> {
        flush::append(&self.connection, segment, receipts)
    }

    fn commit(&mut self) -> Result<(), Fault> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        self.nodes.commit();
        Ok(())
    }

    fn rollback(&mut self) {
        self.nodes.clear();
        if !self.connection.is_autocommit() {
            // When even this fails the connection is opened again before it is used again.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }

    fn reconnect(&mut self) -> Result<(), Fault> {
        self.nodes.clear();
        self.connection = Self::connect(&self.path)?;
        self.prepare_writer()
    }

    fn probe_write(&mut self, is_failing: bool) -> Result<(), Fault> {
        self.begin(false)?;
        if is_failing {
            // A page is written, so that it also shows whether the disk works again.
            self.connection.execute("UPDATE ledger SET next_event = next_event", [])?;
        }
        self.commit()
    }

    fn highest_fence(&mut self) -> Result<i64, Fault> {
        read::highest_fence(&self.connection)
    }

    fn clock(&mut self) -> Result<Micros, Fault> {
        Ok(self.now())
    }

    fn number_events(&mut self) -> Result<LogEnds, Fault> {
        // With one writer, segments have their number from the start.
        read::log_ends(&self.connection)
    }

    fn segments_after(&mut self, cursor: i64, limit: i64) -> Result<Vec<Segment>, Fault> {
        read::segments_after(&self.connection, cursor, limit)
    }

    fn snapshot(&mut self, take: &mut TakeItem<'_>) -> Result<i64, Fault> {
        let transaction = self.connection.transaction()?;
        let next = read::log_ends(&transaction)?.next;
        read::snapshot(&transaction, take)?;
        Ok(next - 1)
    }

    fn claim(&mut self, key: ClaimKey) -> Result<Option<Claim>, Fault> {
        rows::claim(&self.connection, key)
    }

    fn claims_of(&mut self, tenant: &str, workload: Option<&str>) -> Result<Vec<ClaimKey>, Fault> {
        read::claims_of(&self.connection, tenant, workload)
    }

    fn tenant_removals(&mut self) -> Result<Vec<(Text, TenantRemoval)>, Fault> {
        tenants::removals(&self.connection)
    }

    fn tenant_holdings(&mut self, tenant: &str) -> Result<TenantHoldings, Fault> {
        tenants::holdings(&mut self.connection, tenant)
    }

    fn forget_tenant(&mut self, tenant: &str, limit: usize) -> Result<u64, Fault> {
        tenants::forget(&mut self.connection, tenant, limit)
    }

    fn expired_nodes(&mut self) -> Result<Vec<berth_engine::NodeId>, Fault> {
        let now = self.now();
        read::expired_nodes(&self.connection, now)
    }

    fn drifted(&mut self) -> Result<crate::drift::DriftedRows, Fault> {
        read::drifted(&mut self.connection)
    }

    fn heartbeats_since(&mut self, at: i64) -> Result<Vec<(berth_engine::NodeId, i64)>, Fault> {
        read::heartbeats_since(&self.connection, at)
    }

    fn demand(&mut self) -> Result<Vec<UnmetDemand>, Fault> {
        read::demand(&self.connection)
    }

    fn receipts(&mut self, chain: &str, from: i64, limit: i64) -> Result<Vec<ReceiptRow>, Fault> {
        read::receipts(&self.connection, chain, from, limit)
    }

    fn forget(&mut self, what: &RetentionCutoffs) -> Result<u64, Fault> {
        read::forget(&mut self.connection, what)
    }

    fn dump(
        &mut self,
        wanted: &dyn Fn(&str) -> bool,
        take: &mut TakeRow<'_>,
    ) -> Result<i64, Fault> {
        read::dump(&mut self.connection, wanted, take)
    }

    fn load(&mut self, rows: &mut NextRow<'_>) -> Result<(), Fault> {
        self.nodes.clear();
        read::load(&mut self.connection, rows)
    }
}
