//! Simple placement rules, for comparison. Each gives a node a cost, in exact integers, from what is
//! free there and what is asked for; the least cost wins. Whether an instance fits is never decided
//! here.

use super::trace::Demand;
use crate::SeededRng;

/// One part in `SCALE` of a node.
const SCALE: u128 = 1 << 40;

/// The cost of a node that holds nothing, where a rule takes nodes in use first.
const EMPTY: i128 = 1 << 100;

/// A simple rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The first node in the order of the file.
    FirstFit,
    /// The least that is left, as the sum over resources of its share of the largest node.
    BestFitSum,
    /// The least that is left, as the sum of squares.
    BestFitSquares,
    /// The least that is left, as the largest share.
    BestFitLargest,
    /// The most that is left, as the sum of shares of the node itself.
    WorstFit,
    /// The node in use whose free amounts point the same way as the demand.
    DotProduct,
    /// The least free memory.
    MinRam,
    /// The least allocated node, in whole percent, as kube-scheduler's `LeastAllocated`.
    KubeLeast,
    /// The most allocated node, in whole percent, as kube-scheduler's `MostAllocated`.
    KubeMost,
    /// The node whose shares of CPU and memory are closest, as kube-scheduler's balanced allocation.
    KubeBalanced,
    /// The least allocated and the balanced score together, as kube-scheduler is configured by default.
    KubeDefault,
    /// Any node, at random.
    Random,
}

impl Peer {
    pub(super) const ALL: [(&'static str, Self); 12] = [
        ("first-fit", Self::FirstFit),
        ("best-fit-l1", Self::BestFitSum),
        ("best-fit-l2", Self::BestFitSquares),
        ("best-fit-linf", Self::BestFitLargest),
        ("worst-fit", Self::WorstFit),
        ("dot-product", Self::DotProduct),
        ("min-ram", Self::MinRam),
        ("kube-least-allocated", Self::KubeLeast),
        ("kube-most-allocated", Self::KubeMost),
        ("kube-balanced", Self::KubeBalanced),
        ("kube-default", Self::KubeDefault),
        ("random", Self::Random),
    ];

    /// What the node costs; the least wins. Rules of kube-scheduler draw among equals.
    pub(super) fn cost(self, node: &NodeView, demand: Demand, rng: &mut SeededRng) -> i128 {
        let wanted = [u64::from(demand.cpu_milli), u64::from(demand.memory_mib)];
        let left = |at: usize| node.free[at].saturating_sub(wanted[at]);
        let share = |amount: u64, whole: u64| u128::from(amount) * SCALE / u128::from(whole.max(1));
        let shares_left = [share(left(0), node.largest[0]), share(left(1), node.largest[1])];
        let cost = match self {
            Self::FirstFit => 0,
            Self::BestFitSum => shares_left[0] + shares_left[1],
            Self::BestFitSquares => {
                shares_left[0] * shares_left[0] + shares_left[1] * shares_left[1]
            }
            Self::BestFitLargest => shares_left[0].max(shares_left[1]),
            Self::MinRam => u128::from(node.free[1]),
            Self::WorstFit => {
                let whole = share(left(0), node.capacity[0]) + share(left(1), node.capacity[1]);
                return -signed(whole);
            }
            Self::DotProduct => {
                let part = |at: usize| {
                    share(node.free[at], node.largest[at]) * share(wanted[at], node.largest[at])
                };
                let empty = if node.is_empty { EMPTY } else { 0 };
                return empty - signed(part(0) + part(1));
            }
            Self::Random => u128::from(rng.draw()),
            Self::KubeLeast | Self::KubeMost | Self::KubeBalanced | Self::KubeDefault => {
                let score = self.kube_score(node, wanted);
                return signed(u128::from(rng.draw() >> 1)) - signed(u128::from(score) << 64);
            }
        };
        signed(cost)
    }

    /// Scores of kube-scheduler: whole points from 0 to 100 for each part.
    fn kube_score(self, node: &NodeView, wanted: [u64; 2]) -> u64 {
        let allocated = |at: usize| node.capacity[at].saturating_sub(node.free[at]) + wanted[at];
        let percent = |amount: u64, at: usize| 100 * amount / node.capacity[at].max(1);
        let least = || {
            let free = |at: usize| percent(node.capacity[at].saturating_sub(allocated(at)), at);
            u64::midpoint(free(0), free(1))
        };
        let balanced = || {
            let part = |at: usize| share_of(allocated(at), node.capacity[at]);
            let distance = part(0).abs_diff(part(1));
            u64::try_from((SCALE - (distance / 2).min(SCALE)) * 100 / SCALE).unwrap_or(0)
        };
        match self {
            Self::KubeMost => u64::midpoint(percent(allocated(0), 0), percent(allocated(1), 1)),
            Self::KubeBalanced => balanced(),
            Self::KubeDefault => least() + balanced(),
            _ => least(),
        }
    }
}

fn share_of(amount: u64, whole: u64) -> u128 {
    u128::from(amount) * SCALE / u128::from(whole.max(1))
}

fn signed(cost: u128) -> i128 {
    i128::try_from(cost).unwrap_or(i128::MAX)
}

/// A node as a rule sees it. Two resources: CPU and memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeView {
    pub(super) free: [u64; 2],
    pub(super) capacity: [u64; 2],
    /// What the largest node of the fleet has.
    pub(super) largest: [u64; 2],
    pub(super) is_empty: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(free: [u64; 2]) -> NodeView {
        let capacity = [16_000, 65_536];
        NodeView { free, capacity, largest: capacity, is_empty: free == capacity }
    }

    fn best(peer: Peer, nodes: &[[u64; 2]], demand: [u32; 2]) -> usize {
        let demand = Demand { cpu_milli: demand[0], memory_mib: demand[1], disk_mib: 0 };
        let mut rng = SeededRng::new(1);
        let cost = |free: &[u64; 2]| peer.cost(&view(*free), demand, &mut rng);
        let costs: Vec<i128> = nodes.iter().map(cost).collect();
        costs.iter().enumerate().min_by_key(|(_, cost)| **cost).map_or(usize::MAX, |(at, _)| at)
    }

    #[test]
    fn each_rule_prefers_the_node_that_its_description_names() {
        // Empty; half used; little memory; little CPU.
        let nodes = [[16_000, 65_536], [8000, 32_768], [12_000, 9000], [2500, 60_000]];
        let small = [2000, 8192];
        assert_eq!(best(Peer::FirstFit, &nodes, small), 0);
        assert_eq!(best(Peer::WorstFit, &nodes, small), 0);
        assert_eq!(best(Peer::KubeLeast, &nodes, small), 0);
        assert_eq!(best(Peer::MinRam, &nodes, small), 2);
        assert_eq!(best(Peer::BestFitSum, &nodes, small), 2);
        assert_eq!(best(Peer::BestFitSquares, &nodes, small), 1);
        assert_eq!(best(Peer::BestFitLargest, &nodes, small), 1);
        assert_eq!(best(Peer::KubeMost, &nodes, small), 2);
        assert_eq!(best(Peer::KubeBalanced, &nodes[1..], small), 0);
        assert_eq!(best(Peer::DotProduct, &nodes, [8000, 1024]), 2);
    }
}
