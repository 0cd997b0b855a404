//! A lock that allows one server per SQLite file: a second one would not see the first one's claims.
//!
//! The kernel holds the lock for the process, so a killed server leaves none behind.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// An exclusive lock on a database, which ends with the process.
pub(crate) struct Lock(#[allow(dead_code, reason = "held, never used")] File);

impl Lock {
    /// Takes the lock, or names its holder.
    pub(crate) fn take(database: &Path) -> anyhow::Result<Self> {
        let path = lock_path(database);
        let mut options = File::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| not_writable(database))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim();
                let who = if holder.is_empty() { "another process" } else { holder };
                bail!(
                    "{} is in use by another server ({who}); stop that one first, or set another directory with --data-dir",
                    database.display()
                );
            }
            Err(TryLockError::Error(error)) => {
                let why = format!("failed to lock {}", path.display());
                return Err(anyhow::Error::from(error).context(why));
            }
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "process {}", std::process::id())?;
        Ok(Self(file))
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
    fn a_missing_folder_is_named() {
        let refused = Lock::take(Path::new("/nowhere/at/all/berth.db")).err().unwrap();
        assert!(refused.to_string().contains("/nowhere/at/all cannot be written to"));
    }
}
