//! `berth kube webhook`: arguments, output and shutdown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_kube::webhook::{
    FailurePolicy, InstallOptions, NodeLabel, OnChange, OnError, OnInvalid, OpenError, Options,
    RebuildOptions, SelfSignedTls, TlsSource, Webhook, WebhookAddress, WebhookError,
};
use berth_ledger::Backend;
use clap::{Args, ValueEnum};

use super::cluster_args::{ClusterArgs, IdentityArgs, LogArgs, create_data_dir};
use super::{address_failure, stop_by_signal};
use crate::cmdutil::{CmdResult, Exit, Failure, args, chain};
use crate::up::{Lock, default_data_dir, without_password};

/// Arguments of `berth kube webhook`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WebhookArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    identity: IdentityArgs,
    /// Address of the admission endpoint, over TLS.
    #[arg(
        long,
        env = "BERTH_KUBE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8443"
    )]
    listen: SocketAddr,
    /// Address of /livez, /readyz and /metrics.
    #[arg(
        long,
        env = "BERTH_KUBE_PROBES",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8081"
    )]
    probes: SocketAddr,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    slots: SlotArgs,
    #[command(flatten)]
    registration: RegistrationArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// Settings of workloads, and how their pods are treated.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Rules")]
struct RuleArgs {
    /// Prefix of the labels and annotations to read; repeatable, the first wins; default:
    /// cloudpilot.ai and berth.dev.
    #[arg(long, env = "BERTH_KUBE_PREFIX", value_name = "NAME", value_delimiter = ',')]
    prefix: Vec<String>,
    /// Node label with the capacity type.
    #[arg(
        long,
        env = "BERTH_KUBE_CAPACITY_LABEL",
        value_name = "KEY",
        default_value = "node.kubernetes.io/capacity"
    )]
    capacity_label: String,
    /// Its value on on-demand nodes.
    #[arg(
        long,
        env = "BERTH_KUBE_ON_DEMAND_VALUE",
        value_name = "VALUE",
        default_value = "on-demand"
    )]
    on_demand_value: String,
    /// Its value on spot nodes.
    #[arg(long, env = "BERTH_KUBE_SPOT_VALUE", value_name = "VALUE", default_value = "spot")]
    spot_value: String,
    /// How to treat pods of a workload with an invalid setting.
    #[arg(long, env = "BERTH_KUBE_ON_INVALID", value_enum, default_value_t, value_name = "WHAT")]
    on_invalid: OnFailureArg,
    /// How to treat pods when no slot can be assigned.
    #[arg(long, env = "BERTH_KUBE_ON_ERROR", value_enum, default_value_t, value_name = "WHAT")]
    on_error: OnFailureArg,
    /// How to treat misplaced pods after a change of the count, unless their workload overrides it.
    #[arg(long, env = "BERTH_KUBE_ON_CHANGE", value_enum, default_value_t, value_name = "WHAT")]
    on_change: OnChangeArg,
}

/// Where slots are stored.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Slots")]
struct SlotArgs {
    /// Directory of the embedded database.
    #[arg(long, env = "BERTH_KUBE_DATA_DIR", value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// postgres://USER@HOST/NAME instead of the embedded database; required for several replicas,
    /// and used by nothing else.
    #[arg(long, env = "BERTH_KUBE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
    /// How long a slot is reserved for an admitted pod that does not appear.
    #[arg(long, env = "BERTH_KUBE_RESERVE_FOR", value_name = "TIME", default_value = "30s", value_parser = args::precise_duration)]
    reserve_for: Duration,
    /// Lease that elects the replica that evicts misplaced pods.
    #[arg(
        long,
        env = "BERTH_KUBE_LEASE_NAME",
        value_name = "NAME",
        default_value = "berth-webhook-rebuild"
    )]
    lease_name: String,
}

/// The registration with the API server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Registration with the API server")]
struct RegistrationArgs {
    /// Name of the MutatingWebhookConfiguration.
    #[arg(
        long,
        env = "BERTH_KUBE_CONFIGURATION",
        value_name = "NAME",
        default_value = "berth-webhook"
    )]
    configuration: String,
    /// Do not create the MutatingWebhookConfiguration.
    #[arg(long, env = "BERTH_KUBE_NO_INSTALL")]
    no_install: bool,
    /// Service by which the API server reaches the webhook, in its namespace.
    #[arg(long, env = "BERTH_KUBE_SERVICE", value_name = "NAME", default_value = "berth-webhook")]
    service: String,
    /// Port of the Service.
    #[arg(long, env = "BERTH_KUBE_SERVICE_PORT", value_name = "PORT", default_value_t = 443)]
    service_port: u16,
    /// URL by which the API server reaches a webhook outside the cluster, instead of a Service:
    /// https://HOST:PORT/mutate
    #[arg(long, env = "BERTH_KUBE_EXTERNAL_URL", value_name = "URL")]
    external_url: Option<String>,
    /// What the API server does when the webhook does not answer.
    #[arg(
        long,
        env = "BERTH_KUBE_FAILURE_POLICY",
        value_enum,
        default_value_t,
        value_name = "WHAT"
    )]
    failure_policy: FailurePolicyArg,
    /// Timeout of the API server for a review: 1s to 30s.
    #[arg(long, env = "BERTH_KUBE_TIMEOUT", value_name = "TIME", default_value = "5s", value_parser = args::precise_duration)]
    timeout: Duration,
    /// Namespace to exclude, in addition to the webhook's own and kube-*; repeatable.
    #[arg(long, env = "BERTH_KUBE_EXCLUDE_NAMESPACE", value_name = "NAME", value_delimiter = ',')]
    exclude_namespace: Vec<String>,
}

/// Where the certificate comes from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Certificate")]
struct TlsArgs {
    /// Secret with the self-signed CA and certificate, in the webhook's namespace.
    #[arg(
        long,
        env = "BERTH_KUBE_TLS_SECRET",
        value_name = "NAME",
        default_value = "berth-webhook-tls"
    )]
    tls_secret: String,
    /// Additional name or address of the self-signed certificate; repeatable.
    #[arg(long, env = "BERTH_KUBE_TLS_HOST", value_name = "NAME", value_delimiter = ',')]
    tls_host: Vec<String>,
    /// Directory with tls.crt and tls.key to use instead, such as a mounted Secret of cert-manager.
    #[arg(long, env = "BERTH_KUBE_TLS_DIR", value_name = "FOLDER")]
    tls_dir: Option<PathBuf>,
    /// With --tls-dir: PEM file of the CA for the caBundle; default: the caBundle is left
    /// unchanged.
    #[arg(long, env = "BERTH_KUBE_CA_FILE", value_name = "FILE", requires = "tls_dir")]
    ca_file: Option<PathBuf>,
}

/// How to treat a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OnFailureArg {
    /// Create it unchanged, with a warning.
    #[default]
    Admit,
    /// Reject it.
    Refuse,
}

/// How to treat misplaced pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OnChangeArg {
    /// Evict them, one at a time.
    #[default]
    Rebuild,
    /// Make them the first to be deleted.
    Lazy,
}

/// What the API server does when the webhook does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum FailurePolicyArg {
    /// Create pods unchanged.
    #[default]
    Ignore,
    /// Create no pods.
    Fail,
}

impl WebhookArgs {
    pub(super) fn run(self) -> CmdResult {
        let (options, lock) = self.options()?;
        let telemetry = self.log.start()?;
        let runtime = tokio::runtime::Runtime::new()?;
        let outcome = runtime.block_on(self.serve(options));
        runtime.shutdown_timeout(Duration::from_secs(2));
        drop((telemetry, lock));
        outcome
    }

    async fn serve(self, options: Options) -> CmdResult {
        let stop = stop_by_signal()?;
        let client = self.cluster.client().await?;
        let webhook = Webhook::start(client, options.clone(), stop).await;
        let webhook = webhook.map_err(|error| self.to_failure(&error))?;
        for line in startup_lines(&options, webhook.address(), webhook.probes()) {
            println!("{line}");
        }
        webhook.wait().await.map_err(|error| self.to_failure(&error))
    }

    /// The options, and the lock on the embedded database.
    fn options(&self) -> CmdResult<(Options, Option<Lock>)> {
        let (ledger, lock) = self.slots.backend()?;
        let mut options =
            Options::new(&self.identity.namespace(), &self.identity.identity(), ledger);
        options.listen = self.listen;
        options.probes = Some(self.probes);
        if !self.rules.prefix.is_empty() {
            options.prefixes.clone_from(&self.rules.prefix);
        }
        options.node_label = NodeLabel {
            key: self.rules.capacity_label.clone(),
            on_demand: self.rules.on_demand_value.clone(),
            spot: self.rules.spot_value.clone(),
        };
        options.on_invalid = match self.rules.on_invalid {
            OnFailureArg::Admit => OnInvalid::Admit,
            OnFailureArg::Refuse => OnInvalid::Refuse,
        };
        options.on_error = match self.rules.on_error {
            OnFailureArg::Admit => OnError::Ignore,
            OnFailureArg::Refuse => OnError::Refuse,
        };
        options.rebuild = RebuildOptions {
            on_change: match self.rules.on_change {
                OnChangeArg::Rebuild => OnChange::Rebuild,
                OnChangeArg::Lazy => OnChange::Lazy,
            },
            lease: self.slots.lease_name.clone(),
            ..RebuildOptions::default()
        };
        options.reserve_for = self.slots.reserve_for;
        options.timeout = self.registration.timeout;
        options.reach = match &self.registration.external_url {
            Some(url) => WebhookAddress::Url(url.clone()),
            None => WebhookAddress::Service {
                name: self.registration.service.clone(),
                port: self.registration.service_port,
            },
        };
        options.install = self.registration.install();
        options.exclude_namespaces.clone_from(&self.registration.exclude_namespace);
        options.tls = self.tls.source();
        options.validate().map_err(|invalid| {
            let line = format!("--{} is {:?}", invalid.name, invalid.value);
            Failure::usage(line).accepted(invalid.accepted)
        })?;
        Ok((options, lock))
    }

    fn to_failure(&self, error: &WebhookError) -> Failure {
        match error {
            WebhookError::Invalid(invalid) => Failure::usage(invalid.to_string()),
            WebhookError::Connect(error) => super::cluster_args::connect_failure(error),
            WebhookError::Listen { address, source } => {
                let flag = if *address == self.listen { "--listen" } else { "--probes" };
                address_failure(flag, *address, source)
            }
            WebhookError::SlotStore(OpenError::NotOurs(_)) => Failure::usage(chain(error))
                .accepted("--database-url: a database that nothing else uses"),
            WebhookError::SlotStore(_) => Failure::new(Exit::Unreachable, chain(error))
                .remedy("start the database, or name another with --database-url or --data-dir"),
            WebhookError::Ended(_) => Failure::new(Exit::Failed, chain(error)),
        }
    }
}

impl SlotArgs {
    fn backend(&self) -> CmdResult<(Backend, Option<Lock>)> {
        if let Some(url) = &self.database_url {
            let backend = Backend::parse(url).map_err(|_| {
                Failure::usage(format!("--database-url is {:?}", without_password(url)))
                    .accepted("postgres://USER@HOST/NAME")
            })?;
            if matches!(backend, Backend::Postgres(_)) {
                return Ok((backend, None));
            }
            return Err(Failure::usage(format!("--database-url is {url:?}, which is a file"))
                .accepted("postgres://USER@HOST/NAME; or a folder in --data-dir"));
        }
        let folder = match &self.data_dir {
            Some(folder) => folder.clone(),
            None => default_data_dir()?.join("kube-webhook"),
        };
        create_data_dir(&folder)?;
        let path = folder.join("webhook.db");
        let lock = Lock::take(&path)?;
        Ok((Backend::Sqlite(path), Some(lock)))
    }
}

impl RegistrationArgs {
    fn install(&self) -> Option<InstallOptions> {
        let failure_policy = match self.failure_policy {
            FailurePolicyArg::Ignore => FailurePolicy::Ignore,
            FailurePolicyArg::Fail => FailurePolicy::Fail,
        };
        (!self.no_install)
            .then(|| InstallOptions { name: self.configuration.clone(), failure_policy })
    }
}

impl TlsArgs {
    fn source(&self) -> TlsSource {
        match &self.tls_dir {
            Some(folder) => {
                TlsSource::Files { folder: folder.clone(), ca_file: self.ca_file.clone() }
            }
            None => TlsSource::SelfSigned(SelfSignedTls {
                secret: self.tls_secret.clone(),
                hosts: self.tls_host.clone(),
                ..SelfSignedTls::default()
            }),
        }
    }
}

/// What is printed at the start: what runs, where, and what to try next.
fn startup_lines(options: &Options, at: SocketAddr, probes: Option<SocketAddr>) -> Vec<String> {
    let reached = match &options.reach {
        WebhookAddress::Service { name, port } => {
            format!("https://{name}.{}.svc:{port}/mutate", options.namespace)
        }
        WebhookAddress::Url(url) => url.clone(),
    };
    let slots = match &options.ledger {
        Backend::Sqlite(path) => format!("{} (one replica)", path.display()),
        Backend::Postgres(url) => format!("{} (any number of replicas)", without_password(url)),
    };
    let entry = match &options.install {
        Some(install) => format!(
            "MutatingWebhookConfiguration {}, managed by the webhook (failurePolicy {})",
            install.name,
            install.failure_policy.name()
        ),
        None => "not managed (--no-install)".to_owned(),
    };
    let tls = match &options.tls {
        TlsSource::SelfSigned(own) => {
            format!(
                "self-signed, in Secret {}/{}, renewed automatically",
                options.namespace, own.secret
            )
        }
        TlsSource::Files { folder, .. } => format!("from {}", folder.display()),
    };
    let label = &options.node_label;
    let prefix = options.prefixes.first().map_or("berth.dev", String::as_str);
    let mut lines = vec![format!("Berth {} webhook for Kubernetes", env!("CARGO_PKG_VERSION"))];
    lines.push(format!("  reviews   https://{at}/mutate, reached as {reached}"));
    if let Some(probes) = probes {
        lines.push(format!("  probes    http://{probes}/readyz and /metrics"));
    }
    lines.push(format!("  slots     {slots}"));
    lines.push(format!("  register  {entry}"));
    lines.push(format!("  TLS       certificate {tls}"));
    lines.push(format!("  nodes     {} is {} or {}", label.key, label.on_demand, label.spot));
    lines.push(String::new());
    lines.push("When /readyz succeeds, enable it for a Deployment:".to_owned());
    lines.push(format!(
        "  kubectl annotate deployment NAME {prefix}/webhook-scheduler=true {prefix}/webhook-scheduler-max-on-demand-count=3"
    ));
    lines.push("  kubectl get pods -L berth.dev/capacity".to_owned());
    lines.push(String::new());
    lines.push("Ctrl-C stops it; reviews in progress are answered first.".to_owned());
    lines
}
