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
use crate::fleet::Numbers;

/// Requests under way at the same time.
const AT_ONCE: usize = 16;
/// How often a host speaks at least, unless there are very many.
const USUAL: Duration = Duration::from_secs(15);
/// The longest that a host may be silent without being missed.
const LONGEST: Duration = Duration::from_secs(45);
/// Hosts for which the usual interval makes about 70 requests a second.
const USUAL_HOSTS: u32 = 1000;

/// Something that happens to a host from outside.
pub(super) enum Order {
    /// Something is to be started or stopped there.
    Wake(NodeId),
    /// It falls silent for a while, and may lose what runs on it.
    Silence { node: NodeId, how_long: Duration, crash: bool },
    /// What is known of it changes.
    Change { node: NodeId, change: Box<dyn FnOnce(&mut NodeFacts) + Send> },
}

impl Order {
    const fn node(&self) -> &NodeId {
        match self {
            Self::Wake(node) | Self::Silence { node, .. } | Self::Change { node, .. } => node,
        }
    }
}

/// One host's place in the crew.
struct Seat {
    /// Absent while it speaks.
    host: Option<Host>,
    due: Instant,
    /// What happened while it spoke.
    orders: Vec<Order>,
}

/// All hosts.
pub(super) struct Crew {
    client: Client,
    seats: Vec<Seat>,
    by_node: BTreeMap<NodeId, usize>,
    /// Who is due when. An entry whose time is not that of the seat is out of date.
    queue: BinaryHeap<Reverse<(Instant, usize)>>,
    every: Duration,
}

impl Crew {
    /// A crew whose hosts first speak spread over one interval.
    pub(super) fn new(client: Client, facts: Vec<NodeFacts>, seed: u64, pace: Pace) -> Self {
        let count = u32::try_from(facts.len()).unwrap_or(u32::MAX);
        let every = (USUAL * count / USUAL_HOSTS).clamp(USUAL, LONGEST);
        let mut numbers = Numbers::new(seed ^ 0xc4e3);
        let start = Instant::now();
        let mut crew = Self {
            client,
            by_node: facts.iter().map(|facts| facts.id.clone()).zip(0..).collect(),
            seats: Vec::with_capacity(facts.len()),
            queue: BinaryHeap::new(),
            every,
        };
        for facts in facts {
            let spread = numbers.below(u64::try_from(every.as_millis()).unwrap_or(0));
            let due = start + Duration::from_millis(spread);
            crew.queue.push(Reverse((due, crew.seats.len())));
            let host = Some(Host::new(facts, numbers.draw(), pace));
            crew.seats.push(Seat { host, due, orders: Vec::new() });
        }
        crew
    }

    /// Plays until everyone who gives orders is gone.
    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut speaking: JoinSet<(usize, Host, Result<Heard, ClientError>)> = JoinSet::new();
        loop {
            let next = self.queue.peek().map_or_else(Instant::now, |Reverse((due, _))| *due);
            let room = speaking.len() < AT_ONCE && !self.queue.is_empty();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.take(order),
                    None => return,
                },
                Some(done) = speaking.join_next(), if !speaking.is_empty() => {
                    if let Ok((number, host, answer)) = done {
                        self.sit_down(number, host, answer);
                    }
                }
                () = sleep_until(next), if room => {
                    if let Some((number, host)) = self.stand_up() {
                        speaking.spawn(speak(self.client.clone(), number, host));
                    }
                }
            }
        }
    }

    /// The host that is due, if the foremost entry is not out of date.
    fn stand_up(&mut self) -> Option<(usize, Host)> {
        let Reverse((due, number)) = self.queue.pop()?;
        let seat = self.seats.get_mut(number)?;
        if seat.due != due {
            return None;
        }
        Some((number, seat.host.take()?))
    }

    fn sit_down(&mut self, number: usize, mut host: Host, answer: Result<Heard, ClientError>) {
        let now = Instant::now();
        let due = match answer {
            Ok(heard) => {
                host.failures = 0;
                host.heard(&heard, now);
                host.next(now, self.every)
            }
            Err(error) => {
                tracing::debug!(%error, node = %host.facts.id, "a simulated host was not heard");
                host.failures = host.failures.saturating_add(1);
                now + Duration::from_secs(1 << host.failures.min(4))
            }
        };
        let Some(seat) = self.seats.get_mut(number) else { return };
        seat.host = Some(host);
        let waiting = std::mem::take(&mut seat.orders);
        self.schedule(number, due);
        for order in waiting {
            self.take(order);
        }
    }

    fn schedule(&mut self, number: usize, due: Instant) {
        if let Some(seat) = self.seats.get_mut(number) {
            seat.due = due;
            self.queue.push(Reverse((due, number)));
        }
    }

    fn take(&mut self, order: Order) {
        let Some(&number) = self.by_node.get(order.node()) else { return };
        let Some(seat) = self.seats.get_mut(number) else { return };
        let Some(host) = &mut seat.host else {
            seat.orders.push(order);
            return;
        };
        let now = Instant::now();
        let due = match order {
            Order::Wake(_) if host.silent_until(now).is_some() => seat.due,
            // A little later, so that one word covers a batch.
            Order::Wake(_) => seat.due.min(now + Duration::from_millis(150)),
            Order::Silence { how_long, crash, .. } => {
                host.fall_silent(now + how_long, crash);
                now + how_long
            }
            Order::Change { change, .. } => {
                host.change(change);
                host.silent_until(now).unwrap_or(now)
            }
        };
        if due != seat.due {
            self.schedule(number, due);
        }
    }
}

/// Gives a sign of life for a host, and registers it where the server does not know it.
async fn speak(
    client: Client,
    number: usize,
    mut host: Host,
) -> (usize, Host, Result<Heard, ClientError>) {
    for report in host.reports(Instant::now()) {
        // What was called off meanwhile, or is over, the answer tells.
        let _ = client.report_migration(&host.facts.id, &report).await;
    }
    let beat = host.beat(Instant::now());
    let mut answer = client.heartbeat(&host.facts.id, &beat).await;
    let unknown =
        matches!(&answer, Err(ClientError::Problem { problem, .. }) if problem.status == 404);
    if unknown && client.put_node(&host.facts).await.is_ok() {
        answer = client.heartbeat(&host.facts.id, &beat).await;
    }
    if answer.is_ok() {
        for (instance, asked) in host.asks(Instant::now()) {
            // What is refused is asked for again, or is gone by then.
            if let Ok(permit) = client.ask_permit(instance, &asked).await {
                host.permitted(&permit);
            }
        }
    }
    (number, host, answer)
}
