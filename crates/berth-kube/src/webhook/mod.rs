//! The admission webhook: splits the pods of a workload between on-demand and spot nodes.
//!
//! A review arrives at `server`, is parsed by `review`, and handled by `admission`: `owners` resolves the
//! pod's workload and its settings, `slot_store` assigns the slot, `patch` builds the changes. Meanwhile
//! `watch` and `slot_reconciler` keep the slots consistent with the pods, `workload_changes` and `rebuild`
//! follow changed settings, `tls` and `install` register the webhook with the API server.
//!
//! No count is ever derived from a list of pods: a slot is assigned by the ledger, once.

mod admission;
mod affinity;
mod annotations;
mod breaker;
mod events;
mod install;
mod lease_guard;
mod metrics;
mod missing_nodes;
mod owners;
mod patch;
mod pod_cache;
mod readiness;
mod rebuild;
mod review;
mod server;
mod settings;
mod slot_reconciler;
mod slot_store;
mod tls;
mod validation;
mod watch;
mod watched_pod;
mod workload_changes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch as signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{self, ConnectError};
use crate::leader_election::Candidate;
use crate::probes::Probes;
use admission::AdmissionHandler;
use annotations::SettingsReader;
use events::WorkloadEvents;
use install::Installer;
use lease_guard::LeaseGuard;
use metrics::Metrics;
use owners::OwnerResolver;
use pod_cache::PodCache;
use readiness::{Part, Readiness};
use rebuild::Rebuilder;
use server::Certificate;
use slot_reconciler::{ReconcilerParts, SlotReconciler};

pub(crate) use events::REMEMBERED_MAX;
pub(crate) use server::BODY_BYTES_MAX;
pub use settings::{
    FailurePolicy, InstallOptions, InvalidOption, NodeLabel, OnChange, OnError, OnInvalid, Options,
    RebuildOptions, SelfSignedTls, TlsSource, WebhookAddress,
};
pub(crate) use slot_reconciler::WORKERS;
pub use slot_store::OpenError;
pub use tls::TlsError;

/// The webhook cannot run.
#[derive(Debug, Error)]
pub enum WebhookError {
    /// An option is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidOption),
    /// There is no connection to the API server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An address cannot be used.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The slot store cannot be opened.
    #[error("failed to open the slot store")]
    SlotStore(#[from] OpenError),
    /// A part of the webhook ended unexpectedly.
    #[error("a part of the webhook ended unexpectedly: {0}")]
    Ended(String),
}

/// Runs the webhook until stopped, and then answers the requests in progress.
///
/// # Errors
/// When it cannot start: an option, an address, the ledger. Later failures are retried.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), WebhookError> {
    let client = client::connect(options.kubeconfig.as_deref(), options.context.as_deref()).await?;
    Webhook::start(client, options, stop).await?.wait().await
}

/// A running webhook.
pub struct Webhook {
    address: SocketAddr,
    probes: Option<SocketAddr>,
    ready: signal::Receiver<bool>,
    trusted: signal::Receiver<Option<String>>,
    main: JoinHandle<Result<(), WebhookError>>,
}

impl Webhook {
    /// Binds its addresses and starts; it becomes ready later.
    ///
    /// # Errors
    /// When an option is invalid or an address cannot be used.
    pub async fn start(
        client: Client,
        options: Options,
        stop: CancellationToken,
    ) -> Result<Self, WebhookError> {
        options.validate()?;
        let failed = |address| move |source| WebhookError::Listen { address, source };
        let listener = TcpListener::bind(options.listen).await.map_err(failed(options.listen))?;
        let address = listener.local_addr().map_err(failed(options.listen))?;
        let probes = match options.probes {
            Some(at) => Some(Probes::bind(at).await.map_err(failed(at))?),
            None => None,
        };
        let probes_address = probes.as_ref().and_then(|probes| probes.local_addr().ok());
        let (ready_sender, ready) = signal::channel(false);
        let readiness = Arc::new(Readiness::starting(options.install.is_some(), ready_sender));
        let (trusted_sender, trusted) = signal::channel(None);
        let stop_requested = stop;
        // Its parts stop a moment later.
        let stop = CancellationToken::new();
        let running = WebhookRuntime {
            client,
            options,
            stop_requested,
            stop,
            tasks: TaskTracker::new(),
            readiness,
            trusted: trusted.clone(),
        };
        let main = tokio::spawn(running.run(listener, probes, trusted_sender));
        Ok(Self { address, probes: probes_address, ready, trusted, main })
    }

    /// Where reviews are served, with the actual port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where probes are served.
    #[must_use]
    pub const fn probes(&self) -> Option<SocketAddr> {
        self.probes
    }

    /// The CA bundle in PEM, once there is one.
    #[must_use]
    pub fn authority(&self) -> Option<String> {
        self.trusted.borrow().clone()
    }

    /// Waits until certificate, slots, registration and database are in order. Returns false if the webhook
    /// stops first.
    pub async fn ready(&self) -> bool {
        self.ready.clone().wait_for(|ready| *ready).await.is_ok()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// Why it stopped.
    pub async fn wait(self) -> Result<(), WebhookError> {
        self.main.await.unwrap_or_else(|error| Err(WebhookError::Ended(error.to_string())))
    }
}

/// What all parts share.
struct WebhookRuntime {
    client: Client,
    options: Options,
    /// Cancelled by the caller.
    stop_requested: CancellationToken,
    /// Stops all parts.
    stop: CancellationToken,
    tasks: TaskTracker,
    readiness: Arc<Readiness>,
    trusted: signal::Receiver<Option<String>>,
}

impl WebhookRuntime {
    async fn run(
        self,
        listener: TcpListener,
        probes: Option<Probes>,
        trusted: signal::Sender<Option<String>>,
    ) -> Result<(), WebhookError> {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry));
        let certificate = Certificate::default();
        if let Some(probes) = probes {
            let (readiness, stop) = (Arc::clone(&self.readiness), self.stop.clone());
            let check_ready = move || readiness.check();
            self.tasks.spawn(probes.serve(check_ready, Arc::new(registry), stop));
        }
        self.tasks.spawn(stop_after_linger(
            self.stop_requested.clone(),
            self.stop.clone(),
            Arc::clone(&self.readiness),
            self.options.linger,
        ));
        self.follow_certificate(&certificate, trusted, &metrics);
        let outcome = self.open(listener, certificate, metrics).await;
        if outcome.is_err() {
            // The parts that run are useless without the others.
            self.stop.cancel();
        }
        self.stop.cancelled().await;
        self.tasks.close();
        self.tasks.wait().await;
        let reconciler = outcome?;
        // Closing the ledger waits for its threads.
        let _ = tokio::task::spawn_blocking(move || drop(reconciler)).await;
        Ok(())
    }

    fn follow_certificate(
        &self,
        certificate: &Certificate,
        trusted: signal::Sender<Option<String>>,
        metrics: &Arc<Metrics>,
    ) {
        let (certificate, stop) = (certificate.clone(), self.stop.clone());
        match self.options.tls.clone() {
            TlsSource::SelfSigned(own) => {
                let hosts = self.certificate_hosts(&own);
                let (client, namespace) = (self.client.clone(), &self.options.namespace);
                let metrics = Arc::clone(metrics);
                let reconciler =
                    tls::CertificateSecret::new(client, namespace, own, hosts, metrics);
                self.tasks.spawn(tls::follow_secret(reconciler, certificate, trusted, stop));
            }
            TlsSource::Files { folder, ca_file } => {
                self.tasks.spawn(tls::follow_files(folder, ca_file, certificate, trusted, stop));
            }
        }
    }

    /// Names and addresses of the certificate.
    fn certificate_hosts(&self, own: &SelfSignedTls) -> Vec<String> {
        let mut hosts = Vec::new();
        match &self.options.reach {
            WebhookAddress::Service { name, .. } => {
                let namespace = &self.options.namespace;
                let short = format!("{name}.{namespace}");
                hosts.extend([format!("{short}.svc"), format!("{short}.svc.cluster.local"), short]);
            }
            WebhookAddress::Url(url) => {
                let uri = url.parse::<http::Uri>().ok();
                let host = uri.as_ref().and_then(http::Uri::host);
                let host = host.map(|host| host.trim_matches(['[', ']']).to_owned());
                hosts.extend(host);
            }
        }
        hosts.extend(own.hosts.iter().cloned());
        hosts
    }

    /// Opens the slot store, serves, and reconciles the slots with the pods.
    async fn open(
        &self,
        listener: TcpListener,
        certificate: Certificate,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<SlotReconciler>, WebhookError> {
        let (options, stop) = (&self.options, &self.stop);
        let slots =
            slot_store::SlotStore::open(options.ledger.clone(), options.reserve_s()).await?;
        let slots = Arc::new(slots);
        self.follow_database(&slots, &metrics);
        let watched = watch::watch_controllers(&self.client, &metrics, stop);
        let keys = SettingsReader::new(&options.prefixes, options.rebuild.on_change);
        // An admission takes up to two such requests, and some time for its slot.
        let request_timeout = options.deadline() / 4;
        let owners =
            OwnerResolver::new(self.client.clone(), keys, watched.stores.clone(), request_timeout);
        let parts = ReconcilerParts {
            client: self.client.clone(),
            slots,
            owners: Arc::new(owners),
            pods: Arc::new(PodCache::new(options.node_label.clone())),
            nodes: watched.nodes.clone(),
            label: options.node_label.clone(),
            excluded: options.excluded_namespaces(),
            metrics: Arc::clone(&metrics),
        };
        let reconciler = SlotReconciler::start(parts, stop, &self.tasks);
        let events = Arc::new(WorkloadEvents::new(self.client.clone(), &options.identity));
        let (reconciled, is_reconciled) = signal::channel(false);
        let handler = Arc::new(AdmissionHandler {
            reconciler: Arc::clone(&reconciler),
            events: Arc::clone(&events),
            metrics: Arc::clone(&metrics),
            label: options.node_label.clone(),
            on_invalid: options.on_invalid,
            on_error: options.on_error,
            deadline: options.deadline(),
            excluded: options.excluded_namespaces(),
            ready: is_reconciled,
        });
        self.tasks.spawn(server::serve(listener, certificate.clone(), handler, stop.clone()));
        if self.reconcile_existing_pods(&reconciler, &watched, &metrics).await {
            reconciled.send_replace(true);
            let wake = Arc::new(Notify::new());
            let (reconciler_, wake_) = (Arc::clone(&reconciler), Arc::clone(&wake));
            let following =
                workload_changes::follow_changes(reconciler_, watched.changes, wake_, stop.clone());
            self.tasks.spawn(following);
            self.start_rebuilder(&reconciler, events, &metrics, wake);
            self.readiness.set(Part::Slots, Ok(()));
            self.register(certificate, metrics);
        }
        // The handler waits on it as long as the server runs.
        self.tasks.spawn(keep_until_stop(reconciled, stop.clone()));
        Ok(reconciler)
    }

    /// Probes the database, and reports whether it answers.
    fn follow_database(&self, slots: &Arc<slot_store::SlotStore>, metrics: &Arc<Metrics>) {
        let (probing, stop) = (Arc::clone(slots), self.stop.clone());
        self.tasks.spawn(async move { probing.keep_probing(stop).await });
        let (readiness, metrics) = (Arc::clone(&self.readiness), Arc::clone(metrics));
        let (mut availability, stop) = (slots.availability(), self.stop.clone());
        let on_error = self.options.on_error.name();
        self.tasks.spawn(async move {
            loop {
                let answers = *availability.borrow_and_update();
                metrics.database_up.set(i64::from(answers));
                let problem = || {
                    format!("the slot database does not answer: no slots are assigned, and pods are treated as by --on-error {on_error}")
                };
                let state = if answers { Ok(()) } else { Err(problem()) };
                readiness.set(Part::Database, state);
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = availability.changed() => if changed.is_err() { return },
                }
            }
        });
    }

    /// Reconciles the slots with the existing pods. Returns false if stopped first.
    async fn reconcile_existing_pods(
        &self,
        reconciler: &Arc<SlotReconciler>,
        watched: &watch::WatchedStores,
        metrics: &Arc<Metrics>,
    ) -> bool {
        let (listed, mut is_listed) = signal::channel(false);
        let stores = &watched.stores;
        // Claims from before the list that have no pod in it are orphaned.
        let before = reconciler.slots.all_claims();
        let (client, stop) = (self.client.clone(), self.stop.clone());
        let restart = Arc::new(Notify::new());
        let guard = LeaseGuard {
            client: client.clone(),
            reconciler: Arc::clone(reconciler),
            metrics: Arc::clone(metrics),
            restart: Arc::clone(&restart),
            lease: self.options.reserve_for,
        };
        let following = watch::watch_pods(
            client,
            Arc::clone(reconciler),
            Arc::clone(metrics),
            (listed, restart),
            stop.clone(),
        );
        self.tasks.spawn(following);
        self.tasks.spawn(guard.run(stop.clone()));
        let complete = async {
            let kinds = stores.deployments.wait_until_ready().await.is_ok()
                && stores.replica_sets.wait_until_ready().await.is_ok()
                && stores.stateful_sets.wait_until_ready().await.is_ok()
                && watched.nodes.wait_until_ready().await.is_ok()
                && is_listed.wait_for(|listed| *listed).await.is_ok();
            if kinds {
                reconciler.reconcile_all(&before, &stop).await;
            }
            kinds
        };
        tokio::select! {
            () = stop.cancelled() => false,
            complete = complete => complete,
        }
    }

    fn start_rebuilder(
        &self,
        reconciler: &Arc<SlotReconciler>,
        events: Arc<WorkloadEvents>,
        metrics: &Arc<Metrics>,
        wake: Arc<Notify>,
    ) {
        let (options, client) = (&self.options, self.client.clone());
        let lease = &options.rebuild.lease;
        let candidate = Candidate::new(&options.namespace, lease, &options.identity);
        let leads = candidate.campaign(client.clone(), self.stop.clone());
        let (reconciler, metrics) = (Arc::clone(reconciler), Arc::clone(metrics));
        let settings = options.rebuild.clone();
        let rebuilder = Rebuilder::new(client, reconciler, events, metrics, settings, wake);
        self.tasks.spawn(rebuilder.run(leads, self.stop.clone()));
    }

    /// Registers the webhook once it can answer.
    fn register(&self, certificate: Certificate, metrics: Arc<Metrics>) {
        if let Some(install) = self.options.install.clone() {
            let readiness = Arc::clone(&self.readiness);
            let client = self.client.clone();
            let installer = Installer::new(client, &self.options, install, metrics, readiness);
            let needs_authority = matches!(self.options.tls, TlsSource::SelfSigned(_));
            let trusted = self.trusted.clone();
            self.tasks.spawn(installer.run(trusted, needs_authority, self.stop.clone()));
        }
        let (readiness, stop) = (Arc::clone(&self.readiness), self.stop_requested.clone());
        self.tasks.spawn(async move {
            while !certificate.is_set() {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
            }
            readiness.set(Part::Certificate, Ok(()));
        });
    }
}

/// After the stop request, reports not ready but keeps answering for a moment: until then the API
/// server does not know.
async fn stop_after_linger(
    stop_requested: CancellationToken,
    stop: CancellationToken,
    readiness: Arc<Readiness>,
    time: Duration,
) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = stop_requested.cancelled() => {}
    }
    let was_ready = readiness.is_ready();
    readiness.set(Part::Process, Err("stopping".to_owned()));
    if was_ready {
        tokio::time::sleep(time).await;
    }
    stop.cancel();
}

/// Keeps a value until the stop.
async fn keep_until_stop<T>(what: T, stop: CancellationToken) {
    stop.cancelled().await;
    drop(what);
}
