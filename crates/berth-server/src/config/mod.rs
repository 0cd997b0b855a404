//! The configuration of a server: one file, then variables, then flags, each over the one before.
//!
//! Everything here is pure: the program that starts the server reads the file and the environment.
//! All settings are in one table, [`KEYS`].

mod check;
mod keys;
mod read;
mod reference;
#[cfg(test)]
mod tests;
mod value;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_ledger::Options;

use crate::http::HttpLimits;
use crate::serve::ConnectionLimits;
use crate::wire::WireSettings;
use berth_control::MaintenanceConfig;
use berth_control::Settings;

pub use keys::{KEYS, Key, SECTIONS};
pub use read::{FileText, Layers};
pub use reference::{EXAMPLE, reference};
pub use value::{GivenValue, Kind, Value};

/// The configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The server itself.
    pub server: ServerConfig,
    /// The HTTP layer.
    pub http: HttpConfig,
    /// Encryption.
    pub tls: TlsConfig,
    /// The protocol of existing agents.
    pub wire: WireConfig,
    /// How the database is used.
    pub ledger: Options,
    /// Settings that handlers and loops read each time.
    pub settings: Settings,
    /// Background maintenance.
    pub maintenance: MaintenanceConfig,
    /// How often events of other servers are polled.
    pub follow_every: Duration,
    /// How much may be under way on the claim path.
    pub claim_path: ClaimPathLimits,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
    /// The policy of a new ledger: a name or a file.
    pub policy: String,
    /// A policy that is put in force whenever its file changes.
    pub policy_file: Option<PathBuf>,
}

/// How much may be under way on the claim path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimPathLimits {
    /// Most requests of one tenant that may wait for the planner, and as many for the explainer.
    pub planner_queue: usize,
    /// Most instances of all tenants that may be under way; zero: any number.
    pub in_flight: usize,
    /// How long placements should wait at most; zero: as long as it takes.
    pub queue_delay: Duration,
}

/// The server itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Where it keeps its data; empty: where data of programs is kept on this machine.
    pub data_dir: PathBuf,
    /// Another database than the embedded one.
    pub database_url: Option<String>,
    /// Whether callers on this machine need no token.
    pub no_sign_in: bool,
    /// How long a stopping server still accepts requests.
    pub stop_delay: Duration,
    /// How long requests in flight may then take.
    pub stop_grace: Duration,
}

/// The HTTP layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpConfig {
    /// Limits of a request.
    pub limits: HttpLimits,
    /// Limits of connections.
    pub connections: ConnectionLimits,
}

/// Encryption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Whether, and with which certificate.
    pub mode: TlsMode,
    /// The certificate's file.
    pub cert: Option<PathBuf>,
    /// The key's file.
    pub key: Option<PathBuf>,
    /// Who vouches for agents.
    pub client_ca: Option<PathBuf>,
    /// What else the own certificate is for.
    pub hosts: Vec<String>,
}

/// Whether connections are encrypted, and with which certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// They are not.
    #[default]
    Off,
    /// With one that the server makes.
    Own,
    /// With one from files.
    Files,
}

impl TlsMode {
    fn of(word: &str) -> Self {
        match word {
            "self" => Self::Own,
            "files" => Self::Files,
            _ => Self::Off,
        }
    }
}

/// The protocol of existing agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireConfig {
    /// Where it is spoken; empty: nowhere.
    pub listen: Vec<SocketAddr>,
    /// Whether agents sign in.
    pub sign_in: WireSignIn,
    /// MiB of a memory slot.
    pub slot_mib: u32,
}

/// Whether agents of that protocol sign in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireSignIn {
    /// Where others must.
    #[default]
    AsServer,
    /// They must.
    Token,
    /// They need not, on this machine.
    Off,
}

impl WireSignIn {
    fn of(word: &str) -> Self {
        match word {
            "token" => Self::Token,
            "none" => Self::Off,
            _ => Self::AsServer,
        }
    }
}

impl Config {
    /// How the protocol of existing agents is served.
    #[must_use]
    pub const fn wire_settings(&self) -> WireSettings {
        let sign_in = match self.wire.sign_in {
            WireSignIn::AsServer => !self.server.no_sign_in,
            WireSignIn::Token => true,
            WireSignIn::Off => false,
        };
        WireSettings { sign_in, slot_mib: self.wire.slot_mib }
    }
}

/// Logs and traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// How the log is written.
    pub log_format: LogFormat,
    /// What is logged.
    pub log_level: String,
    /// Where traces go.
    pub otlp_endpoint: Option<String>,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl LogFormat {
    fn of(word: &str) -> Self {
        if word == "json" { Self::Json } else { Self::Text }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in default.
    Default,
    /// A line of the file.
    File {
        /// The file's name.
        name: String,
        /// The line, from 1.
        line: usize,
    },
    /// A variable.
    Variable(String),
    /// A flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name} line {line}"),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Something in the configuration that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting {
    /// Where it stands.
    pub source: Source,
    /// What is wrong and what would be accepted.
    pub problem: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Default => f.write_str(&self.problem),
            source => write!(f, "{source}: {}", self.problem),
        }
    }
}

/// A configuration that was read, with where each value comes from.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Every setting's value and where it comes from, in the order of [`KEYS`].
    pub values: Vec<(Value, Source)>,
    /// What is odd, and no reason not to start.
    pub warnings: Vec<String>,
}

impl LoadedConfig {
    /// Settings whose value differs from another reading: live ones, and those that need a restart.
    #[must_use]
    pub fn changed(&self, before: &Self) -> (Vec<&'static Key>, Vec<&'static Key>) {
        let values = KEYS.iter().zip(&self.values).zip(&before.values);
        let changed = values.filter(|((_, (new, _)), (old, _))| new != old);
        changed.map(|((key, _), _)| key).partition(|key| key.live)
    }

    /// Where a setting's value comes from.
    #[must_use]
    pub fn source(&self, name: &str) -> &Source {
        let at = KEYS.iter().position(|key| key.name == name);
        at.and_then(|at| self.values.get(at)).map_or(&Source::Default, |(_, source)| source)
    }
}
