//! One bit per node for the requirements on its facts: traits, networks, platform and the like.
//!
//! Requests with the same requirements share a mask, whatever their size or tenant. A mask follows the
//! log of fact changes and is recomputed only for nodes whose facts changed.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::filter::passes_static_tests;
use crate::fleet::{Bits, Fleet, NodeIndex, NodePlace};
use crate::model::InstanceRequest;
use crate::policy::Policy;

/// Masks that are kept; the least recently used is replaced.
pub(super) const MAX_MASKS: usize = 128;

#[derive(Clone, Debug)]
struct Mask {
    hash: u64,
    sample: InstanceRequest,
    bits: Bits,
    cursor: u64,
    last_used: u64,
}

/// The masks in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Masks {
    masks: Vec<Mask>,
    uses: u64,
    smallest_host: SmallestHost,
}

/// A bound on the cores of the smallest node. A request up to it passes the test of cores on every
/// node, so that requests of all usual sizes share a mask.
#[derive(Clone, Copy, Debug, Default)]
struct SmallestHost {
    /// At most what the smallest node has: a node that goes, or grows, does not raise it.
    cpu_milli: u32,
    cursor: Option<u64>,
}

impl SmallestHost {
    fn catch_up(&mut self, fleet: &Fleet) {
        let end = fleet.fact_changes_end();
        if self.cursor == Some(end) {
            return;
        }
        let cores = |index| fleet.row(index).filter(|row| row.capacity_known);
        let least = |indexes: &mut dyn Iterator<Item = NodeIndex>| {
            let sized = indexes.filter_map(cores).map(|row| row.capacity.cpu_milli);
            sized.filter(|cpu| *cpu > 0).min().unwrap_or(u32::MAX)
        };
        self.cpu_milli = match self.cursor.and_then(|cursor| fleet.fact_changes_since(cursor)) {
            Some(mut changes) => self.cpu_milli.min(least(&mut changes)),
            None => least(&mut fleet.columns().present.indexes()),
        };
        self.cursor = Some(end);
    }
}

impl Masks {
    /// The words of the mask for a request, brought up to date.
    pub(crate) fn get(
        &mut self,
        fleet: &Fleet,
        policy: &Policy,
        request: &InstanceRequest,
    ) -> &[u64] {
        self.uses += 1;
        self.smallest_host.catch_up(fleet);
        // Zero where every node has as many cores.
        let cpu = request.visible_cpu_milli();
        let cpu = if cpu <= self.smallest_host.cpu_milli { 0 } else { cpu };
        let hash = static_hash(request, cpu);
        let found = self.masks.iter().position(|mask| {
            mask.hash == hash
                && mask.sample.resources.cpu_milli == cpu
                && mask.sample.same_static_class(request)
        });
        let place = found.unwrap_or_else(|| self.add(hash, request, cpu));
        let mask = &mut self.masks[place];
        mask.last_used = self.uses;
        mask.catch_up(fleet, policy);
        mask.bits.words()
    }

    fn add(&mut self, hash: u64, request: &InstanceRequest, cpu_milli: u32) -> usize {
        let mut sample = InstanceRequest { elastic: None, ..request.clone() };
        sample.resources.cpu_milli = cpu_milli;
        let mask =
            Mask { hash, sample, bits: Bits::default(), cursor: u64::MAX, last_used: self.uses };
        if self.masks.len() < MAX_MASKS {
            self.masks.push(mask);
            return self.masks.len() - 1;
        }
        let oldest = self.masks.iter().enumerate().min_by_key(|(_, mask)| mask.last_used);
        let place = oldest.map_or(0, |(place, _)| place);
        self.masks[place] = mask;
        place
    }

    pub(crate) fn clear(&mut self) {
        self.masks.clear();
        self.smallest_host = SmallestHost::default();
    }
}

impl Mask {
    fn catch_up(&mut self, fleet: &Fleet, policy: &Policy) {
        let end = fleet.fact_changes_end();
        let blocks = fleet.columns().zone_of_block.len();
        if self.cursor == end && self.bits.words().len() == blocks {
            return;
        }
        self.bits.grow(blocks);
        match fleet.fact_changes_since(self.cursor) {
            Some(changes) => {
                let indexes: Vec<_> = changes.collect();
                indexes.into_iter().for_each(|index| self.update_node(fleet, policy, index));
            }
            None => {
                self.bits.words_mut().iter_mut().for_each(|word| *word = 0);
                let indexes: Vec<_> = fleet.columns().present.indexes().collect();
                indexes.into_iter().for_each(|index| self.update_node(fleet, policy, index));
            }
        }
        self.cursor = end;
    }

    fn update_node(&mut self, fleet: &Fleet, policy: &Policy, index: NodeIndex) {
        let passes = fleet.row(index).is_some_and(|row| {
            passes_static_tests(&NodePlace { fleet, row }, &self.sample, policy)
        });
        self.bits.set(index, passes);
    }
}

fn static_hash(request: &InstanceRequest, cpu_milli: u32) -> u64 {
    let mut hasher = FxHasher::default();
    cpu_milli.hash(&mut hasher);
    request.traits.hash(&mut hasher);
    request.networks.hash(&mut hasher);
    request.platform.hash(&mut hasher);
    request.ratios.hash(&mut hasher);
    request.capacity_type.hash(&mut hasher);
    request.required_place.hash(&mut hasher);
    request.exclude_virtual.hash(&mut hasher);
    hasher.finish()
}
