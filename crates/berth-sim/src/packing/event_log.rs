//! The event log of a live server as a trace: what really arrived, and when it ended. Rules between
//! instances are not in it: CPU, memory and disk are replayed, as in other traces.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use berth_engine::{Amounts, NodeFacts, NodeState};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::fleet::FleetNode;
use super::record::{Damage, ReadError, open};
use super::trace::{Action, Demand, Trace, TraceBuilder, TraceEvent};

/// How much of a malformed line is shown.
const SHOWN_CHARACTERS: usize = 60;

/// A trace and the nodes that its log tells of, put together event by event.
#[derive(Default)]
pub struct LogTrace {
    builder: TraceBuilder,
    nodes: BTreeMap<String, NodeFacts>,
    start: Option<Timestamp>,
}

/// One event as `berth events -o json` prints it.
#[derive(Deserialize)]
struct LoggedEvent {
    at: Timestamp,
    kind: String,
    #[serde(default)]
    body: Value,
}

/// A page of events, as `berth events -o json` prints it without `--follow`.
#[derive(Deserialize)]
struct LoggedPage {
    items: Vec<LoggedEvent>,
}

/// The part of an instance event that matters here.
#[derive(Deserialize)]
struct InstanceEvent {
    instance_id: String,
    role: String,
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    resources: Option<Amounts>,
}

#[derive(Deserialize)]
struct NodeChanged {
    facts: NodeFacts,
}

#[derive(Deserialize)]
struct NodeStateEvent {
    node_id: String,
    state: NodeState,
}

#[derive(Deserialize)]
struct NodeRemoved {
    node_id: String,
}

impl LogTrace {
    /// Adds an event, in the order of the log. Kinds that do not concern a replay are left out.
    ///
    /// # Errors
    /// Says what was expected.
    pub fn add(&mut self, at: Timestamp, kind: &str, body: &Value) -> Result<(), String> {
        let start = *self.start.get_or_insert(at);
        let latest = self.builder.trace.events.last().map_or(0, |event| event.time);
        // Clocks of several writers may differ a little; the order of the log counts.
        let time = u64::try_from(at.duration_since(start).as_secs()).unwrap_or(0).max(latest);
        let action = match kind {
            "node.changed" => {
                let NodeChanged { facts } = read(body)?;
                self.nodes.insert(facts.id.as_str().to_owned(), facts);
                None
            }
            "node.removed" => {
                let NodeRemoved { node_id } = read(body)?;
                self.nodes.contains_key(&node_id).then_some(Action::NodeLost(node_id))
            }
            "node.state" => {
                let NodeStateEvent { node_id, state } = read(body)?;
                match state {
                    _ if !self.nodes.contains_key(&node_id) => None,
                    NodeState::Lost => Some(Action::NodeLost(node_id)),
                    NodeState::Active => Some(Action::NodeBack(node_id)),
                    NodeState::Cordoned
                    | NodeState::Draining
                    | NodeState::Joining
                    | NodeState::Degraded => None,
                }
            }
            "instance.allocated" | "instance.resized" | "instance.released" => {
                self.instance_event(kind, &read(body)?)?
            }
            _ => None,
        };
        if let Some(action) = action {
            self.builder.trace.events.push(TraceEvent { time, action });
        }
        Ok(())
    }

    /// Claims that only reserve a place for a migration are not arrivals, and a move is the server's own
    /// choice: the policy under test makes its own.
    fn instance_event(
        &mut self,
        kind: &str,
        event: &InstanceEvent,
    ) -> Result<Option<Action>, String> {
        if event.role != "primary" {
            return Ok(None);
        }
        let id = &event.instance_id;
        if kind == "instance.released" {
            return Ok(self.builder.end(id));
        }
        let resources = event.resources.ok_or("resources, and there are none")?;
        let demand = Demand {
            cpu_milli: resources.cpu_milli,
            memory_mib: resources.memory_mib,
            disk_mib: resources.disk_mib,
        };
        Ok(match self.builder.running(id) {
            Some(number) if kind == "instance.resized" => Some(Action::Resize(number, demand)),
            Some(_) => None,
            None => self.builder.begin(id, demand, &event.tenant),
        })
    }

    /// The trace, and the nodes in the order of their names. What the hypervisor takes for an instance is
    /// counted as the instance's own memory; a node has what it may promise.
    #[must_use]
    pub fn finish(self) -> (Trace, Vec<FleetNode>) {
        let overhead = self.nodes.values().map(|facts| facts.vmm_overhead_mib).max().unwrap_or(0);
        let mut trace = self.builder.trace;
        let with_overhead = |demand: &mut Demand| {
            demand.memory_mib = demand.memory_mib.saturating_add(overhead).min(Amounts::MAX);
        };
        trace.demands.iter_mut().for_each(with_overhead);
        for event in &mut trace.events {
            if let Action::Resize(_, demand) = &mut event.action {
                with_overhead(demand);
            }
        }
        let nodes = self
            .nodes
            .into_iter()
            .filter_map(|(name, facts)| Some(FleetNode { name, capacity: promised(&facts)? }));
        (trace, nodes.collect())
    }
}

/// What a node may promise; absent if its capacity is not known.
fn promised(facts: &NodeFacts) -> Option<Demand> {
    let capacity = facts.capacity?;
    let reserve = facts.kept_by_host();
    let part = |amount: u32, kept: u32, permille: u32| {
        let promised = u64::from(amount.saturating_sub(kept)) * u64::from(permille) / 1000;
        u32::try_from(promised).unwrap_or(u32::MAX).min(Amounts::MAX)
    };
    Some(Demand {
        cpu_milli: part(capacity.cpu_milli, reserve.cpu_milli, facts.ratios.cpu_permille),
        memory_mib: part(capacity.memory_mib, reserve.memory_mib, facts.ratios.memory_permille),
        disk_mib: part(capacity.disk_mib, reserve.disk_mib, facts.ratios.disk_permille),
    })
}

fn read<T: for<'de> Deserialize<'de>>(body: &Value) -> Result<T, String> {
    T::deserialize(body).map_err(|error| format!("the event of a server: {error}"))
}

/// Whether a file holds JSON, and so is a log and not a table.
///
/// # Errors
/// When the file cannot be read.
pub fn is_event_log(path: &Path) -> Result<bool, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let mut first = [0];
    let read = open(path)?.read(&mut first).map_err(failed)?;
    Ok(read == 1 && first[0] == b'{')
}

/// Reads a log as `berth events -o json` prints it: an event a line with `--follow`, or one page.
///
/// # Errors
/// When the file cannot be read, has no arrivals, or has a malformed line and `skip_bad` is not set.
pub fn read_event_log(path: &Path, skip_bad: bool) -> Result<(Trace, Vec<FleetNode>), ReadError> {
    let mut text = String::new();
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    open(path)?.read_to_string(&mut text).map_err(failed)?;
    let mut log = LogTrace::default();
    let mut skipped = Vec::new();
    if let Ok(page) = serde_json::from_str::<LoggedPage>(&text) {
        for (number, event) in (1..).zip(page.items) {
            let added = log.add(event.at, &event.kind, &event.body);
            added.map_err(|expected| malformed(path, number, &event.kind, expected))?;
        }
    } else {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let added = serde_json::from_str::<LoggedEvent>(line)
                .map_err(|error| format!("an event with at, kind and body: {error}"))
                .and_then(|event| log.add(event.at, &event.kind, &event.body));
            match added {
                Ok(()) => {}
                Err(expected) if skip_bad => skipped.push(damage(number, line, expected)),
                Err(expected) => return Err(malformed(path, number, line, expected)),
            }
        }
    }
    let (mut trace, nodes) = log.finish();
    if trace.demands.is_empty() {
        return Err(ReadError::Empty { path: path.to_owned(), what: "arrivals" });
    }
    trace.skipped = skipped;
    Ok((trace, nodes))
}

fn malformed(path: &Path, line: u64, value: &str, expected: String) -> ReadError {
    ReadError::Line { path: path.to_owned(), damage: damage(line, value, expected) }
}

fn damage(line: u64, value: &str, expected: String) -> Damage {
    let value = value.chars().take(SHOWN_CHARACTERS).collect();
    Damage { line, column: "event", value, expected }
}
