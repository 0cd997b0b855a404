//! The result of a scan, kept for the next request of the same class and repaired where nodes
//! changed.
//!
//! A ranking holds every node's total (without its zone's points) and, per block of 64, the best
//! as one sortable key. A claim changes one node, so a repair recomputes that node and its block;
//! choosing reads one key per block. A replica also changes its whole rack, which is a sum on the
//! rack's nodes, and its zone, whose points are only added when choosing. Requests whose answer
//! reaches further than that (see [`Ask::is_local`]) are scanned each time.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use super::Ask;
use super::derived::Derived;
use super::scan::{NOT_HERE, Scan, Totals, greatest, rest_points, zone_points};
use crate::filter::{Gate, passes_neighbour_tests};
use crate::fleet::{Block, Fleet, LANES, Slot};
use crate::model::InstanceRequest;
use crate::score::{rack_value, sparse_points, term};

/// Rankings that are kept.
const KEPT: usize = 64;

/// Classes seen once are remembered by hash alone, in this many places.
const SEEN: usize = 256;

/// A class is worth a ranking only if it comes again before this share of the nodes changed.
const REPAIR_MAX_SHARE: usize = 8;

/// One class's totals.
#[derive(Clone, Debug)]
struct Ranking {
    hash: u64,
    sample: InstanceRequest,
    totals: Vec<Block<i32>>,
    /// Best total in the high half, inverted rank in the low half; `i64::MIN` when all are out.
    keys: Vec<i64>,
    /// Replicas per rack as the totals have them.
    racks: FxHashMap<u32, u32>,
    cursor: u64,
    stamp: Stamp,
    last_used: u64,
}

/// What a ranking cannot be repaired over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    epoch: u64,
    rules_gen: u64,
    rank_gen: u64,
    blocks: usize,
}

/// All rankings of an engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rankings {
    rankings: Vec<Ranking>,
    seen: Vec<u64>,
    uses: u64,
}

/// What a request needs to be repaired or scanned.
pub(crate) struct Inputs<'a> {
    pub(crate) ask: &'a Ask<'a>,
    pub(crate) derived: &'a Derived,
    pub(crate) mask: &'a [u64],
    pub(crate) gates: &'a [Gate<'a>],
}

/// What came of looking for a ranking.
pub(crate) enum Found {
    /// There is one at this place, to be repaired.
    Kept(usize),
    /// The class came before: keep the next scan.
    Again(u64),
    /// The class is new, or cannot have a ranking.
    No,
}

impl Rankings {
    pub(crate) fn clear(&mut self) {
        self.rankings.clear();
        self.seen.clear();
    }

    /// Looks for the ranking of a request.
    pub(crate) fn find(&mut self, ask: &Ask<'_>) -> Found {
        if !ask.is_local() || !ask.request.volumes.is_empty() {
            return Found::No;
        }
        self.uses += 1;
        let hash = class_hash(ask.request);
        let same = |r: &Ranking| r.hash == hash && r.sample.same_class(ask.request);
        if let Some(place) = self.rankings.iter().position(same) {
            self.rankings[place].last_used = self.uses;
            return Found::Kept(place);
        }
        if self.seen.contains(&hash) {
            return Found::Again(hash);
        }
        if self.seen.len() >= SEEN {
            self.seen.remove(0);
        }
        self.seen.push(hash);
        Found::No
    }

    /// Chooses from a ranking after repairing it; nothing when it must be scanned anew.
    pub(crate) fn choose(&mut self, place: usize, inputs: &Inputs<'_>) -> Option<Option<Choice>> {
        let ranking = &mut self.rankings[place];
        if !ranking.repair(inputs) {
            return None;
        }
        Some(ranking.winner(inputs.ask))
    }

    /// Keeps the totals of a scan as a ranking.
    pub(crate) fn keep(&mut self, found: &Found, totals: &Totals, inputs: &Inputs<'_>) {
        let ranking = match found {
            Found::No => return,
            Found::Kept(place) => &mut self.rankings[*place],
            Found::Again(hash) => {
                let place = self.place_for(*hash, inputs.ask.request);
                &mut self.rankings[place]
            }
        };
        ranking.take(totals, inputs);
    }

    fn place_for(&mut self, hash: u64, request: &InstanceRequest) -> usize {
        let ranking = Ranking {
            hash,
            sample: request.clone(),
            totals: Vec::new(),
            keys: Vec::new(),
            racks: FxHashMap::default(),
            cursor: 0,
            stamp: Stamp {
                epoch: 0,
                rules_gen: 0,
                rank_gen: 0,
                blocks: 0,
            },
            last_used: self.uses,
        };
        if self.rankings.len() < KEPT {
            self.rankings.push(ranking);
            return self.rankings.len() - 1;
        }
        let oldest = self
            .rankings
            .iter()
            .enumerate()
            .min_by_key(|(_, r)| r.last_used);
        let place = oldest.map_or(0, |(place, _)| place);
        self.rankings[place] = ranking;
        place
    }
}

/// A node and its total.
pub(crate) type Choice = (Slot, i32);

impl Ranking {
    /// Copies a scan's totals, with every zone's points taken off again.
    fn take(&mut self, totals: &Totals, inputs: &Inputs<'_>) {
        let fleet = inputs.ask.fleet;
        let zones = zone_points(inputs.ask);
        self.totals.clone_from(&totals.blocks);
        for (block, &zone) in self.totals.iter_mut().zip(&fleet.columns().zone_of_block) {
            let points = zones[zone as usize];
            if points != 0 {
                block
                    .0
                    .iter_mut()
                    .filter(|t| **t != NOT_HERE)
                    .for_each(|t| *t -= points);
            }
        }
        self.keys = (0..self.totals.len())
            .map(|block| key(&self.totals, block, fleet))
            .collect();
        self.racks.clear();
        if let Some(replicas) = inputs.ask.replicas {
            replicas.racks.for_each(|rack, count| {
                self.racks.insert(rack, count);
            });
        }
        self.cursor = fleet.changes_end();
        self.stamp = stamp(inputs);
    }

    /// Recomputes what changed; false when a scan is needed.
    fn repair(&mut self, inputs: &Inputs<'_>) -> bool {
        let fleet = inputs.ask.fleet;
        let reach = (fleet.node_count() / REPAIR_MAX_SHARE).max(LANES) as u64;
        if self.stamp != stamp(inputs) || fleet.changes_end() - self.cursor > reach {
            return false;
        }
        let Some(changes) = fleet.changes_since(self.cursor) else {
            return false;
        };
        let weight = inputs.ask.policy.weight_of_spread_racks();
        let mut dirty: Vec<usize> = Vec::new();
        for change in changes {
            if weight != 0 {
                self.repair_rack(inputs, change.slot(), weight, &mut dirty);
            }
        }
        let Some(changes) = fleet.changes_since(self.cursor) else {
            return false;
        };
        for change in changes {
            let slot = change.slot();
            self.totals[slot.block()].0[slot.lane()] = total(inputs, slot);
            dirty.push(slot.block());
        }
        dirty.sort_unstable();
        dirty.dedup();
        for block in dirty {
            self.keys[block] = key(&self.totals, block, fleet);
        }
        self.cursor = fleet.changes_end();
        true
    }

    /// A replica that came or went changes the points of its rack's other nodes.
    fn repair_rack(
        &mut self,
        inputs: &Inputs<'_>,
        slot: Slot,
        weight: u32,
        dirty: &mut Vec<usize>,
    ) {
        let (ask, fleet) = (inputs.ask, inputs.ask.fleet);
        let rack = fleet.domain(slot, crate::affinity::Topology::Rack);
        let now = ask
            .replicas
            .map_or(0, |replicas| replicas.racks.count(rack));
        let before = self.racks.get(&rack).copied().unwrap_or(0);
        if now == before || rack == crate::fleet::NO_DOMAIN {
            return;
        }
        self.racks.insert(rack, now);
        let value_before = crate::model::PPM / (before + 1);
        let delta = term(rack_value(ask, rack), weight) - term(value_before, weight);
        for slot in fleet.domains().rack_nodes(rack) {
            let total = &mut self.totals[slot.block()].0[slot.lane()];
            if *total != NOT_HERE {
                *total += delta;
                dirty.push(slot.block());
            }
        }
    }

    fn winner(&self, ask: &Ask<'_>) -> Option<Choice> {
        let zones = zone_points(ask);
        let columns = ask.fleet.columns();
        let mut top = (i64::MIN, 0);
        for (block, (&key, &zone)) in self.keys.iter().zip(&columns.zone_of_block).enumerate() {
            let with_zone = key.saturating_add(i64::from(zones[zone as usize]) << 32);
            if key != i64::MIN && with_zone > top.0 {
                top = (with_zone, block);
            }
        }
        if top.0 == i64::MIN {
            return None;
        }
        let block = top.1;
        let best = greatest(&self.totals[block]);
        let lanes = (0..LANES).filter(|&lane| self.totals[block].0[lane] == best);
        let slot = lanes
            .map(|lane| Slot::at(block, lane))
            .min_by_key(|s| columns.rank.get(*s))?;
        let total = i32::try_from(top.0 >> 32).unwrap_or(i32::MAX);
        Some((slot, total))
    }
}

/// One node's total without its zone's points.
fn total(inputs: &Inputs<'_>, slot: Slot) -> i32 {
    let (ask, columns) = (inputs.ask, inputs.ask.fleet.columns());
    let capped_ok = ask.policy.is_off(crate::filter::CPU_CAP_MIXING)
        || if ask.request.cpu_capped {
            columns.takes_capped.get(slot)
        } else {
            columns.takes_uncapped.get(slot)
        };
    let masked = inputs.mask[slot.block()] >> slot.lane() & 1 == 1;
    let stands = inputs.derived.eligible.get(slot) && masked && columns.open.get(slot) && capped_ok;
    let roomy = |gate: &Gate<'_>| gate.column.is_some_and(|c| c.get(slot) >= gate.need);
    if !stands || !inputs.gates.iter().all(roomy) || !passes_neighbour_tests(ask, slot) {
        return NOT_HERE;
    }
    inputs.derived.points.get(slot) + sparse_points(ask, slot)
}

/// A block's best as one number: greater is better, of equals the smaller rank.
fn key(totals: &[Block<i32>], block: usize, fleet: &Fleet) -> i64 {
    let best = greatest(&totals[block]);
    if best == NOT_HERE {
        return i64::MIN;
    }
    let ranks = &fleet.columns().rank.blocks()[block].0;
    let mut first = u32::MAX;
    for lane in 0..LANES {
        let rank = if totals[block].0[lane] == best {
            ranks[lane]
        } else {
            u32::MAX
        };
        first = first.min(rank);
    }
    (i64::from(best) << 32) | i64::from(u32::MAX - first)
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

/// Everything that makes two requests the same class; equality is checked on top.
fn class_hash(request: &InstanceRequest) -> u64 {
    let mut hasher = FxHasher::default();
    request.resources.hash(&mut hasher);
    request.owner.hash(&mut hasher);
    request.workload.hash(&mut hasher);
    request.image.hash(&mut hasher);
    request.capacity_type.hash(&mut hasher);
    request.groups.hash(&mut hasher);
    request.traits.len().hash(&mut hasher);
    request.affinity.len().hash(&mut hasher);
    hasher.finish()
}

/// Scans everything, exceptions included.
pub(crate) fn scan_all(totals: &mut Totals, words: &[u64], inputs: &Inputs<'_>) {
    let zones = zone_points(inputs.ask);
    let rest = rest_points(inputs.ask);
    let offsets: Vec<i32> = zones.into_iter().map(|zone| zone + rest).collect();
    totals.fill(&Scan {
        words,
        gates: inputs.gates,
        points: inputs.derived.points.blocks(),
        offsets: &offsets,
        zone_of_block: &inputs.ask.fleet.columns().zone_of_block,
    });
    totals.add_exceptions(inputs.ask);
}
