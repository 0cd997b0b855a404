//! The scheduler: watches the cluster, gives pods a place, and binds them to it.
//!
//! ```text
//!  informers ──► brain ──► hands ──► API server
//!                  ▲         │
//!                  └─────────┘  what became of it
//! ```
//!
//! The [`brain`] owns all that is known and decides alone, on a thread of its own; the informers and the
//! hands talk to the API server and decide nothing. One replica leads; the others keep their informers
//! warm. What must not happen twice is guarded by the API server: a binding names the pod's uid, and a
//! pod is bound once.

mod brain;
pub mod drain;
mod explain;
mod hands;
mod informers;
mod known;
mod measure;
mod messages;
mod metrics;
mod queue;
mod takeover;
mod version;
mod web;

use std::sync::Arc;
use std::time::Duration;

use berth_engine::Timestamp;
use kube::Client;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::Settings;
use crate::lease::{Candidate, Leadership};
use crate::probes::Probes;
use brain::{Brain, Moment, Status};
use drain::Drains;
pub use explain::{ExplainError, as_json, as_text, explain_once};
use hands::{Hands, Limits};
use informers::{Informers, KINDS};
pub use measure::{Measured, measure};
pub use messages::Counts;
use messages::{Message, Work};
use metrics::Metrics;

/// Messages that wait for the brain before those who send them wait, too.
const INBOX: usize = 8_192;

/// How the scheduler runs.
pub struct Options {
    /// The way to the API server; it must not repeat requests by itself.
    pub client: Client,
    /// How the cluster is scheduled.
    pub settings: Settings,
    /// Who we are, in events; no two replicas may be the same.
    pub identity: String,
    /// The lease that replicas compete for; absent: we are alone.
    pub lease: Option<Candidate>,
    /// Where health, metrics and explanations are told.
    pub probes: Option<Probes>,
    /// Where agents of virtual machines ask for permits.
    pub wire: Option<TcpListener>,
    /// Pods that are bound at once.
    pub binds_at_once: usize,
    /// How long one request to the API server may take.
    pub request_timeout: Duration,
    /// How long volumes may take to be bound or made.
    pub volume_timeout: Duration,
    /// Events and conditions that are written in a second.
    pub notices_per_s: u32,
    /// Pods that leave at once from nodes that are being emptied.
    pub evictions_at_once: usize,
    /// How long bindings that were begun may take when we stop.
    pub grace: Duration,
}

impl Options {
    /// The usual times and numbers.
    #[must_use]
    pub fn new(client: Client, settings: Settings, identity: &str) -> Self {
        Self {
            client,
            settings,
            identity: identity.to_owned(),
            lease: None,
            probes: None,
            wire: None,
            binds_at_once: 64,
            request_timeout: Duration::from_secs(10),
            volume_timeout: Duration::from_secs(600),
            notices_per_s: 200,
            evictions_at_once: 16,
            grace: Duration::from_secs(15),
        }
    }
}

/// The scheduler cannot go on.
#[derive(Debug, Error)]
pub enum SchedulerError {
    /// The thread that decides could not be started.
    #[error("the thread that decides could not be started")]
    Thread(#[source] std::io::Error),
    /// The thread that decides has ended, though nobody told it to.
    #[error(
        "the thread that decides has ended; this is a bug, and a restart continues from what the API server knows"
    )]
    Ended,
}

/// Schedules until it is told to stop; then lets bindings that were begun end, and gives the lease back.
///
/// # Errors
/// When the thread that decides cannot be started, or ends by itself.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), SchedulerError> {
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::new(&mut registry));
    let status = Arc::new(Status::waiting_for(&KINDS));
    let (inbox, told) = mpsc::channel(INBOX);
    let (orders, ordered) = mpsc::unbounded_channel();
    // These end after what they serve.
    let (elected, served) = (CancellationToken::new(), CancellationToken::new());
    // Whoever drops this future wants it to end, too.
    let _guards = (elected.clone().drop_guard(), served.clone().drop_guard());

    let leadership = match options.lease {
        Some(candidate) => candidate.stand_guarded(options.client.clone(), elected.clone()),
        None => Leadership::alone(),
    };
    let brain = Brain::new(
        options.settings.clone(),
        Drains::new(options.evictions_at_once),
        Arc::clone(&status),
        Arc::clone(&metrics),
    );
    let mut ended = think(brain, told, orders)?;
    let limits = Limits {
        binds: options.binds_at_once.max(1),
        request: options.request_timeout,
        volumes: options.volume_timeout,
        notices_per_s: options.notices_per_s,
    };
    let hands = Hands::new(
        options.client.clone(),
        (&options.settings.scheduler, &options.identity),
        leadership.clone(),
        limits,
        inbox.clone(),
        Arc::clone(&metrics),
    );
    let worker = hands.clone();
    let working = tokio::spawn(async move { worker.work(ordered).await });
    let (client, metrics) = (options.client.clone(), Arc::clone(&metrics));
    Informers { client, brain: inbox.clone(), metrics, stop: served.clone() }.start();
    let follower = takeover::Follower {
        client: options.client,
        brain: inbox.clone(),
        status: Arc::clone(&status),
        stop: served.clone(),
    };
    tokio::spawn(follower.follow(leadership.clone()));
    serve(options.probes, options.wire, registry, &status, &inbox, &served);

    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(()),
        _ = &mut ended => Err(SchedulerError::Ended),
    };
    // It hands out nothing more; what it has handed out is seen by the hands before they finish.
    let _ = inbox.send(Message::Stop).await;
    let finish = async {
        let _ = working.await;
        hands.finish().await;
    };
    if tokio::time::timeout(options.grace, finish).await.is_err() {
        tracing::warn!(
            "bindings that were begun have not ended; what became of them is seen later"
        );
    }
    elected.cancel();
    let mut leadership = leadership;
    while leadership.changed().await {}
    served.cancel();
    outcome
}

/// Starts the thread that decides.
fn think(
    mut brain: Brain,
    mut told: mpsc::Receiver<Message>,
    orders: mpsc::UnboundedSender<Work>,
) -> Result<oneshot::Receiver<()>, SchedulerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(SchedulerError::Thread)?;
    let (ending, ended) = oneshot::channel();
    let began = Instant::now();
    let thread = std::thread::Builder::new().name("brain".to_owned());
    let body = move || {
        // Dropped at the end, also by a panic.
        let _ending: oneshot::Sender<()> = ending;
        let clock = || Moment {
            millis: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            date: Timestamp(jiff::Timestamp::now().as_second()),
        };
        // When the hands have ended, nothing is wanted of them.
        let hand_out = |work| drop(orders.send(work));
        runtime.block_on(brain::drive::drive(&mut brain, &mut told, clock, hand_out));
    };
    thread.spawn(body).map_err(SchedulerError::Thread)?;
    Ok(ended)
}

fn is_ready(status: &Status) -> Result<(), String> {
    let missing = status.missing();
    match missing.as_slice() {
        [] => Ok(()),
        missing => Err(format!("not listed yet: {}", missing.join(", "))),
    }
}

/// Answers whoever asks us, until it is told to stop.
fn serve(
    probes: Option<Probes>,
    wire: Option<TcpListener>,
    registry: Registry,
    status: &Arc<Status>,
    brain: &mpsc::Sender<Message>,
    stop: &CancellationToken,
) {
    if let Some(probes) = probes {
        let (status, answers) = (Arc::clone(status), web::Answers::new(brain.clone()));
        let routes = Arc::new(move |request: &_| answers.answer(request));
        let (registry, stop) = (Arc::new(registry), stop.clone());
        tokio::spawn(async move {
            probes.serve_with(move || is_ready(&status), registry, Some(routes), stop).await;
        });
    }
    if let Some(listener) = wire {
        tokio::spawn(serve_wire(listener, brain.clone(), stop.clone()));
    }
}

async fn serve_wire(listener: TcpListener, brain: mpsc::Sender<Message>, stop: CancellationToken) {
    let (asked, mut asking) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Some(asked) = asking.recv().await {
            if brain.send(Message::Permit(asked)).await.is_err() {
                return;
            }
        }
    });
    crate::wire::serve(listener, asked, stop).await;
}
