//! The client configuration that a server writes at its first start, so that commands on this machine
//! work at once.

use std::path::{Path, PathBuf};

use crate::cmdutil::client_config::{self, ClientConfig};

/// How to talk to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) ca_cert: Option<PathBuf>,
}

/// Where the configuration was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    /// In the user's file.
    Here(PathBuf),
    /// In the user's file, whose previous content is in the other file.
    Replaced(PathBuf, PathBuf),
    /// In the data directory, because the user's file is about another server.
    Beside {
        /// The file that was written.
        path: PathBuf,
        /// What the user's file is about.
        other: String,
    },
}

/// The user's file.
pub(crate) fn path() -> Option<PathBuf> {
    client_config::path()
}

/// Reads a file; none if there is none, or it cannot be read.
pub(crate) fn load(path: &Path) -> Option<Entry> {
    let ClientConfig { url, token, ca_cert } = client_config::load_from(path).ok()?;
    Some(Entry { url: url?, token, ca_cert })
}

/// Saves an entry in the user's file, or in the data directory if that is about another server.
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
            // The file is not a client configuration; leave it alone.
            write(&own, entry)?;
            Ok(Saved::Beside { path: own, other: "something else".to_owned() })
        }
        _ => {
            write(user, entry)?;
            Ok(Saved::Here(user.to_owned()))
        }
    }
}

fn write(path: &Path, entry: &Entry) -> std::io::Result<()> {
    let Entry { url, token, ca_cert } = entry.clone();
    client_config::save_to(path, &ClientConfig { url: Some(url), token, ca_cert })
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
