//! The fleet in sums: nodes by state, instances, and how much of everything is used.

use askama::Template;
use berth_api::units;
use berth_engine::NodeState;
use berth_ledger::ClaimState;

use super::{count, percent, plural};
use berth_control::catalog::CatalogState;

/// One thing of which some is used.
#[derive(Debug)]
struct ResourceUsage {
    name: &'static str,
    /// Used, and of how much.
    text: String,
    percent: i64,
    /// The same for a bar, which ends at 100.
    width: i64,
}

/// How many are in a state.
#[derive(Debug)]
struct StateCount {
    name: &'static str,
    count: String,
}

/// The fleet in sums.
#[derive(Debug, Template)]
#[template(path = "parts/totals.html")]
pub(super) struct Totals {
    nodes: String,
    node_word: &'static str,
    node_states: Vec<StateCount>,
    instances: String,
    instance_word: &'static str,
    claim_states: Vec<StateCount>,
    uses: Vec<ResourceUsage>,
    policy: Option<String>,
}

fn resource_usage(name: &'static str, used: i64, limit: i64, text: String) -> ResourceUsage {
    let percent = percent(used, limit);
    ResourceUsage { name, text, percent, width: percent.clamp(0, 100) }
}

/// CPU in cores and by its ratio, and the nodes on which too much of it is promised.
fn cpu_usage(catalog: &CatalogState) -> ResourceUsage {
    let (mut used, mut limit, mut cores, mut over) = (0, 0, 0, 0);
    for node in catalog.nodes.values() {
        let room = &node.room;
        used += room.used.cpu;
        limit += room.limits.cpu;
        cores += units::cores_of_limit(room.limits.cpu, node.facts.ratios.cpu_permille);
        over += i64::from(room.used.cpu > room.limits.cpu);
    }
    let mut text = units::promised_cores(used, cores, limit);
    if over > 0 {
        text.push_str(&format!(", {over} {} over-promised", plural(over, "node", "nodes")));
    }
    resource_usage("CPU", used, limit, text)
}

fn state_counts<S: PartialEq + Copy>(
    all: &[S],
    found: &[S],
    name: fn(S) -> &'static str,
) -> Vec<StateCount> {
    let counted = all.iter().map(|state| {
        let number = found.iter().filter(|other| *other == state).count();
        (name(*state), i64::try_from(number).unwrap_or(i64::MAX))
    });
    let there = counted.filter(|(_, number)| *number > 0);
    there.map(|(name, number)| StateCount { name, count: count(number) }).collect()
}

impl Totals {
    /// The sums of everything in the catalogue.
    pub(super) fn of(catalog: &CatalogState) -> Self {
        let (mut memory, mut disk) = ((0, 0), (0, 0));
        for node in catalog.nodes.values() {
            let (used, limits) = (&node.room.used, &node.room.limits);
            memory = (memory.0 + node.room.memory_used(), memory.1 + limits.memory);
            disk = (disk.0 + used.disk, disk.1 + limits.disk);
        }
        let node_states: Vec<NodeState> =
            catalog.nodes.values().map(|node| node.facts.state).collect();
        let states = [
            NodeState::Active,
            NodeState::Joining,
            NodeState::Cordoned,
            NodeState::Draining,
            NodeState::Degraded,
            NodeState::Lost,
        ];
        let claim_states: Vec<ClaimState> =
            catalog.claims.values().map(|claim| claim.state).collect();
        let steps =
            [ClaimState::Held, ClaimState::Binding, ClaimState::Active, ClaimState::Releasing];
        let size_of = |(used, limit)| format!("{} of {}", units::size(used), units::size(limit));
        let nodes = i64::try_from(catalog.nodes.len()).unwrap_or(i64::MAX);
        let instances = i64::try_from(catalog.claims.len()).unwrap_or(i64::MAX);
        Self {
            nodes: count(nodes),
            node_word: plural(nodes, "node", "nodes"),
            node_states: state_counts(&states, &node_states, NodeState::name),
            instances: count(instances),
            instance_word: plural(instances, "instance", "instances"),
            claim_states: state_counts(&steps, &claim_states, ClaimState::name),
            uses: vec![
                cpu_usage(catalog),
                resource_usage("Memory", memory.0, memory.1, size_of(memory)),
                resource_usage("Disk", disk.0, disk.1, size_of(disk)),
            ],
            policy: catalog.policy.as_ref().map(|policy| policy.name().to_owned()),
        }
    }
}
