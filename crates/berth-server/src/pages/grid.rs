//! The fleet as a grid: a cell for each node, by zone and rack.

use std::collections::BTreeMap;

use askama::Template;
use berth_api::units;
use berth_engine::NodeState;

use super::{count, percent, plural};
use berth_control::catalog::{CatalogState, NodeEntry};

/// One node.
#[derive(Debug)]
struct Cell {
    /// How full, and in which state: names of the stylesheet.
    class: &'static str,
    mark: &'static str,
    /// Its tooltip.
    title: String,
}

/// The nodes of one rack.
#[derive(Debug)]
struct Rack {
    name: String,
    /// The same in words, for screen readers.
    summary: String,
    cells: Vec<Cell>,
}

/// The racks of one zone.
#[derive(Debug)]
struct Zone {
    name: String,
    nodes: String,
    racks: Vec<Rack>,
}

/// The fleet, node by node.
#[derive(Debug, Template)]
#[template(path = "parts/grid.html")]
pub(super) struct Grid {
    zones: Vec<Zone>,
    /// How large cells are: the more there are, the smaller.
    density: &'static str,
}

/// The class of a cell by usage: seven steps, so that neighbours are distinguishable.
fn fullness(share: i64) -> &'static str {
    match share {
        ..=0 => "u0",
        1..25 => "u1",
        25..50 => "u2",
        50..75 => "u3",
        75..90 => "u4",
        90..=100 => "u5",
        _ => "u6",
    }
}

/// The class of a cell in a state; the usual one has none.
fn mark(state: NodeState) -> &'static str {
    match state {
        NodeState::Active => "",
        NodeState::Joining => " joining",
        NodeState::Cordoned => " cordoned",
        NodeState::Draining => " draining",
        NodeState::Degraded => " degraded",
        NodeState::Lost => " lost",
    }
}

/// How full a node is: by what it has least of.
fn share(node: &NodeEntry) -> i64 {
    let (used, limits) = (&node.room.used, &node.room.limits);
    let memory = percent(node.room.memory_used(), limits.memory);
    memory.max(percent(used.cpu, limits.cpu)).max(percent(used.disk, limits.disk))
}

fn cell(node: &NodeEntry) -> Cell {
    let (share, instances) = (share(node), node.room.used.instances);
    let mut title = format!("{}: {share} % used, {instances} ", node.facts.id);
    title.push_str(plural(instances.into(), "instance", "instances"));
    let (promised, limit) = (node.room.used.cpu, node.room.limits.cpu);
    if promised > limit {
        let cores = units::cores_of_limit(limit, node.facts.ratios.cpu_permille);
        let promised = units::promised_cores(promised, cores, limit);
        title.push_str(&format!(", CPU over-promised: {promised}"));
    }
    if node.facts.state != NodeState::Active {
        title.push_str(", ");
        title.push_str(node.facts.state.name());
    }
    if let Some(message) = node.state_message() {
        title.push_str(": ");
        title.push_str(&message);
    }
    Cell { class: fullness(share), mark: mark(node.facts.state), title }
}

fn rack(name: &str, nodes: &[&NodeEntry]) -> Rack {
    let total = i64::try_from(nodes.len()).unwrap_or(i64::MAX);
    let mean = nodes.iter().map(|node| share(node)).sum::<i64>() / total.max(1);
    let away = nodes.iter().filter(|node| node.facts.state != NodeState::Active).count();
    let mut summary = format!("{name}: {total} {}", plural(total, "node", "nodes"));
    summary.push_str(&format!(", {mean} % used on average"));
    if away > 0 {
        summary.push_str(&format!(", {away} not active"));
    }
    let cells = nodes.iter().map(|node| cell(node)).collect();
    Rack { name: name.to_owned(), summary, cells }
}

impl Grid {
    /// The grid of everything in the catalogue.
    pub(super) fn of(catalog: &CatalogState) -> Self {
        let mut zones: BTreeMap<&str, BTreeMap<&str, Vec<&NodeEntry>>> = BTreeMap::new();
        for node in catalog.nodes.values() {
            let (zone, rack) = (node.facts.zone.as_deref(), node.facts.rack.as_deref());
            let racks = zones.entry(zone.unwrap_or("")).or_default();
            racks.entry(rack.unwrap_or("")).or_default().push(node);
        }
        let zones = zones.into_iter().map(|(zone, racks)| {
            let nodes: usize = racks.values().map(Vec::len).sum();
            let words = plural(i64::try_from(nodes).unwrap_or(0), "node", "nodes");
            let racks = racks
                .iter()
                .map(|(name, nodes)| rack(if name.is_empty() { "no rack" } else { name }, nodes));
            let racks = racks.collect();
            let name = if zone.is_empty() { "no zone" } else { zone }.to_owned();
            Zone {
                name,
                nodes: format!("{} {words}", count(i64::try_from(nodes).unwrap_or(0))),
                racks,
            }
        });
        let zones = zones.collect();
        let density = match catalog.nodes.len() {
            0..400 => "roomy",
            400..2500 => "usual",
            2500..6000 => "dense",
            _ => "tiny",
        };
        Self { zones, density }
    }
}
