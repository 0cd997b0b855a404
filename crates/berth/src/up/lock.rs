//! A lock that allows one server per SQLite file: a second one would not see the first one's claims.
//!
//! The kernel holds the lock for the process, so a killed server leaves none behind. The file is found
//! under any of its names: symbolic links are resolved, and the database itself is locked too, which
//! covers hard links.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// An exclusive lock on a database, which ends with the process.
///
/// It must outlive every connection to the database: closing any descriptor of a file drops the locks
/// that SQLite has on it in this process.
pub(crate) struct Lock {
    #[allow(dead_code, reason = "held, never used")]
    database: File,
    #[allow(dead_code, reason = "held, never used")]
    named: File,
}

impl Lock {
    /// Takes the lock, or names its holder. Creates the database, empty, if there is none yet.
    pub(crate) fn take(database: &Path) -> anyhow::Result<Self> {
        // It has keys and hashes of tokens: only its owner may read it.
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(database).with_context(|| not_writable(database))?;
        let real = database.canonicalize().with_context(|| not_writable(database))?;
        let path = lock_path(&real);
        let mut named = File::options();
        named.read(true).write(true).create(true).truncate(false);
        let mut named = named.open(&path).with_context(|| not_writable(&real))?;
        if !try_lock(&named, &path)? {
            let mut holder = String::new();
            let _ = named.read_to_string(&mut holder);
            let holder = holder.trim();
            let who = if holder.is_empty() { "another process" } else { holder };
            let also = if real == database {
                String::new()
            } else {
                format!(", which is {},", real.display())
            };
            bail!(
                "{}{also} is in use by another server ({who}); stop that one first, or set another directory with --data-dir",
                database.display()
            );
        }
        // SQLite keeps its log next to the name by which it opened the database, so two names of one
        // file would have a log each, and neither would see the other's commits.
        if !try_lock(&file, &real)? {
            let links = file.metadata().map_or(0, |found| found.nlink());
            bail!(
                "{} is in use by another server under another name: the file has {links} hard links; stop that server first, and remove the links, or set another directory with --data-dir",
                database.display()
            );
        }
        named.set_len(0)?;
        named.rewind()?;
        writeln!(named, "process {}", std::process::id())?;
        Ok(Self { database: file, named })
    }
}

/// Whether the lock was free.
fn try_lock(file: &File, path: &Path) -> anyhow::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("failed to lock {}", path.display()))
        }
    }
}

fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    database.with_file_name(name)
}

fn not_writable(database: &Path) -> String {
    let folder = database.parent().unwrap_or(database).display();
    format!(
        "{folder} cannot be written to; grant the user of this process access, or set another directory with --data-dir"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_locked_for_one_server_and_free_again_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("berth.db");
        let first = Lock::take(&database).unwrap();
        let refused = Lock::take(&database).err().unwrap().to_string();
        let process = format!("process {}", std::process::id());
        assert!(
            refused.contains("in use by another server") && refused.contains(&process),
            "{refused}"
        );
        drop(first);
        // A killed server leaves a file behind, but no lock.
        Lock::take(&database).unwrap();
    }

    #[test]
    fn a_database_is_locked_under_all_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("berth.db");
        let other = folder.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let held = Lock::take(&database).unwrap();
        let (by_folder, by_name, hard) =
            (folder.path().join("linked"), other.join("name.db"), other.join("hard.db"));
        std::os::unix::fs::symlink(folder.path(), &by_folder).unwrap();
        std::os::unix::fs::symlink(&database, &by_name).unwrap();
        let refused = |path: &Path| Lock::take(path).err().unwrap().to_string();
        for path in [by_folder.join("berth.db"), by_name, other.join("../berth.db")] {
            let refused = refused(&path);
            assert!(refused.contains("in use by another server (process"), "{refused}");
        }
        std::fs::hard_link(&database, &hard).unwrap();
        let refused = refused(&hard);
        assert!(refused.contains("under another name: the file has 2 hard links"), "{refused}");
        drop(held);
        // Nothing but the server in use stood against it.
        Lock::take(&hard).unwrap();
    }

    #[test]
    fn a_missing_folder_is_named() {
        let refused = Lock::take(Path::new("/nowhere/at/all/berth.db")).err().unwrap();
        assert!(refused.to_string().contains("/nowhere/at/all cannot be written to"));
    }
}
