//! How unevenly nodes are used, as one integer that depends only on the present state of the fleet.
//!
//! It is the sum over nodes, for CPU and for memory, of the squared share in use, each node weighed
//! by its part of what all nodes have, so that it is lowest where all shares are equal. Without the
//! weight, large nodes would attract everything. Half of it is CPU and half memory: the larger of both
//! alone would ignore that a node fills up in the other resource.

use crate::elastic::Size;
use crate::fleet::NodeRow;

/// A share of 1: a resource that is used up.
pub(super) const FULL: u64 = 1_000_000_000;

/// Shares above this count as this: a node a thousand times over-full is beyond comparison.
const MOST: u64 = 1000 * FULL;

/// The weight of a node of average size.
const AVERAGE: u128 = 1_000_000;

/// One millionth of a full node of average size: CPU and memory are half of it each.
pub(super) const PPM_OF_NODE: u128 = 2 * (FULL as u128) * (FULL as u128);

/// What of a node is in use, of how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    cpu: Part,
    memory: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    used: i64,
    limit: i64,
}

impl Part {
    /// In billionths. Of nothing there is no share.
    fn share(self) -> u64 {
        let (Ok(used), Ok(limit @ 1..)) = (u128::try_from(self.used), u128::try_from(self.limit))
        else {
            return 0;
        };
        let share = used.saturating_mul(u128::from(FULL)) / limit;
        u64::try_from(share).unwrap_or(MOST).min(MOST)
    }
}

impl Load {
    /// The load of a node.
    pub(super) fn of(row: &NodeRow) -> Self {
        Self {
            cpu: Part { used: row.used.cpu, limit: row.limits.cpu },
            memory: Part { used: row.memory_used(), limit: row.limits.memory },
        }
    }

    /// With something more, the hypervisor's overhead included.
    pub(super) fn with(self, size: Size) -> Self {
        self.changed(i64::from(size.cpu_milli), i64::from(size.memory_mib))
    }

    /// With something less.
    pub(super) fn without(self, size: Size) -> Self {
        self.changed(-i64::from(size.cpu_milli), -i64::from(size.memory_mib))
    }

    fn changed(mut self, cpu: i64, memory: i64) -> Self {
        self.cpu.used = self.cpu.used.saturating_add(cpu);
        self.memory.used = self.memory.used.saturating_add(memory);
        self
    }

    /// CPU and memory in use, in billionths.
    pub(super) fn shares(self) -> [u64; 2] {
        [self.cpu.share(), self.memory.share()]
    }

    /// The larger of both.
    pub(super) fn larger_share(self) -> u64 {
        let [cpu, memory] = self.shares();
        cpu.max(memory)
    }
}

/// What nodes are weighed by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scale {
    nodes: u128,
    cpu: u128,
    memory: u128,
}

impl Scale {
    /// Of all these nodes.
    pub(super) fn of(loads: impl Iterator<Item = Load>) -> Self {
        let mut scale = Self::default();
        for load in loads {
            scale.nodes += 1;
            scale.cpu += u128::try_from(load.cpu.limit).unwrap_or(0);
            scale.memory += u128::try_from(load.memory.limit).unwrap_or(0);
        }
        scale
    }

    /// What a node adds to the measure, in parts of [`PPM_OF_NODE`].
    pub(super) fn term(&self, load: Load) -> u128 {
        self.part(load.cpu, self.cpu) + self.part(load.memory, self.memory)
    }

    fn part(&self, part: Part, all: u128) -> u128 {
        let limit = u128::try_from(part.limit).unwrap_or(0);
        let weight = (limit * self.nodes * AVERAGE).checked_div(all).unwrap_or(0);
        let share = u128::from(part.share());
        share * share * weight
    }

    /// The most that can be gained by taking `here` off a node, if at least `there` of it comes to
    /// one with these shares or larger ones: cheap, and never too little. What it adds to the shares
    /// of its destination is left out, and rounding is made up for.
    pub(super) fn most_gain(&self, [here, there]: [Size; 2], from: Load, to: [u64; 2]) -> i128 {
        let (before, left) = (from.shares(), from.without(here).shares());
        let cpu = [here.cpu_milli, there.cpu_milli].map(|amount| self.weighed(amount, self.cpu));
        let memory =
            [here.memory_mib, there.memory_mib].map(|amount| self.weighed(amount, self.memory));
        let one = |[here, there]: [i128; 2], place: usize| {
            let sum = i128::from(before[place]) + i128::from(left[place]) + 4;
            let drop = here.saturating_add(1).saturating_mul(sum);
            drop.saturating_sub(there.saturating_mul(2 * i128::from(to[place])))
        };
        let rounding = 4 * i128::from(FULL) * i128::from(FULL);
        one(cpu, 0).saturating_add(one(memory, 1)).saturating_add(rounding)
    }

    /// An amount as the product of its share of a node and the node's weight: the same on any node.
    fn weighed(&self, amount: u32, all: u128) -> i128 {
        let amount = u128::from(amount) * self.nodes * AVERAGE * u128::from(FULL);
        i128::try_from(amount.checked_div(all).unwrap_or(0)).unwrap_or(i128::MAX)
    }
}

/// A share as it is read, with one decimal.
pub(super) fn percent(share: u64) -> String {
    let tenths = share / (FULL / 1000);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// A share in millionths.
pub(super) const fn ppm(share: u64) -> u64 {
    share / 1000
}
