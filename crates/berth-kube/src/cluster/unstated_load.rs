//! What pods without requests are assumed to use, for scores only: 100m of CPU and 200 MiB of memory each, as
//! kube-scheduler assumes. Otherwise the node that is a little emptier than others would get all of them.
//!
//! Never decides whether a pod fits.

use berth_engine::Policy;

use super::node::Node;
use super::resources::Resources;

const CPU_MILLI: i64 = 100;
const MEMORY: i64 = 200 << 20;

/// The unit of the engine's scores: a term of one with a weight of one.
const PPM: i64 = 1_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct UnstatedLoad {
    /// By how much emptier nodes are favoured, in thousandths; negative if fuller ones are.
    cpu_weight: i64,
    memory_weight: i64,
    /// Pods without a request for CPU, and for memory, by the node's index.
    counts: Vec<(i64, i64)>,
    /// What they cost the node in scores.
    penalties: Vec<i64>,
    /// The sum of all counts.
    counted: i64,
}

impl UnstatedLoad {
    pub(super) fn new(policy: &Policy) -> Self {
        let weight = |name: &str| i64::from(policy.weight(name));
        Self {
            cpu_weight: weight("cpu-pressure") - weight("cpu-pack"),
            memory_weight: weight("memory-spread") - weight("memory-pack"),
            counts: Vec::new(),
            penalties: Vec::new(),
            counted: 0,
        }
    }

    /// What is taken off the score of a node.
    pub(super) fn penalty(&self, index: usize) -> i64 {
        if self.counted == 0 {
            return 0;
        }
        self.penalties.get(index).copied().unwrap_or(0)
    }

    /// Counts a pod on a node, or removes it with -1.
    pub(super) fn add(&mut self, index: usize, node: &Node, requested: &Resources, times: i64) {
        let cpu = if requested.cpu_milli == 0 { times } else { 0 };
        let memory = if requested.memory == 0 { times } else { 0 };
        if (cpu, memory) == (0, 0) {
            return;
        }
        if index >= self.counts.len() {
            self.counts.resize(index + 1, (0, 0));
            self.penalties.resize(index + 1, 0);
        }
        self.counts[index].0 += cpu;
        self.counts[index].1 += memory;
        self.counted += cpu + memory;
        self.refresh(index, node);
    }

    /// A node has another size.
    pub(super) fn refresh(&mut self, index: usize, node: &Node) {
        let Some((cpu, memory)) = self.counts.get(index).copied() else { return };
        let share = |used: i64, has: i64| (used * PPM).checked_div(has).unwrap_or(0).min(PPM);
        let cpu = share(cpu * CPU_MILLI, node.allocatable.cpu_milli) * self.cpu_weight;
        let memory = share(memory * MEMORY / 1024, node.allocatable.memory / 1024);
        self.penalties[index] = (cpu + memory * self.memory_weight) / 1000;
    }

    /// A node has another index.
    pub(super) fn move_node(&mut self, from: usize, to: usize) {
        let Some(counts) = self.counts.get_mut(from).map(std::mem::take) else { return };
        self.penalties[from] = 0;
        if to >= self.counts.len() {
            self.counts.resize(to + 1, (0, 0));
            self.penalties.resize(to + 1, 0);
        }
        self.counts[to] = counts;
    }
}
