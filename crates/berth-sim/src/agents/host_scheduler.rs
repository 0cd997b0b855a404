//! All hosts, each speaking when it is time to, and never too many at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use berth_api::Heard;
use berth_client::{Client, ClientError};
use berth_engine::{NodeFacts, NodeId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::host::Host;
use super::pace::Pace;
use crate::fleet::SeededRng;

/// Requests under way at the same time.
const MAX_REQUESTS: usize = 16;
/// How often a host speaks at least, unless there are very many.
const USUAL_INTERVAL: Duration = Duration::from_secs(15);
/// The longest that a host may be silent without being missed.
const MAX_INTERVAL: Duration = Duration::from_secs(45);
/// Hosts for which the usual interval makes about 70 requests a second.
const USUAL_HOSTS: u32 = 1000;

/// Something that happens to a host from outside.
pub(super) enum HostCommand {
    /// Something is to be started or stopped there.
    Wake(NodeId),
    /// It falls silent for a while, and may lose what runs on it.
    Silence { node: NodeId, how_long: Duration, crash: bool },
    /// What is known of it changes.
    Change { node: NodeId, change: Box<dyn FnOnce(&mut NodeFacts) + Send> },
}

impl HostCommand {
    const fn node(&self) -> &NodeId {
        match self {
            Self::Wake(node) | Self::Silence { node, .. } | Self::Change { node, .. } => node,
        }
    }
}

/// One host's place in the crew.
struct HostEntry {
    /// Absent while it speaks.
    host: Option<Host>,
    due: Instant,
    /// What happened while it spoke.
    commands: Vec<HostCommand>,
}

/// All hosts.
pub(super) struct HostScheduler {
    client: Client,
    entries: Vec<HostEntry>,
    by_node: BTreeMap<NodeId, usize>,
    /// Who is due when. An entry whose time is not that of the seat is out of date.
    queue: BinaryHeap<Reverse<(Instant, usize)>>,
    interval: Duration,
}

impl HostScheduler {
    /// A crew whose hosts first speak spread over one interval.
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

    /// Plays until everyone who gives orders is gone.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<HostCommand>) {
        let mut requests: JoinSet<(usize, Host, Result<Heard, ClientError>)> = JoinSet::new();
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

    /// The host that is due, if the foremost entry is not out of date.
    fn take_due_host(&mut self) -> Option<(usize, Host)> {
        let Reverse((due, number)) = self.queue.pop()?;
        let entry = self.entries.get_mut(number)?;
        if entry.due != due {
            return None;
        }
        Some((number, entry.host.take()?))
    }

    fn return_host(&mut self, number: usize, mut host: Host, answer: Result<Heard, ClientError>) {
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
            // A little later, so that one word covers a batch.
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

/// Gives a sign of life for a host, and registers it where the server does not know it.
async fn send_heartbeat(
    client: Client,
    number: usize,
    mut host: Host,
) -> (usize, Host, Result<Heard, ClientError>) {
    for report in host.reports(Instant::now()) {
        // What was called off meanwhile, or is over, the answer tells.
        let _ = client.report_migration(&host.facts.id, &report).await;
    }
    let heartbeat = host.heartbeat(Instant::now());
    let mut answer = client.heartbeat(&host.facts.id, &heartbeat).await;
    let unknown =
        matches!(&answer, Err(ClientError::Problem { problem, .. }) if problem.status == 404);
    if unknown && client.put_node(&host.facts).await.is_ok() {
        answer = client.heartbeat(&host.facts.id, &heartbeat).await;
    }
    if answer.is_ok() {
        for (instance, asked) in host.permit_requests(Instant::now()) {
            // What is refused is asked for again, or is gone by then.
            if let Ok(permit) = client.ask_permit(instance, &asked).await {
                host.apply_permit(&permit);
            }
        }
    }
    (number, host, answer)
}
