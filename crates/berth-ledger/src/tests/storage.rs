//! The write-ahead log of SQLite: who copies it into the database, and how long it becomes.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::backend::{Backend, Options};
use crate::ledger::Ledger;
use crate::model::{Op, Text};
use crate::sqlite::LogLimits;
use crate::writer::WriterHooks;

const KIB: u64 = 1024;

/// Commits after which a log that nobody copies is certainly longer than any limit here.
const MANY: u32 = 400;

const NEVER: u64 = u64::MAX / 2;

struct Stored {
    ledger: Ledger,
    path: PathBuf,
    _folder: TempDir,
}

impl Stored {
    fn new(limits: LogLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let backend = Backend::Sqlite(path.clone());
        let ledger =
            Ledger::open_limited(backend, Options::default(), WriterHooks::default(), limits)
                .unwrap();
        Self { ledger, path, _folder: folder }
    }

    fn commit(&self, number: u32) {
        let (env, version) = (Text::from("prod"), Some(Text::from(number.to_string())));
        self.ledger.administer(Op::PutSecrets { tenant: None, env, version }).unwrap();
    }

    /// Commits until the log starts again; whether it did.
    fn commit_until_restart(&self, most: u32) -> bool {
        let mut before = self.ledger.log_bytes();
        (0..most).any(|number| {
            self.commit(number);
            let now = self.ledger.log_bytes();
            std::mem::replace(&mut before, now) > now
        })
    }
}

fn file_bytes(database: &Path) -> u64 {
    let mut log = database.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).unwrap().len()
}

fn page_bytes(database: &Path) -> i64 {
    let connection = rusqlite::Connection::open(database).unwrap();
    connection.pragma_query_value(None, "page_size", |row| row.get(0)).unwrap()
}

#[test]
fn a_new_ledger_has_small_pages_and_one_that_was_made_with_others_keeps_them() {
    let new = Stored::new(LogLimits::DEFAULT);
    new.commit(1);
    assert_eq!(page_bytes(&new.path), 2048);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let made = rusqlite::Connection::open(&path).unwrap();
    made.pragma_update(None, "page_size", 4096).unwrap();
    made.execute_batch("PRAGMA journal_mode = wal; CREATE TABLE t (a); DROP TABLE t").unwrap();
    drop(made);
    let ledger = Ledger::open(Backend::Sqlite(path.clone()), Options::default()).unwrap();
    let (env, version) = (Text::from("prod"), Some(Text::from("1")));
    ledger.administer(Op::PutSecrets { tenant: None, env, version }).unwrap();
    assert_eq!(page_bytes(&path), 4096);
}

#[test]
fn the_log_is_copied_in_the_background_and_starts_again() {
    let limits = LogLimits { copy_at: 256 * KIB, truncate_to: 512 * KIB, writer_copies_at: NEVER };
    let stored = Stored::new(limits);
    // How far the writer comes during a copy depends on the machine.
    assert!(stored.commit_until_restart(100 * MANY), "{} bytes", stored.ledger.log_bytes());
    assert!(stored.ledger.log_copies() > 0);
}

#[test]
fn a_log_that_nobody_copies_grows_with_every_commit() {
    let limits = LogLimits { copy_at: NEVER, truncate_to: 512 * KIB, writer_copies_at: NEVER };
    let stored = Stored::new(limits);
    assert!(!stored.commit_until_restart(MANY));
    assert_eq!(stored.ledger.log_copies(), 0);
    assert!(stored.ledger.log_bytes() > 512 * KIB, "{} bytes", stored.ledger.log_bytes());
}

#[test]
fn the_writer_copies_a_log_that_is_not_copied_in_time() {
    let limits = LogLimits { copy_at: NEVER, truncate_to: 512 * KIB, writer_copies_at: 256 * KIB };
    let stored = Stored::new(limits);
    assert!(stored.commit_until_restart(MANY));
    assert_eq!(stored.ledger.log_copies(), 0);
}

#[test]
fn a_log_that_a_reader_made_long_is_cut_when_the_reader_is_gone() {
    let limits = LogLimits { copy_at: 64 * KIB, truncate_to: 128 * KIB, writer_copies_at: NEVER };
    let stored = Stored::new(limits);
    let reader = rusqlite::Connection::open(&stored.path).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM ledger").unwrap();
    assert!(!stored.commit_until_restart(MANY), "somebody reads");
    let long = file_bytes(&stored.path);
    assert!(long > 512 * KIB, "{long} bytes");
    reader.execute_batch("COMMIT").unwrap();
    assert!(stored.commit_until_restart(100 * MANY));
    let cut = file_bytes(&stored.path);
    assert!(cut < long, "{cut} bytes");
}
