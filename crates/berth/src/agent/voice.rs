//! The agent's side of the conversation with the server.
//!
//! Says what is on the node, hears what should be, and takes the steps that only a request can
//! take: registering, binding what is held, giving up what failed. It starts and stops nothing.

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

use super::facts::FactSource;
use super::keeper::{Orders, Report};
use super::link::Link;
use super::notice;
use super::say::say;
use super::volumes::Mover;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How soon to ask again about an instance that an answer left out.
const DOUBT: Duration = Duration::from_millis(2_200);
/// Least time between two signs of life, whatever happens.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// A stream on which nothing came for so long is opened anew: it may have broken unnoticed.
const STREAM_SILENCE: Duration = Duration::from_secs(300);
/// How often facts are looked at anew.
const FACTS_EVERY: Duration = Duration::from_secs(60);

/// Which instances should be where they are, as far as it matters for waking up.
type Gist = Vec<(InstanceId, i64, ClaimState)>;

/// The conversation.
pub(super) struct Voice {
    link: Link,
    /// What the stream is opened with; replaced when the link is.
    clients: watch::Sender<Client>,
    facts: FactSource,
    node: NodeId,
    reports: watch::Receiver<Report>,
    orders: mpsc::Sender<Orders>,
    gist: watch::Sender<Gist>,
    wake: Arc<Notify>,
    /// The file that says that the node will be taken away.
    reclaim_file: Option<PathBuf>,
    mover: Mover,
    registered: bool,
    failures: u32,
}

/// What a voice is made of.
pub(super) struct Parts {
    /// How the server is reached.
    pub(super) link: Link,
    /// What the node is.
    pub(super) facts: FactSource,
    /// What the keeper has to say.
    pub(super) reports: watch::Receiver<Report>,
    /// Where answers go.
    pub(super) orders: mpsc::Sender<Orders>,
    /// The file that says that the node will be taken away.
    pub(super) reclaim_file: Option<PathBuf>,
    /// What copies volumes.
    pub(super) volume_command: Option<String>,
}

impl Voice {
    /// A voice that has said nothing yet.
    pub(super) fn new(parts: Parts) -> Self {
        let node = parts.facts.node().clone();
        let wake = Arc::new(Notify::new());
        let mover = Mover::new(node.clone(), parts.volume_command, Arc::clone(&wake));
        Self {
            clients: watch::Sender::new(parts.link.client()),
            link: parts.link,
            facts: parts.facts,
            node,
            reports: parts.reports,
            orders: parts.orders,
            gist: watch::Sender::new(Vec::new()),
            wake,
            reclaim_file: parts.reclaim_file,
            mover,
            registered: false,
            failures: 0,
        }
    }

    /// Speaks until told to stop, then says what is left to say.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let listening = tokio::spawn(listen(
            self.clients.subscribe(),
            self.node.clone(),
            self.gist.subscribe(),
            Arc::clone(&self.wake),
        ));
        let noticing =
            tokio::spawn(notice::watch(self.reclaim_file.clone(), Arc::clone(&self.wake)));
        let mut facts_due = interval_at(Instant::now() + FACTS_EVERY, FACTS_EVERY);
        while !stop.is_cancelled() {
            let pause = match self.round().await {
                Ok(next) => {
                    if self.failures > 0 {
                        say!("the server at {} answers again", self.link.url());
                    }
                    self.failures = 0;
                    next
                }
                Err(error) => self.after(&error),
            };
            let healthy = self.failures == 0;
            // While the server is away, news do not shorten the wait.
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.reports.changed(), if healthy => sleep(LEAST_PAUSE).await,
                () = self.wake.notified(), if healthy => sleep(LEAST_PAUSE).await,
                _ = facts_due.tick() => self.facts.look_again(),
                () = stop.cancelled() => {}
            }
        }
        listening.abort();
        noticing.abort();
        // Best effort: whatever is not said now, the next agent finds out.
        let _ = timeout(Duration::from_secs(5), self.round()).await;
    }

    /// Registers if need be, gives up what failed, gives a sign of life, binds what is held.
    async fn round(&mut self) -> Result<Duration, ClientError> {
        let client = self.link.client();
        if !self.registered {
            client.put_node(self.facts.current()).await?;
            self.facts.said();
            self.registered = true;
            say!("node {} is registered at {}", self.node, self.link.url());
        }
        let Report { words, migrations, in_doubt } = self.reports.borrow_and_update().clone();
        for report in &migrations {
            tell(&client, &self.node, report).await?;
        }
        for word in &words {
            if let (Some(reason), Some(fence)) = (&word.give_up, word.running.fence) {
                give_up(&client, word.running.instance, fence, reason).await?;
            }
        }
        let facts = self.facts.changed().map(|facts| Box::new(facts.clone()));
        let running: Vec<RunningInstance> = words.into_iter().map(|word| word.running).collect();
        let reclaim = notice::read(self.reclaim_file.as_deref());
        let beat = Heartbeat { facts, running: Some(running), reclaim };
        let mut heard = client.heartbeat(&self.node, &beat).await?;
        if beat.facts.is_some() {
            self.facts.said();
        }
        let next = Duration::from_secs(u64::from(heard.next_s.clamp(1, 300)));
        // What a migration needs next is known soon after its last step.
        let soon = in_doubt || !heard.migrations.is_empty();
        let next = if soon { next.min(DOUBT) } else { next };
        self.mover.take(&client, std::mem::take(&mut heard.volume_moves));
        let gist = heard.assignments.iter().map(|one| (one.instance, one.fence, one.state));
        self.gist.send_replace(gist.collect());
        let orders = take_up(&client, heard, beat.running.as_deref().unwrap_or_default()).await?;
        // A keeper that is gone means that the agent is about to end.
        let _ = self.orders.send(orders).await;
        Ok(next)
    }

    /// Reads token and certificates again.
    fn refresh(&mut self) {
        self.link.refresh();
        self.clients.send_replace(self.link.client());
    }

    /// What follows from a round that failed: how long to wait.
    fn after(&mut self, error: &ClientError) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let mut wait = jittered(self.failures);
        match status_of(error) {
            Some(401) => {
                say!(
                    "the server does not accept the token: {}; give a valid one for an agent of \
                     node {} with --token-file or BERTH_TOKEN",
                    chain(error),
                    self.node
                );
                self.refresh();
                wait = LONGEST_WAIT;
            }
            // Nodes of others are hidden from an agent's token: they look as if they were not there.
            Some(status @ (403 | 404)) if status == 403 || !self.registered => {
                say!(
                    "the token may not speak for node {}: {}; make one with role agent that is \
                     bound to this node",
                    self.node,
                    chain(error)
                );
                self.refresh();
                wait = LONGEST_WAIT;
            }
            Some(404) => {
                say!("the server no longer knows node {}; it is registered again", self.node);
                self.registered = false;
                wait = LEAST_PAUSE;
            }
            // Each kind of trouble is told once, not at every try.
            _ if self.failures == 1 => say!("{}; what runs is kept", chain(error)),
            _ => {}
        }
        match error {
            ClientError::Problem { retry_after: Some(seconds), .. } => {
                wait.max(Duration::from_secs(*seconds).min(LONGEST_WAIT))
            }
            _ => wait,
        }
    }
}

/// Binds what is held, and leaves out what cannot be bound: the next answer says what it is now.
async fn take_up(
    client: &Client,
    heard: HeartbeatResponse,
    reported: &[RunningInstance],
) -> Result<Orders, ClientError> {
    let mut orders = Orders { migrations: heard.migrations, ..Orders::default() };
    for report in heard.reported {
        // That a claim is not known may only mean that this server lags behind another; the list
        // decides then. A higher fence is never hearsay.
        let Some(code) = report.refused.filter(|code| code == "stale_fence") else { continue };
        let said = reported.iter().find(|one| one.instance == report.instance);
        if let Some(fence) = said.and_then(|one| one.fence) {
            say!("the report on {} was refused: {code}", report.instance);
            orders.refused.push((report.instance, fence));
        }
    }
    for mut assignment in heard.assignments {
        if assignment.state == ClaimState::Held {
            bind(client, &mut assignment).await?;
        }
        orders.assignments.push(assignment);
    }
    Ok(orders)
}

/// Takes a held claim up. One that is refused stays as it was, and is not started.
async fn bind(client: &Client, assignment: &mut Assignment) -> Result<(), ClientError> {
    match client.bind(assignment.instance, assignment.fence).await {
        Ok(standing) => {
            assignment.state = standing.state.unwrap_or(ClaimState::Held);
            Ok(())
        }
        Err(error) if is_refusal(&error) => {
            say!("{} cannot be bound: {}", assignment.instance, chain(&error));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Says how far a migration is. One that was called off or is over meanwhile is settled by the next
/// answer.
async fn tell(client: &Client, node: &NodeId, report: &MigrationReport) -> Result<(), ClientError> {
    match client.report_migration(node, report).await {
        Ok(_) => Ok(()),
        Err(error) if is_refusal(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Releases the claim of an instance that is no more.
async fn give_up(
    client: &Client,
    instance: InstanceId,
    fence: i64,
    reason: &str,
) -> Result<(), ClientError> {
    let release = ReleaseClaim {
        request_id: None,
        fence: Some(fence),
        confirmed: true,
        reason: Some(reason.chars().take(200).collect()),
    };
    match client.release(instance, &release).await {
        Ok(_) => {
            say!("{instance} is released: {reason}");
            Ok(())
        }
        // Released by somebody else already, or given away: the sign of life settles it.
        Err(error) if is_refusal(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Wakes the voice whenever what should be on the node is not what was last heard.
///
/// The events themselves are not acted on: they may be older than the last answer.
async fn listen(
    clients: watch::Receiver<Client>,
    node: NodeId,
    gist: watch::Receiver<Gist>,
    wake: Arc<Notify>,
) {
    let path = format!("/v1/nodes/{}/assignments/stream", escape(node.as_str()));
    let mut failures = 0u32;
    loop {
        let client = clients.borrow().clone();
        if let Ok(mut events) = client.events(&path, &[], None).await {
            while let Ok(Ok(Some(event))) = timeout(STREAM_SILENCE, events.next()).await {
                failures = 0;
                if tells_news(&event.data, &gist) {
                    wake.notify_one();
                }
            }
        }
        failures = failures.saturating_add(1);
        sleep(jittered(failures)).await;
    }
}

fn tells_news(data: &str, gist: &watch::Receiver<Gist>) -> bool {
    let Ok(list) = serde_json::from_str::<berth_api::AssignmentList>(data) else { return true };
    let told: Gist =
        list.assignments.iter().map(|one| (one.instance, one.fence, one.state)).collect();
    *gist.borrow() != told
}

/// Whether the server understood and said no, so that the same request would fail again.
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

/// An error with its causes, on one line.
fn chain(error: &ClientError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Twice as long with every failure, and never the same for two agents.
fn jittered(failures: u32) -> Duration {
    let full = (FIRST_WAIT * (1 << failures.saturating_sub(1).min(5))).min(LONGEST_WAIT);
    let half = u64::try_from(full.as_millis() / 2).unwrap_or(u64::MAX);
    Duration::from_millis(half + fastrand::u64(0..=half))
}
