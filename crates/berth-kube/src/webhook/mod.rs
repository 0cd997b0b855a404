//! The admission webhook: it shares the pods of a workload between on-demand and spot nodes.
//!
//! A review comes in at `server`, is read by `review`, and answered by `admit`: `owners` says whose
//! pod it is and what its workload asks for, `desk` gives the slot, `patch` says what to change.
//! Beside that, `watch` and `keeper` keep the desk in step with the pods, `changes` and `rebuild`
//! follow what workloads ask for, `tls` and `install` see to it that the API server finds us.
//!
//! No count is ever derived from a list of pods: a slot is given by the ledger, once.

mod admit;
mod affinity;
mod changes;
mod desk;
mod events;
mod install;
mod keeper;
mod keys;
mod metrics;
mod owners;
mod patch;
mod rebuild;
mod review;
mod roster;
mod server;
mod settings;
mod tls;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch as told};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{self, ConnectError};
use crate::lease::Candidate;
use crate::probes::Probes;
use admit::Clerk;
use events::Events;
use install::Installer;
use keeper::{Keeper, Parts};
use keys::Keys;
use metrics::Metrics;
use owners::Owners;
use rebuild::Rebuilder;
use roster::Roster;
use server::Certificate;

pub use desk::OpenError;
pub use settings::{
    FailurePolicy, Install, InvalidOption, NodeLabel, OnChange, OnError, OnInvalid, Options,
    OwnTls, Reach, Rebuild, TlsSource,
};
pub use tls::TlsError;

/// The webhook cannot run.
#[derive(Debug, Error)]
pub enum WebhookError {
    /// A setting means nothing.
    #[error(transparent)]
    Invalid(#[from] InvalidOption),
    /// The API server is not known.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An address cannot be had.
    #[error("{address} cannot be listened on")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The ledger cannot be used.
    #[error("the seats cannot be kept")]
    Desk(#[from] OpenError),
    /// A part of it ended before it was told to.
    #[error("a part of the webhook ended by itself: {0}")]
    Ended(String),
}

/// Runs the webhook until it is told to stop, and then answers what it was asked before.
///
/// # Errors
/// When it cannot start: a setting, an address, the ledger. What fails later is tried again.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), WebhookError> {
    let client = client::connect(options.kubeconfig.as_deref(), options.context.as_deref()).await?;
    Webhook::start(client, options, stop).await?.wait().await
}

/// A webhook that runs.
pub struct Webhook {
    address: SocketAddr,
    probes: Option<SocketAddr>,
    ready: told::Receiver<bool>,
    trusted: told::Receiver<Option<String>>,
    main: JoinHandle<Result<(), WebhookError>>,
}

impl Webhook {
    /// Takes its addresses and starts; it is ready later.
    ///
    /// # Errors
    /// When a setting means nothing or an address cannot be had.
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
        let (ready_sender, ready) = told::channel(false);
        let (trusted_sender, trusted) = told::channel(None);
        let told = stop;
        // Parts stop a moment after we are told to.
        let stop = CancellationToken::new();
        let running = Running {
            client,
            options,
            told,
            stop,
            tasks: TaskTracker::new(),
            ready: ready_sender,
            trusted: trusted.clone(),
        };
        let main = tokio::spawn(running.run(listener, probes, trusted_sender));
        Ok(Self { address, probes: probes_address, ready, trusted, main })
    }

    /// Where reviews are taken; a port that was left open is known now.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where probes are answered.
    #[must_use]
    pub const fn probes(&self) -> Option<SocketAddr> {
        self.probes
    }

    /// Certificates of the authorities that vouch for us, in PEM, once there are any.
    #[must_use]
    pub fn authority(&self) -> Option<String> {
        self.trusted.borrow().clone()
    }

    /// Waits until it is ready: certificate, seats and entry are as they should be. Returns whether
    /// it will ever be.
    pub async fn ready(&self) -> bool {
        self.ready.clone().wait_for(|ready| *ready).await.is_ok()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// Why it could not go on.
    pub async fn wait(self) -> Result<(), WebhookError> {
        self.main.await.unwrap_or_else(|error| Err(WebhookError::Ended(error.to_string())))
    }
}

/// What all parts share while it runs.
struct Running {
    client: Client,
    options: Options,
    /// Told by whoever runs us.
    told: CancellationToken,
    /// Stops all parts.
    stop: CancellationToken,
    tasks: TaskTracker,
    ready: told::Sender<bool>,
    trusted: told::Receiver<Option<String>>,
}

impl Running {
    async fn run(
        self,
        listener: TcpListener,
        probes: Option<Probes>,
        trusted: told::Sender<Option<String>>,
    ) -> Result<(), WebhookError> {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry));
        let certificate = Certificate::default();
        if let Some(probes) = probes {
            let ready = self.ready.subscribe();
            let is_ready = move || {
                if *ready.borrow() { Ok(()) } else { Err("not in step with the pods yet".into()) }
            };
            let stop = self.stop.clone();
            self.tasks.spawn(probes.serve(is_ready, Arc::new(registry), stop));
        }
        self.tasks.spawn(linger(
            self.told.clone(),
            self.stop.clone(),
            self.ready.clone(),
            self.options.linger,
        ));
        self.follow_certificate(&certificate, trusted, &metrics);
        let outcome = self.open(listener, certificate, metrics).await;
        if outcome.is_err() {
            // What has begun is of no use without the rest.
            self.stop.cancel();
        }
        self.stop.cancelled().await;
        self.tasks.close();
        self.tasks.wait().await;
        let keeper = outcome?;
        // Closing the ledger waits for its threads.
        let _ = tokio::task::spawn_blocking(move || drop(keeper)).await;
        Ok(())
    }

    fn follow_certificate(
        &self,
        certificate: &Certificate,
        trusted: told::Sender<Option<String>>,
        metrics: &Arc<Metrics>,
    ) {
        let (certificate, stop) = (certificate.clone(), self.stop.clone());
        match self.options.tls.clone() {
            TlsSource::Own(own) => {
                let hosts = self.hosts(&own);
                let (client, namespace) = (self.client.clone(), &self.options.namespace);
                let metrics = Arc::clone(metrics);
                let keeper = tls::SecretKeeper::new(client, namespace, own, hosts, metrics);
                self.tasks.spawn(tls::follow_secret(keeper, certificate, trusted, stop));
            }
            TlsSource::Files { folder, ca_file } => {
                self.tasks.spawn(tls::follow_files(folder, ca_file, certificate, trusted, stop));
            }
        }
    }

    /// Names and addresses that the certificate is for.
    fn hosts(&self, own: &OwnTls) -> Vec<String> {
        let mut hosts = Vec::new();
        match &self.options.reach {
            Reach::Service { name, .. } => {
                let namespace = &self.options.namespace;
                let short = format!("{name}.{namespace}");
                hosts.extend([format!("{short}.svc"), format!("{short}.svc.cluster.local"), short]);
            }
            Reach::Url(url) => {
                let uri = url.parse::<http::Uri>().ok();
                let host = uri.as_ref().and_then(http::Uri::host);
                let host = host.map(|host| host.trim_matches(['[', ']']).to_owned());
                hosts.extend(host);
            }
        }
        hosts.extend(own.hosts.iter().cloned());
        hosts
    }

    /// Opens the desk, serves, and brings the desk in step with the pods. Returns what keeps it.
    async fn open(
        &self,
        listener: TcpListener,
        certificate: Certificate,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Keeper>, WebhookError> {
        let (options, stop) = (&self.options, &self.stop);
        let desk = desk::Desk::open(options.ledger.clone(), options.reserve_s()).await?;
        let watched = watch::controllers(&self.client, &metrics, stop);
        let keys = Keys::new(&options.prefixes, options.rebuild.on_change);
        // A pod takes two such questions, and its seat some time too.
        let ask_for = options.deadline() / 4;
        let owners = Owners::new(self.client.clone(), keys, watched.stores.clone(), ask_for);
        let parts = Parts {
            client: self.client.clone(),
            desk: Arc::new(desk),
            owners: Arc::new(owners),
            roster: Arc::new(Roster::new(options.node_label.clone())),
            nodes: watched.nodes.clone(),
            label: options.node_label.clone(),
            excluded: options.excluded_namespaces(),
            metrics: Arc::clone(&metrics),
        };
        let keeper = Keeper::start(parts, stop, &self.tasks);
        let events = Arc::new(Events::new(self.client.clone(), &options.identity));
        let (in_step, is_in_step) = told::channel(false);
        let clerk = Arc::new(Clerk {
            keeper: Arc::clone(&keeper),
            events: Arc::clone(&events),
            metrics: Arc::clone(&metrics),
            label: options.node_label.clone(),
            on_invalid: options.on_invalid,
            on_error: options.on_error,
            deadline: options.deadline(),
            excluded: options.excluded_namespaces(),
            ready: is_in_step,
        });
        self.tasks.spawn(server::serve(listener, certificate.clone(), clerk, stop.clone()));
        if self.in_step(&keeper, &watched, &metrics).await {
            in_step.send_replace(true);
            let wake = Arc::new(Notify::new());
            let (keeper_, wake_) = (Arc::clone(&keeper), Arc::clone(&wake));
            let following = changes::follow(keeper_, watched.changes, wake_, stop.clone());
            self.tasks.spawn(following);
            self.rebuild(&keeper, events, &metrics, wake);
            self.enter(certificate, metrics);
        }
        // The clerk listens as long as the server serves.
        self.tasks.spawn(hold(in_step, stop.clone()));
        Ok(keeper)
    }

    /// Brings the desk in step with the pods there are. Returns whether that was done before the
    /// stop.
    async fn in_step(
        &self,
        keeper: &Arc<Keeper>,
        watched: &watch::Watched,
        metrics: &Arc<Metrics>,
    ) -> bool {
        let (listed, mut is_listed) = told::channel(false);
        let stores = &watched.stores;
        // Who has a seat before the pods are listed, and is not among them, is gone.
        let before = keeper.desk.everyone();
        let (client, stop) = (self.client.clone(), self.stop.clone());
        let following =
            watch::pods(client, Arc::clone(keeper), Arc::clone(metrics), listed, stop.clone());
        self.tasks.spawn(following);
        let complete = async {
            let kinds = stores.deployments.wait_until_ready().await.is_ok()
                && stores.replica_sets.wait_until_ready().await.is_ok()
                && stores.stateful_sets.wait_until_ready().await.is_ok()
                && watched.nodes.wait_until_ready().await.is_ok()
                && is_listed.wait_for(|listed| *listed).await.is_ok();
            if kinds {
                keeper.rebuild(&before, &stop).await;
            }
            kinds
        };
        tokio::select! {
            () = stop.cancelled() => false,
            complete = complete => complete,
        }
    }

    fn rebuild(
        &self,
        keeper: &Arc<Keeper>,
        events: Arc<Events>,
        metrics: &Arc<Metrics>,
        wake: Arc<Notify>,
    ) {
        let (options, client) = (&self.options, self.client.clone());
        let lease = &options.rebuild.lease;
        let candidate = Candidate::new(&options.namespace, lease, &options.identity);
        let leads = candidate.stand(client.clone(), self.stop.clone());
        let (keeper, metrics) = (Arc::clone(keeper), Arc::clone(metrics));
        let settings = options.rebuild.clone();
        let rebuilder = Rebuilder::new(client, keeper, events, metrics, settings, wake);
        self.tasks.spawn(rebuilder.run(leads, self.stop.clone()));
    }

    /// Makes our entry once we can answer, and says when all is as it should be.
    fn enter(&self, certificate: Certificate, metrics: Arc<Metrics>) {
        let entered = self.options.install.clone().map(|install| {
            let installer = Installer::new(self.client.clone(), &self.options, install, metrics);
            let entered = installer.done.subscribe();
            let needs_authority = matches!(self.options.tls, TlsSource::Own(_));
            let trusted = self.trusted.clone();
            self.tasks.spawn(installer.run(trusted, needs_authority, self.stop.clone()));
            entered
        });
        let (ready, stop) = (self.ready.clone(), self.told.clone());
        self.tasks.spawn(async move {
            let all = async {
                if let Some(mut entered) = entered {
                    let _ = entered.wait_for(|entered| *entered).await;
                }
                while !certificate.is_there() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = all => {
                    ready.send_replace(true);
                    tracing::info!("ready");
                }
            }
        });
    }
}

/// When we are told to stop, we first say that we are not ready, and go on answering for a moment:
/// the API server learns of it only then.
async fn linger(
    told: CancellationToken,
    stop: CancellationToken,
    ready: told::Sender<bool>,
    time: Duration,
) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = told.cancelled() => {}
    }
    if ready.send_replace(false) {
        tokio::time::sleep(time).await;
    }
    stop.cancel();
}

/// Keeps something until the stop.
async fn hold<T>(what: T, stop: CancellationToken) {
    stop.cancelled().await;
    drop(what);
}
