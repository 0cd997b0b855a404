//! The nodes that a trace needs by volume alone: no policy can use fewer.

use super::fleet::FleetNode;
use super::trace::{Action, Demand, Trace};

/// A bound from below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bound {
    /// Nodes needed at the busiest moment.
    pub peak_nodes: u64,
    /// Nodes needed, times seconds.
    pub node_seconds: u128,
}

/// Nodes needed at each moment if CPU and memory could be cut at will, the largest nodes first. Counts
/// every instance, also one that a replay would reject. If the fleet is too small, more nodes like
/// its last are counted.
#[must_use]
pub fn volume_bound(trace: &Trace, nodes: &[FleetNode]) -> Bound {
    let cpu = Cumulative::new(nodes, |node| node.capacity.cpu_milli);
    let memory = Cumulative::new(nodes, |node| node.capacity.memory_mib);
    let mut demands = trace.demands.clone();
    let (mut bound, mut needed, mut last) = (Bound::default(), 0_u64, 0);
    let (mut cpu_sum, mut memory_sum) = (0_u64, 0_u64);
    for event in &trace.events {
        bound.node_seconds += u128::from(needed) * u128::from(event.time.saturating_sub(last));
        last = event.time;
        let (removed, added) = match event.action {
            Action::Create(instance) => (None, Some(demands[instance])),
            Action::Delete(instance) => (Some(demands[instance]), None),
            Action::Resize(instance, demand) => {
                (Some(std::mem::replace(&mut demands[instance], demand)), Some(demand))
            }
            Action::NodeLost(_)
            | Action::NodeReboot(_)
            | Action::NodeBack(_)
            | Action::SpotReclaim(_) => continue,
        };
        let amount = |demand: Option<Demand>, of: fn(&Demand) -> u32| {
            demand.as_ref().map_or(0, |demand| u64::from(of(demand)))
        };
        cpu_sum = cpu_sum + amount(added, |d| d.cpu_milli) - amount(removed, |d| d.cpu_milli);
        memory_sum =
            memory_sum + amount(added, |d| d.memory_mib) - amount(removed, |d| d.memory_mib);
        needed = cpu.nodes_for(cpu_sum).max(memory.nodes_for(memory_sum));
        bound.peak_nodes = bound.peak_nodes.max(needed);
    }
    bound
}

/// What the first nodes have together, the largest first.
struct Cumulative {
    sums: Vec<u64>,
    smallest: u64,
}

impl Cumulative {
    fn new(nodes: &[FleetNode], of: impl Fn(&FleetNode) -> u32) -> Self {
        let mut amounts: Vec<u32> = nodes.iter().map(of).collect();
        amounts.sort_unstable_by(|one, other| other.cmp(one));
        let smallest = u64::from(amounts.last().copied().unwrap_or(1));
        let sums = amounts.iter().scan(0, |sum, amount| {
            *sum += u64::from(*amount);
            Some(*sum)
        });
        Self { sums: sums.collect(), smallest }
    }

    fn nodes_for(&self, amount: u64) -> u64 {
        if amount == 0 {
            return 0;
        }
        let all = self.sums.last().copied().unwrap_or(0);
        let beyond = amount.saturating_sub(all).div_ceil(self.smallest);
        let full = self.sums.partition_point(|sum| *sum < amount);
        u64::try_from(full.min(self.sums.len() - 1) + 1).unwrap_or(u64::MAX) + beyond
    }
}
