//! Everything about the webhook that can be set, with its default.
//!
//! Plain data. Where it comes from (flags, a file) is the program's business.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use berth_engine::CapacityType;
use berth_ledger::Backend;
use thiserror::Error;

pub use berth_engine::workload::OnChange;

/// What is done with a pod whose workload says something that means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnInvalid {
    /// It is admitted as it came, with a warning, and the workload gets an event.
    #[default]
    Admit,
    /// It is refused.
    Refuse,
}

/// What is done with a pod when the webhook itself cannot decide: the ledger or the API server does
/// not answer in time, or the start is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnError {
    /// It is admitted as it came, with a warning.
    #[default]
    Ignore,
    /// It is refused, so that its controller tries again.
    Refuse,
}

/// What the API server does when the webhook does not answer at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// Pods are created as they came.
    #[default]
    Ignore,
    /// Pods are not created.
    Fail,
}

impl FailurePolicy {
    /// The word that Kubernetes has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ignore => "Ignore",
            Self::Fail => "Fail",
        }
    }
}

/// How nodes say which kind of capacity they are.
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
    /// The value that stands for a kind.
    #[must_use]
    pub fn value(&self, class: CapacityType) -> &str {
        match class {
            CapacityType::OnDemand => &self.on_demand,
            CapacityType::Spot => &self.spot,
        }
    }

    /// The kind that a value stands for.
    #[must_use]
    pub fn class(&self, value: &str) -> Option<CapacityType> {
        [CapacityType::OnDemand, CapacityType::Spot]
            .into_iter()
            .find(|class| self.value(*class) == value)
    }
}

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
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
    /// An authority of our own, kept in a Secret that all replicas share.
    Own(OwnTls),
    /// `tls.crt` and `tls.key` in a folder, such as a mounted Secret of cert-manager. They are read
    /// again when they change.
    Files {
        /// The folder.
        folder: PathBuf,
        /// The authority for the `caBundle`; absent: cert-manager's injector or somebody else
        /// fills it in, and it is left as it is.
        ca_file: Option<PathBuf>,
    },
}

/// Certificates of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnTls {
    /// The Secret they are kept in.
    pub secret: String,
    /// Further names or addresses that the certificate is for.
    pub hosts: Vec<String>,
    /// How long a serving certificate is good for; it is renewed when two thirds are over.
    pub certificate_lifetime: Duration,
    /// How long an authority is good for; its successor is made when two thirds are over.
    pub authority_lifetime: Duration,
    /// How long an authority is known to the API server before it signs anything, and is still
    /// known after it signed the last time.
    pub overlap: Duration,
    /// How often all this is looked at.
    pub look_every: Duration,
}

impl Default for OwnTls {
    fn default() -> Self {
        Self {
            secret: "berth-webhook-tls".to_owned(),
            hosts: Vec::new(),
            certificate_lifetime: Duration::from_secs(90 * 86_400),
            authority_lifetime: Duration::from_secs(3 * 365 * 86_400),
            overlap: Duration::from_secs(24 * 3600),
            look_every: Duration::from_secs(60),
        }
    }
}

/// The webhook's own entry in the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    /// The name of the MutatingWebhookConfiguration.
    pub name: String,
    /// What the API server does when nobody answers.
    pub failure_policy: FailurePolicy,
}

impl Default for Install {
    fn default() -> Self {
        Self { name: "berth-webhook".to_owned(), failure_policy: FailurePolicy::default() }
    }
}

/// How misplaced pods are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// What becomes of misplaced pods unless their workload says otherwise.
    pub on_change: OnChange,
    /// How often workloads are looked at.
    pub every: Duration,
    /// How long to wait after an eviction was refused; twice as long each time, up to 32 times.
    pub back_off: Duration,
    /// The Lease that says which replica evicts.
    pub lease: String,
}

impl Default for Rebuild {
    fn default() -> Self {
        Self {
            on_change: OnChange::Rebuild,
            every: Duration::from_secs(2),
            back_off: Duration::from_secs(5),
            lease: "berth-webhook-rebuild".to_owned(),
        }
    }
}

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A kubeconfig; absent: the cluster that this pod is in, else the usual kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig.
    pub context: Option<String>,
    /// Where admission reviews are taken, over TLS.
    pub listen: SocketAddr,
    /// Where `/healthz`, `/livez`, `/readyz` and `/metrics` are answered; absent: nowhere.
    pub probes: Option<SocketAddr>,
    /// The namespace we run in: of the Secret, the Lease and the Service.
    pub namespace: String,
    /// How we are called among replicas; no two may be the same.
    pub identity: String,
    /// Where seats are kept. With several replicas it must be one PostgreSQL database, used by
    /// nothing else.
    pub ledger: Backend,
    /// Prefixes of the labels and annotations that are read; the first wins.
    pub prefixes: Vec<String>,
    /// How nodes say which kind of capacity they are.
    pub node_label: NodeLabel,
    /// How long a seat is kept for a pod that is not seen.
    pub reserve_for: Duration,
    /// What becomes of pods of a workload that says something that means nothing.
    pub on_invalid: OnInvalid,
    /// What becomes of pods when we cannot decide.
    pub on_error: OnError,
    /// How long the API server waits for an answer: 1 to 30 s. We answer within four fifths of it.
    pub timeout: Duration,
    /// How the API server reaches us.
    pub reach: Reach,
    /// Where the certificate comes from.
    pub tls: TlsSource,
    /// Our entry in the API server; absent: somebody else makes it.
    pub install: Option<Install>,
    /// Further namespaces whose pods are never looked at, beside `kube-system`, `kube-public`,
    /// `kube-node-lease` and our own. They hold whoever makes the entry.
    pub exclude_namespaces: Vec<String>,
    /// How misplaced pods are replaced.
    pub rebuild: Rebuild,
    /// How long reviews are still answered when the webhook is told to stop: the API server goes on
    /// calling for a moment.
    pub linger: Duration,
}

impl Options {
    /// The defaults, for a webhook in this namespace that keeps its seats here.
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
            reach: Reach::Service { name: "berth-webhook".to_owned(), port: 443 },
            tls: TlsSource::Own(OwnTls::default()),
            install: Some(Install::default()),
            exclude_namespaces: Vec::new(),
            rebuild: Rebuild::default(),
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

    /// Namespaces whose pods are never looked at.
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

    /// Refuses what means nothing.
    ///
    /// # Errors
    /// Names the setting, the value and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        let wrong = |name, value: &dyn std::fmt::Display, accepted| {
            Err(InvalidOption { name, value: value.to_string(), accepted })
        };
        if !(1..=30).contains(&self.timeout.as_secs()) || self.timeout.subsec_nanos() != 0 {
            let value = format!("{:?}", self.timeout);
            return wrong("timeout", &value, "whole seconds from 1 to 30");
        }
        if self.reserve_for < Duration::from_secs(1) {
            return wrong("reserve-for", &format!("{:?}", self.reserve_for), "at least 1 s");
        }
        if self.prefixes.is_empty() || self.prefixes.iter().any(|it| !is_prefix(it)) {
            let value = self.prefixes.join(",");
            return wrong("prefix", &value, "at least one DNS name such as cloudpilot.ai");
        }
        let label = &self.node_label;
        if label.key.is_empty() || label.on_demand == label.spot {
            let value = format!("{}={}|{}", label.key, label.on_demand, label.spot);
            return wrong("node-label", &value, "a key and two values that differ");
        }
        if self.namespace.is_empty() {
            return wrong("namespace", &self.namespace, "the namespace the webhook runs in");
        }
        if let Reach::Url(url) = &self.reach
            && !url.starts_with("https://")
        {
            return wrong("url", url, "an address that begins with https://");
        }
        Ok(())
    }
}

fn is_prefix(text: &str) -> bool {
    let letter = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || "-.".contains(it);
    !text.is_empty() && text.len() <= 253 && text.chars().all(letter)
}

/// A setting that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} is {value:?}; accepted is {accepted}")]
pub struct InvalidOption {
    /// Which.
    pub name: &'static str,
    /// What was given.
    pub value: String,
    /// What would be accepted.
    pub accepted: &'static str,
}
