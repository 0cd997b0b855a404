//! `slot-loss`: how much room for usual instances a placement costs a node.
//!
//! Amounts are whole units here, so that a lane has 16 bits and a division is a multiplication: a scan
//! compares 64 nodes with a usual shape in a few instructions.

use super::blocks::BlockValues;
use super::{Scorer, ScorerKind, term};
use crate::fleet::{
    Block, CPU_UNIT_MILLI, Columns, Fleet, LANES, MEMORY_UNIT_MIB, NodeIndex, UsualShape,
};
use crate::model::PPM;
use crate::policy::Policy;
use crate::prepared_request::PreparedRequest;

pub(super) static SLOT_LOSS: Scorer = Scorer {
    name: "slot-loss",
    about: "keeps room whole for the instances that come most often",
    notes: "amounts count in units of 250 milli-CPU and 256 MiB, the room rounded down and sizes up; \
            without `shapes` in the policy, the usual shapes are the sizes that hold most on the fleet",
    settings: &["shapes"],
    example: |setup| {
        setup.settings = "[[shapes]]\ncpu_milli = 4000\nmemory_mib = 7168\n";
        setup.place("a", |request| request.resources.memory_mib = 3072);
    },
    formula: "1 - loss / the most that the request can cost; loss: sum over usual shapes of weight x \
              size x (how many fit before - how many fit after)",
    kind: ScorerKind::Blocks(|prepared| BlockValues::SlotLoss(SlotLoss::new(prepared))),
};

/// What all shapes together may cost at most.
const FULL_COST: u64 = 50_000;

/// A cost of one, in parts per million.
const PPM_PER_COST: u32 = 20;

/// Units that a lane holds; a node with more counts as having this many.
const MAX_UNITS: u32 = (1 << 14) - 1;

/// A divisor of numbers up to [`MAX_UNITS`].
#[derive(Clone, Copy, Debug)]
struct Divisor {
    multiplier: u16,
    shift: u32,
}

impl Divisor {
    /// Exact for every number up to [`MAX_UNITS`]: rounding the multiplier up by less than the divisor
    /// moves a quotient by less than one part of the divisor.
    fn new(divisor: u32) -> Self {
        let divisor = divisor.clamp(1, MAX_UNITS);
        let shift = divisor.ilog2();
        let multiplier = (1_u32 << (15 + shift)).div_ceil(divisor);
        Self { multiplier: u16::try_from(multiplier).unwrap_or(1 << 15), shift }
    }

    /// The quotient of a number that is given doubled.
    #[inline(always)]
    fn divide(self, doubled: u16) -> u16 {
        let product = (u32::from(doubled) * u32::from(self.multiplier)) >> 16;
        product as u16 >> self.shift
    }
}

/// A usual shape, and what it costs to lose room for one.
#[derive(Clone, Copy, Debug)]
struct Slot {
    cpu: Divisor,
    memory: Divisor,
    cost: u16,
}

/// The usual shapes as one request sees them.
#[derive(Clone, Debug)]
pub(crate) struct SlotLoss {
    slots: Vec<Slot>,
    /// The request, in units.
    cpu: u32,
    memory: u32,
    /// Units are doubled this often, so that the largest node fits a lane.
    cpu_shift: u32,
    memory_shift: u32,
}

impl SlotLoss {
    pub(super) fn new(prepared: &PreparedRequest<'_>) -> Self {
        let resources = prepared.request.resources;
        let (largest_cpu, largest_memory) = prepared.fleet.ranges().largest();
        let mut loss = Self {
            slots: Vec::new(),
            cpu: 0,
            memory: 0,
            cpu_shift: shift_for(largest_cpu / CPU_UNIT_MILLI),
            memory_shift: shift_for(largest_memory / MEMORY_UNIT_MIB),
        };
        (loss.cpu, loss.memory) = loss.units_up(resources.cpu_milli, resources.memory_mib);
        let shapes = usual_shapes(prepared.policy, prepared.fleet);
        let size = |shape: &UsualShape| {
            let share = |part: u32, whole: u32| u64::from(part) * 1000 / u64::from(whole.max(1));
            let shares =
                share(shape.cpu_milli, largest_cpu) + share(shape.memory_mib, largest_memory);
            // A shape that no node fits counts as a whole node: products stay small.
            (shares / 2).clamp(1, 1000)
        };
        let weighted: Vec<(u32, u32, u64)> = shapes
            .iter()
            .map(|shape| {
                let (cpu, memory) = loss.units_up(shape.cpu_milli, shape.memory_mib);
                (cpu.max(1), memory.max(1), u64::from(shape.weight) * size(shape))
            })
            .collect();
        // The most slots of a shape that the request can take on any node.
        let lost = |cpu: u32, memory: u32| {
            u64::from(loss.cpu.div_ceil(cpu).max(loss.memory.div_ceil(memory)))
        };
        let most: u64 = weighted.iter().map(|(cpu, memory, w)| w * lost(*cpu, *memory)).sum();
        loss.slots = weighted
            .into_iter()
            .map(|(cpu, memory, weight)| Slot {
                cpu: Divisor::new(cpu),
                memory: Divisor::new(memory),
                cost: u16::try_from(weight * FULL_COST / most.max(1)).unwrap_or(0),
            })
            .collect();
        loss
    }

    /// Amounts in units, rounded up.
    fn units_up(&self, cpu_milli: u32, memory_mib: u32) -> (u32, u32) {
        let units = |amount: u32, unit: u32, shift: u32| {
            amount.div_ceil(unit).div_ceil(1 << shift).min(MAX_UNITS)
        };
        (
            units(cpu_milli, CPU_UNIT_MILLI, self.cpu_shift),
            units(memory_mib, MEMORY_UNIT_MIB, self.memory_shift),
        )
    }

    /// The value of one node.
    pub(super) fn value(&self, columns: &Columns, index: NodeIndex) -> u32 {
        let (cpu, memory) = (columns.cpu.get(index), columns.memory.get(index));
        let (cpu, memory) = (units(cpu, CPU_UNIT_MILLI), units(memory, MEMORY_UNIT_MIB));
        let room = [doubled(cpu, self.cpu_shift), doubled(memory, self.memory_shift)];
        let left = [taken(room[0], self.cpu), taken(room[1], self.memory)];
        let loss = self.slots.iter().map(|slot| slot.loss(room, left)).fold(0, u16::wrapping_add);
        PPM - PPM_PER_COST * u32::from(loss)
    }

    /// The loss of every node of a block.
    #[inline(always)]
    pub(super) fn losses(&self, columns: &Columns, block: usize) -> Block<u16> {
        let (cpu, memory) = (&columns.cpu.blocks()[block].0, &columns.memory.blocks()[block].0);
        let mut room = [[0_u16; LANES]; 2];
        let mut left = [[0_u16; LANES]; 2];
        for lane in 0..LANES {
            room[0][lane] = doubled(units(cpu[lane], CPU_UNIT_MILLI), self.cpu_shift);
            left[0][lane] = taken(room[0][lane], self.cpu);
        }
        for lane in 0..LANES {
            room[1][lane] = doubled(units(memory[lane], MEMORY_UNIT_MIB), self.memory_shift);
            left[1][lane] = taken(room[1][lane], self.memory);
        }
        let mut losses = [0_u16; LANES];
        for slot in &self.slots {
            for lane in 0..LANES {
                let room = [room[0][lane], room[1][lane]];
                let left = [left[0][lane], left[1][lane]];
                losses[lane] = losses[lane].wrapping_add(slot.loss(room, left));
            }
        }
        Block(losses)
    }
}

/// The largest weight at which a loss times the weight fits a lane.
const MAX_LANE_WEIGHT: u32 = (u32::MAX - 49) / 50_000;

/// Adds what nodes get for their losses: the same as [`term`] of each value.
#[inline(always)]
pub(super) fn add_points(losses: &Block<u16>, weight: u32, points: &mut Block<i32>) {
    if weight > MAX_LANE_WEIGHT {
        for lane in 0..LANES {
            points.0[lane] += term(PPM - PPM_PER_COST * u32::from(losses.0[lane]), weight);
        }
        return;
    }
    // A loss is worth 20 parts per million and a weight counts thousandths: fifty losses are a point.
    let full = (PPM / 1000 * weight).cast_signed();
    for lane in 0..LANES {
        let lost = (u32::from(losses.0[lane]) * weight).div_ceil(50);
        points.0[lane] += full - lost.cast_signed();
    }
}

impl Slot {
    /// What fewer slots of this shape cost.
    #[inline(always)]
    fn loss(self, room: [u16; 2], left: [u16; 2]) -> u16 {
        let count = |room: [u16; 2]| self.cpu.divide(room[0]).min(self.memory.divide(room[1]));
        count(room).wrapping_sub(count(left)).wrapping_mul(self.cost)
    }
}

/// The shapes of the policy, or those that the fleet has learned.
pub(crate) fn usual_shapes<'a>(policy: &'a Policy, fleet: &'a Fleet) -> &'a [UsualShape] {
    match policy.shapes() {
        [] => fleet.usual_shapes(),
        pinned => pinned,
    }
}

/// How often a unit must be doubled so that this many fit a lane.
fn shift_for(units: u32) -> u32 {
    (0..32).find(|shift| units >> shift <= MAX_UNITS).unwrap_or(0)
}

/// Room in whole units; a deficit is none.
#[inline(always)]
const fn units(room: i32, unit: u32) -> u32 {
    let room = if room < 0 { 0 } else { room.cast_unsigned() };
    room / unit
}

/// Units as a lane holds them, doubled.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most 15 bits")]
const fn doubled(units: u32, shift: u32) -> u16 {
    let units = units >> shift;
    let units = if units > MAX_UNITS { MAX_UNITS } else { units };
    (units * 2) as u16
}

/// What is left of doubled units.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most 15 bits")]
const fn taken(room: u16, units: u32) -> u16 {
    room.saturating_sub((units * 2) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact() {
        for divisor in (1..=300).chain([511, 512, 513, 4095, 4096, 9999, 16_382, 16_383]) {
            let fast = Divisor::new(divisor);
            for number in 0..=MAX_UNITS {
                let doubled = u16::try_from(2 * number).unwrap_or(0);
                let quotient = u32::from(fast.divide(doubled));
                assert_eq!(quotient, number / divisor, "{number} / {divisor}");
            }
        }
    }
}
