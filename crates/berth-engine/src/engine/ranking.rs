//! The ranking of one class of requests: the totals of a scan, repaired where nodes changed.
//!
//! It holds every node's total (without its zone's points) and, per block of 64, the best as one
//! sortable key. A claim changes one node, so a repair recomputes that node and its block; choosing
//! reads one key per group of blocks. A replica also changes the points of its whole rack, and of its
//! zone, whose points are only added when choosing.

use rustc_hash::FxHashMap;

use super::scan::{INELIGIBLE, Inputs, Totals, add_to_lanes, greatest, zone_points};
use crate::affinity::Topology;
use crate::filter::{CPU_CAP_MIXING, Gate, passes_neighbour_tests};
use crate::fleet::{
    Availability, Block, Change, ChangeKind, Claimant, Fleet, LANES, NO_DOMAIN, NodeIndex, lanes,
};
use crate::model::{Demand, InstanceRequest, PPM};
use crate::prepared_request::{Origin, PreparedRequest};
use crate::score::{dense_points, rack_value, sparse_points, term};

/// A ranking is repaired while fewer than one in this many nodes changed; a scan is cheaper then.
const REPAIRED_ONE_IN: usize = 8;

/// One class's totals.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    /// A request of the class.
    pub(super) sample: InstanceRequest,
    /// Its tenant and workload, as the change log has them.
    claimant: Claimant,
    totals: Vec<Block<i32>>,
    /// Best total in the high half, inverted rank in the low half; `i64::MIN` when all are out.
    keys: Vec<i64>,
    /// Groups of blocks of one zone, each with its greatest key.
    groups: Vec<BlockGroup>,
    group_of_block: Vec<u32>,
    /// Replicas per rack as the totals have them.
    racks: FxHashMap<u32, u32>,
    cursor: u64,
    version: RankingVersion,
    /// When it was last asked for, in uses of all rankings.
    pub(super) last_used: u64,
    // Scratch of `repair`.
    changed: Vec<Change>,
    dirty: NumberSet,
    dirty_groups: NumberSet,
    recomputed: Vec<NodeIndex>,
}

/// Some blocks of one zone. Choosing reads one key per group: at 100,000 nodes, fifty instead of
/// sixteen hundred.
#[derive(Clone, Debug)]
struct BlockGroup {
    zone: u32,
    blocks: Vec<u32>,
    best: i64,
}

/// Blocks in a group.
const BLOCKS_PER_GROUP: usize = 32;

/// What a ranking was computed from; a ranking of another version cannot be repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RankingVersion {
    epoch: u64,
    rules_gen: u64,
    rank_gen: u64,
    /// Of the weights, where they depend on the fleet's load.
    weights: u64,
    /// Of the usual shapes, where they count.
    shapes: u64,
    blocks: usize,
}

/// A set of small numbers that is filled and drained repeatedly.
#[derive(Clone, Debug, Default)]
struct NumberSet {
    words: Vec<u64>,
}

impl NumberSet {
    fn mark(&mut self, number: usize) {
        let word = number / LANES;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (number % LANES);
    }

    /// The numbers, in order; none is left afterwards.
    fn drain(&mut self) -> impl Iterator<Item = usize> + '_ {
        self.words
            .iter_mut()
            .enumerate()
            .flat_map(|(place, word)| lanes(std::mem::take(word), place).map(NodeIndex::as_usize))
    }
}

/// A node and its total.
pub(super) type Choice = (NodeIndex, i32);

impl Ranking {
    /// An empty one, to be filled by [`Ranking::rebuild_from_scan`].
    pub(super) fn new(request: &InstanceRequest, last_used: u64) -> Self {
        Self {
            sample: request.clone(),
            claimant: Claimant::new(&request.tenant, request.workload.as_deref()),
            totals: Vec::new(),
            keys: Vec::new(),
            groups: Vec::new(),
            group_of_block: Vec::new(),
            racks: FxHashMap::default(),
            cursor: 0,
            version: RankingVersion::default(),
            last_used,
            changed: Vec::new(),
            dirty: NumberSet::default(),
            dirty_groups: NumberSet::default(),
            recomputed: Vec::new(),
        }
    }

    /// Copies a scan's totals, with every zone's points taken off again.
    pub(super) fn rebuild_from_scan(&mut self, totals: &Totals, inputs: &Inputs<'_>) {
        let fleet = inputs.prepared.fleet;
        let zones = zone_points(inputs.prepared);
        self.totals.clone_from(&totals.blocks);
        for (block, &zone) in self.totals.iter_mut().zip(&fleet.columns().zone_of_block) {
            let points = zones[zone as usize];
            if points != 0 {
                block.0.iter_mut().filter(|t| **t != INELIGIBLE).for_each(|t| *t -= points);
            }
        }
        let ranks = fleet.columns().rank.blocks();
        self.keys = self.totals.iter().zip(ranks).map(|(t, r)| key(t, r)).collect();
        self.group_blocks(fleet);
        self.racks.clear();
        if let Some(replicas) = inputs.prepared.replicas {
            replicas.racks.for_each(|rack, count| {
                self.racks.insert(rack, count);
            });
        }
        self.cursor = fleet.changes_end();
        self.version = version(inputs);
    }

    /// Groups the blocks of each zone.
    fn group_blocks(&mut self, fleet: &Fleet) {
        self.groups.clear();
        self.group_of_block = vec![0; self.keys.len()];
        let mut open: FxHashMap<u32, usize> = FxHashMap::default();
        for (block, &zone) in (0u32..).zip(&fleet.columns().zone_of_block) {
            let full = |at: &usize| self.groups[*at].blocks.len() == BLOCKS_PER_GROUP;
            let place = match open.get(&zone).copied().filter(|at| !full(at)) {
                Some(place) => place,
                None => {
                    self.groups.push(BlockGroup { zone, blocks: Vec::new(), best: i64::MIN });
                    self.groups.len() - 1
                }
            };
            open.insert(zone, place);
            self.group_of_block[block as usize] = u32::try_from(place).unwrap_or(u32::MAX);
            let group = &mut self.groups[place];
            group.blocks.push(block);
            group.best = group.best.max(self.keys[block as usize]);
        }
    }

    /// Recomputes what changed; false when a scan is needed.
    pub(super) fn repair(&mut self, inputs: &Inputs<'_>) -> bool {
        let fleet = inputs.prepared.fleet;
        let reach = (fleet.node_count() / REPAIRED_ONE_IN).max(LANES) as u64;
        if self.version != version(inputs) || fleet.changes_end() - self.cursor > reach {
            return false;
        }
        let Some(changes) = fleet.changes_since(self.cursor) else { return false };
        self.recomputed.clear();
        self.changed.clear();
        self.changed.extend(changes);
        let weight = inputs.scorers.spread_racks;
        for place in 0..self.changed.len() {
            let change = self.changed[place];
            if weight != 0 && change.kind == ChangeKind::Claim(self.claimant) {
                self.repair_rack(inputs, change.index, weight);
            }
        }
        for place in 0..self.changed.len() {
            self.repair_node(inputs, self.changed[place]);
        }
        self.repair_keys(fleet);
        self.cursor = fleet.changes_end();
        true
    }

    /// Recomputes the keys of the blocks that are marked, and then of their groups.
    fn repair_keys(&mut self, fleet: &Fleet) {
        pulp::Arch::new().dispatch(RepairKeys {
            keys: &mut self.keys,
            dirty: &mut self.dirty,
            dirty_groups: &mut self.dirty_groups,
            totals: &self.totals,
            group_of_block: &self.group_of_block,
            ranks: fleet.columns().rank.blocks(),
        });
        for place in self.dirty_groups.drain() {
            let group = &mut self.groups[place];
            let keys = group.blocks.iter().map(|&block| self.keys[block as usize]);
            group.best = keys.fold(i64::MIN, i64::max);
        }
    }

    fn repair_node(&mut self, inputs: &Inputs<'_>, change: Change) {
        let Change { index, kind, after } = change;
        let total = &mut self.totals[index.block()].0[index.lane()];
        let old = *total;
        let new = if !fits(inputs, &after, index) {
            INELIGIBLE
        } else if old == INELIGIBLE || needs_recompute(inputs, self.claimant, kind) {
            // Everything up to now is in it: later changes of this node must not be added again.
            self.recomputed.push(index);
            let dense = inputs
                .prepared
                .fleet
                .row(index)
                .map_or(0, |row| dense_points(inputs.scorers, inputs.prepared, row))
                + inputs.blocks.points(inputs.prepared.fleet.columns(), index);
            inputs.derived.points.get(index)
                + sparse_points(inputs.scorers, inputs.prepared, index)
                + dense
        } else if self.recomputed.contains(&index) {
            old
        } else {
            old + after.points_delta
        };
        *total = new;
        let (block, best) = (index.block(), self.keys[index.block()] >> 32);
        let rank = inputs.prepared.fleet.columns().rank.get(index);
        if new != INELIGIBLE && i64::from(new) > best {
            // The new best of its block, whatever it was before: the others need not be compared.
            self.keys[block] = key_of(new, rank);
            self.dirty_groups.mark(self.group_of_block[block] as usize);
        } else if old != INELIGIBLE && i64::from(old) == best && new != old {
            self.dirty.mark(block);
        } else if new != INELIGIBLE && i64::from(new) == best {
            self.keys[block] = self.keys[block].max(key_of(new, rank));
            self.dirty_groups.mark(self.group_of_block[block] as usize);
        }
    }

    /// A replica that came or went changes the points of its rack's other nodes.
    fn repair_rack(&mut self, inputs: &Inputs<'_>, index: NodeIndex, weight: u32) {
        let (prepared, fleet) = (inputs.prepared, inputs.prepared.fleet);
        let rack = fleet.domain(index, Topology::Rack);
        let now = prepared.replicas.map_or(0, |replicas| replicas.racks.count(rack));
        let before = self.racks.get(&rack).copied().unwrap_or(0);
        if now == before || rack == NO_DOMAIN {
            return;
        }
        self.racks.insert(rack, now);
        let value_before = PPM / (before + 1);
        let delta = term(rack_value(prepared, rack), weight) - term(value_before, weight);
        for lanes in fleet.domains().rack(rack) {
            add_to_lanes(&mut self.totals[lanes.block as usize], lanes.mask, delta);
            self.dirty.mark(lanes.block as usize);
        }
    }

    pub(super) fn winner(&self, prepared: &PreparedRequest<'_>) -> Option<Choice> {
        let zones = zone_points(prepared);
        let columns = prepared.fleet.columns();
        let mut top = (i64::MIN, 0);
        for (place, group) in self.groups.iter().enumerate() {
            let zone = i64::from(zones[group.zone as usize]) << 32;
            if group.best != i64::MIN && group.best + zone > top.0 {
                top = (group.best + zone, place);
            }
        }
        if top.0 == i64::MIN {
            return None;
        }
        let group = &self.groups[top.1];
        let mut blocks = group.blocks.iter().map(|&block| block as usize);
        let block = blocks.find(|&block| self.keys[block] == group.best)?;
        let (best, rank) = (group.best >> 32, rank_in(group.best));
        let ranks = &columns.rank.blocks()[block].0;
        let lane = (0..LANES)
            .find(|&lane| ranks[lane] == rank && i64::from(self.totals[block].0[lane]) == best)?;
        let total = i32::try_from(top.0 >> 32).unwrap_or(i32::MAX);
        Some((NodeIndex::at(block, lane), total))
    }
}

/// Whether a change may have affected more than the node's points by load: other workloads on a node
/// change nothing else for this request.
fn needs_recompute(inputs: &Inputs<'_>, claimant: Claimant, kind: ChangeKind) -> bool {
    let (prepared, scorers) = (inputs.prepared, inputs.scorers);
    match kind {
        ChangeKind::Facts | ChangeKind::Eligibility => true,
        ChangeKind::Claim(_) if !scorers.dense.is_empty() || !scorers.blocks.is_empty() => true,
        ChangeKind::Claim(by) if by == claimant => true,
        // Soft rules and hints depend on all of the tenant's instances; groups have members of any
        // tenant. The request's own hints are checked and not what they resolved to: a hint whose last
        // instance was just released resolves to nothing, and that is the change.
        ChangeKind::Claim(by) => {
            let sees_tenant = !prepared.soft_rules.is_empty()
                || !prepared.request.locality.is_empty()
                || prepared.policy.options.owner_spread
                || scorers.counts_tenants;
            let grouped = || prepared.soft_rules.iter().any(|rule| rule.origin == Origin::Group);
            (by.tenant == claimant.tenant && sees_tenant) || grouped()
        }
    }
}

/// Whether one node can take the instance. The needs are those that a scan compares.
fn fits(inputs: &Inputs<'_>, after: &Availability, index: NodeIndex) -> bool {
    let prepared = inputs.prepared;
    let capped = match prepared.request.cpu_capped {
        _ if prepared.policy.is_off(CPU_CAP_MIXING) => 0,
        true => Availability::TAKES_CAPPED,
        false => Availability::TAKES_UNCAPPED,
    };
    let flags = Availability::ELIGIBLE | Availability::OPEN | capped;
    let masked = inputs.mask[index.block()] >> index.lane() & 1 == 1;
    // No short circuit: which comparison fails is hard to predict, all of them are cheap.
    let needs = &inputs.needs.fixed;
    let roomy = (after.room[0] >= needs[0])
        & (after.room[1] >= needs[1])
        & (after.room[2] >= needs[2])
        & (after.room[3] >= needs[3]);
    if !(masked & roomy & (after.flags & flags == flags)) {
        return false;
    }
    let has_class = |gate: &Gate<'_>| gate.column.is_some_and(|c| c.get(index) >= gate.need);
    let unruled = prepared.hard_rules.is_empty() && prepared.excluded.is_empty();
    let below_ceiling = |demand: &Demand| {
        prepared.fleet.row(index).is_some_and(|row| row.room().admits_cpu(demand).is_ok())
    };
    inputs.needs.extra.iter().all(has_class)
        && inputs.needs.below_ceiling.as_ref().is_none_or(below_ceiling)
        && (unruled || passes_neighbour_tests(prepared, index))
}

/// The keys of the blocks that are marked; a type so that it may use wide instructions.
struct RepairKeys<'a> {
    keys: &'a mut [i64],
    dirty: &'a mut NumberSet,
    dirty_groups: &'a mut NumberSet,
    totals: &'a [Block<i32>],
    group_of_block: &'a [u32],
    ranks: &'a [Block<u32>],
}

impl pulp::WithSimd for RepairKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for block in self.dirty.drain() {
            self.keys[block] = key(&self.totals[block], &self.ranks[block]);
            self.dirty_groups.mark(self.group_of_block[block] as usize);
        }
    }
}

/// A block's best as one number: greater is better, of equals the smaller rank.
#[inline(always)]
fn key(totals: &Block<i32>, ranks: &Block<u32>) -> i64 {
    let best = greatest(totals);
    if best == INELIGIBLE {
        return i64::MIN;
    }
    let of_best = |(total, rank): (&i32, &u32)| if *total == best { *rank } else { u32::MAX };
    let first = totals.0.iter().zip(&ranks.0).map(of_best).fold(u32::MAX, u32::min);
    key_of(best, first)
}

/// A total and a rank as one number.
fn key_of(total: i32, rank: u32) -> i64 {
    (i64::from(total) << 32) | i64::from(u32::MAX - rank)
}

/// The rank that a key holds.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "the low half is meant"
)]
const fn rank_in(key: i64) -> u32 {
    u32::MAX - key as u32
}

fn version(inputs: &Inputs<'_>) -> RankingVersion {
    let fleet = inputs.prepared.fleet;
    RankingVersion {
        epoch: inputs.derived.epoch,
        rules_gen: fleet.rules_gen(),
        rank_gen: fleet.rank_gen(),
        weights: inputs.scorers.version,
        shapes: if inputs.blocks.is_empty() { 0 } else { fleet.shapes_version() },
        blocks: inputs.mask.len(),
    }
}
