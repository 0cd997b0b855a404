//! One bit per node for the requirements on its facts: traits, networks, platform and the like.
//!
//! Requests with the same requirements share a mask, whatever their size or tenant. A mask follows the
//! log of fact changes and is recomputed only for nodes whose facts changed.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::filter::passes_static_tests;
use crate::fleet::{Bits, Fleet};
use crate::model::InstanceRequest;
use crate::policy::Policy;

/// Masks that are kept; the least recently used is replaced.
const MAX_MASKS: usize = 128;

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
        let hash = static_hash(request);
        let found = self
            .masks
            .iter()
            .position(|mask| mask.hash == hash && mask.sample.same_static_class(request));
        let place = found.unwrap_or_else(|| self.add(hash, request));
        let mask = &mut self.masks[place];
        mask.last_used = self.uses;
        mask.catch_up(fleet, policy);
        mask.bits.words()
    }

    fn add(&mut self, hash: u64, request: &InstanceRequest) -> usize {
        let mask = Mask {
            hash,
            sample: request.clone(),
            bits: Bits::default(),
            cursor: u64::MAX,
            last_used: self.uses,
        };
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

    fn update_node(&mut self, fleet: &Fleet, policy: &Policy, index: crate::fleet::NodeIndex) {
        let passes =
            fleet.row(index).is_some_and(|row| passes_static_tests(row, &self.sample, policy));
        self.bits.set(index, passes);
    }
}

fn static_hash(request: &InstanceRequest) -> u64 {
    let mut hasher = FxHasher::default();
    request.traits.hash(&mut hasher);
    request.networks.hash(&mut hasher);
    request.platform.hash(&mut hasher);
    request.ratios.hash(&mut hasher);
    request.capacity_type.hash(&mut hasher);
    request.exclude_virtual.hash(&mut hasher);
    hasher.finish()
}
