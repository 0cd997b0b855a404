//! The way to the API server, who we are there, and where the log goes: what both commands share.

use std::path::{Path, PathBuf};

use berth_kube::client::{self, ConnectError};
use berth_server::config::{LogFormat, TelemetryConfig};
use berth_server::telemetry::Telemetry;
use clap::{Args, ValueEnum};

use crate::cmdutil::{CmdResult, Exit, Failure};

/// The namespace of this pod, where there is one.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The namespace when nobody says which.
const NAMESPACE: &str = "berth-system";

/// Which cluster.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Way {
    /// The kubeconfig; when not given: the cluster that this pod is in, else KUBECONFIG, else
    /// ~/.kube/config.
    #[arg(long, env = "BERTH_KUBE_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; the current one when not given.
    #[arg(long, env = "BERTH_KUBE_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,
}

impl Way {
    /// A client of the API server. Whether that answers is found out later.
    pub(crate) async fn client(&self) -> CmdResult<kube::Client> {
        let connected = client::connect(self.kubeconfig.as_deref(), self.context.as_deref()).await;
        connected.map_err(|error| unconnected(&error))
    }
}

/// Why there is no way to the API server.
pub(super) fn unconnected(error: &ConnectError) -> Failure {
    let chain = crate::cmdutil::chain(error);
    match error {
        ConnectError::File { .. } => {
            Failure::usage(chain).accepted("--kubeconfig: a file that kubectl --kubeconfig takes")
        }
        ConnectError::Context { .. } => Failure::usage(chain)
            .accepted("--context: one of those that kubectl config get-contexts lists"),
        ConnectError::Nowhere { .. } => Failure::new(Exit::Unreachable, chain)
            .remedy("name one with --kubeconfig, or run in a pod with a service account"),
        ConnectError::Client { .. } => Failure::new(Exit::Unreachable, chain),
    }
}

/// Who we are in the cluster.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Who {
    /// The namespace we run in; when not given: this pod's, else berth-system.
    #[arg(long, env = "BERTH_KUBE_NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// How we are called among replicas; no two may be the same. The host's name and a random number
    /// when not given.
    #[arg(long, env = "BERTH_KUBE_IDENTITY", value_name = "NAME")]
    identity: Option<String>,
}

impl Who {
    pub(super) fn namespace(&self) -> String {
        let of_pod = || {
            let text = std::fs::read_to_string(POD_NAMESPACE).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        self.namespace.clone().or_else(of_pod).unwrap_or_else(|| NAMESPACE.to_owned())
    }

    pub(super) fn identity(&self) -> String {
        let made_up = || {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!("{}-{:08x}", host.trim(), fastrand::u32(..))
        };
        self.identity.clone().unwrap_or_else(made_up)
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Written {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// What is logged, to standard error.
#[derive(Args, Clone, Debug)]
pub(super) struct Log {
    /// What is logged: error, warn, info, debug or trace.
    #[arg(long, env = "BERTH_KUBE_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// How the log is written.
    #[arg(long, env = "BERTH_KUBE_LOG_FORMAT", value_enum, default_value_t, value_name = "FORMAT")]
    log_format: Written,
}

impl Log {
    /// Starts to log, until what is returned is dropped.
    pub(super) fn start(&self) -> CmdResult<Telemetry> {
        let wrong = || {
            Failure::usage(format!("--log-level is {:?}", self.log_level)).accepted(
                "error, warn, info, debug, trace, or directives as in info,berth_kube=debug",
            )
        };
        // A lone word that is no level would be taken for the name of a part, and nothing logged.
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let is_level = |it: &str| LEVELS.contains(&it.to_ascii_lowercase().as_str());
        if !self.log_level.split(',').any(|it| is_level(it.trim()) || it.contains('=')) {
            return Err(wrong());
        }
        let config = TelemetryConfig {
            log_format: match self.log_format {
                Written::Text => LogFormat::Text,
                Written::Json => LogFormat::Json,
            },
            // Failed requests are told of by whoever made them; once is enough.
            log_level: format!("kube_client::client::builder=off,{}", self.log_level),
            otlp_endpoint: None,
        };
        Telemetry::start(&config).map_err(|_| wrong())
    }
}

/// Makes a folder that only its owner may look into.
pub(super) fn make_private(folder: &Path) -> CmdResult {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        let line = format!("--data-dir is {}, which cannot be made: {error}", folder.display());
        Failure::new(Exit::Failed, line).accepted("a folder that this process may write to")
    })
}
