//! The client configuration that a server writes at its first start, so that commands on this machine
//! work at once.

use std::path::{Path, PathBuf};

use crate::cmdutil::client_config::{self, ClientConfig, save_to};

/// Where the configuration was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SavedConfig {
    /// In the user's file.
    UserFile(PathBuf),
    /// In the user's file, whose previous content is in the other file.
    Replaced(PathBuf, PathBuf),
    /// In the data directory, because the user's file is about another server.
    DataDir {
        /// The file that was written.
        path: PathBuf,
        /// What the user's file is about.
        other: String,
    },
}

/// Reads a file; none if it names no server, or cannot be read.
pub(crate) fn load(path: &Path) -> Option<ClientConfig> {
    client_config::load_from(path).ok().filter(|config| config.url.is_some())
}

/// Whether a configuration is about this server.
pub(crate) fn is_about(config: &ClientConfig, url: &str) -> bool {
    config.url.as_deref().and_then(berth_client::base_url).as_deref() == Some(url)
}

/// Saves a configuration in the user's file, or in the data directory if that is about another server.
pub(crate) fn save(
    user: Option<&Path>,
    data_dir: &Path,
    url: &str,
    config: &ClientConfig,
) -> std::io::Result<SavedConfig> {
    let own = data_dir.join("client.toml");
    let Some(user) = user else {
        save_to(&own, config)?;
        return Ok(SavedConfig::UserFile(own));
    };
    match load(user) {
        Some(found) if !is_about(&found, url) => {
            save_to(&own, config)?;
            Ok(SavedConfig::DataDir { path: own, other: found.url.unwrap_or_default() })
        }
        Some(found) if found.token.is_some() && found.token != config.token => {
            let before = user.with_extension("toml.before");
            save_to(&before, &found)?;
            save_to(user, config)?;
            Ok(SavedConfig::Replaced(user.to_owned(), before))
        }
        None if user.exists() => {
            // The file is not a client configuration; leave it alone.
            save_to(&own, config)?;
            Ok(SavedConfig::DataDir { path: own, other: "something else".to_owned() })
        }
        _ => {
            save_to(user, config)?;
            Ok(SavedConfig::UserFile(user.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str, token: &str) -> ClientConfig {
        ClientConfig { url: Some(url.to_owned()), token: Some(token.to_owned()), ca_cert: None }
    }

    #[test]
    fn the_configuration_of_another_server_is_left_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (user, data) = (folder.path().join("a/client.toml"), folder.path().join("data"));
        let (one, two) = (config("http://one", "1"), config("http://two", "2"));
        let saved = save(Some(&user), &data, "http://one", &one).unwrap();
        assert_eq!(saved, SavedConfig::UserFile(user.clone()));
        assert_eq!(std::fs::metadata(&user).unwrap().permissions().mode() & 0o777, 0o600);
        let saved = save(Some(&user), &data, "http://two", &two).unwrap();
        let path = data.join("client.toml");
        let other = "http://one".to_owned();
        assert_eq!(saved, SavedConfig::DataDir { path: path.clone(), other });
        assert_eq!(load(&user), Some(one));
        assert_eq!(load(&path), Some(two));
    }

    #[test]
    fn the_configuration_of_the_same_server_is_replaced_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let user = folder.path().join("client.toml");
        let (old, new) = (config("http://one", "1"), config("http://one", "2"));
        let save = |config| save(Some(&user), folder.path(), "http://one", config).unwrap();
        save(&old);
        let before = folder.path().join("client.toml.before");
        assert_eq!(save(&new), SavedConfig::Replaced(user.clone(), before.clone()));
        assert_eq!((load(&user), load(&before)), (Some(new.clone()), Some(old.clone())));
        assert_eq!(save(&new), SavedConfig::UserFile(user.clone()));
    }
}
