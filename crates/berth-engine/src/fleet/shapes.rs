//! The usual shapes: what instances that are placed now asked for, counted by size.
//!
//! A shape fades as its instances end. Counts follow from the instances on the fleet alone, so every
//! replica and every replay has the same ones, whatever the order in which they came.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::model::Amounts;

/// CPU of one unit.
pub(crate) const CPU_UNIT_MILLI: u32 = 250;

/// Memory of one unit.
pub(crate) const MEMORY_UNIT_MIB: u32 = 256;

/// How many shapes are kept as usual.
const MAX_USUAL: usize = 8;

/// Leading bits of an amount that are kept; the rest is rounded up. So sizes that differ by a few
/// percent are one shape, and no caller can fill the table.
const KEPT_BITS: u32 = 4;

/// A size that comes often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UsualShape {
    /// CPU in thousandths of a core.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 2147483647))]
    pub cpu_milli: u32,
    /// Memory in MiB.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 2147483647))]
    pub memory_mib: u32,
    /// How often it comes, against the others. Of a learned shape: the largest power of two in the number
    /// of its instances.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000000))]
    pub weight: u32,
}

const fn one() -> u32 {
    1
}

/// Counts of the sizes of placed instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldShapes {
    /// By units of CPU and memory.
    counts: FxHashMap<(u32, u32), u32>,
    usual: Vec<UsualShape>,
    /// What the last of them holds; nothing while there is room for more.
    least_held: u64,
    version: u64,
}

impl HeldShapes {
    pub(super) fn add(&mut self, resources: &Amounts) {
        let shape = shape_of(resources);
        let count = self.counts.entry(shape).or_insert(0);
        let before = leading(*count);
        *count += 1;
        let after = leading(*count);
        // One that holds less than each of the usual shapes does not become one.
        if after != before && held(shape, after) >= self.least_held {
            self.choose_usual();
        }
    }

    pub(super) fn remove(&mut self, resources: &Amounts) {
        let shape = shape_of(resources);
        let Some(count) = self.counts.get_mut(&shape) else { return };
        let before = leading(*count);
        *count -= 1;
        let after = leading(*count);
        if after == 0 {
            self.counts.remove(&shape);
        }
        if after != before && held(shape, before) >= self.least_held {
            self.choose_usual();
        }
    }

    /// The usual shapes, those that hold most first.
    pub(super) fn usual(&self) -> &[UsualShape] {
        &self.usual
    }

    /// Rises when the usual shapes change.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Keeps the shapes whose instances hold most: count times size, each amount in its units.
    fn choose_usual(&mut self) {
        let counts = self.counts.iter().map(|(shape, n)| (*shape, leading(*n)));
        let mut shapes: Vec<_> = counts.collect();
        shapes.sort_unstable_by_key(|(shape, n)| (std::cmp::Reverse(held(*shape, *n)), *shape));
        shapes.truncate(MAX_USUAL);
        let last = shapes.get(MAX_USUAL - 1);
        self.least_held = last.map_or(0, |(shape, n)| held(*shape, *n));
        let usual = shapes.into_iter().map(|((cpu, memory), count)| UsualShape {
            cpu_milli: cpu.saturating_mul(CPU_UNIT_MILLI),
            memory_mib: memory.saturating_mul(MEMORY_UNIT_MIB),
            weight: count,
        });
        let usual: Vec<UsualShape> = usual.collect();
        if usual != self.usual {
            self.usual = usual;
            self.version += 1;
        }
    }
}

/// What instances of a size hold together, in units.
fn held((cpu, memory): (u32, u32), leading_count: u32) -> u64 {
    u64::from(leading_count) * (u64::from(cpu) + u64::from(memory))
}

/// A size in whole units, its lower bits rounded up.
fn shape_of(resources: &Amounts) -> (u32, u32) {
    let cpu = resources.cpu_milli.div_ceil(CPU_UNIT_MILLI);
    let memory = resources.memory_mib.div_ceil(MEMORY_UNIT_MIB);
    (round_up(cpu), round_up(memory))
}

/// A number with its leading bits, rounded up.
fn round_up(number: u32) -> u32 {
    let low = number.checked_ilog2().unwrap_or(0).saturating_sub(KEPT_BITS - 1);
    number.div_ceil(1 << low) << low
}

/// The largest power of two in a number: counts that come and go change it seldom.
const fn leading(number: u32) -> u32 {
    match number.checked_ilog2() {
        Some(bits) => 1 << bits,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_counted_and_forgotten_with_their_instances() {
        let mut shapes = HeldShapes::default();
        let (small, large) = (Amounts::new(1000, 1792), Amounts::new(8000, 57_344));
        for _ in 0..100 {
            shapes.add(&small);
        }
        shapes.add(&large);
        let of = |cpu_milli, memory_mib, weight| UsualShape { cpu_milli, memory_mib, weight };
        assert_eq!(shapes.usual(), [of(1000, 1792, 64), of(8000, 57_344, 1)]);
        let version = shapes.version();
        shapes.add(&small);
        assert_eq!(shapes.version(), version, "a small change of a large count changes nothing");
        for _ in 0..101 {
            shapes.remove(&small);
        }
        assert_eq!(shapes.usual(), [of(8000, 57_344, 1)]);
        shapes.remove(&large);
        assert_eq!(shapes.usual(), []);
    }

    #[test]
    fn the_order_in_which_instances_came_does_not_matter() {
        let sizes = [(500, 700), (1000, 1792), (3000, 900), (1000, 1792), (64_000, 131_072)];
        let (mut one, mut other) = (HeldShapes::default(), HeldShapes::default());
        for (cpu, memory) in sizes {
            one.add(&Amounts::new(cpu, memory));
        }
        other.add(&Amounts::new(1, 1));
        for (cpu, memory) in sizes.into_iter().rev() {
            other.add(&Amounts::new(cpu, memory));
        }
        other.remove(&Amounts::new(1, 1));
        assert_eq!(one.usual(), other.usual());
    }

    #[test]
    fn however_many_sizes_come_few_are_kept() {
        let mut shapes = HeldShapes::default();
        for memory in 1..20_000 {
            shapes.add(&Amounts::new(1000, memory));
        }
        assert!(shapes.counts.len() < 64, "{}", shapes.counts.len());
        assert_eq!(shapes.usual().len(), MAX_USUAL);
    }

    #[test]
    fn the_usual_shapes_are_those_of_all_counts_whatever_came_and_went() {
        let mut shapes = HeldShapes::default();
        let (mut held, mut draw) = (Vec::new(), 7_u64);
        for _ in 0..4000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = u32::try_from(draw >> 40).unwrap_or(0);
            if number % 5 < 2 && !held.is_empty() {
                let place = number as usize % held.len();
                shapes.remove(&held.swap_remove(place));
            } else {
                let size = Amounts::new(250 << (number % 6), 256 << (number / 8 % 7));
                shapes.add(&size);
                held.push(size);
            }
            let mut again = shapes.clone();
            again.choose_usual();
            assert_eq!(shapes.usual(), again.usual());
        }
        assert!(shapes.counts.len() > 2 * MAX_USUAL);
    }
}
