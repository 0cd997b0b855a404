//! The data of `berth top`: read from the server and summed up for a screen.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::engine::NodeState;
use berth_api::{Decision, DecisionOutcome, Node, Ticket, TicketState, units};
use jiff::Timestamp;

use crate::cli::decisions::result;
use crate::cmdutil::{CmdResult, Session, decode_all};

/// Decisions that are kept for the screen.
const KEPT: usize = 200;

/// The window of the decision rate, in seconds.
const RATE_WINDOW_S: i64 = 10;

/// One node on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeCell {
    /// The usage of its most used resource, in percent.
    pub(crate) full: u64,
    pub(crate) state: NodeState,
}

/// Usage of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) used: u64,
    pub(crate) total: u64,
}

impl Usage {
    fn new(used: u32, total: u32) -> Self {
        Self { used: u64::from(used), total: u64::from(total) }
    }

    fn add(&mut self, used: u32, total: u32) {
        self.used += u64::from(used);
        self.total += u64::from(total);
    }

    pub(crate) fn percent(self) -> u64 {
        (self.used * 100).checked_div(self.total).unwrap_or(0)
    }
}

/// A waiting request on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingRequest {
    pub(crate) tenant: String,
    pub(crate) requested: String,
    pub(crate) since: Timestamp,
    pub(crate) tries: u64,
}

/// A decision on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecentDecision {
    pub(crate) id: String,
    pub(crate) at: Timestamp,
    pub(crate) tenant: String,
    pub(crate) granted: bool,
    /// How many instances were requested.
    pub(crate) requested: u32,
    /// Where they are, or why not.
    pub(crate) result: String,
    /// The code of a refusal.
    pub(crate) code: Option<String>,
}

/// A fleet at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fleet {
    /// Nodes by zone, in order of name.
    pub(crate) zones: BTreeMap<String, Vec<NodeCell>>,
    /// The number of nodes in each state.
    pub(crate) states: BTreeMap<NodeState, usize>,
    pub(crate) instances: u64,
    /// In thousandths of a core.
    pub(crate) cpu: Usage,
    /// The cores behind what may be promised, in thousandths.
    pub(crate) cores: u64,
    /// Nodes on which more CPU is promised than their ratio allows.
    pub(crate) over_promised: usize,
    /// In MiB.
    pub(crate) memory: Usage,
    /// In MiB.
    pub(crate) disk: Usage,
}

/// Everything on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) url: String,
    pub(crate) fleet: Fleet,
    /// Waiting requests, the next one first.
    pub(crate) waiting: Vec<WaitingRequest>,
    /// The latest decisions, newest first.
    pub(crate) decisions: Vec<RecentDecision>,
    pub(crate) at: Timestamp,
    /// What could not be read, in one line.
    pub(crate) error: Option<String>,
}

impl Fleet {
    /// Sums up nodes.
    pub(crate) fn of(nodes: &[Node]) -> Self {
        let mut fleet = Self::default();
        for node in nodes {
            let (used, limits) = (&node.used, &node.limits);
            fleet.cpu.add(used.cpu_milli, limits.cpu_milli);
            let ratio = node.facts.ratios.cpu_permille;
            let cores = units::cores_of_limit(i64::from(limits.cpu_milli), ratio);
            fleet.cores += u64::try_from(cores).unwrap_or(0);
            fleet.over_promised += usize::from(used.cpu_milli > limits.cpu_milli);
            fleet.memory.add(used.memory_mib, limits.memory_mib);
            fleet.disk.add(used.disk_mib, limits.disk_mib);
            fleet.instances += u64::from(node.instances);
            *fleet.states.entry(node.facts.state).or_default() += 1;
            let percent = |used: u32, total: u32| Usage::new(used, total).percent();
            let full = percent(used.memory_mib, limits.memory_mib)
                .max(percent(used.cpu_milli, limits.cpu_milli))
                .max(percent(used.disk_mib, limits.disk_mib));
            let zone = node.facts.zone.clone().unwrap_or_else(|| "no zone".to_owned());
            fleet.zones.entry(zone).or_default().push(NodeCell { full, state: node.facts.state });
        }
        fleet
    }

    pub(crate) fn nodes(&self) -> usize {
        self.states.values().sum()
    }
}

impl From<&Ticket> for WaitingRequest {
    fn from(ticket: &Ticket) -> Self {
        Self {
            tenant: ticket.tenant.clone(),
            requested: crate::cli::queue::request_summary(&ticket.request),
            since: ticket.since,
            tries: ticket.tries,
        }
    }
}

impl From<&Decision> for RecentDecision {
    fn from(decision: &Decision) -> Self {
        Self {
            id: decision.id.clone(),
            at: decision.at,
            tenant: decision.tenant.clone(),
            granted: decision.outcome == DecisionOutcome::Granted,
            requested: decision.asked,
            result: result(decision),
            code: decision.code.clone(),
        }
    }
}

impl Snapshot {
    /// Decisions per second, in tenths.
    pub(crate) fn rate_tenths(&self) -> u64 {
        let now = self.at.as_second();
        let recent = self.decisions.iter().filter(|one| now - one.at.as_second() < RATE_WINDOW_S);
        let count = recent.count();
        let oldest = self.decisions.last().map_or(now, |one| one.at.as_second());
        // If more decisions were made than are kept, the kept ones cover a shorter time.
        let full = count == self.decisions.len() && count >= KEPT;
        let over = if full { (now - oldest).max(1) } else { RATE_WINDOW_S };
        u64::try_from(count).unwrap_or(0) * 10 / over.unsigned_abs()
    }

    /// Kept refusals by code, most frequent first.
    pub(crate) fn refusals(&self) -> Vec<(&str, usize)> {
        let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
        for code in self.decisions.iter().filter_map(|one| one.code.as_deref()) {
            *codes.entry(code).or_default() += 1;
        }
        let mut codes: Vec<(&str, usize)> = codes.into_iter().collect();
        codes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        codes
    }

    /// Adds decisions that are not known yet.
    fn add_decisions(&mut self, decisions: &[Decision]) {
        let new: Vec<RecentDecision> = decisions
            .iter()
            .map(RecentDecision::from)
            .filter(|one| self.decisions.iter().all(|known| known.id != one.id))
            .collect();
        self.decisions.extend(new);
        self.decisions.sort_by_key(|one| std::cmp::Reverse(one.at));
        self.decisions.truncate(KEPT);
    }
}

/// Reads a fleet repeatedly.
pub(crate) struct Reader<'a> {
    session: &'a Session,
    pub(crate) snapshot: Snapshot,
    /// How long it took to read all nodes.
    took: Duration,
    read_nodes_at: Option<std::time::Instant>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(session: &'a Session) -> Self {
        let url = session.client.url().to_owned();
        let snapshot = Snapshot { url, ..Snapshot::default() };
        Self { session, snapshot, took: Duration::ZERO, read_nodes_at: None }
    }

    /// Reads what may have changed.
    #[allow(clippy::disallowed_methods, reason = "a screen shows the current time")]
    pub(crate) async fn read(&mut self) -> CmdResult {
        let session = self.session;
        self.snapshot.at = Timestamp::now();
        // Reading a large fleet takes long, so it is read less often.
        let due = self.read_nodes_at.is_none_or(|at| at.elapsed() > self.took * 5);
        if due {
            let began = std::time::Instant::now();
            let page = session.get_list("/v1/nodes", &[], None).await?;
            self.snapshot.fleet = Fleet::of(&decode_all(&page.items)?);
            (self.took, self.read_nodes_at) = (began.elapsed(), Some(began));
        }
        let page = session.get_list("/v1/queue", &[], Some(100)).await?;
        let tickets: Vec<Ticket> = decode_all(&page.items)?;
        let waiting = tickets.iter().filter(|ticket| ticket.state == TicketState::Waiting);
        self.snapshot.waiting = waiting.map(WaitingRequest::from).collect();
        match session.get_list("/v1/decisions", &[], Some(100)).await {
            Ok(page) => self.snapshot.add_decisions(&decode_all(&page.items)?),
            // A server may keep no record of decisions.
            Err(failure) if failure.is_not_found() => {}
            Err(failure) => return Err(failure),
        }
        self.snapshot.error = None;
        Ok(())
    }
}

/// An amount with its unit, of any size.
pub(crate) fn amount(amount: u64, text: fn(i64) -> String) -> String {
    text(i64::try_from(amount).unwrap_or(i64::MAX))
}

pub(crate) const SIZE: fn(i64) -> String = units::size;
