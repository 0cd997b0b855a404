//! Which server a command uses: by flags, then the environment, then a file that only its owner can
//! read, then a default.

use std::path::{Path, PathBuf};

use berth_client::{Client, Connect, base_url};
use serde::Deserialize;

use super::data_error::from_value;
use super::failure::{CmdResult, Failure};
use super::file;
use super::private::write_private_file;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClientConfig {
    /// The server: `http://127.0.0.1:7070`.
    pub(crate) url: Option<String>,
    /// The token to authenticate with.
    pub(crate) token: Option<String>,
    /// A PEM file of CA certificates to trust in addition to the system's.
    pub(crate) ca_cert: Option<PathBuf>,
}

/// The server that is used when none is configured.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// What flags and the environment say about the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerFlags {
    pub(crate) url: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) ca_cert: Option<PathBuf>,
}

/// The server that a command uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    pub(crate) url: String,
    /// What configured the URL: `set by BERTH_URL`.
    pub(crate) configured_by: String,
    pub(crate) token: Option<String>,
    pub(crate) ca_cert: Option<PathBuf>,
}

impl ServerFlags {
    /// Adds what the file and the defaults say.
    ///
    /// # Errors
    /// When the file or the token's file cannot be read.
    pub(crate) fn resolve(&self) -> CmdResult<ServerConfig> {
        let path = path();
        let stored = path.as_deref().map_or_else(|| Ok(ClientConfig::default()), load_from)?;
        // A stored token belongs to its server and is not sent to another.
        let is_stored = |url: &str| stored.url.as_deref().and_then(base_url) == base_url(url);
        let stored_applies = self.url.as_deref().is_none_or(is_stored);
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => Some(read_text(file)?.trim().to_owned()),
            (None, None) => stored.token.filter(|_| stored_applies),
        };
        let (url, configured_by) = match (&self.url, stored.url, path) {
            (Some(url), _, _) if is_variable("BERTH_URL", url) => {
                (url.clone(), "set by BERTH_URL".to_owned())
            }
            (Some(url), _, _) => (url.clone(), "set by --url".to_owned()),
            (None, Some(url), Some(path)) => (url, format!("set in {}", path.display())),
            (None, ..) => (DEFAULT_URL.to_owned(), "the default".to_owned()),
        };
        let ca_cert = self.ca_cert.clone().or(stored.ca_cert);
        Ok(ServerConfig { url, configured_by, token, ca_cert })
    }
}

impl ServerConfig {
    /// A client of this server.
    ///
    /// # Errors
    /// When the URL, the token or a certificate cannot be used.
    pub(crate) fn client(self, options: Connect) -> CmdResult<Client> {
        let ca_pem = match &self.ca_cert {
            Some(file) => Some(read_text(file)?.into_bytes()),
            None => None,
        };
        let (url, configured_by, token) = (self.url, Some(self.configured_by), self.token);
        Ok(Client::new(Connect { url, configured_by, token, ca_pem, ..options })?)
    }
}

/// Whether a value is that of an environment variable.
#[allow(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
fn is_variable(name: &str, value: &str) -> bool {
    std::env::var(name).is_ok_and(|set| set == value)
}

fn read_text(file: &Path) -> CmdResult<String> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))
}

/// Where the file is: `$BERTH_CONFIG`, else `berth/client.toml` in the user's configuration
/// directory. None when there is no such directory.
#[allow(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
pub(crate) fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(file) = set("BERTH_CONFIG") {
        return Some(PathBuf::from(file));
    }
    let folder = set("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")))?;
    Some(folder.join("berth").join("client.toml"))
}

/// Reads the file; the default when there is none.
///
/// # Errors
/// When it cannot be read or parsed.
pub(crate) fn load_from(path: &Path) -> CmdResult<ClientConfig> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(ClientConfig::default());
        }
        Err(error) => {
            return Err(Failure::usage(format!("cannot read {}: {error}", path.display())));
        }
    };
    let value = file::toml(&text).and_then(from_value);
    value.map_err(|what| {
        Failure::usage(format!("cannot read {}: {what}", path.display()))
            .accepted("url, token and ca_cert, each a quoted string")
    })
}

/// Writes the file, readable by its owner only, and returns its path.
///
/// # Errors
/// When there is no directory for it, or it cannot be written.
pub(crate) fn save(config: &ClientConfig) -> std::io::Result<PathBuf> {
    let path = path().ok_or_else(|| {
        let why =
            "no configuration directory: none of BERTH_CONFIG, XDG_CONFIG_HOME and HOME is set";
        std::io::Error::new(std::io::ErrorKind::NotFound, why)
    })?;
    save_to(&path, config)?;
    Ok(path)
}

/// Writes a given file, atomically.
///
/// # Errors
/// As [`save`].
pub(crate) fn save_to(path: &Path, config: &ClientConfig) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    write_private_file(path, &text_of(config))
}

fn text_of(config: &ClientConfig) -> String {
    let ca_cert = config.ca_cert.as_ref().map(|path| path.display().to_string());
    let fields =
        [("url", config.url.clone()), ("token", config.token.clone()), ("ca_cert", ca_cert)];
    let mut text = "# Which server the berth command talks to.\n".to_owned();
    for (name, value) in fields {
        if let Some(value) = value {
            // A JSON string is a TOML string.
            text.push_str(&format!("{name} = {}\n", serde_json::Value::String(value)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("berth").join("client.toml");
        assert_eq!(load_from(&path).unwrap(), ClientConfig::default());
        let config = ClientConfig {
            url: Some("http://127.0.0.1:7070".to_owned()),
            token: Some("berth_1_\"2\\".to_owned()),
            ca_cert: Some(PathBuf::from("ca.pem")),
        };
        save_to(&path, &config).unwrap();
        assert_eq!(load_from(&path).unwrap(), config);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_misspelt_key_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.toml");
        std::fs::write(&path, "ulr = \"x\"\n").unwrap();
        let text = load_from(&path).unwrap_err().text();
        std::fs::write(&path, "\nurl = {a = 1}\n").unwrap();
        let of_type = load_from(&path).unwrap_err().text();
        assert!(of_type.contains("url is a map; accepted is a text"), "{of_type}");
        std::fs::write(&path, "\nurl = = 1\n").unwrap();
        let of_syntax = load_from(&path).unwrap_err().text();
        assert!(of_syntax.contains("line 2"), "{of_syntax}");
        assert!(text.contains("client.toml: ulr is unknown; did you mean url?"), "{text}");
    }
}
