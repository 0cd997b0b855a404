//! The scheduler: watches the cluster, chooses a node for each pending pod, and binds it.
//!
//! ```text
//!  informers ──► core ──► executor ──► API server
//!                 ▲          │
//!                 └──────────┘  outcomes
//! ```
//!
//! The `core` owns all state and makes all decisions, on a thread of its own; the informers and
//! the executor talk to the API server and decide nothing. One replica leads; the others keep their
//! state warm. The API server guards against double binding: a binding names the pod's uid, and a pod is
//! bound once.

mod benchmark;
mod core;
mod debug_state;
pub mod drain;
mod endpoints;
mod executor;
mod explain;
mod informers;
mod leadership_sync;
mod messages;
mod metrics;
mod optional_kinds;
mod policy_watch;
mod pruning;
mod queue;
mod relief;
mod simulated_day;

use std::sync::Arc;
use std::time::Duration;

use berth_engine::Timestamp;
use kube::Client;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::core::SchedulerCore;
use crate::cluster::Settings;
use crate::leader_election::{Candidate, Leadership};
use crate::probes::Probes;
use crate::wire::WireListener;
pub use benchmark::{BenchmarkResult, run_benchmark};
pub use debug_state::{DebugState, NoticeState, QueueEntryState, QueueState};
use drain::DrainTracker;
pub(crate) use executor::EVENTS_MAX;
use executor::{ApiExecutor, Limits};
pub use explain::{ExplainError, as_json, as_text, explain_once};
use informers::{Informers, KINDS};
use leadership_sync::LeadershipSync;
use messages::{Action, Message, SyncStatus};
pub use messages::{Counts, DrainRecord, DrainState};
use metrics::Metrics;
use queue::Moment;
pub use simulated_day::{SimulatedDayError, simulate_elastic_day};

/// Messages that may wait for the core before senders have to wait.
pub(crate) const INBOX_CAPACITY: usize = 2_048;

/// Options of the scheduler.
pub struct Options {
    /// The client of the API server; it must not retry requests by itself.
    pub client: Client,
    /// How pods are scheduled.
    pub settings: Settings,
    /// Unique identity of this replica, used in events.
    pub identity: String,
    /// The lease for leader election; absent: there is only this replica.
    pub lease: Option<Candidate>,
    /// Where probes, metrics and explanations are served.
    pub probes: Option<Probes>,
    /// Where agents of virtual machines request permits.
    pub wire: Option<WireListener>,
    /// Namespace and name of the ConfigMap with the policy; absent: the policy of the settings stays.
    pub policy_config_map: Option<(String, String)>,
    /// Pods that are bound concurrently.
    pub bind_concurrency: usize,
    /// Timeout of one API request.
    pub request_timeout: Duration,
    /// How long volumes may take to be bound or provisioned.
    pub volume_timeout: Duration,
    /// Events and conditions written per second.
    pub notices_per_s: u32,
    /// Pods that are evicted concurrently from draining nodes.
    pub eviction_concurrency: usize,
    /// Whether pods of lower priority are evicted from nodes that another scheduler overfilled.
    pub evict_overfull: bool,
    /// Whether bindings to nearly full nodes are checked against the API server first, while another scheduler
    /// is active.
    pub check_shared_nodes: bool,
    /// How long bindings in progress may take at shutdown.
    pub grace: Duration,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new(client: Client, settings: Settings, identity: &str) -> Self {
        Self {
            client,
            settings,
            identity: identity.to_owned(),
            lease: None,
            probes: None,
            wire: None,
            policy_config_map: None,
            bind_concurrency: 64,
            request_timeout: Duration::from_secs(10),
            volume_timeout: Duration::from_secs(600),
            notices_per_s: 200,
            eviction_concurrency: 16,
            evict_overfull: false,
            check_shared_nodes: true,
            grace: Duration::from_secs(15),
        }
    }
}

/// The scheduler cannot continue.
#[derive(Debug, Error)]
pub enum SchedulerError {
    /// The core's thread could not be started.
    #[error("failed to start the scheduler thread")]
    Thread(#[source] std::io::Error),
    /// The core's thread ended unexpectedly.
    #[error(
        "the scheduler thread ended unexpectedly; this is a bug; a restart recovers from the API server's state"
    )]
    Ended,
}

/// Runs the scheduler until stopped; then waits for bindings in progress and releases the lease.
///
/// # Errors
/// When the core's thread cannot be started, or ends unexpectedly.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), SchedulerError> {
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::new(&mut registry));
    let sync_status = Arc::new(SyncStatus::new(&watched_kinds(&options)));
    let (inbox, messages) = mpsc::channel(INBOX_CAPACITY);
    let (submit, actions) = mpsc::unbounded_channel();
    // Both are cancelled after the parts that depend on them have ended.
    let (election_stop, stop_serving) = (CancellationToken::new(), CancellationToken::new());
    // Dropping this future stops everything, too.
    let _guards = (election_stop.clone().drop_guard(), stop_serving.clone().drop_guard());

    let leadership = match options.lease.clone() {
        Some(candidate) => {
            candidate.campaign_guarded(options.client.clone(), election_stop.clone())
        }
        None => Leadership::alone(),
    };
    let core = new_core(&options, &sync_status, &metrics);
    let recalled = core.recalled_bindings();
    let mut ended = start_core(core, messages, submit)?;
    let limits = Limits {
        binds: options.bind_concurrency.max(1),
        request: options.request_timeout,
        volumes: options.volume_timeout,
        notices_per_s: options.notices_per_s,
    };
    let executor = ApiExecutor::new(
        options.client.clone(),
        (&options.settings.scheduler, &options.identity),
        (leadership.clone(), recalled),
        limits,
        inbox.clone(),
        Arc::clone(&metrics),
    );
    let worker = executor.clone();
    let executing = tokio::spawn(async move { worker.run(actions).await });
    let informers = Informers {
        client: options.client,
        inbox: inbox.clone(),
        metrics: Arc::clone(&metrics),
        stop: stop_serving.clone(),
    };
    start_watches(informers, options.policy_config_map, &sync_status, leadership.clone());
    serve(options.probes, options.wire, registry, &sync_status, &inbox, &stop_serving);

    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(()),
        _ = &mut ended => Err(SchedulerError::Ended),
    };
    // After this it submits no actions; those it has submitted are executed before the shutdown.
    let _ = inbox.send(Message::Stop).await;
    let finish = async {
        let _ = executing.await;
        executor.shut_down().await;
    };
    if tokio::time::timeout(options.grace, finish).await.is_err() {
        tracing::warn!(
            "bindings still in progress at shutdown; the next leader sees their outcome"
        );
    }
    election_stop.cancel();
    let mut leadership = leadership;
    while leadership.changed().await {}
    stop_serving.cancel();
    outcome
}

/// The kinds that must be listed before anything is scheduled.
fn watched_kinds(options: &Options) -> Vec<&'static str> {
    let policy = options.policy_config_map.is_some().then_some(policy_watch::CONFIG_MAPS);
    KINDS.into_iter().chain(policy).collect()
}

/// Starts the informers, and what follows leadership.
fn start_watches(
    informers: Informers,
    policy_config_map: Option<(String, String)>,
    sync_status: &Arc<SyncStatus>,
    leadership: Leadership,
) {
    let leadership_sync = LeadershipSync {
        client: informers.client.clone(),
        inbox: informers.inbox.clone(),
        sync_status: Arc::clone(sync_status),
        stop: informers.stop.clone(),
    };
    tokio::spawn(leadership_sync.run(leadership));
    if let Some((namespace, name)) = policy_config_map {
        tokio::spawn(informers.clone().run_policy_informer(namespace, name));
    }
    informers.start();
}

fn new_core(
    options: &Options,
    sync_status: &Arc<SyncStatus>,
    metrics: &Arc<Metrics>,
) -> SchedulerCore {
    let settings = options.settings.clone();
    let drains = DrainTracker::new(options.eviction_concurrency).for_scheduler(&settings.scheduler);
    SchedulerCore::new(settings, drains, Arc::clone(sync_status), Arc::clone(metrics))
        .evicting_overfull(options.evict_overfull)
        .checking_shared_nodes(options.check_shared_nodes)
}

/// Starts the thread of the core.
fn start_core(
    mut core: SchedulerCore,
    mut messages: mpsc::Receiver<Message>,
    actions: mpsc::UnboundedSender<Action>,
) -> Result<oneshot::Receiver<()>, SchedulerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(SchedulerError::Thread)?;
    let (ending, ended) = oneshot::channel();
    let began = Instant::now();
    let thread = std::thread::Builder::new().name("scheduler-core".to_owned());
    let body = move || {
        // Dropped at the end, even after a panic.
        let _ending: oneshot::Sender<()> = ending;
        let clock = || Moment {
            millis: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            date: Timestamp(jiff::Timestamp::now().as_second()),
        };
        // The executor has ended if this fails.
        let submit = |action| drop(actions.send(action));
        let running =
            self::core::event_loop::run_event_loop(&mut core, &mut messages, clock, submit);
        runtime.block_on(running);
    };
    thread.spawn(body).map_err(SchedulerError::Thread)?;
    Ok(ended)
}

fn check_ready(status: &SyncStatus) -> Result<(), String> {
    let unsynced = status.unsynced_kinds();
    match unsynced.as_slice() {
        [] => Ok(()),
        kinds => Err(format!("not listed yet: {}", kinds.join(", "))),
    }
}

/// Serves probes, endpoints and the wire protocol until stopped.
fn serve(
    probes: Option<Probes>,
    wire: Option<WireListener>,
    registry: Registry,
    sync_status: &Arc<SyncStatus>,
    inbox: &mpsc::Sender<Message>,
    stop: &CancellationToken,
) {
    if let Some(probes) = probes {
        let (status, routes) = (Arc::clone(sync_status), endpoints::router(inbox.clone()));
        let (registry, stop) = (Arc::new(registry), stop.clone());
        tokio::spawn(async move {
            probes.serve_with(move || check_ready(&status), registry, routes, stop).await;
        });
    }
    if let Some(wire) = wire {
        tokio::spawn(serve_wire(wire, inbox.clone(), stop.clone()));
    }
}

async fn serve_wire(wire: WireListener, inbox: mpsc::Sender<Message>, stop: CancellationToken) {
    let (calls, mut received) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Some(call) = received.recv().await {
            if inbox.send(Message::PermitRequested(call)).await.is_err() {
                return;
            }
        }
    });
    crate::wire::serve(wire, calls, stop).await;
}
