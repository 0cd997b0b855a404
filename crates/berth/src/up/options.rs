//! Settings of a server from flags, variables and the file.

use std::fmt;
use std::path::{Path, PathBuf};

use berth_server::config::{BadSetting, FileText, GivenValue, KEYS, Layers, LoadedConfig};
use clap::Args;

/// Settings by flags.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Flags {
    /// Configuration file; docs/configuration.md lists all settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on; may be repeated; 127.0.0.1:7070 by default.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<String>,
    /// Address for the wire protocol of existing agents, such as 127.0.0.1:10299; may be repeated; off by
    /// default.
    #[arg(long, value_name = "ADDRESS:PORT")]
    wire_listen: Vec<String>,
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Database instead of the embedded one: postgres://USER@HOST/NAME, or a SQLite file.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Require no token of callers on this machine; only with loopback addresses.
    #[arg(long)]
    no_sign_in: bool,
    /// Encryption: off, self (self-signed certificate) or files (--tls-cert and --tls-key).
    #[arg(long, value_name = "off|self|files")]
    tls: Option<String>,
    /// Certificate for --tls files, in PEM.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// Key of the certificate, in PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// CA of the certificates of agents, in PEM.
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<String>,
    /// Additional host name of the self-signed certificate; may be repeated.
    #[arg(long, value_name = "NAME")]
    tls_host: Vec<String>,
    /// Policy of a new ledger: a name or a file.
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,
    /// Log level: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Any other setting; may be repeated: --set http.timeout=10s
    #[arg(long, value_name = "SETTING=VALUE")]
    set: Vec<String>,
}

/// A configuration that is not accepted.
#[derive(Debug)]
pub(crate) struct BadConfig(pub(crate) Vec<BadSetting>);

impl std::error::Error for BadConfig {}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            [one] => write!(f, "{one}"),
            all => {
                write!(f, "{} settings are not accepted:", all.len())?;
                all.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl Flags {
    /// The configuration file, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Sets the configuration file.
    pub(crate) fn with_file(mut self, file: Option<PathBuf>) -> Self {
        self.config = file.or(self.config);
        self
    }

    /// Loads the settings from all sources.
    pub(crate) fn load(&self) -> anyhow::Result<LoadedConfig> {
        let text = match &self.config {
            None => None,
            Some(path) => Some(read(path)?),
        };
        let name = self.config.as_ref().map(|path| path.display().to_string());
        let file = match (&name, &text) {
            (Some(name), Some(text)) => Some(FileText { name, text }),
            _ => None,
        };
        let flags = self.flag_values()?;
        let layers = Layers { file, variables: &variables(), flags: &flags };
        Ok(layers.load().map_err(BadConfig)?)
    }

    fn flag_values(&self) -> anyhow::Result<Vec<(&'static str, &'static str, GivenValue)>> {
        let text = |name, flag, value: &Option<String>| {
            value.clone().map(|value| (name, flag, GivenValue::Text(value)))
        };
        let list = |name, flag, values: &[String]| {
            (!values.is_empty()).then(|| (name, flag, GivenValue::List(values.to_vec())))
        };
        let no_sign_in = self.no_sign_in.then_some((
            "server.no_sign_in",
            "--no-sign-in",
            GivenValue::Flag(true),
        ));
        let mut given: Vec<_> = [
            list("server.listen", "--listen", &self.listen),
            list("wire.listen", "--wire-listen", &self.wire_listen),
            text("server.data_dir", "--data-dir", &self.data_dir),
            text("server.database_url", "--database-url", &self.database_url),
            no_sign_in,
            text("tls.mode", "--tls", &self.tls),
            text("tls.cert", "--tls-cert", &self.tls_cert),
            text("tls.key", "--tls-key", &self.tls_key),
            text("tls.client_ca", "--tls-client-ca", &self.tls_client_ca),
            list("tls.hosts", "--tls-host", &self.tls_host),
            text("policy.initial", "--policy", &self.policy),
            text("telemetry.log_level", "--log-level", &self.log_level),
        ]
        .into_iter()
        .flatten()
        .collect();
        for set in &self.set {
            let (name, value) = set.split_once('=').unwrap_or((set, ""));
            let Some(key) = KEYS.iter().find(|key| key.name == name) else {
                anyhow::bail!(
                    "--set is {set:?}; accepted is SETTING=VALUE with one of the settings that berth config show lists"
                );
            };
            given.push((key.name, "--set", GivenValue::Text(value.to_owned())));
        }
        Ok(given)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        let problem = format!("--config is {}, which cannot be read: {error}", path.display());
        let source = berth_server::config::Source::Default;
        BadConfig(vec![BadSetting { source, problem }]).into()
    })
}

/// Variables that may be settings.
fn variables() -> Vec<(String, String)> {
    let text = |name: std::ffi::OsString| name.into_string().ok();
    let all = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
    all.filter(|(name, _)| name.starts_with("BERTH_")).collect()
}

/// A variable that is not empty.
#[allow(clippy::disallowed_methods, reason = "the binary is where the environment is read")]
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The default data directory of a server.
pub(crate) fn default_data_dir() -> anyhow::Result<PathBuf> {
    let system = Path::new("/var/lib/berth");
    if is_root() && system.is_dir() {
        return Ok(system.to_owned());
    }
    let home = || Some(variable("HOME")?.join(".local").join("share"));
    let folder = variable("XDG_DATA_HOME").or_else(home).ok_or_else(|| {
        anyhow::anyhow!(
            "no data directory: neither XDG_DATA_HOME nor HOME is set; set one with --data-dir"
        )
    })?;
    Ok(folder.join("berth"))
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
