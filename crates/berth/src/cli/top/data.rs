//! What `berth top` knows of a fleet: read from the server, summed up for a screen.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::engine::NodeState;
use berth_api::{Decision, DecisionOutcome, Node, Ticket, TicketState, units};
use jiff::Timestamp;

use crate::cli::decisions::result;
use crate::cli::failure::Done;
use crate::cli::session::{Session, typed};

/// Decisions that are kept for the screen.
const KEPT: usize = 200;

/// Over how many seconds the rate is taken.
const RATE_OVER_S: i64 = 10;

/// One node on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// How full it is, in hundredths: the fullest of its resources.
    pub(crate) full: u64,
    /// Where it stands.
    pub(crate) state: NodeState,
}

/// What is used of what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Used.
    pub(crate) used: u64,
    /// In all.
    pub(crate) whole: u64,
}

impl Use {
    fn add(&mut self, used: u32, whole: u32) {
        self.used += u64::from(used);
        self.whole += u64::from(whole);
    }

    /// In hundredths.
    pub(crate) fn percent(self) -> u64 {
        (self.used * 100).checked_div(self.whole).unwrap_or(0)
    }
}

/// A waiting request on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The tenant.
    pub(crate) owner: String,
    /// What it asks for.
    pub(crate) asked: String,
    /// Since when.
    pub(crate) since: Timestamp,
    /// How often it was tried.
    pub(crate) tries: u64,
}

/// A decision on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    /// Its id.
    pub(crate) id: String,
    /// When.
    pub(crate) at: Timestamp,
    /// The tenant.
    pub(crate) owner: String,
    /// Whether anything was granted.
    pub(crate) granted: bool,
    /// How many were asked for.
    pub(crate) asked: u32,
    /// Where, or why not.
    pub(crate) result: String,
    /// The code of a refusal.
    pub(crate) code: Option<String>,
}

/// A fleet as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fleet {
    /// Nodes by zone, in order of name.
    pub(crate) zones: BTreeMap<String, Vec<Cell>>,
    /// How many nodes are in each state.
    pub(crate) states: BTreeMap<NodeState, usize>,
    /// Instances.
    pub(crate) instances: u64,
    /// Thousandths of a core.
    pub(crate) cpu: Use,
    /// MiB.
    pub(crate) memory: Use,
    /// MiB.
    pub(crate) disk: Use,
}

/// Everything on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The server.
    pub(crate) url: String,
    /// The fleet.
    pub(crate) fleet: Fleet,
    /// Requests that wait, the next one first.
    pub(crate) waiting: Vec<Waiting>,
    /// The latest decisions, the newest first.
    pub(crate) decisions: Vec<Decided>,
    /// When it was read.
    pub(crate) at: Timestamp,
    /// What could not be read, in one line.
    pub(crate) trouble: Option<String>,
}

impl Fleet {
    /// Sums up nodes.
    pub(crate) fn of(nodes: &[Node]) -> Self {
        let mut fleet = Self::default();
        for node in nodes {
            let (used, limits) = (&node.used, &node.limits);
            fleet.cpu.add(used.cpu_milli, limits.cpu_milli);
            fleet.memory.add(used.memory_mib, limits.memory_mib);
            fleet.disk.add(used.disk_mib, limits.disk_mib);
            fleet.instances += u64::from(node.instances);
            *fleet.states.entry(node.facts.state).or_default() += 1;
            let part = |used: u32, whole: u32| {
                Use { used: u64::from(used), whole: u64::from(whole) }.percent()
            };
            let full = part(used.memory_mib, limits.memory_mib)
                .max(part(used.cpu_milli, limits.cpu_milli))
                .max(part(used.disk_mib, limits.disk_mib));
            let zone = node.facts.zone.clone().unwrap_or_else(|| "no zone".to_owned());
            fleet.zones.entry(zone).or_default().push(Cell { full, state: node.facts.state });
        }
        fleet
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.states.values().sum()
    }
}

impl From<&Ticket> for Waiting {
    fn from(ticket: &Ticket) -> Self {
        Self {
            owner: ticket.owner.clone(),
            asked: crate::cli::queue::asked(&ticket.request),
            since: ticket.since,
            tries: ticket.tries,
        }
    }
}

impl From<&Decision> for Decided {
    fn from(decision: &Decision) -> Self {
        Self {
            id: decision.id.clone(),
            at: decision.at,
            owner: decision.owner.clone(),
            granted: decision.outcome == DecisionOutcome::Granted,
            asked: decision.asked,
            result: result(decision),
            code: decision.code.clone(),
        }
    }
}

impl Snapshot {
    /// Decisions in each second, in tenths.
    pub(crate) fn rate_tenths(&self) -> u64 {
        let now = self.at.as_second();
        let recent = self.decisions.iter().filter(|one| now - one.at.as_second() < RATE_OVER_S);
        let count = recent.count();
        let oldest = self.decisions.last().map_or(now, |one| one.at.as_second());
        // When more happened than is kept, what is kept is of a shorter time.
        let full = count == self.decisions.len() && count >= KEPT;
        let over = if full { (now - oldest).max(1) } else { RATE_OVER_S };
        u64::try_from(count).unwrap_or(0) * 10 / over.unsigned_abs()
    }

    /// Refusals by code among what is kept, most first.
    pub(crate) fn refusals(&self) -> Vec<(&str, usize)> {
        let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
        for code in self.decisions.iter().filter_map(|one| one.code.as_deref()) {
            *codes.entry(code).or_default() += 1;
        }
        let mut codes: Vec<(&str, usize)> = codes.into_iter().collect();
        codes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        codes
    }

    /// Takes in decisions that were read; those that are known are not taken twice.
    fn take(&mut self, decisions: &[Decision]) {
        let new: Vec<Decided> = decisions
            .iter()
            .map(Decided::from)
            .filter(|one| self.decisions.iter().all(|known| known.id != one.id))
            .collect();
        self.decisions.extend(new);
        self.decisions.sort_by_key(|one| std::cmp::Reverse(one.at));
        self.decisions.truncate(KEPT);
    }
}

/// Reads a fleet again and again.
pub(crate) struct Reader<'a> {
    session: &'a Session,
    /// What was read last.
    pub(crate) snapshot: Snapshot,
    /// How long it took to read all nodes.
    took: Duration,
    read_nodes_at: Option<std::time::Instant>,
}

impl<'a> Reader<'a> {
    /// A reader that has read nothing yet.
    pub(crate) fn new(session: &'a Session) -> Self {
        let url = session.client.url().to_owned();
        let snapshot = Snapshot { url, ..Snapshot::default() };
        Self { session, snapshot, took: Duration::ZERO, read_nodes_at: None }
    }

    /// Reads what may have changed.
    #[allow(clippy::disallowed_methods, reason = "a screen shows how time passes")]
    pub(crate) async fn read(&mut self) -> Done {
        let session = self.session;
        self.snapshot.at = Timestamp::now();
        // A large fleet is read less often than it takes to read it.
        let due = self.read_nodes_at.is_none_or(|at| at.elapsed() > self.took * 5);
        if due {
            let began = std::time::Instant::now();
            let page = session.list("/v1/nodes", &[], None).await?;
            self.snapshot.fleet = Fleet::of(&typed(&page.items)?);
            (self.took, self.read_nodes_at) = (began.elapsed(), Some(began));
        }
        let page = session.list("/v1/queue", &[], Some(100)).await?;
        let tickets: Vec<Ticket> = typed(&page.items)?;
        let waiting = tickets.iter().filter(|ticket| ticket.state == TicketState::Waiting);
        self.snapshot.waiting = waiting.map(Waiting::from).collect();
        match session.list("/v1/decisions", &[], Some(100)).await {
            Ok(page) => self.snapshot.take(&typed(&page.items)?),
            // A server that keeps no record of decisions has a fleet all the same.
            Err(failure) if failure.is_not_found() => {}
            Err(failure) => return Err(failure),
        }
        self.snapshot.trouble = None;
        Ok(())
    }
}

/// An amount in words, whatever its size.
pub(crate) fn amount(amount: u64, text: fn(i64) -> String) -> String {
    text(i64::try_from(amount).unwrap_or(i64::MAX))
}

/// How CPU is written.
pub(crate) const CPU: fn(i64) -> String = units::cpu;

/// How memory and disk are written.
pub(crate) const SIZE: fn(i64) -> String = units::size;
