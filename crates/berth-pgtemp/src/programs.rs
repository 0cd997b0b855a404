//! Where PostgreSQL's programs are, and how to run a program and keep what it said.
//!
//! Never trusts a folder by its name: it counts only when the server's programs are in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{CommandError, StartError};

/// Where Debian and its relatives keep one folder for each major version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Settings of the caller's own PostgreSQL client that must not reach our server.
const CLIENT_VARIABLES: [&str; 10] = [
    "PGAPPNAME",
    "PGDATA",
    "PGDATABASE",
    "PGHOST",
    "PGHOSTADDR",
    "PGOPTIONS",
    "PGPORT",
    "PGSERVICE",
    "PGSSLMODE",
    "PGUSER",
];

/// The folder with `initdb`, `postgres` and the client programs.
pub(crate) fn find() -> Result<PathBuf, StartError> {
    let mut looked_in = Vec::new();
    for folder in candidates() {
        if ["initdb", "postgres", "psql"].iter().all(|name| folder.join(name).is_file()) {
            return Ok(folder);
        }
        looked_in.push(folder);
    }
    Err(StartError::BinariesMissing { looked_in })
}

fn candidates() -> Vec<PathBuf> {
    let told = run(Command::new("pg_config").arg("--bindir"));
    let mut folders: Vec<PathBuf> =
        told.iter().map(|folder| PathBuf::from(folder.trim())).collect();
    folders.extend(path_folders());
    folders.extend(newest_first(Path::new(VERSIONS)));
    let mut seen = Vec::new();
    folders.retain(|folder| {
        let is_new = !seen.contains(folder);
        seen.push(folder.clone());
        is_new
    });
    folders
}

#[allow(clippy::disallowed_methods, reason = "programs are found where the shell finds them")]
fn path_folders() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

fn newest_first(versions: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(versions) else { return Vec::new() };
    let mut numbered: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.split('.').next()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    numbered.sort_unstable_by(|left, right| right.cmp(left));
    numbered.into_iter().map(|(_, folder)| folder).collect()
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String, CommandError> {
    let program = command.get_program().to_string_lossy().into_owned();
    for variable in CLIENT_VARIABLES {
        command.env_remove(variable);
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| CommandError::Run { program: program.clone(), source })?;
    if !output.status.success() {
        let output_text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(CommandError::Failed { program, status: output.status, output: output_text });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first_and_other_folders_are_left_out() {
        let versions = tempfile::tempdir().unwrap();
        for name in ["9.6", "15", "17", "common"] {
            std::fs::create_dir(versions.path().join(name)).unwrap();
        }
        let found = newest_first(versions.path());
        let expected: Vec<PathBuf> =
            ["17", "15", "9.6"].iter().map(|name| versions.path().join(name).join("bin")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn missing_programs_are_reported_with_the_remedy() {
        let error = StartError::BinariesMissing { looked_in: vec![PathBuf::from("/nowhere")] };
        let text = error.to_string();
        assert!(text.contains("/nowhere") && text.contains("apt-get install postgresql"), "{text}");
    }
}
