//! Sends the heartbeats of all hosts when they are due, with a limit on concurrent requests.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use berth_api::HeartbeatResponse;
use berth_client::{Client, ClientError};
use berth_engine::{NodeFacts, NodeId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::host::Host;
use super::pace::Pace;
use crate::fleet::SeededRng;

/// Concurrent requests.
const MAX_REQUESTS: usize = 16;
/// The heartbeat interval, unless there are very many hosts.
const USUAL_INTERVAL: Duration = Duration::from_secs(15);
/// The longest interval that does not make a host count as silent.
const MAX_INTERVAL: Duration = Duration::from_secs(45);
/// Hosts for which the usual interval makes about 70 requests a second.
const USUAL_HOSTS: u32 = 1000;

/// A command to a host.
pub(super) enum HostCommand {
    /// Send a heartbeat soon: something is to be started or stopped there.
    Wake(NodeId),
    /// Be silent for a while, with or without losing its instances.
    Silence { node: NodeId, how_long: Duration, crash: bool },
    /// Change its facts.
    Change { node: NodeId, change: Box<dyn FnOnce(&mut NodeFacts) + Send> },
}

impl HostCommand {
    const fn node(&self) -> &NodeId {
        match self {
            Self::Wake(node) | Self::Silence { node, .. } | Self::Change { node, .. } => node,
        }
    }
}

/// One host and when it is due.
struct HostEntry {
    /// Absent while its heartbeat is being sent.
    host: Option<Host>,
    due: Instant,
    /// Commands that arrived while its heartbeat was being sent.
    commands: Vec<HostCommand>,
}

/// All hosts.
pub(super) struct HostScheduler {
    client: Client,
    entries: Vec<HostEntry>,
    by_node: BTreeMap<NodeId, usize>,
    /// Hosts by due time. An item whose time differs from the entry's is out of date.
    queue: BinaryHeap<Reverse<(Instant, usize)>>,
    interval: Duration,
}

impl HostScheduler {
    /// Spreads the first heartbeats over one interval.
    pub(super) fn new(client: Client, facts: Vec<NodeFacts>, seed: u64, pace: Pace) -> Self {
        let count = u32::try_from(facts.len()).unwrap_or(u32::MAX);
        let interval = (USUAL_INTERVAL * count / USUAL_HOSTS).clamp(USUAL_INTERVAL, MAX_INTERVAL);
        let mut rng = SeededRng::new(seed ^ 0xc4e3);
        let start = Instant::now();
        let mut scheduler = Self {
            client,
            by_node: facts.iter().map(|facts| facts.id.clone()).zip(0..).collect(),
            entries: Vec::with_capacity(facts.len()),
            queue: BinaryHeap::new(),
            interval,
        };
        for facts in facts {
            let spread = rng.below(u64::try_from(interval.as_millis()).unwrap_or(0));
            let due = start + Duration::from_millis(spread);
            scheduler.queue.push(Reverse((due, scheduler.entries.len())));
            let host = Some(Host::new(facts, rng.draw(), pace));
            scheduler.entries.push(HostEntry { host, due, commands: Vec::new() });
        }
        scheduler
    }

    /// Runs until all senders of commands are dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<HostCommand>) {
        let mut requests: JoinSet<(usize, Host, Result<HeartbeatResponse, ClientError>)> =
            JoinSet::new();
        loop {
            let next = self.queue.peek().map_or_else(Instant::now, |Reverse((due, _))| *due);
            let room = requests.len() < MAX_REQUESTS && !self.queue.is_empty();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.apply_command(command),
                    None => return,
                },
                Some(done) = requests.join_next(), if !requests.is_empty() => {
                    if let Ok((number, host, answer)) = done {
                        self.return_host(number, host, answer);
                    }
                }
                () = sleep_until(next), if room => {
                    if let Some((number, host)) = self.take_due_host() {
                        requests.spawn(send_heartbeat(self.client.clone(), number, host));
                    }
                }
            }
        }
    }

    /// The host that is due, if the first item of the queue is not out of date.
    fn take_due_host(&mut self) -> Option<(usize, Host)> {
        let Reverse((due, number)) = self.queue.pop()?;
        let entry = self.entries.get_mut(number)?;
        if entry.due != due {
            return None;
        }
        Some((number, entry.host.take()?))
    }

    fn return_host(
        &mut self,
        number: usize,
        mut host: Host,
        answer: Result<HeartbeatResponse, ClientError>,
    ) {
        let now = Instant::now();
        let due = match answer {
            Ok(response) => {
                host.failures = 0;
                host.apply_response(&response, now);
                host.next_heartbeat(now, self.interval)
            }
            Err(error) => {
                tracing::debug!(%error, node = %host.facts.id, "heartbeat of a simulated host failed");
                host.failures = host.failures.saturating_add(1);
                now + Duration::from_secs(1 << host.failures.min(4))
            }
        };
        let Some(entry) = self.entries.get_mut(number) else { return };
        entry.host = Some(host);
        let waiting = std::mem::take(&mut entry.commands);
        self.schedule(number, due);
        for command in waiting {
            self.apply_command(command);
        }
    }

    fn schedule(&mut self, number: usize, due: Instant) {
        if let Some(entry) = self.entries.get_mut(number) {
            entry.due = due;
            self.queue.push(Reverse((due, number)));
        }
    }

    fn apply_command(&mut self, command: HostCommand) {
        let Some(&number) = self.by_node.get(command.node()) else { return };
        let Some(entry) = self.entries.get_mut(number) else { return };
        let Some(host) = &mut entry.host else {
            entry.commands.push(command);
            return;
        };
        let now = Instant::now();
        let due = match command {
            HostCommand::Wake(_) if host.silent_until(now).is_some() => entry.due,
            // A little later, so that one heartbeat covers a batch.
            HostCommand::Wake(_) => entry.due.min(now + Duration::from_millis(150)),
            HostCommand::Silence { how_long, crash, .. } => {
                host.fall_silent(now + how_long, crash);
                now + how_long
            }
            HostCommand::Change { change, .. } => {
                host.change(change);
                host.silent_until(now).unwrap_or(now)
            }
        };
        if due != entry.due {
            self.schedule(number, due);
        }
    }
}

/// Sends the heartbeat of a host, and registers the host if the server does not know it.
async fn send_heartbeat(
    client: Client,
    number: usize,
    mut host: Host,
) -> (usize, Host, Result<HeartbeatResponse, ClientError>) {
    for report in host.reports(Instant::now()) {
        // A migration that was cancelled or is finished is missing in the next answer.
        let _ = client.report_migration(&host.facts.id, &report).await;
    }
    let heartbeat = host.heartbeat(Instant::now());
    let mut answer = client.heartbeat(&host.facts.id, &heartbeat).await;
    let unknown =
        matches!(&answer, Err(ClientError::Problem { problem, .. }) if problem.status == 404);
    if unknown && client.report_node(&host.facts).await.is_ok() {
        answer = client.heartbeat(&host.facts.id, &heartbeat).await;
    }
    if answer.is_ok() {
        for (instance, asked) in host.permit_requests(Instant::now()) {
            // A refused permit is requested again with a later heartbeat.
            if let Ok(permit) = client.ask_permit(instance, &asked).await {
                host.apply_permit(&permit);
            }
        }
    }
    (number, host, answer)
}
