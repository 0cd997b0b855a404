//! All options of the webhook, with their defaults.
//!
//! Plain data. Where it comes from (flags, a file) is up to the program.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use berth_engine::CapacityType;
use berth_ledger::Backend;
use thiserror::Error;

pub use berth_engine::workload::OnChange;

/// How to treat a pod whose workload has an invalid setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnInvalid {
    /// Admit it unchanged, with a warning, and record an event on the workload.
    #[default]
    Admit,
    /// Reject it.
    Refuse,
}

/// How to treat a pod when the webhook cannot decide: the ledger or the API server does not answer in
/// time, or the webhook is still starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnError {
    /// Admit it unchanged, with a warning.
    #[default]
    Ignore,
    /// Reject it, so that its controller retries.
    Refuse,
}

impl OnError {
    /// Its name, as the flag has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ignore => "admit",
            Self::Refuse => "refuse",
        }
    }
}

/// What the API server does when the webhook does not answer at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// Create pods unchanged.
    #[default]
    Ignore,
    /// Create no pods.
    Fail,
}

impl FailurePolicy {
    /// Kubernetes' name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ignore => "Ignore",
            Self::Fail => "Fail",
        }
    }
}

/// The node label with the capacity type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLabel {
    /// The label's key.
    pub key: String,
    /// Its value on on-demand nodes.
    pub on_demand: String,
    /// Its value on spot nodes.
    pub spot: String,
}

impl Default for NodeLabel {
    fn default() -> Self {
        Self {
            key: "node.kubernetes.io/capacity".to_owned(),
            on_demand: "on-demand".to_owned(),
            spot: "spot".to_owned(),
        }
    }
}

impl NodeLabel {
    /// The label value of a capacity type.
    #[must_use]
    pub fn value(&self, class: CapacityType) -> &str {
        match class {
            CapacityType::OnDemand => &self.on_demand,
            CapacityType::Spot => &self.spot,
        }
    }

    /// The capacity type of a label value.
    #[must_use]
    pub fn class(&self, value: &str) -> Option<CapacityType> {
        [CapacityType::OnDemand, CapacityType::Spot]
            .into_iter()
            .find(|class| self.value(*class) == value)
    }
}

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookAddress {
    /// Through a Service in the webhook's own namespace.
    Service {
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// At an address, for a webhook outside the cluster: `https://HOST:PORT/mutate`.
    Url(String),
}

/// Where the serving certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    /// A self-signed CA, stored in a Secret that all replicas share.
    SelfSigned(SelfSignedTls),
    /// `tls.crt` and `tls.key` in a directory, such as a mounted Secret of cert-manager. They are read
    /// again when they change.
    Files {
        /// The directory.
        folder: PathBuf,
        /// The CA for the `caBundle`; absent: cert-manager's injector or another component sets it, and
        /// it is left unchanged.
        ca_file: Option<PathBuf>,
    },
}

/// Self-signed certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfSignedTls {
    /// The Secret they are stored in.
    pub secret: String,
    /// Additional names or addresses of the certificate.
    pub hosts: Vec<String>,
    /// Lifetime of a serving certificate; it is renewed after two thirds.
    pub certificate_lifetime: Duration,
    /// Lifetime of a CA; its successor is created after two thirds.
    pub authority_lifetime: Duration,
    /// How long a CA is trusted before it signs anything, and after it signed the last time.
    pub overlap: Duration,
    /// How often the certificates are checked.
    pub check_interval: Duration,
}

impl Default for SelfSignedTls {
    fn default() -> Self {
        Self {
            secret: "berth-webhook-tls".to_owned(),
            hosts: Vec::new(),
            certificate_lifetime: Duration::from_secs(90 * 86_400),
            authority_lifetime: Duration::from_secs(3 * 365 * 86_400),
            overlap: Duration::from_secs(24 * 3600),
            check_interval: Duration::from_secs(60),
        }
    }
}

/// The webhook's registration with the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallOptions {
    /// The name of the MutatingWebhookConfiguration.
    pub name: String,
    /// What the API server does when the webhook does not answer.
    pub failure_policy: FailurePolicy,
}

impl Default for InstallOptions {
    fn default() -> Self {
        Self { name: "berth-webhook".to_owned(), failure_policy: FailurePolicy::default() }
    }
}

/// How misplaced pods are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildOptions {
    /// What happens to misplaced pods, unless their workload overrides it.
    pub on_change: OnChange,
    /// How often workloads are checked.
    pub every: Duration,
    /// The backoff after a refused eviction; it doubles each time, up to 32 times this.
    pub backoff: Duration,
    /// The Lease that elects the replica that evicts.
    pub lease: String,
}

impl Default for RebuildOptions {
    fn default() -> Self {
        Self {
            on_change: OnChange::Rebuild,
            every: Duration::from_secs(2),
            backoff: Duration::from_secs(5),
            lease: "berth-webhook-rebuild".to_owned(),
        }
    }
}

/// Options of the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A kubeconfig; absent: the cluster that this pod runs in, else the default kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig.
    pub context: Option<String>,
    /// Where admission reviews are served, over TLS.
    pub listen: SocketAddr,
    /// Where `/healthz`, `/livez`, `/readyz` and `/metrics` are served; absent: nowhere.
    pub probes: Option<SocketAddr>,
    /// The namespace of the webhook, its Secret, Lease and Service.
    pub namespace: String,
    /// Unique identity of this replica.
    pub identity: String,
    /// Where slots are stored. Several replicas need one PostgreSQL database, used by nothing else.
    pub ledger: Backend,
    /// Prefixes of the labels and annotations to read; the first wins.
    pub prefixes: Vec<String>,
    /// The node label with the capacity type.
    pub node_label: NodeLabel,
    /// How long a slot is reserved for an admitted pod that does not appear.
    pub reserve_for: Duration,
    /// How to treat pods of a workload with an invalid setting.
    pub on_invalid: OnInvalid,
    /// How to treat pods when the webhook cannot decide.
    pub on_error: OnError,
    /// How long the API server waits for an answer: 1 to 30 s. The webhook answers within four fifths.
    pub timeout: Duration,
    /// How the API server reaches the webhook.
    pub reach: WebhookAddress,
    /// Where the certificate comes from.
    pub tls: TlsSource,
    /// The webhook's registration; absent: it is created elsewhere.
    pub install: Option<InstallOptions>,
    /// Further namespaces whose pods are ignored, in addition to `kube-system`, `kube-public`,
    /// `kube-node-lease` and the webhook's own. A registration created elsewhere must exclude them as well.
    pub exclude_namespaces: Vec<String>,
    /// How misplaced pods are replaced.
    pub rebuild: RebuildOptions,
    /// How long reviews are still answered after the stop: the API server keeps calling for a moment.
    pub linger: Duration,
}

impl Options {
    /// The defaults for a webhook in this namespace with this ledger.
    #[must_use]
    pub fn new(namespace: &str, identity: &str, ledger: Backend) -> Self {
        Self {
            kubeconfig: None,
            context: None,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8443)),
            probes: Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080))),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            ledger,
            prefixes: vec!["cloudpilot.ai".to_owned(), "berth.dev".to_owned()],
            node_label: NodeLabel::default(),
            reserve_for: Duration::from_secs(30),
            on_invalid: OnInvalid::default(),
            on_error: OnError::default(),
            timeout: Duration::from_secs(5),
            reach: WebhookAddress::Service { name: "berth-webhook".to_owned(), port: 443 },
            tls: TlsSource::SelfSigned(SelfSignedTls::default()),
            install: Some(InstallOptions::default()),
            exclude_namespaces: Vec::new(),
            rebuild: RebuildOptions::default(),
            linger: Duration::from_secs(3),
        }
    }

    /// How long we may take for an answer.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.timeout * 4 / 5
    }

    /// The lease of a reservation, in whole seconds.
    pub(crate) fn reserve_s(&self) -> u32 {
        u32::try_from(self.reserve_for.as_secs()).unwrap_or(u32::MAX).max(1)
    }

    /// Namespaces whose pods are ignored.
    #[must_use]
    pub fn excluded_namespaces(&self) -> Vec<String> {
        let system = ["kube-system", "kube-public", "kube-node-lease"].map(str::to_owned);
        let mut excluded = Vec::from(system);
        excluded.push(self.namespace.clone());
        excluded.extend(self.exclude_namespaces.iter().cloned());
        excluded.sort();
        excluded.dedup();
        excluded
    }
}

/// An invalid option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} is {value:?}; accepted is {accepted}")]
pub struct InvalidOption {
    /// The option.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What would be accepted.
    pub accepted: &'static str,
}
