//! One class's ranking: the totals of a scan, repaired where nodes changed.
//!
//! It holds every node's total (without its zone's points) and, per block of 64, the best as one
//! sortable key. A claim changes one node, so a repair recomputes that node and its block; choosing
//! reads one key per handful of blocks. A replica also changes its whole rack, which is a sum on
//! the rack's nodes, and its zone, whose points are only added when choosing.

use rustc_hash::FxHashMap;

use super::scan::{Inputs, NOT_HERE, Totals, add_to_lanes, greatest, zone_points};
use crate::affinity::Topology;
use crate::filter::{CPU_CAP_MIXING, Gate, passes_neighbour_tests};
use crate::fleet::{Block, Change, Fleet, LANES, NO_DOMAIN, Slot, Standing, What, Whose, lanes};
use crate::model::{InstanceRequest, PPM};
use crate::prepared_request::{Ask, Origin};
use crate::score::{dense_points, rack_value, sparse_points, term};

/// A ranking is repaired while fewer than one in this many nodes changed; a scan is cheaper then.
const REPAIRED_ONE_IN: usize = 8;

/// One class's totals.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    /// A request of the class.
    pub(super) sample: InstanceRequest,
    /// Its owner and workload, as the change log has them.
    whose: Whose,
    totals: Vec<Block<i32>>,
    /// Best total in the high half, inverted rank in the low half; `i64::MIN` when all are out.
    keys: Vec<i64>,
    /// Blocks of one zone in handfuls, and the greatest key of each handful.
    handfuls: Vec<Handful>,
    handful_of_block: Vec<u32>,
    /// Replicas per rack as the totals have them.
    racks: FxHashMap<u32, u32>,
    cursor: u64,
    stamp: Stamp,
    /// When it was last asked for, in uses of all rankings.
    pub(super) last_used: u64,
    // Scratch of `repair`.
    changed: Vec<Change>,
    dirty: Marks,
    dirty_handfuls: Marks,
    recomputed: Vec<Slot>,
}

/// Some blocks of one zone. Choosing looks at one key per handful; at a hundred thousand nodes that
/// is fifty instead of sixteen hundred.
#[derive(Clone, Debug)]
struct Handful {
    zone: u32,
    blocks: Vec<u32>,
    best: i64,
}

/// Blocks in a handful.
const HANDFUL: usize = 32;

/// What a ranking cannot be repaired over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    epoch: u64,
    rules_gen: u64,
    rank_gen: u64,
    blocks: usize,
}

/// A set of small numbers that is filled and emptied over and over.
#[derive(Clone, Debug, Default)]
struct Marks {
    words: Vec<u64>,
}

impl Marks {
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
            .flat_map(|(place, word)| lanes(std::mem::take(word), place).map(Slot::index))
    }
}

/// A node and its total.
pub(super) type Choice = (Slot, i32);

impl Ranking {
    /// An empty one, to be filled by [`Ranking::take`].
    pub(super) fn new(request: &InstanceRequest, last_used: u64) -> Self {
        Self {
            sample: request.clone(),
            whose: Whose::new(&request.owner, request.workload.as_deref()),
            totals: Vec::new(),
            keys: Vec::new(),
            handfuls: Vec::new(),
            handful_of_block: Vec::new(),
            racks: FxHashMap::default(),
            cursor: 0,
            stamp: Stamp { epoch: 0, rules_gen: 0, rank_gen: 0, blocks: 0 },
            last_used,
            changed: Vec::new(),
            dirty: Marks::default(),
            dirty_handfuls: Marks::default(),
            recomputed: Vec::new(),
        }
    }

    /// Copies a scan's totals, with every zone's points taken off again.
    pub(super) fn take(&mut self, totals: &Totals, inputs: &Inputs<'_>) {
        let fleet = inputs.ask.fleet;
        let zones = zone_points(inputs.ask);
        self.totals.clone_from(&totals.blocks);
        for (block, &zone) in self.totals.iter_mut().zip(&fleet.columns().zone_of_block) {
            let points = zones[zone as usize];
            if points != 0 {
                block.0.iter_mut().filter(|t| **t != NOT_HERE).for_each(|t| *t -= points);
            }
        }
        let ranks = fleet.columns().rank.blocks();
        self.keys = self.totals.iter().zip(ranks).map(|(t, r)| key(t, r)).collect();
        self.gather(fleet);
        self.racks.clear();
        if let Some(replicas) = inputs.ask.replicas {
            replicas.racks.for_each(|rack, count| {
                self.racks.insert(rack, count);
            });
        }
        self.cursor = fleet.changes_end();
        self.stamp = stamp(inputs);
    }

    /// Puts the blocks of each zone into handfuls.
    fn gather(&mut self, fleet: &Fleet) {
        self.handfuls.clear();
        self.handful_of_block = vec![0; self.keys.len()];
        let mut open: FxHashMap<u32, usize> = FxHashMap::default();
        for (block, &zone) in (0u32..).zip(&fleet.columns().zone_of_block) {
            let full = |at: &usize| self.handfuls[*at].blocks.len() == HANDFUL;
            let place = match open.get(&zone).copied().filter(|at| !full(at)) {
                Some(place) => place,
                None => {
                    self.handfuls.push(Handful { zone, blocks: Vec::new(), best: i64::MIN });
                    self.handfuls.len() - 1
                }
            };
            open.insert(zone, place);
            self.handful_of_block[block as usize] = u32::try_from(place).unwrap_or(u32::MAX);
            let handful = &mut self.handfuls[place];
            handful.blocks.push(block);
            handful.best = handful.best.max(self.keys[block as usize]);
        }
    }

    /// Recomputes what changed; false when a scan is needed.
    pub(super) fn repair(&mut self, inputs: &Inputs<'_>) -> bool {
        let fleet = inputs.ask.fleet;
        let reach = (fleet.node_count() / REPAIRED_ONE_IN).max(LANES) as u64;
        if self.stamp != stamp(inputs) || fleet.changes_end() - self.cursor > reach {
            return false;
        }
        let Some(changes) = fleet.changes_since(self.cursor) else { return false };
        self.recomputed.clear();
        self.changed.clear();
        self.changed.extend(changes);
        let weight = inputs.scorers.spread_racks;
        for place in 0..self.changed.len() {
            let change = self.changed[place];
            if weight != 0 && change.what == What::Claim(self.whose) {
                self.repair_rack(inputs, change.slot, weight);
            }
        }
        for place in 0..self.changed.len() {
            self.repair_node(inputs, self.changed[place]);
        }
        self.repair_keys(fleet);
        self.cursor = fleet.changes_end();
        true
    }

    /// Recomputes the keys of the blocks that are marked, and then of their handfuls.
    fn repair_keys(&mut self, fleet: &Fleet) {
        pulp::Arch::new().dispatch(RepairKeys {
            keys: &mut self.keys,
            dirty: &mut self.dirty,
            dirty_handfuls: &mut self.dirty_handfuls,
            totals: &self.totals,
            handful_of_block: &self.handful_of_block,
            ranks: fleet.columns().rank.blocks(),
        });
        for place in self.dirty_handfuls.drain() {
            let handful = &mut self.handfuls[place];
            let keys = handful.blocks.iter().map(|&block| self.keys[block as usize]);
            handful.best = keys.fold(i64::MIN, i64::max);
        }
    }

    fn repair_node(&mut self, inputs: &Inputs<'_>, change: Change) {
        let Change { slot, what, after } = change;
        let total = &mut self.totals[slot.block()].0[slot.lane()];
        let old = *total;
        let new = if !stands(inputs, &after, slot) {
            NOT_HERE
        } else if old == NOT_HERE || concerns(inputs, self.whose, what) {
            // Everything up to now is in it: later changes of this node must not be added again.
            self.recomputed.push(slot);
            let dense = inputs
                .ask
                .fleet
                .row(slot)
                .map_or(0, |row| dense_points(inputs.scorers, inputs.ask, row));
            inputs.derived.points.get(slot)
                + sparse_points(inputs.scorers, inputs.ask, slot)
                + dense
        } else if self.recomputed.contains(&slot) {
            old
        } else {
            old + after.worth
        };
        *total = new;
        let (block, best) = (slot.block(), self.keys[slot.block()] >> 32);
        let rank = inputs.ask.fleet.columns().rank.get(slot);
        if new != NOT_HERE && i64::from(new) > best {
            // The new best of its block, whatever it was before: no need to look at the others.
            self.keys[block] = key_of(new, rank);
            self.dirty_handfuls.mark(self.handful_of_block[block] as usize);
        } else if old != NOT_HERE && i64::from(old) == best && new != old {
            self.dirty.mark(block);
        } else if new != NOT_HERE && i64::from(new) == best {
            self.keys[block] = self.keys[block].max(key_of(new, rank));
            self.dirty_handfuls.mark(self.handful_of_block[block] as usize);
        }
    }

    /// A replica that came or went changes the points of its rack's other nodes.
    fn repair_rack(&mut self, inputs: &Inputs<'_>, slot: Slot, weight: u32) {
        let (ask, fleet) = (inputs.ask, inputs.ask.fleet);
        let rack = fleet.domain(slot, Topology::Rack);
        let now = ask.replicas.map_or(0, |replicas| replicas.racks.count(rack));
        let before = self.racks.get(&rack).copied().unwrap_or(0);
        if now == before || rack == NO_DOMAIN {
            return;
        }
        self.racks.insert(rack, now);
        let value_before = PPM / (before + 1);
        let delta = term(rack_value(ask, rack), weight) - term(value_before, weight);
        for lanes in fleet.domains().rack(rack) {
            add_to_lanes(&mut self.totals[lanes.block as usize], lanes.mask, delta);
            self.dirty.mark(lanes.block as usize);
        }
    }

    pub(super) fn winner(&self, ask: &Ask<'_>) -> Option<Choice> {
        let zones = zone_points(ask);
        let columns = ask.fleet.columns();
        let mut top = (i64::MIN, 0);
        for (place, handful) in self.handfuls.iter().enumerate() {
            let zone = i64::from(zones[handful.zone as usize]) << 32;
            if handful.best != i64::MIN && handful.best + zone > top.0 {
                top = (handful.best + zone, place);
            }
        }
        if top.0 == i64::MIN {
            return None;
        }
        let handful = &self.handfuls[top.1];
        let mut blocks = handful.blocks.iter().map(|&block| block as usize);
        let block = blocks.find(|&block| self.keys[block] == handful.best)?;
        let (best, rank) = (handful.best >> 32, rank_in(handful.best));
        let ranks = &columns.rank.blocks()[block].0;
        let lane = (0..LANES)
            .find(|&lane| ranks[lane] == rank && i64::from(self.totals[block].0[lane]) == best)?;
        let total = i32::try_from(top.0 >> 32).unwrap_or(i32::MAX);
        Some((Slot::at(block, lane), total))
    }
}

/// Whether a change can have changed more than its own worth in points, as far as the request can
/// see: what other workloads do on a node changes its points by load and nothing else.
fn concerns(inputs: &Inputs<'_>, whose: Whose, what: What) -> bool {
    let (ask, scorers) = (inputs.ask, inputs.scorers);
    match what {
        What::Facts | What::Eligibility => true,
        What::Claim(_) if !scorers.dense.is_empty() => true,
        What::Claim(by) if by == whose => true,
        // Soft rules and hints see all of the owner's instances, groups have members of any owner.
        // Of hints the request is asked and not what it resolved to: one whose last instance has
        // just gone resolves to nothing, and that is the change.
        What::Claim(by) => {
            let sees_owner = !ask.soft.is_empty()
                || !ask.request.locality.is_empty()
                || ask.policy.options.owner_spread
                || scorers.counts_owners;
            let grouped = || ask.soft.iter().any(|rule| rule.origin == Origin::Group);
            (by.owner == whose.owner && sees_owner) || grouped()
        }
    }
}

/// Whether one node can take the instance. The needs are those that a scan compares.
fn stands(inputs: &Inputs<'_>, after: &Standing, slot: Slot) -> bool {
    let ask = inputs.ask;
    let capped = match ask.request.cpu_capped {
        _ if ask.policy.is_off(CPU_CAP_MIXING) => 0,
        true => Standing::TAKES_CAPPED,
        false => Standing::TAKES_UNCAPPED,
    };
    let flags = Standing::ELIGIBLE | Standing::OPEN | capped;
    let masked = inputs.mask[slot.block()] >> slot.lane() & 1 == 1;
    // No short circuit: which comparison fails is hard to predict, all of them are cheap.
    let needs = &inputs.needs.fixed;
    let roomy = (after.room[0] >= needs[0])
        & (after.room[1] >= needs[1])
        & (after.room[2] >= needs[2])
        & (after.room[3] >= needs[3]);
    if !(masked & roomy & (after.flags & flags == flags)) {
        return false;
    }
    let has_class = |gate: &Gate<'_>| gate.column.is_some_and(|c| c.get(slot) >= gate.need);
    let unruled = ask.hard.is_empty() && ask.excluded.is_empty();
    inputs.needs.extra.iter().all(has_class) && (unruled || passes_neighbour_tests(ask, slot))
}

/// The keys of the blocks that are marked; a type so that it may use wide instructions.
struct RepairKeys<'a> {
    keys: &'a mut [i64],
    dirty: &'a mut Marks,
    dirty_handfuls: &'a mut Marks,
    totals: &'a [Block<i32>],
    handful_of_block: &'a [u32],
    ranks: &'a [Block<u32>],
}

impl pulp::WithSimd for RepairKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for block in self.dirty.drain() {
            self.keys[block] = key(&self.totals[block], &self.ranks[block]);
            self.dirty_handfuls.mark(self.handful_of_block[block] as usize);
        }
    }
}

/// A block's best as one number: greater is better, of equals the smaller rank.
#[inline(always)]
fn key(totals: &Block<i32>, ranks: &Block<u32>) -> i64 {
    let best = greatest(totals);
    if best == NOT_HERE {
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

fn stamp(inputs: &Inputs<'_>) -> Stamp {
    let fleet = inputs.ask.fleet;
    Stamp {
        epoch: inputs.derived.epoch,
        rules_gen: fleet.rules_gen(),
        rank_gen: fleet.rank_gen(),
        blocks: inputs.mask.len(),
    }
}
