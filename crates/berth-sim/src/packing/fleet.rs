//! The nodes of a replay, from a file or made up, as the engine's facts.

use std::path::Path;

use berth_engine::{Amounts, Engine, InvalidNode, NodeFacts, Policy};

use super::record::{Damage, ReadError, Row, Table};
use super::trace::Demand;
use crate::NOW;

/// Disk of a node whose file states none: no instance of a trace is refused for disk.
const UNLIMITED_DISK_MIB: u32 = 1 << 30;

/// Instances that a node may hold: traces state no such limit.
const UNLIMITED_INSTANCES: u32 = 1_000_000;

/// A node of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetNode {
    /// Its name in the file.
    pub name: String,
    /// What it has.
    pub capacity: Demand,
}

/// Reads nodes: `node_id,cpu_milli,memory_mib` and optionally `disk_gib`. Other columns are ignored.
///
/// # Errors
/// When the file cannot be read, is empty, or has a malformed line and `skip_bad` is not set.
pub fn read_fleet(path: &Path, skip_bad: bool) -> Result<Vec<FleetNode>, ReadError> {
    let mut table = Table::open(path)?;
    let name = table.required("node_id")?;
    let cpu = table.required("cpu_milli")?;
    let memory = table.required("memory_mib")?;
    let disk = table.optional("disk_gib");
    let mut nodes: Vec<FleetNode> = Vec::new();
    let mut row = Row::default();
    let read_node = |row: &Row| -> Result<FleetNode, Damage> {
        let disk_gib = row.optional_number(disk)?;
        let capacity = Demand {
            cpu_milli: row.number(cpu, 1)?,
            memory_mib: row.number(memory, 1)?,
            disk_mib: disk_gib.map_or(UNLIMITED_DISK_MIB, |disk| disk.saturating_mul(1024)),
        };
        Ok(FleetNode { name: row.name(name)?.to_owned(), capacity })
    };
    while table.read(&mut row)? {
        match read_node(&row) {
            Ok(node) => nodes.push(node),
            Err(_) if skip_bad => {}
            Err(damage) => return Err(table.damaged(damage)),
        }
    }
    if nodes.is_empty() { Err(table.empty("nodes")) } else { Ok(nodes) }
}

/// The name by which the engine knows the node at a position of the file: in the order of names is
/// then the order of the file, which decides ties.
pub(super) fn engine_name(position: usize) -> String {
    format!("n{position:07}")
}

/// The nodes as a server would have them in a replay, in the order of the file, which is also that of
/// their names.
#[must_use]
pub fn node_facts(nodes: &[FleetNode]) -> Vec<NodeFacts> {
    nodes.iter().enumerate().map(|(position, node)| facts_of(position, node)).collect()
}

/// An engine with these nodes.
pub(super) fn engine_with(nodes: &[FleetNode], policy: Policy) -> Result<Engine, InvalidNode> {
    let mut engine = Engine::new(policy);
    for (position, node) in nodes.iter().enumerate() {
        engine.fleet_mut().add_node(&facts_of(position, node))?;
    }
    Ok(engine)
}

/// A node as it is, with all of its capacity for instances.
fn facts_of(position: usize, node: &FleetNode) -> NodeFacts {
    let FleetNode { capacity, .. } = node;
    let amounts =
        Amounts::new(capacity.cpu_milli, capacity.memory_mib).with_disk(capacity.disk_mib);
    let mut facts = NodeFacts::new(&engine_name(position), amounts);
    facts.ratios.cpu_permille = 1000;
    facts.vmm_overhead_mib = 0;
    facts.instance_limit = UNLIMITED_INSTANCES;
    facts.heartbeat_at = NOW;
    facts
}
