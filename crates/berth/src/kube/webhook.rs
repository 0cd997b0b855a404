//! `berth kube webhook`: flags, what a person reads when it has started, and its end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_kube::webhook::{
    FailurePolicy, Install, NodeLabel, OnChange, OnError, OnInvalid, OpenError, Options, OwnTls,
    Reach, Rebuild, TlsSource, Webhook, WebhookError,
};
use berth_ledger::Backend;
use clap::{Args, ValueEnum};

use super::way::{Log, Way, Who, make_private};
use super::{not_had, stop_by_signal};
use crate::cmdutil::{CmdResult, Exit, Failure, chain};
use crate::up::{Lock, default_data_dir, without_password};

/// Flags of `berth kube webhook`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WebhookFlags {
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    who: Who,
    /// Where admission reviews are taken, over TLS.
    #[arg(
        long,
        env = "BERTH_KUBE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8443"
    )]
    listen: SocketAddr,
    /// Where /livez, /readyz and /metrics are answered.
    #[arg(
        long,
        env = "BERTH_KUBE_PROBES",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8081"
    )]
    probes: SocketAddr,
    #[command(flatten)]
    rules: Rules,
    #[command(flatten)]
    slots: Slots,
    #[command(flatten)]
    entry: Entry,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    log: Log,
}

/// What workloads can ask for, and what becomes of their pods.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Rules")]
struct Rules {
    /// A prefix of the labels and annotations that are read; may be given several times, the first
    /// wins. cloudpilot.ai and berth.dev when not given.
    #[arg(long, env = "BERTH_KUBE_PREFIX", value_name = "NAME", value_delimiter = ',')]
    prefix: Vec<String>,
    /// The label by which nodes say which kind of capacity they are.
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
    /// What becomes of a pod whose workload asks for something that means nothing.
    #[arg(long, env = "BERTH_KUBE_ON_INVALID", value_enum, default_value_t, value_name = "WHAT")]
    on_invalid: Then,
    /// What becomes of a pod when no slot can be given now.
    #[arg(long, env = "BERTH_KUBE_ON_ERROR", value_enum, default_value_t, value_name = "WHAT")]
    on_error: Then,
    /// What becomes of misplaced pods after a change of the count, unless their workload says.
    #[arg(long, env = "BERTH_KUBE_ON_CHANGE", value_enum, default_value_t, value_name = "WHAT")]
    on_change: Change,
}

/// Where slots are kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Slots")]
struct Slots {
    /// Where the embedded database is kept.
    #[arg(long, env = "BERTH_KUBE_DATA_DIR", value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// postgres://USER@HOST/NAME instead of the embedded database; needed for several replicas, and
    /// used by nothing else.
    #[arg(long, env = "BERTH_KUBE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
    /// How long a slot is kept for a pod that was admitted and is not seen.
    #[arg(long, env = "BERTH_KUBE_RESERVE_FOR", value_name = "TIME", default_value = "30s", value_parser = seconds)]
    reserve_for: Duration,
    /// The Lease that says which replica evicts misplaced pods.
    #[arg(
        long,
        env = "BERTH_KUBE_LEASE_NAME",
        value_name = "NAME",
        default_value = "berth-webhook-rebuild"
    )]
    lease_name: String,
}

/// What the API server is told about us.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Entry in the API server")]
struct Entry {
    /// The name of the MutatingWebhookConfiguration.
    #[arg(
        long,
        env = "BERTH_KUBE_CONFIGURATION",
        value_name = "NAME",
        default_value = "berth-webhook"
    )]
    configuration: String,
    /// Somebody else makes the MutatingWebhookConfiguration.
    #[arg(long, env = "BERTH_KUBE_NO_INSTALL")]
    no_install: bool,
    /// The Service in our namespace by which the API server reaches us.
    #[arg(long, env = "BERTH_KUBE_SERVICE", value_name = "NAME", default_value = "berth-webhook")]
    service: String,
    /// Its port.
    #[arg(long, env = "BERTH_KUBE_SERVICE_PORT", value_name = "PORT", default_value_t = 443)]
    service_port: u16,
    /// How the API server reaches a webhook outside of the cluster, instead of by a Service:
    /// https://HOST:PORT/mutate
    #[arg(long, env = "BERTH_KUBE_EXTERNAL_URL", value_name = "URL")]
    external_url: Option<String>,
    /// What the API server does when nobody answers.
    #[arg(
        long,
        env = "BERTH_KUBE_FAILURE_POLICY",
        value_enum,
        default_value_t,
        value_name = "WHAT"
    )]
    failure_policy: Failing,
    /// How long the API server waits for an answer: 1s to 30s.
    #[arg(long, env = "BERTH_KUBE_TIMEOUT", value_name = "TIME", default_value = "5s", value_parser = seconds)]
    timeout: Duration,
    /// A namespace whose pods are never looked at, beside our own and kube-*; may be given several
    /// times.
    #[arg(long, env = "BERTH_KUBE_EXCLUDE_NAMESPACE", value_name = "NAME", value_delimiter = ',')]
    exclude_namespace: Vec<String>,
}

/// Where the certificate comes from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Certificate")]
struct TlsFlags {
    /// The Secret in our namespace that holds our own authority and certificate.
    #[arg(
        long,
        env = "BERTH_KUBE_TLS_SECRET",
        value_name = "NAME",
        default_value = "berth-webhook-tls"
    )]
    tls_secret: String,
    /// A further name or address that our own certificate is for; may be given several times.
    #[arg(long, env = "BERTH_KUBE_TLS_HOST", value_name = "NAME", value_delimiter = ',')]
    tls_host: Vec<String>,
    /// A folder with tls.crt and tls.key instead, such as a Secret of cert-manager.
    #[arg(long, env = "BERTH_KUBE_TLS_DIR", value_name = "FOLDER")]
    tls_dir: Option<PathBuf>,
    /// With --tls-dir: the authority that the API server is told to trust, in PEM; when not given, the
    /// caBundle is left to somebody else.
    #[arg(long, env = "BERTH_KUBE_CA_FILE", value_name = "FILE", requires = "tls_dir")]
    ca_file: Option<PathBuf>,
}

/// What becomes of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Then {
    /// It is created as it came, with a warning.
    #[default]
    Admit,
    /// It is refused.
    Refuse,
}

/// What becomes of misplaced pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Change {
    /// They are evicted, one at a time.
    #[default]
    Rebuild,
    /// They become the cheapest to delete.
    Lazy,
}

/// What the API server does when nobody answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Failing {
    /// Pods are created as they came.
    #[default]
    Ignore,
    /// Pods are not created.
    Fail,
}

fn seconds(text: &str) -> Result<Duration, String> {
    crate::cmdutil::args::duration(text).map(|seconds| Duration::from_secs(u64::from(seconds)))
}

impl WebhookFlags {
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
        let client = self.way.client().await?;
        let webhook = Webhook::start(client, options.clone(), stop).await;
        let webhook = webhook.map_err(|error| self.failed(&error))?;
        for line in greeting(&options, webhook.address(), webhook.probes()) {
            println!("{line}");
        }
        webhook.wait().await.map_err(|error| self.failed(&error))
    }

    /// The options, and the lock on the embedded database.
    fn options(&self) -> CmdResult<(Options, Option<Lock>)> {
        let (ledger, lock) = self.slots.backend()?;
        let mut options = Options::new(&self.who.namespace(), &self.who.identity(), ledger);
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
            Then::Admit => OnInvalid::Admit,
            Then::Refuse => OnInvalid::Refuse,
        };
        options.on_error = match self.rules.on_error {
            Then::Admit => OnError::Ignore,
            Then::Refuse => OnError::Refuse,
        };
        options.rebuild = Rebuild {
            on_change: match self.rules.on_change {
                Change::Rebuild => OnChange::Rebuild,
                Change::Lazy => OnChange::Lazy,
            },
            lease: self.slots.lease_name.clone(),
            ..Rebuild::default()
        };
        options.reserve_for = self.slots.reserve_for;
        options.timeout = self.entry.timeout;
        options.reach = match &self.entry.external_url {
            Some(url) => Reach::Url(url.clone()),
            None => {
                Reach::Service { name: self.entry.service.clone(), port: self.entry.service_port }
            }
        };
        options.install = self.entry.install();
        options.exclude_namespaces.clone_from(&self.entry.exclude_namespace);
        options.tls = self.tls.source();
        options.validate().map_err(|invalid| {
            let line = format!("--{} is {:?}", flag_of(invalid.name), invalid.value);
            Failure::usage(line).accepted(invalid.accepted)
        })?;
        Ok((options, lock))
    }

    fn failed(&self, error: &WebhookError) -> Failure {
        match error {
            WebhookError::Invalid(invalid) => Failure::usage(invalid.to_string()),
            WebhookError::Connect(error) => super::way::unconnected(error),
            WebhookError::Listen { address, source } => {
                let flag = if *address == self.listen { "--listen" } else { "--probes" };
                not_had(flag, *address, source)
            }
            WebhookError::Desk(OpenError::NotOurs(_)) => Failure::usage(chain(error))
                .accepted("--database-url: a database that nothing else uses"),
            WebhookError::Desk(_) => Failure::new(Exit::Unreachable, chain(error))
                .remedy("start the database, or name another with --database-url or --data-dir"),
            WebhookError::Ended(_) => Failure::new(Exit::Failed, chain(error)),
        }
    }
}

/// The flag by which a setting is given.
fn flag_of(setting: &'static str) -> &'static str {
    match setting {
        "node-label" => "capacity-label",
        "url" => "external-url",
        other => other,
    }
}

impl Slots {
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
        make_private(&folder)?;
        let path = folder.join("webhook.db");
        let lock = Lock::take(&path)?;
        Ok((Backend::Sqlite(path), Some(lock)))
    }
}

impl Entry {
    fn install(&self) -> Option<Install> {
        let failure_policy = match self.failure_policy {
            Failing::Ignore => FailurePolicy::Ignore,
            Failing::Fail => FailurePolicy::Fail,
        };
        (!self.no_install).then(|| Install { name: self.configuration.clone(), failure_policy })
    }
}

impl TlsFlags {
    fn source(&self) -> TlsSource {
        match &self.tls_dir {
            Some(folder) => {
                TlsSource::Files { folder: folder.clone(), ca_file: self.ca_file.clone() }
            }
            None => TlsSource::Own(OwnTls {
                secret: self.tls_secret.clone(),
                hosts: self.tls_host.clone(),
                ..OwnTls::default()
            }),
        }
    }
}

/// What it is, where it is, and what to do next.
fn greeting(options: &Options, at: SocketAddr, probes: Option<SocketAddr>) -> Vec<String> {
    let reached = match &options.reach {
        Reach::Service { name, port } => {
            format!("https://{name}.{}.svc:{port}/mutate", options.namespace)
        }
        Reach::Url(url) => url.clone(),
    };
    let slots = match &options.ledger {
        Backend::Sqlite(path) => format!("{} (one replica)", path.display()),
        Backend::Postgres(url) => format!("{} (any number of replicas)", without_password(url)),
    };
    let entry = match &options.install {
        Some(install) => format!(
            "MutatingWebhookConfiguration {}, kept by itself (failurePolicy {})",
            install.name,
            install.failure_policy.name()
        ),
        None => "left to somebody else (--no-install)".to_owned(),
    };
    let tls = match &options.tls {
        TlsSource::Own(own) => {
            format!("of its own, in Secret {}/{}, renewed by itself", options.namespace, own.secret)
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
    lines.push(format!("  entry     {entry}"));
    lines.push(format!("  trust     certificate {tls}"));
    lines.push(format!("  nodes     {} is {} or {}", label.key, label.on_demand, label.spot));
    lines.push(String::new());
    lines.push("Ready when /readyz says so. Then, for a Deployment of yours:".to_owned());
    lines.push(format!(
        "  kubectl annotate deployment NAME {prefix}/webhook-scheduler=true {prefix}/webhook-scheduler-max-on-demand-count=3"
    ));
    lines.push("  kubectl get pods -L berth.dev/capacity".to_owned());
    lines.push(String::new());
    lines.push("Ctrl-C stops it; reviews in flight are answered first.".to_owned());
    lines
}
