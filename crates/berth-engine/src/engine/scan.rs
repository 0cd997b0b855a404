//! The hot loop: every node's total from the columns, 64 nodes at a time.
//!
//! The comparisons are those of the capacity filters (`filter::Needs` hands them over), the points
//! those of the scorers. Nothing is skipped and nothing is sampled: a node that cannot take the
//! instance gets [`INELIGIBLE`], every other gets its total. Plain loops over arrays of 64 that the
//! compiler turns into vector code; `pulp` picks the widest vectors the machine has, and since all
//! of it is integers, the answer is the same on every machine.

#![expect(clippy::needless_range_loop, reason = "lanes of several arrays go side by side")]

use super::derived_state::DerivedState;
use crate::filter::{Gate, Needs};
use crate::fleet::{Block, Columns, LANES, Lanes, NodeIndex, lanes};
use crate::model::Demand;
use crate::prepared_request::PreparedRequest;
use crate::score::{BlockScores, Exceptions, ScorerKind, WeightedScorers, dense_points, term};

/// The total of a node that cannot take the instance.
pub(crate) const INELIGIBLE: i32 = i32::MIN;

/// Bit `i` of a half-word, for turning bits into lanes without a variable shift.
const BIT: [u32; 32] = {
    let mut bits = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

/// Totals of all nodes for one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// By node.
    pub(crate) blocks: Vec<Block<i32>>,
    /// The greatest of each block.
    pub(crate) best: Vec<i32>,
    // Scratch of `add_exceptions`, kept so that a scan allocates nothing.
    changes: Vec<(Lanes, i32)>,
    touched: Vec<u64>,
}

/// A column's blocks and what they must at least hold.
type GateColumn<'a> = (&'a [Block<i32>], i32);

/// What a scan reads.
pub(crate) struct Scan<'a> {
    pub(crate) words: &'a [u64],
    pub(crate) gates: &'a [Gate<'a>],
    pub(crate) points: &'a [Block<i32>],
    /// Points that every node gets in addition to its own, by the zone of the block.
    pub(crate) offsets: &'a [i32],
    pub(crate) zone_of_block: &'a [u32],
}

impl Totals {
    /// Filters by capacity and scores, in one pass over the columns.
    pub(crate) fn fill(&mut self, scan: &Scan<'_>) {
        let blocks = scan.words.len();
        self.blocks.resize(blocks, Block([INELIGIBLE; LANES]));
        self.best.resize(blocks, INELIGIBLE);
        // A class that no node ever stated has no column: nothing passes.
        let compared = |gate: &Gate<'_>| gate.column.is_some();
        let columns: Vec<GateColumn<'_>> = scan
            .gates
            .iter()
            .filter_map(|gate| gate.column.map(|column| (column.blocks(), gate.need)))
            .collect();
        if !scan.gates.iter().all(compared) {
            self.blocks.fill(Block([INELIGIBLE; LANES]));
            self.best.fill(INELIGIBLE);
            return;
        };
        let (blocks, best) = (&mut self.blocks[..], &mut self.best[..]);
        pulp::Arch::new().dispatch(FillTotals { blocks, best, scan, gates: &columns });
    }

    /// Takes out the nodes whose CPU would rise above the policy's ceiling.
    pub(crate) fn keep_below_ceiling(&mut self, prepared: &PreparedRequest<'_>, demand: &Demand) {
        for (place, (block, best)) in self.blocks.iter_mut().zip(&mut self.best).enumerate() {
            if *best == INELIGIBLE {
                continue;
            }
            for (lane, total) in block.0.iter_mut().enumerate().filter(|(_, t)| **t != INELIGIBLE) {
                let row = prepared.fleet.row(NodeIndex::at(place, lane));
                if row.is_none_or(|row| row.room().admits_cpu(demand).is_err()) {
                    *total = INELIGIBLE;
                }
            }
            *best = greatest(block);
        }
    }

    /// Adds the points of sparse scorers for the few nodes that differ from the default.
    pub(crate) fn add_exceptions(
        &mut self,
        scorers: &WeightedScorers,
        prepared: &PreparedRequest<'_>,
    ) {
        self.changes.clear();
        for (sparse, weight) in &scorers.sparse {
            (sparse.exceptions)(prepared, &mut Exceptions::new(*weight, &mut self.changes));
        }
        if self.changes.is_empty() {
            return;
        }
        self.touched.clear();
        self.touched.resize(self.best.len().div_ceil(LANES), 0);
        pulp::Arch::new().dispatch(ApplyExceptions {
            blocks: &mut self.blocks,
            best: &mut self.best,
            changes: &self.changes,
            touched: &mut self.touched,
        });
    }

    /// Adds the points that depend on node and request together, as far as columns have them.
    pub(crate) fn add_block_scores(&mut self, scores: &BlockScores, columns: &Columns) {
        if !scores.is_empty() {
            let (blocks, best) = (&mut self.blocks[..], &mut self.best[..]);
            pulp::Arch::new().dispatch(AddBlockScores { blocks, best, scores, columns });
        }
    }

    /// Adds the points that depend on node and request together, node by node: no column has them.
    pub(crate) fn add_dense(&mut self, scorers: &WeightedScorers, prepared: &PreparedRequest<'_>) {
        if scorers.dense.is_empty() {
            return;
        }
        for (place, (block, best)) in self.blocks.iter_mut().zip(&mut self.best).enumerate() {
            if *best == INELIGIBLE {
                continue;
            }
            for (lane, total) in block.0.iter_mut().enumerate().filter(|(_, t)| **t != INELIGIBLE) {
                let row = prepared.fleet.row(NodeIndex::at(place, lane));
                *total += row.map_or(0, |row| dense_points(scorers, prepared, row));
            }
            *best = greatest(block);
        }
    }

    /// The node with the highest total; of equals, the one whose id comes first.
    pub(crate) fn winner(&self, columns: &Columns) -> Option<(NodeIndex, i32)> {
        let top = self.best.iter().copied().max().filter(|&top| top != INELIGIBLE)?;
        let blocks = self.best.iter().enumerate().filter(|(_, best)| **best == top);
        let firsts = blocks.filter_map(|(block, _)| {
            let ranks = &columns.rank.blocks()[block].0;
            let equals = (0..LANES).filter(|&lane| self.blocks[block].0[lane] == top);
            equals.map(|lane| (ranks[lane], NodeIndex::at(block, lane))).min()
        });
        firsts.min().map(|(_, index)| (index, top))
    }

    /// The total of one node.
    pub(crate) fn get(&self, index: NodeIndex) -> i32 {
        self.blocks[index.block()].0[index.lane()]
    }

    /// Calls `visit` for every eligible node with its position, total and rank in the order of ids.
    pub(crate) fn for_each(&self, columns: &Columns, visit: &mut impl FnMut(usize, i32, u32)) {
        for (block, totals) in self.blocks.iter().enumerate() {
            if self.best[block] == INELIGIBLE {
                continue;
            }
            let ranks = &columns.rank.blocks()[block].0;
            for (lane, (&total, &rank)) in totals.0.iter().zip(ranks).enumerate() {
                if total != INELIGIBLE {
                    visit(block * LANES + lane, total, rank);
                }
            }
        }
    }

    /// Every eligible node.
    pub(crate) fn survivors(&self) -> Vec<NodeIndex> {
        let mut indexes = Vec::new();
        for (block, totals) in self.blocks.iter().enumerate() {
            if self.best[block] != INELIGIBLE {
                let here = (0..LANES).filter(|&lane| totals.0[lane] != INELIGIBLE);
                indexes.extend(here.map(|lane| NodeIndex::at(block, lane)));
            }
        }
        indexes
    }
}

/// The pass over all blocks. A type and not a closure: only so is it inlined into the code that
/// may use wide instructions, and a call would lose them.
struct FillTotals<'a> {
    blocks: &'a mut [Block<i32>],
    best: &'a mut [i32],
    scan: &'a Scan<'a>,
    gates: &'a [GateColumn<'a>],
}

impl pulp::WithSimd for FillTotals<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { blocks, best, scan, gates } = self;
        let totals = blocks.iter_mut().zip(best);
        let inputs = scan.words.iter().zip(scan.points).zip(scan.zone_of_block);
        for (place, ((total, best), ((&word, points), &zone))) in totals.zip(inputs).enumerate() {
            if word == 0 {
                total.0 = [INELIGIBLE; LANES];
                *best = INELIGIBLE;
                continue;
            }
            let mut open = lanes_of(word);
            for (column, need) in gates {
                let room = &column[place].0;
                for lane in 0..LANES {
                    open[lane] &= -i32::from(room[lane] >= *need);
                }
            }
            let offset = scan.offsets[zone as usize];
            let mut greatest = INELIGIBLE;
            for lane in 0..LANES {
                let here = points.0[lane].wrapping_add(offset);
                let value = if open[lane] != 0 { here } else { INELIGIBLE };
                total.0[lane] = value;
                greatest = greatest.max(value);
            }
            *best = greatest;
        }
    }
}

/// The pass over all blocks that adds points by usage and request.
struct AddBlockScores<'a> {
    blocks: &'a mut [Block<i32>],
    best: &'a mut [i32],
    scores: &'a BlockScores,
    columns: &'a Columns,
}

impl pulp::WithSimd for AddBlockScores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { blocks, best, scores, columns } = self;
        for (place, (totals, best)) in blocks.iter_mut().zip(best).enumerate() {
            if *best == INELIGIBLE {
                continue;
            }
            let points = scores.points_of_block(columns, place);
            let mut greatest = INELIGIBLE;
            for lane in 0..LANES {
                let total = totals.0[lane];
                let here = -i32::from(total != INELIGIBLE);
                let total = total.wrapping_add(points.0[lane] & here);
                totals.0[lane] = total;
                greatest = greatest.max(total);
            }
            *best = greatest;
        }
    }
}

/// The pass over what sparse scorers listed.
struct ApplyExceptions<'a> {
    blocks: &'a mut [Block<i32>],
    best: &'a mut [i32],
    changes: &'a [(Lanes, i32)],
    touched: &'a mut [u64],
}

impl pulp::WithSimd for ApplyExceptions<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for &(Lanes { block, mask }, delta) in self.changes {
            let block = block as usize;
            add_to_lanes(&mut self.blocks[block], mask, delta);
            self.touched[block / LANES] |= 1 << (block % LANES);
        }
        for (word, &blocks) in self.touched.iter().enumerate() {
            for block in lanes(blocks, word) {
                self.best[block.as_usize()] = greatest(&self.blocks[block.as_usize()]);
            }
        }
    }
}

/// Adds to some lanes of a block; ineligible lanes are left alone.
#[inline(always)]
pub(crate) fn add_to_lanes(block: &mut Block<i32>, mask: u64, delta: i32) {
    if mask.is_power_of_two() {
        let total = &mut block.0[mask.trailing_zeros() as usize];
        *total += if *total == INELIGIBLE { 0 } else { delta };
        return;
    }
    let open = lanes_of(mask);
    for lane in 0..LANES {
        let total = block.0[lane];
        let here = open[lane] & -i32::from(total != INELIGIBLE);
        block.0[lane] = total.wrapping_add(delta & here);
    }
}

/// The greatest of a block.
#[inline(always)]
pub(crate) fn greatest(block: &Block<i32>) -> i32 {
    block.0.iter().copied().fold(INELIGIBLE, i32::max)
}

#[inline(always)]
fn lanes_of(word: u64) -> [i32; LANES] {
    let halves = [(word & 0xffff_ffff) as u32, (word >> 32) as u32];
    let mut open = [0; LANES];
    for lane in 0..32 {
        open[lane] = -i32::from(halves[0] & BIT[lane] != 0);
    }
    for lane in 0..32 {
        open[32 + lane] = -i32::from(halves[1] & BIT[lane] != 0);
    }
    open
}

/// The points of a node that no sparse scorer lists as an exception.
pub(crate) fn default_points(prepared: &PreparedRequest<'_>) -> i32 {
    let mut rest = 0;
    for (id, weight) in prepared.policy.weights() {
        if let ScorerKind::Sparse(sparse) = id.scorer().kind {
            rest += term((sparse.default)(prepared), weight);
        }
    }
    rest
}

/// The points of each zone.
pub(crate) fn zone_points(prepared: &PreparedRequest<'_>) -> Vec<i32> {
    let mut points = vec![0; prepared.fleet.domains().zone_count()];
    for (id, weight) in prepared.policy.weights() {
        if let ScorerKind::Zone(value) = id.scorer().kind {
            for (zone, points) in points.iter_mut().enumerate() {
                *points += term(value(prepared, u32::try_from(zone).unwrap_or(0)), weight);
            }
        }
    }
    points
}

/// The inputs of a scan or a repair.
pub(crate) struct Inputs<'a> {
    pub(crate) prepared: &'a PreparedRequest<'a>,
    pub(crate) scorers: &'a WeightedScorers,
    pub(crate) derived: &'a DerivedState,
    pub(crate) mask: &'a [u64],
    pub(crate) needs: &'a Needs<'a>,
    /// What depends on usage and request together, prepared for this request.
    pub(crate) blocks: BlockScores,
}

/// Scans everything, exceptions included.
pub(crate) fn scan_all(totals: &mut Totals, words: &[u64], inputs: &Inputs<'_>) {
    let zones = zone_points(inputs.prepared);
    let rest = default_points(inputs.prepared);
    let offsets: Vec<i32> = zones.into_iter().map(|zone| zone + rest).collect();
    totals.fill(&Scan {
        words,
        gates: &inputs.needs.gates(inputs.prepared.fleet.columns()),
        points: inputs.derived.points.blocks(),
        offsets: &offsets,
        zone_of_block: &inputs.prepared.fleet.columns().zone_of_block,
    });
    if let Some(demand) = &inputs.needs.below_ceiling {
        totals.keep_below_ceiling(inputs.prepared, demand);
    }
    totals.add_exceptions(inputs.scorers, inputs.prepared);
    totals.add_block_scores(&inputs.blocks, inputs.prepared.fleet.columns());
    totals.add_dense(inputs.scorers, inputs.prepared);
}
