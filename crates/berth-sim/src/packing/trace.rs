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
    /// A node restarts: what is on it stays, and nothing new comes until it is back.
    NodeReboot(String),
    /// A node is back: empty if it was lost, with what it holds if it restarted.
    NodeBack(String),
    /// An instance has to leave its node for another, as a spot instance whose node is wanted back.
    SpotReclaim(usize),
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
    /// What each instance is called; those beyond the end have only their number.
    pub names: Vec<String>,
    /// The names of tenants.
    pub tenants: Vec<String>,
    /// The tenant of each instance, by its position among the names; of those beyond the end, no name is
    /// known.
    pub tenant_of: Vec<u32>,
    /// Lines that were left out.
    pub skipped: Vec<Damage>,
}

/// The tenant of instances whose trace names none.
const NO_TENANT: &str = "trace";

impl Trace {
    /// What an instance is called.
    #[must_use]
    pub fn name(&self, instance: usize) -> String {
        self.names.get(instance).cloned().unwrap_or_else(|| format!("instance-{instance}"))
    }

    /// The name of an instance's tenant.
    #[must_use]
    pub fn tenant(&self, instance: usize) -> &str {
        let position = self.tenant_of.get(instance).and_then(|at| usize::try_from(*at).ok());
        position.and_then(|at| self.tenants.get(at)).map_or(NO_TENANT, String::as_str)
    }

    /// When each instance ends, if it does; in the order of instances.
    #[must_use]
    pub fn ends(&self) -> Vec<Option<u64>> {
        let mut ends = vec![None; self.demands.len()];
        for event in &self.events {
            if let Action::Delete(instance) = event.action {
                ends[instance] = Some(event.time);
            }
        }
        ends
    }

    /// Seconds from the first event to the last.
    #[must_use]
    pub fn span(&self) -> u64 {
        let time = |event: Option<&TraceEvent>| event.map_or(0, |event| event.time);
        time(self.events.last()) - time(self.events.first())
    }
}

/// What an event may be called in a file.
const ACTIONS: &str = "create, delete, resize, spot-reclaim, node-lost, node-reboot or node-back";

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
            tenant: table.optional("tenant"),
        },
        trace: TraceBuilder::default(),
    };
    let mut row = Row::default();
    while table.read(&mut row)? {
        match reader.read_event(&row) {
            Ok(event) => reader.trace.trace.events.push(event),
            Err(damage) if skip_bad => reader.trace.trace.skipped.push(damage),
            Err(damage) => return Err(table.damaged(damage)),
        }
    }
    if reader.trace.trace.events.is_empty() {
        return Err(table.empty("events"));
    }
    Ok(reader.trace.trace)
}

/// A trace while it is put together, from a file or otherwise.
#[derive(Default)]
pub(super) struct TraceBuilder {
    pub(super) trace: Trace,
    /// The number of each instance that has arrived and not ended.
    running: HashMap<String, usize>,
    tenants: HashMap<String, u32>,
}

impl TraceBuilder {
    /// An instance arrives; absent if one of this name is running.
    pub(super) fn begin(&mut self, id: &str, demand: Demand, tenant: &str) -> Option<Action> {
        if self.running.contains_key(id) {
            return None;
        }
        let number = self.trace.demands.len();
        let tenant = if tenant.is_empty() { NO_TENANT } else { tenant };
        let known = self.tenants.get(tenant).copied();
        let tenant = known.unwrap_or_else(|| {
            let position = u32::try_from(self.trace.tenants.len()).unwrap_or(u32::MAX);
            self.trace.tenants.push(tenant.to_owned());
            self.tenants.insert(tenant.to_owned(), position);
            position
        });
        self.trace.demands.push(demand);
        self.trace.names.push(id.to_owned());
        self.trace.tenant_of.push(tenant);
        self.running.insert(id.to_owned(), number);
        Some(Action::Create(number))
    }

    /// The number of an instance that is running.
    pub(super) fn running(&self, id: &str) -> Option<usize> {
        self.running.get(id).copied()
    }

    /// An instance ends; absent if none of this name is running.
    pub(super) fn end(&mut self, id: &str) -> Option<Action> {
        self.running.remove(id).map(Action::Delete)
    }
}

struct Columns {
    time: Column,
    event: Column,
    id: Column,
    cpu: Column,
    memory: Column,
    disk: Option<Column>,
    gpus: Option<Column>,
    tenant: Option<Column>,
}

struct TraceReader {
    columns: Columns,
    trace: TraceBuilder,
}

impl TraceReader {
    fn read_event(&mut self, row: &Row) -> Result<TraceEvent, Damage> {
        let time = row.seconds(self.columns.time)?;
        let latest = self.trace.trace.events.last().map_or(0, |event| event.time);
        if time < latest {
            let expected = format!("{latest} or later: lines are in the order of time");
            return Err(row.damage(self.columns.time, &expected));
        }
        let id = row.name(self.columns.id)?;
        let not_running =
            || row.damage(self.columns.id, "an instance that was created and not yet deleted");
        let action = match row.text(self.columns.event) {
            "create" => {
                let demand = self.read_demand(row)?;
                let tenant = self.columns.tenant.map_or("", |tenant| row.text(tenant));
                let is_running =
                    || row.damage(self.columns.id, "an instance that is not running already");
                self.trace.begin(id, demand, tenant).ok_or_else(is_running)?
            }
            "delete" => self.trace.end(id).ok_or_else(not_running)?,
            "resize" => {
                let demand = self.read_demand(row)?;
                Action::Resize(self.trace.running(id).ok_or_else(not_running)?, demand)
            }
            "spot-reclaim" => Action::SpotReclaim(self.trace.running(id).ok_or_else(not_running)?),
            "node-lost" => Action::NodeLost(id.to_owned()),
            "node-reboot" => Action::NodeReboot(id.to_owned()),
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
