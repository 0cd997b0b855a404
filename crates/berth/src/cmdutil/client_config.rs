//! The file that says which server to use by default. Only its owner can read it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::failure::{CmdResult, Failure};
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
pub(crate) fn load() -> CmdResult<ClientConfig> {
    path().map_or_else(|| Ok(ClientConfig::default()), |path| load_from(&path))
}

/// Reads a given file.
///
/// # Errors
/// As [`load`].
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
    toml::from_str(&text).map_err(|error| {
        let line = error.message().to_owned();
        Failure::usage(format!("cannot parse {}: {line}", path.display()))
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
        assert!(text.contains("ulr"), "{text}");
    }
}
