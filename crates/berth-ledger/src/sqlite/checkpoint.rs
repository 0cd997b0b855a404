//! Copies the write-ahead log into the database, on a thread of its own: commits do not pay for it.
//!
//! The writer reports how long the log is after each commit. What was committed during a copy it copies
//! itself, since nobody else can write then: that is little, and lets the log start again from the
//! beginning of its file. Nothing here reads or writes rows.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::Sqlite;
use crate::error::Fault;

/// How long the log may become, in bytes, and what happens then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLimits {
    /// The thread copies it into the database.
    pub(crate) copy_at: u64,
    /// Its file is cut to this when the log starts again, which gives the space back.
    pub(crate) truncate_to: u64,
    /// The writer copies all of it in its own commit: the thread does not keep up, or is gone.
    pub(crate) writer_copies_at: u64,
}

const MIB: u64 = 1 << 20;

impl LogLimits {
    /// The limits of every server; docs/operations.md states them.
    pub(crate) const DEFAULT: Self =
        Self { copy_at: 16 * MIB, truncate_to: 64 * MIB, writer_copies_at: 512 * MIB };
}

/// Commits that may copy the rest after a copy. One is enough, unless somebody reads at that moment.
const FINISHING_COMMITS: u32 = 4;

/// How long after a failed copy, on a full disk for instance, the next one is tried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

struct LogState {
    /// How long it was after the last commit.
    bytes: u64,
    /// How long it must be for the next copy.
    copy_at: u64,
    /// Commits left that copy the rest.
    finishing: u32,
    copies: u64,
    failures: u64,
    /// Whether the last copy failed.
    is_failing: bool,
    closed: bool,
}

/// The length of the log, shared by the writer and the thread that copies it.
pub(crate) struct WriteAheadLog {
    pub(super) limits: LogLimits,
    state: Mutex<LogState>,
    changed: Condvar,
}

impl WriteAheadLog {
    pub(crate) fn new(limits: LogLimits) -> Self {
        let copy_at = limits.copy_at;
        let state = LogState {
            bytes: 0,
            copy_at,
            finishing: 0,
            copies: 0,
            failures: 0,
            is_failing: false,
            closed: false,
        };
        Self { limits, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// How long it was after the last commit.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// How many times the thread has copied it.
    pub(crate) fn copies(&self) -> u64 {
        self.lock().copies
    }

    /// How many attempts failed, of the thread and of the writer.
    pub(crate) fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// Whether its last one did.
    pub(crate) fn is_failing(&self) -> bool {
        self.lock().is_failing
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Reports its length after a commit. Returns whether the writer must copy it.
    pub(super) fn report(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        if bytes < state.bytes {
            // It started again.
            (state.copy_at, state.finishing) = (self.limits.copy_at, 0);
        }
        state.bytes = bytes;
        let must_copy = state.finishing > 0 || bytes >= self.limits.writer_copies_at;
        state.finishing = state.finishing.saturating_sub(1);
        let is_long = bytes >= state.copy_at;
        drop(state);
        if is_long {
            self.changed.notify_all();
        }
        must_copy
    }

    /// Copies the log whenever it has become long, until it is closed.
    pub(crate) fn run_copier(&self, path: &Path) {
        let mut connection = None;
        while self.wait_until_long() {
            if let Err(fault) = copy(path, &mut connection) {
                connection = None;
                self.note_failure(fault);
                self.pause(RETRY_AFTER);
                continue;
            }
            self.note_success();
            let mut state = self.lock();
            state.copies += 1;
            state.finishing = FINISHING_COMMITS;
            // What somebody still reads could not be copied, and the log grows behind it.
            state.copy_at = state.bytes + self.limits.copy_at;
        }
    }

    /// What came of a copy that the writer made in its own commit.
    pub(super) fn note_writer_copy(&self, outcome: rusqlite::Result<()>) {
        match outcome {
            Ok(()) => self.note_success(),
            // The thread is copying: what is left is for one of the next commits.
            Err(error) if is_busy(&error) => {}
            // What was committed is durable already; the next commit tries again.
            Err(error) => self.note_failure(error.into()),
        }
    }

    fn note_success(&self) {
        if std::mem::take(&mut self.lock().is_failing) {
            tracing::info!("copied the write-ahead log again");
        }
    }

    /// Counts a failed copy. The first after a good one is logged as a warning.
    fn note_failure(&self, fault: Fault) {
        let mut state = self.lock();
        state.failures += 1;
        let is_first = !std::mem::replace(&mut state.is_failing, true);
        let bytes = state.bytes;
        drop(state);
        let error = fault.into_error(1);
        if is_first {
            tracing::warn!(%error, bytes, "failed to copy the write-ahead log; it grows until a retry succeeds");
        } else {
            tracing::debug!(%error, bytes, "failed to copy the write-ahead log");
        }
    }

    /// Waits until it is long enough for a copy. Returns whether it is; if not, it was closed.
    fn wait_until_long(&self) -> bool {
        let waiting = |state: &mut LogState| !state.closed && state.bytes < state.copy_at;
        let state = self.changed.wait_while(self.lock(), waiting);
        !state.unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Waits for this long, or until it is closed.
    fn pause(&self, time: Duration) {
        let open = |state: &mut LogState| !state.closed;
        drop(self.changed.wait_timeout_while(self.lock(), time, open));
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Copies what nobody reads any longer, while the writer goes on.
fn copy(path: &Path, connection: &mut Option<Connection>) -> Result<(), Fault> {
    let connection = match connection {
        Some(connection) => connection,
        none => none.insert(Sqlite::connect(path)?),
    };
    Ok(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_copy_of_the_writer_that_fails_is_counted_unless_somebody_else_is_copying() {
        let log = WriteAheadLog::new(LogLimits::DEFAULT);
        let failed =
            |code| Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        log.note_writer_copy(failed(rusqlite::ffi::SQLITE_BUSY));
        assert_eq!((log.failures(), log.is_failing()), (0, false));
        log.note_writer_copy(failed(rusqlite::ffi::SQLITE_FULL));
        assert_eq!((log.failures(), log.is_failing()), (1, true));
        log.note_writer_copy(Ok(()));
        assert_eq!((log.failures(), log.is_failing()), (1, false));
    }

    #[test]
    fn a_copy_that_fails_is_counted_and_tried_again_until_it_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let away = folder.path().join("away");
        let log = Arc::new(WriteAheadLog::new(LogLimits { copy_at: 1, ..LogLimits::DEFAULT }));
        let (copied, path) = (Arc::clone(&log), away.join("ledger.db"));
        let copier = std::thread::spawn(move || copied.run_copier(&path));
        log.report(1);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                is_so()
            })
        };
        assert!(wait_until(&|| log.failures() > 0));
        assert!(log.is_failing() && log.copies() == 0);
        std::fs::create_dir(away).unwrap();
        assert!(wait_until(&|| log.copies() > 0));
        assert!(!log.is_failing());
        log.close();
        copier.join().unwrap();
    }
}
