//! Arguments that both commands share: the cluster, the identity of this replica, and the log.

use std::path::{Path, PathBuf};

use berth_kube::client::{self, ConnectError};
use berth_server::config::{LogFormat, TelemetryConfig};
use berth_server::telemetry::Telemetry;
use clap::{Args, ValueEnum};

use crate::cmdutil::{CmdResult, Exit, Failure, create_private_dir};

/// The namespace of this pod, where there is one.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The default namespace outside of a pod.
const NAMESPACE: &str = "berth-system";

/// The cluster to use.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ClusterArgs {
    /// Path of the kubeconfig; default: the cluster that this pod runs in, else KUBECONFIG, else
    /// ~/.kube/config.
    #[arg(long, env = "BERTH_KUBE_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; default: the current one.
    #[arg(long, env = "BERTH_KUBE_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,
}

impl ClusterArgs {
    /// A client for the API server, without a request yet.
    pub(crate) async fn client(&self) -> CmdResult<kube::Client> {
        let connected = client::connect(self.kubeconfig.as_deref(), self.context.as_deref()).await;
        connected.map_err(|error| connect_failure(&error))
    }
}

/// A failure to connect, with a remedy.
pub(super) fn connect_failure(error: &ConnectError) -> Failure {
    let chain = crate::cmdutil::chain(error);
    match error {
        ConnectError::File { .. } => {
            Failure::usage(chain).accepted("--kubeconfig: a file that kubectl --kubeconfig takes")
        }
        ConnectError::Context { .. } => Failure::usage(chain)
            .accepted("--context: one of those that kubectl config get-contexts lists"),
        ConnectError::NotConfigured { .. } => Failure::new(Exit::Unreachable, chain)
            .remedy("name one with --kubeconfig, or run in a pod with a service account"),
        ConnectError::Client { .. } => Failure::new(Exit::Unreachable, chain),
    }
}

/// The identity of this replica.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct IdentityArgs {
    /// Namespace of this process; default: the pod's, else berth-system.
    #[arg(long, env = "BERTH_KUBE_NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Unique identity of this replica; default: the host name and a random number.
    #[arg(long, env = "BERTH_KUBE_IDENTITY", value_name = "NAME")]
    identity: Option<String>,
}

impl IdentityArgs {
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

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormatArg {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Logging to standard error.
#[derive(Args, Clone, Debug)]
pub(super) struct LogArgs {
    /// Log level: error, warn, info, debug or trace.
    #[arg(long, env = "BERTH_KUBE_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Log format.
    #[arg(long, env = "BERTH_KUBE_LOG_FORMAT", value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormatArg,
}

impl LogArgs {
    /// Starts logging, until the returned handle is dropped.
    pub(super) fn start(&self) -> CmdResult<Telemetry> {
        let wrong = || {
            Failure::usage(format!("--log-level is {:?}", self.log_level)).accepted(
                "error, warn, info, debug, trace, or directives as in info,berth_kube=debug",
            )
        };
        // A single word that is not a level would be taken for a target, and nothing would be logged.
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let is_level = |it: &str| LEVELS.contains(&it.to_ascii_lowercase().as_str());
        if !self.log_level.split(',').any(|it| is_level(it.trim()) || it.contains('=')) {
            return Err(wrong());
        }
        let config = TelemetryConfig {
            log_format: match self.log_format {
                LogFormatArg::Text => LogFormat::Text,
                LogFormatArg::Json => LogFormat::Json,
            },
            // Callers report failed requests themselves.
            log_level: format!("kube_client::client::builder=off,{}", self.log_level),
            otlp_endpoint: None,
        };
        Telemetry::start(&config).map_err(|_| wrong())
    }
}

/// Creates the data directory, which only its owner can access.
pub(super) fn create_data_dir(folder: &Path) -> CmdResult {
    create_private_dir(folder).map_err(|error| {
        let line = format!("--data-dir is {}, which cannot be created: {error}", folder.display());
        Failure::new(Exit::Failed, line).accepted("a folder that this process may write to")
    })
}
