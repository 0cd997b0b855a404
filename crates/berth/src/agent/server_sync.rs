//! Synchronizes the agent with the server.
//!
//! It reports what is on the node, receives what should be, and makes the requests that follow:
//! registering the node, binding held claims, releasing failed ones. It starts and stops nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_api::engine::{InstanceId, NodeId};
use berth_api::{
    Assignment, ClaimState, Heartbeat, HeartbeatResponse, MigrationReport, ReleaseClaim,
    RunningInstance,
};
use berth_client::{Client, ClientError, escape};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::facts::FactSource;
use super::instance_manager::{DesiredState, NodeReport};
use super::load_meter::LoadMeter;
use super::volume_copier::VolumeCopier;
use super::{health_check, reclaim_notice};
use crate::cmdutil::{Failure, chain};

const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How soon to sync again about an instance that the last answer left out.
const RECHECK_INTERVAL: Duration = Duration::from_millis(2_200);
/// The least time between two heartbeats.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// A stream without events for this long is reopened: it may have broken unnoticed.
const STREAM_TIMEOUT: Duration = Duration::from_secs(300);
/// How often facts are collected again.
const FACTS_INTERVAL: Duration = Duration::from_secs(60);

/// The assignments, as far as a change of them must wake up the sync.
type AssignmentDigest = Vec<(InstanceId, i64, ClaimState)>;

/// The task that talks to the server.
pub(super) struct ServerSync {
    connection: Connection,
    /// The client of the stream; replaced when the connection is set up again.
    clients: watch::Sender<Client>,
    facts: FactSource,
    node: NodeId,
    reports: watch::Receiver<NodeReport>,
    desired: mpsc::Sender<DesiredState>,
    digest: watch::Sender<AssignmentDigest>,
    wake: Arc<Notify>,
    reclaim_file: Option<PathBuf>,
    health_command: Option<String>,
    /// Why the host works only in part, by the last check.
    degraded: watch::Sender<Option<String>>,
    copier: VolumeCopier,
    load: LoadMeter,
    registered: bool,
    failures: u32,
    /// The failure that was logged last, which is logged once and not at every attempt.
    logged: Option<String>,
}

/// The parts of a sync.
pub(super) struct SyncParts {
    pub(super) connection: Connection,
    pub(super) facts: FactSource,
    /// Reports of the instance manager.
    pub(super) reports: watch::Receiver<NodeReport>,
    /// Answers for the instance manager.
    pub(super) desired: mpsc::Sender<DesiredState>,
    /// The file that announces that the node will be taken away.
    pub(super) reclaim_file: Option<PathBuf>,
    /// The command that checks the host.
    pub(super) health_command: Option<String>,
    /// The command that copies volumes.
    pub(super) volume_command: Option<String>,
}

impl ServerSync {
    pub(super) fn new(parts: SyncParts) -> Self {
        let node = parts.facts.node().clone();
        let wake = Arc::new(Notify::new());
        let copier = VolumeCopier::new(node.clone(), parts.volume_command, Arc::clone(&wake));
        Self {
            clients: watch::Sender::new(parts.connection.client()),
            connection: parts.connection,
            facts: parts.facts,
            node,
            reports: parts.reports,
            desired: parts.desired,
            digest: watch::Sender::new(Vec::new()),
            wake,
            reclaim_file: parts.reclaim_file,
            health_command: parts.health_command,
            degraded: watch::Sender::new(None),
            copier,
            load: LoadMeter::default(),
            registered: false,
            failures: 0,
            logged: None,
        }
    }

    /// Syncs until stopped, and then once more.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let assignment_watch = tokio::spawn(watch_assignments(
            self.clients.subscribe(),
            self.node.clone(),
            self.digest.subscribe(),
            Arc::clone(&self.wake),
        ));
        let reclaim_watch =
            tokio::spawn(reclaim_notice::watch(self.reclaim_file.clone(), Arc::clone(&self.wake)));
        // Before the first heartbeat, or a degraded node would be active for a moment.
        if let Some(command) = &self.health_command {
            self.degraded.send_replace(health_check::run(command).await);
        }
        let health_watch = tokio::spawn(health_check::watch(
            self.health_command.clone(),
            self.degraded.clone(),
            Arc::clone(&self.wake),
        ));
        let mut facts_due = interval_at(Instant::now() + FACTS_INTERVAL, FACTS_INTERVAL);
        while !stop.is_cancelled() {
            let pause = match self.sync_once().await {
                Ok(next) => {
                    if self.failures > 0 {
                        tracing::info!(url = self.connection.url(), "server reachable again");
                    }
                    self.failures = 0;
                    self.logged = None;
                    next
                }
                Err(error) => self.handle_error(&error),
            };
            let healthy = self.failures == 0;
            // While the server does not answer, changes do not shorten the backoff.
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.reports.changed(), if healthy => sleep(MIN_PAUSE).await,
                () = self.wake.notified(), if healthy => sleep(MIN_PAUSE).await,
                _ = facts_due.tick() => self.facts.refresh(),
                () = stop.cancelled() => {}
            }
        }
        assignment_watch.abort();
        reclaim_watch.abort();
        health_watch.abort();
        // Best effort: the next agent reports what is not reported now.
        let _ = timeout(Duration::from_secs(5), self.sync_once()).await;
    }

    /// Registers the node if needed, releases failed claims, sends a heartbeat, and binds held claims.
    async fn sync_once(&mut self) -> Result<Duration, ClientError> {
        let client = self.connection.client();
        if !self.registered {
            client.report_node(self.facts.current()).await?;
            self.facts.mark_reported();
            self.registered = true;
            tracing::info!(node = %self.node, url = self.connection.url(), "node registered");
        }
        let NodeReport { instances, migrations, in_doubt } =
            self.reports.borrow_and_update().clone();
        for report in &migrations {
            report_migration(&client, &self.node, report).await?;
        }
        for report in &instances {
            if let (Some(reason), Some(fence)) = (&report.release, report.running.fence) {
                release(&client, report.running.instance, fence, reason).await?;
            }
        }
        let facts = self.facts.unreported().map(|facts| Box::new(facts.clone()));
        let running: Vec<RunningInstance> =
            instances.into_iter().map(|report| report.running).collect();
        let reclaim = reclaim_notice::read(self.reclaim_file.as_deref());
        let degraded = self.degraded.borrow().clone();
        let load = self.load.measure();
        let beat = Heartbeat { facts, running: Some(running), degraded, load, reclaim };
        let mut answer = client.heartbeat(&self.node, &beat).await?;
        if beat.facts.is_some() {
            self.facts.mark_reported();
        }
        let next = Duration::from_secs(u64::from(answer.next_s.clamp(1, 300)));
        // The next step of a migration follows soon after the last one.
        let soon = in_doubt || !answer.migrations.is_empty();
        let next = if soon { next.min(RECHECK_INTERVAL) } else { next };
        self.copier.set_tasks(&client, std::mem::take(&mut answer.volume_moves));
        let digest = answer.assignments.iter().map(|one| (one.instance, one.fence, one.state));
        self.digest.send_replace(digest.collect());
        let desired =
            bind_held(&client, answer, beat.running.as_deref().unwrap_or_default()).await?;
        // The instance manager is gone only when the agent is about to end.
        let _ = self.desired.send(desired).await;
        Ok(next)
    }

    /// Reads token and certificates again.
    fn refresh(&mut self) {
        self.connection.refresh();
        self.clients.send_replace(self.connection.client());
    }

    /// Logs an error, and returns how long to wait.
    fn handle_error(&mut self, error: &ClientError) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let mut wait = backoff(self.failures);
        let message = match status_of(error) {
            Some(401) => {
                self.refresh();
                wait = MAX_BACKOFF;
                "token rejected; set a valid agent token with --token-file or BERTH_TOKEN"
            }
            // Nodes of others are hidden from an agent's token: they look as if they were not there.
            Some(status @ (403 | 404)) if status == 403 || !self.registered => {
                self.refresh();
                wait = MAX_BACKOFF;
                "token not allowed for this node; create one with role agent bound to it"
            }
            Some(404) => {
                self.registered = false;
                wait = MIN_PAUSE;
                "node unknown to the server; registering it again"
            }
            _ => "sync failed; running instances are kept",
        };
        let failure = Failure::from(error).to_string();
        if self.logged.as_ref() != Some(&failure) {
            let url = self.connection.url();
            tracing::warn!(node = %self.node, url, error = failure, "{message}");
            self.logged = Some(failure);
        }
        match error {
            ClientError::Problem { retry_after: Some(seconds), .. } => {
                wait.max(Duration::from_secs(*seconds).min(MAX_BACKOFF))
            }
            _ => wait,
        }
    }
}

/// Binds held claims. One that cannot be bound keeps its state; the next answer has the current one.
async fn bind_held(
    client: &Client,
    answer: HeartbeatResponse,
    reported: &[RunningInstance],
) -> Result<DesiredState, ClientError> {
    let mut desired = DesiredState { migrations: answer.migrations, ..DesiredState::default() };
    for report in answer.reported {
        // An unknown claim may only mean that this server lags behind another, so the assignments
        // decide. A higher fence is certain.
        let Some(code) = report.refused.filter(|code| code == "stale_fence") else { continue };
        let found = reported.iter().find(|one| one.instance == report.instance);
        if let Some(fence) = found.and_then(|one| one.fence) {
            tracing::warn!(instance = %report.instance, code, "report refused");
            desired.refused.push((report.instance, fence));
        }
    }
    for mut assignment in answer.assignments {
        if assignment.state == ClaimState::Held {
            bind(client, &mut assignment).await?;
        }
        desired.assignments.push(assignment);
    }
    Ok(desired)
}

/// Binds a held claim. A refused one stays held, and is not started.
async fn bind(client: &Client, assignment: &mut Assignment) -> Result<(), ClientError> {
    match client.bind(assignment.instance, assignment.fence).await {
        Ok(standing) => {
            assignment.state = standing.state.unwrap_or(ClaimState::Held);
            Ok(())
        }
        Err(error) if is_refusal(&error) => {
            let instance = assignment.instance;
            tracing::warn!(%instance, error = chain(&error), "failed to bind claim");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Reports the progress of a migration. If it was cancelled or has ended, the next answer says so.
async fn report_migration(
    client: &Client,
    node: &NodeId,
    report: &MigrationReport,
) -> Result<(), ClientError> {
    match client.report_migration(node, report).await {
        Ok(_) => Ok(()),
        Err(error) if is_refusal(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Releases the claim of an instance that is gone.
async fn release(
    client: &Client,
    instance: InstanceId,
    fence: i64,
    reason: &str,
) -> Result<(), ClientError> {
    let release = ReleaseClaim {
        fence: Some(fence),
        confirmed: true,
        reason: Some(reason.chars().take(200).collect()),
        ..ReleaseClaim::default()
    };
    match client.release(instance, &release).await {
        Ok(_) => {
            tracing::info!(%instance, reason, "claim released");
            Ok(())
        }
        // It was released or reassigned already; the heartbeat gets the current state.
        Err(error) if is_refusal(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Wakes the sync whenever the assignments differ from the last answer.
///
/// The events only wake: they may be older than the last answer.
async fn watch_assignments(
    clients: watch::Receiver<Client>,
    node: NodeId,
    digest: watch::Receiver<AssignmentDigest>,
    wake: Arc<Notify>,
) {
    let path = format!("/v1/nodes/{}/assignments/stream", escape(node.as_str()));
    let mut failures = 0u32;
    loop {
        let client = clients.borrow().clone();
        if let Ok(mut events) = client.events(&path, &[], None).await {
            while let Ok(Ok(Some(event))) = timeout(STREAM_TIMEOUT, events.next()).await {
                failures = 0;
                if is_change(&event.data, &digest) {
                    wake.notify_one();
                }
            }
        }
        failures = failures.saturating_add(1);
        sleep(backoff(failures)).await;
    }
}

fn is_change(data: &str, digest: &watch::Receiver<AssignmentDigest>) -> bool {
    let Ok(list) = serde_json::from_str::<berth_api::AssignmentList>(data) else { return true };
    let new: AssignmentDigest =
        list.assignments.iter().map(|one| (one.instance, one.fence, one.state)).collect();
    *digest.borrow() != new
}

/// Whether the server refused the request, so that the same request would fail again.
fn is_refusal(error: &ClientError) -> bool {
    matches!(status_of(error), Some(400 | 404 | 409 | 410 | 412 | 422))
}

fn status_of(error: &ClientError) -> Option<u16> {
    match error {
        ClientError::Problem { problem, .. } => Some(problem.status),
        ClientError::Status { status, .. } => Some(*status),
        _ => None,
    }
}

/// Doubles with every failure, with jitter so that agents do not retry at the same time.
fn backoff(failures: u32) -> Duration {
    let full = (MIN_BACKOFF * (1 << failures.saturating_sub(1).min(5))).min(MAX_BACKOFF);
    let half = u64::try_from(full.as_millis() / 2).unwrap_or(u64::MAX);
    Duration::from_millis(half + fastrand::u64(0..=half))
}
