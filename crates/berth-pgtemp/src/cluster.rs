//! Making a new cluster: with `initdb`, or by copying one that was made before.
//!
//! `initdb` takes a second of CPU time, and a run of all tests needs a cluster several hundred times.
//! Where a folder for templates is named, the first cluster is kept there and later ones are copies.
//! A template appears under its name only when it is complete, so a killed test leaves no half of one.

use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::error::StartError;
use crate::programs;

const INITDB_OPTIONS: [&str; 5] = [
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    // The cluster need not survive a failure that comes before its first use.
    "--no-sync",
];

/// Names the folder that templates are kept in.
const TEMPLATES_VARIABLE: &str = "BERTH_POSTGRES_TEMPLATES";

/// The folder for templates, if one is named.
#[allow(clippy::disallowed_methods, reason = "only a run of tests names it, for all its processes")]
pub(crate) fn templates() -> Option<PathBuf> {
    std::env::var_os(TEMPLATES_VARIABLE).map(PathBuf::from)
}

/// Makes a cluster in an empty folder of the account.
pub(crate) fn create(
    programs: &Path,
    account: &Account,
    data: &Path,
    templates: Option<&Path>,
) -> Result<(), StartError> {
    let initdb = programs.join("initdb");
    let template = templates.and_then(|folder| Some(folder.join(template_name(&initdb).ok()?)));
    let failed = |source| StartError::Directory { path: data.to_owned(), source };
    if let Some(template) = template.as_deref().filter(|template| template.is_dir()) {
        return copy(template, data, Some(account)).map_err(failed);
    }
    let mut command = account.command(&initdb);
    command.args(INITDB_OPTIONS).arg("-D").arg(data).current_dir(data);
    programs::run(&mut command)?;
    if let Some(template) = template {
        // Without a template the next cluster is made as this one was.
        let _ = keep(data, &template);
    }
    Ok(())
}

/// A name that changes with the program and with its options.
fn template_name(initdb: &Path) -> io::Result<String> {
    let program = initdb.canonicalize()?;
    let facts = program.metadata()?;
    let mut hasher = DefaultHasher::new();
    (program, facts.len(), facts.mtime(), INITDB_OPTIONS).hash(&mut hasher);
    Ok(format!("berth-postgres-template-{:016x}", hasher.finish()))
}

/// Keeps a copy of a cluster that was never started. Another process may do the same: one wins.
fn keep(data: &Path, template: &Path) -> io::Result<()> {
    let parent = template.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let copied = tempfile::Builder::new().prefix("berth-postgres-").tempdir_in(parent)?;
    let cluster = copied.path().join("cluster");
    std::fs::create_dir(&cluster)?;
    copy(data, &cluster, None)?;
    std::fs::rename(&cluster, template)
}

/// Copies what is in a folder, with the rights that PostgreSQL asks for.
fn copy(from: &Path, to: &Path, account: Option<&Account>) -> io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            std::fs::create_dir(&target)?;
            std::fs::set_permissions(&target, Permissions::from_mode(0o700))?;
            copy(&entry.path(), &target, account)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
        if let Some(account) = account {
            account.hand_over(&target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_cluster_is_a_copy_of_the_first() {
        let programs = programs::find().unwrap();
        let account = Account::find().unwrap();
        let templates = tempfile::tempdir().unwrap();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let identities = folders.each_ref().map(|folder| {
            account.hand_over(folder.path()).unwrap();
            create(&programs, &account, folder.path(), Some(templates.path())).unwrap();
            // It holds the number that `initdb` gives to each cluster.
            std::fs::read(folder.path().join("global/pg_control")).unwrap()
        });
        assert_eq!(identities[0], identities[1]);
        let kept: Vec<_> = std::fs::read_dir(templates.path()).unwrap().collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        let files = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
        assert_eq!(files(folders[0].path()), files(folders[1].path()));
    }

    #[test]
    fn without_a_folder_for_templates_every_cluster_is_new() {
        let programs = programs::find().unwrap();
        let account = Account::find().unwrap();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = folders.each_ref().map(|folder| {
            account.hand_over(folder.path()).unwrap();
            create(&programs, &account, folder.path(), None).unwrap();
            std::fs::read(folder.path().join("global/pg_control")).unwrap()
        });
        assert_ne!(first, second);
    }
}
