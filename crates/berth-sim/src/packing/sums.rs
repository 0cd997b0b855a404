//! What each node has and holds, by plain sums: for the simple rules, for the figures, and to check what
//! the engine places.

use std::collections::HashMap;

use super::fleet::FleetNode;
use super::peers::NodeView;
use super::trace::Demand;

/// How many of the commonest demands count as usual.
const USUAL_DEMANDS: usize = 12;

struct NodeSums {
    capacity: [u64; 2],
    used: [u64; 2],
    instances: u64,
    was_used: bool,
}

/// The fleet's sums: CPU in thousandths of a core, and memory in MiB.
pub(super) struct FleetSums {
    nodes: Vec<NodeSums>,
    largest: [u64; 2],
    capacity: [u64; 2],
    used: [u64; 2],
    in_use: u64,
    /// The commonest demands and how often each came.
    usual: Vec<([u64; 2], u64)>,
    stranded_ppm: u64,
    stranded_count: u64,
}

impl FleetSums {
    pub(super) fn new(nodes: &[FleetNode], demands: &[Demand]) -> Self {
        let nodes: Vec<NodeSums> = nodes
            .iter()
            .map(|node| NodeSums {
                capacity: amounts(node.capacity),
                used: [0, 0],
                instances: 0,
                was_used: false,
            })
            .collect();
        let over = |pick: fn(u64, u64) -> u64| {
            nodes.iter().fold([0, 0], |sum: [u64; 2], node| {
                [pick(sum[0], node.capacity[0]), pick(sum[1], node.capacity[1])]
            })
        };
        let (largest, capacity) = (over(u64::max), over(u64::saturating_add));
        let usual = usual_demands(demands);
        let (used, in_use) = ([0, 0], 0);
        Self { nodes, largest, capacity, used, in_use, usual, stranded_ppm: 0, stranded_count: 0 }
    }

    /// Nodes with an instance.
    pub(super) fn in_use(&self) -> u64 {
        self.in_use
    }

    pub(super) fn never_used(&self) -> u64 {
        self.nodes.iter().filter(|node| !node.was_used).count() as u64
    }

    /// Shares of all CPU and memory in use.
    pub(super) fn used_permille(&self) -> [u64; 2] {
        [0, 1].map(|at| self.used[at] * 1000 / self.capacity[at].max(1))
    }

    pub(super) fn view(&self, node: usize) -> NodeView {
        let NodeSums { capacity, used, instances, .. } = &self.nodes[node];
        let free = [0, 1].map(|at: usize| capacity[at].saturating_sub(used[at]));
        NodeView { free, capacity: *capacity, largest: self.largest, is_empty: *instances == 0 }
    }

    /// Puts an instance on a node. Returns whether the node has as much as it then holds.
    pub(super) fn charge(&mut self, node: usize, demand: Demand) -> bool {
        let sums = &mut self.nodes[node];
        for (at, amount) in amounts(demand).into_iter().enumerate() {
            sums.used[at] += amount;
            self.used[at] += amount;
        }
        self.in_use += u64::from(sums.instances == 0);
        sums.instances += 1;
        sums.was_used = true;
        (0..2).all(|at| sums.used[at] <= sums.capacity[at])
    }

    pub(super) fn discharge(&mut self, node: usize, demand: Demand) {
        let sums = &mut self.nodes[node];
        for (at, amount) in amounts(demand).into_iter().enumerate() {
            sums.used[at] -= amount;
            self.used[at] -= amount;
        }
        sums.instances -= 1;
        self.in_use -= u64::from(sums.instances == 0);
    }

    /// Adds up the free CPU that the usual demands cannot use, at this moment.
    pub(super) fn measure_stranded(&mut self) {
        let common: u64 = self.usual.iter().map(|(_, count)| count).sum();
        let mut stranded = 0_u128;
        for node in &self.nodes {
            let free = [0, 1].map(|at: usize| node.capacity[at].saturating_sub(node.used[at]));
            let fits = |demand: &[u64; 2]| demand[0] <= free[0] && demand[1] <= free[1];
            let fit: u64 =
                self.usual.iter().filter(|(demand, _)| fits(demand)).map(|(_, n)| n).sum();
            stranded += u128::from(free[0]) * u128::from(common - fit) / u128::from(common.max(1));
        }
        let ppm = stranded * 1_000_000 / u128::from(self.capacity[0].max(1));
        self.stranded_ppm += u64::try_from(ppm).unwrap_or(u64::MAX);
        self.stranded_count += 1;
    }

    /// The mean over all moments at which it was measured, in millionths of all CPU.
    pub(super) fn stranded_ppm(&self) -> u64 {
        self.stranded_ppm / self.stranded_count.max(1)
    }
}

fn amounts(demand: Demand) -> [u64; 2] {
    [u64::from(demand.cpu_milli), u64::from(demand.memory_mib)]
}

/// The commonest demands; of equally common ones those that came first.
fn usual_demands(demands: &[Demand]) -> Vec<([u64; 2], u64)> {
    let mut counts: HashMap<[u64; 2], (u64, usize)> = HashMap::new();
    for (number, demand) in demands.iter().enumerate() {
        counts.entry(amounts(*demand)).or_insert((0, number)).0 += 1;
    }
    let mut counts: Vec<([u64; 2], (u64, usize))> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(_, (count, first))| (u64::MAX - count, *first));
    counts.into_iter().take(USUAL_DEMANDS).map(|(demand, (count, _))| (demand, count)).collect()
}
