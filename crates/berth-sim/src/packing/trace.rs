//! A trace: what arrived, ended, changed its size, and which nodes were lost, in order.

use std::collections::HashMap;
use std::path::Path;

use super::record::{Column, Damage, ReadError, Row, Table};

/// What an instance takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    /// CPU in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Disk in MiB.
    pub disk_mib: u32,
}

/// What happens. Instances are numbered in the order in which they arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// An instance arrives.
    Create(usize),
    /// An instance ends; without effect if it was rejected.
    Delete(usize),
    /// An instance changes its size where it is.
    Resize(usize, Demand),
    /// A node is lost, and its instances are placed on others. By its name in the file of nodes.
    NodeLost(String),
    /// A lost node is back, empty.
    NodeBack(String),
}

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Seconds from the start.
    pub time: u64,
    /// What happens.
    pub action: Action,
}

/// A trace.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In the order of replay.
    pub events: Vec<TraceEvent>,
    /// What each instance asks for when it arrives.
    pub demands: Vec<Demand>,
    /// Lines that were left out.
    pub skipped: Vec<Damage>,
}

impl Trace {
    /// Seconds from the first event to the last.
    #[must_use]
    pub fn span(&self) -> u64 {
        let time = |event: Option<&TraceEvent>| event.map_or(0, |event| event.time);
        time(self.events.last()) - time(self.events.first())
    }
}

/// What an event may be called in a file.
const ACTIONS: &str = "create, delete, resize, node-lost or node-back";

/// Reads a trace: `time,event,vm_id,cpu_milli,memory_mib` and optionally `disk_gib`. Other columns are
/// ignored, except those of GPUs, which the replay has no rule for.
///
/// # Errors
/// When the file cannot be read, has no events, or has a malformed line and `skip_bad` is not set.
pub fn read_trace(path: &Path, skip_bad: bool) -> Result<Trace, ReadError> {
    let mut table = Table::open(path)?;
    let mut reader = TraceReader {
        columns: Columns {
            time: table.required("time")?,
            event: table.required("event")?,
            id: table.required("vm_id")?,
            cpu: table.required("cpu_milli")?,
            memory: table.required("memory_mib")?,
            disk: table.optional("disk_gib"),
            gpus: table.optional("gpu_count"),
        },
        trace: Trace::default(),
        running: HashMap::new(),
    };
    let mut row = Row::default();
    while table.read(&mut row)? {
        match reader.read_event(&row) {
            Ok(event) => reader.trace.events.push(event),
            Err(damage) if skip_bad => reader.trace.skipped.push(damage),
            Err(damage) => return Err(table.damaged(damage)),
        }
    }
    if reader.trace.events.is_empty() {
        return Err(table.empty("events"));
    }
    Ok(reader.trace)
}

struct Columns {
    time: Column,
    event: Column,
    id: Column,
    cpu: Column,
    memory: Column,
    disk: Option<Column>,
    gpus: Option<Column>,
}

struct TraceReader {
    columns: Columns,
    trace: Trace,
    /// The number of each instance that has arrived and not ended.
    running: HashMap<String, usize>,
}

impl TraceReader {
    fn read_event(&mut self, row: &Row) -> Result<TraceEvent, Damage> {
        let time = row.seconds(self.columns.time)?;
        let latest = self.trace.events.last().map_or(0, |event| event.time);
        if time < latest {
            let expected = format!("{latest} or later: lines are in the order of time");
            return Err(row.damage(self.columns.time, &expected));
        }
        let id = row.name(self.columns.id)?;
        let action = match row.text(self.columns.event) {
            "create" => {
                let demand = self.read_demand(row)?;
                if self.running.contains_key(id) {
                    let expected = "an instance that is not running already";
                    return Err(row.damage(self.columns.id, expected));
                }
                let number = self.trace.demands.len();
                self.trace.demands.push(demand);
                self.running.insert(id.to_owned(), number);
                Action::Create(number)
            }
            "delete" => Action::Delete(self.running.remove(id).ok_or_else(|| {
                row.damage(self.columns.id, "an instance that was created and not yet deleted")
            })?),
            "resize" => {
                let demand = self.read_demand(row)?;
                let number = self.running.get(id).ok_or_else(|| {
                    row.damage(self.columns.id, "an instance that was created and not yet deleted")
                })?;
                Action::Resize(*number, demand)
            }
            "node-lost" => Action::NodeLost(id.to_owned()),
            "node-back" => Action::NodeBack(id.to_owned()),
            _ => return Err(row.damage(self.columns.event, ACTIONS)),
        };
        Ok(TraceEvent { time, action })
    }

    fn read_demand(&self, row: &Row) -> Result<Demand, Damage> {
        let columns = &self.columns;
        if let Some(gpus) = columns.gpus
            && row.optional_number(columns.gpus)?.is_some_and(|count| count > 0)
        {
            return Err(row.damage(gpus, "0: GPUs are not replayed"));
        }
        // The engine counts disk in MiB in 32 bits.
        let disk_gib = row.optional_number(columns.disk)?.unwrap_or(0);
        Ok(Demand {
            cpu_milli: row.number(columns.cpu, 1)?,
            memory_mib: row.number(columns.memory, 1)?,
            disk_mib: disk_gib.saturating_mul(1024),
        })
    }
}
