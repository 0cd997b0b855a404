//! The file that tells the commands on this machine which server to talk to: written when a server
//! is first started, so that they work at once.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::options::variable;

/// How to talk to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) ca_cert: Option<PathBuf>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    /// The user's file says it now.
    Here(PathBuf),
    /// The user's file says it now; what it said before is in the other file.
    Replaced(PathBuf, PathBuf),
    /// The user's file is about another server and was left alone: this one is beside the data.
    Beside {
        /// The file that was written.
        path: PathBuf,
        /// What the user's file is about.
        other: String,
    },
}

/// The user's file.
pub(crate) fn path() -> Option<PathBuf> {
    if let Some(file) = variable("BERTH_CONFIG") {
        return Some(file);
    }
    let folder = variable("XDG_CONFIG_HOME");
    let folder = folder.or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(folder.join("berth").join("client.toml"))
}

/// What a file says; absent when there is none, or it cannot be read.
pub(crate) fn load(path: &Path) -> Option<Entry> {
    let text = std::fs::read_to_string(path).ok()?;
    let table: toml::Table = text.parse().ok()?;
    let text = |key: &str| table.get(key).and_then(|value| value.as_str()).map(str::to_owned);
    let ca_cert = text("ca_cert").map(PathBuf::from);
    Some(Entry { url: text("url")?, token: text("token"), ca_cert })
}

/// Saves an entry for the user, or beside the data when the user's file is about another server.
pub(crate) fn save(user: Option<&Path>, data_dir: &Path, entry: &Entry) -> std::io::Result<Saved> {
    let own = data_dir.join("client.toml");
    let Some(user) = user else {
        write(&own, entry)?;
        return Ok(Saved::Here(own));
    };
    match load(user) {
        Some(found) if found.url.trim_end_matches('/') != entry.url => {
            write(&own, entry)?;
            Ok(Saved::Beside { path: own, other: found.url })
        }
        Some(found) if found.token.is_some() && found.token != entry.token => {
            let before = user.with_extension("toml.before");
            write(&before, &found)?;
            write(user, entry)?;
            Ok(Saved::Replaced(user.to_owned(), before))
        }
        None if user.exists() => {
            // It holds something that is not ours to judge.
            write(&own, entry)?;
            Ok(Saved::Beside { path: own, other: "something else".to_owned() })
        }
        _ => {
            write(user, entry)?;
            Ok(Saved::Here(user.to_owned()))
        }
    }
}

/// Writes a file for its owner only; it is whole at any moment.
fn write(path: &Path, entry: &Entry) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text_of(entry).as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn text_of(entry: &Entry) -> String {
    let ca_cert = entry.ca_cert.as_ref().map(|path| path.display().to_string());
    let fields =
        [("url", Some(entry.url.clone())), ("token", entry.token.clone()), ("ca_cert", ca_cert)];
    let head = "# Which server the berth command talks to.".to_owned();
    // A JSON string is a TOML string.
    let line = |(name, value): (&str, Option<String>)| {
        value.map(|value| format!("{name} = {}", serde_json::Value::String(value)))
    };
    let lines: Vec<String> =
        std::iter::once(head).chain(fields.into_iter().filter_map(line)).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(url: &str, token: &str) -> Entry {
        Entry { url: url.to_owned(), token: Some(token.to_owned()), ca_cert: None }
    }

    #[test]
    fn another_servers_entry_is_left_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (user, data) = (folder.path().join("a/client.toml"), folder.path().join("data"));
        let (one, two) = (entry("http://one", "1"), entry("http://two", "2"));
        assert_eq!(save(Some(&user), &data, &one).unwrap(), Saved::Here(user.clone()));
        assert_eq!(std::fs::metadata(&user).unwrap().permissions().mode() & 0o777, 0o600);
        let saved = save(Some(&user), &data, &two).unwrap();
        let path = data.join("client.toml");
        assert_eq!(saved, Saved::Beside { path: path.clone(), other: "http://one".to_owned() });
        assert_eq!(load(&user), Some(one));
        assert_eq!(load(&path), Some(two));
    }

    #[test]
    fn the_same_servers_entry_is_replaced_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let user = folder.path().join("client.toml");
        let (old, new) = (entry("http://one", "1"), entry("http://one", "2"));
        save(Some(&user), folder.path(), &old).unwrap();
        let before = folder.path().join("client.toml.before");
        let saved = save(Some(&user), folder.path(), &new).unwrap();
        assert_eq!(saved, Saved::Replaced(user.clone(), before.clone()));
        assert_eq!((load(&user), load(&before)), (Some(new.clone()), Some(old)));
        assert_eq!(save(Some(&user), folder.path(), &new).unwrap(), Saved::Here(user));
    }
}
