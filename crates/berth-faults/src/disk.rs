//! A small disk that can be filled up. It needs the right to mount, and reports when it is missing.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Why there is no small disk.
#[derive(Clone, Debug)]
pub struct NoDisk {
    why: String,
    /// Whether a program is missing, rather than a right.
    pub is_tool_missing: bool,
}

impl NoDisk {
    fn not_allowed(why: &str) -> Self {
        Self { why: why.to_owned(), is_tool_missing: false }
    }
}

impl fmt::Display for NoDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no small disk could be mounted: {}", self.why)
    }
}

/// A file system in memory, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: TempDir,
}

/// A file that only takes up space.
#[derive(Debug)]
pub struct Ballast(PathBuf);

impl SmallDisk {
    /// Mounts a disk of so many MiB, which every account may write to.
    ///
    /// # Errors
    /// When mounting is not allowed here.
    pub fn mount(size_mib: u32) -> Result<Self, NoDisk> {
        let made = tempfile::Builder::new().prefix("berth-disk-").tempdir();
        let folder = made.map_err(|error| NoDisk::not_allowed(&error.to_string()))?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size_mib}m,mode=1777"), "tmpfs"]);
        let output = command.arg(folder.path()).output();
        let output = output.map_err(|error| NoDisk {
            why: format!("mount: {error}"),
            is_tool_missing: error.kind() == std::io::ErrorKind::NotFound,
        })?;
        if !output.status.success() {
            return Err(NoDisk::not_allowed(String::from_utf8_lossy(&output.stderr).trim()));
        }
        // The folder itself was made for its owner alone; the mount may be entered by all.
        Ok(Self { folder })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// MiB that are free.
    ///
    /// # Errors
    /// When `df` fails.
    pub fn free_mib(&self) -> anyhow::Result<u64> {
        let mut command = Command::new("df");
        let output = command.args(["--output=avail", "-B1M"]).arg(self.path()).output()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        Ok(printed.lines().nth(1).unwrap_or_default().trim().parse()?)
    }

    /// Takes up so many MiB.
    ///
    /// # Errors
    /// When there is not that much.
    pub fn ballast(&self, name: &str, size_mib: u64) -> std::io::Result<Ballast> {
        let path = self.path().join(name);
        let mut file = File::create(&path)?;
        let block = vec![b'x'; 1 << 20];
        for _ in 0..size_mib {
            file.write_all(&block)?;
        }
        Ok(Ballast(path))
    }
}

impl Ballast {
    /// Gives the space back.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn remove(self) -> std::io::Result<()> {
        std::fs::remove_file(self.0)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: processes that still have a file open there keep it until they end.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}
