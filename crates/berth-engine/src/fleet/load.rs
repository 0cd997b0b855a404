//! How full the fleet is, kept in step with every claim and every change of a node.

use super::columns::NodeIndex;
use super::rows::NodeRow;
use crate::model::NodeState;

/// What may be promised and what is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    cpu_used: i64,
    cpu: i64,
    memory_used: i64,
    memory: i64,
}

impl Usage {
    /// Of a node that takes instances; any other node counts neither with its room nor with what it holds.
    fn of(row: &NodeRow) -> Self {
        if row.state != NodeState::Active || !row.capacity_known {
            return Self::default();
        }
        Self {
            cpu_used: row.used.cpu,
            cpu: row.limits.cpu.max(0),
            memory_used: row.memory_used(),
            memory: row.limits.memory.max(0),
        }
    }
}

/// The load of all active nodes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FleetLoad {
    /// What each node counts with.
    counted: Vec<Usage>,
    total: Usage,
}

impl FleetLoad {
    /// Counts a node as it is now; without a row, no longer.
    pub(super) fn count(&mut self, index: NodeIndex, row: Option<&NodeRow>) {
        let place = index.as_usize();
        if place >= self.counted.len() {
            self.counted.resize(place + 1, Usage::default());
        }
        let now = row.map(Usage::of).unwrap_or_default();
        let before = std::mem::replace(&mut self.counted[place], now);
        self.total.cpu_used += now.cpu_used - before.cpu_used;
        self.total.cpu += now.cpu - before.cpu;
        self.total.memory_used += now.memory_used - before.memory_used;
        self.total.memory += now.memory - before.memory;
    }

    /// The larger of CPU and memory in use, in thousandths of what active nodes may promise.
    pub(super) fn permille(&self) -> u32 {
        let share = |used: i64, all: i64| {
            if all <= 0 { 0 } else { u32::try_from(used.max(0) * 1000 / all).unwrap_or(u32::MAX) }
        };
        let Usage { cpu_used, cpu, memory_used, memory } = self.total;
        share(cpu_used, cpu).max(share(memory_used, memory))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use crate::fleet::Fleet;
    use crate::model::{Amounts, InstanceId, InstanceRequest, NodeFacts, NodeId, NodeState};

    #[test]
    fn load_is_the_fuller_of_cpu_and_memory_on_active_nodes() {
        let mut fleet = Fleet::new();
        for name in ["a", "b"] {
            let mut facts = NodeFacts::new(name, Amounts::new(10_000, 10_000));
            facts.ratios.cpu_permille = 1000;
            facts.vmm_overhead_mib = 0;
            fleet.add_node(&facts).unwrap();
        }
        assert_eq!(fleet.load_permille(), 0);
        let request = |id, cpu, memory| {
            InstanceRequest::new(InstanceId::from_u128(id), "t", Amounts::new(cpu, memory))
        };
        fleet.claim(&request(1, 1000, 5000), &NodeId::new("a")).unwrap();
        assert_eq!(fleet.load_permille(), 250);
        fleet.claim(&request(2, 8000, 1000), &NodeId::new("b")).unwrap();
        assert_eq!(fleet.load_permille(), 450);
        fleet.set_state(&NodeId::new("b"), NodeState::Cordoned);
        assert_eq!(fleet.load_permille(), 500, "only what takes instances counts");
        fleet.set_state(&NodeId::new("b"), NodeState::Active);
        fleet.resize(InstanceId::from_u128(2), Amounts::new(2000, 1000));
        fleet.release(InstanceId::from_u128(1));
        assert_eq!(fleet.load_permille(), 100);
    }
}
