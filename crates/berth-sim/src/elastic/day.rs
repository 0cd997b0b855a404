//! The load of a day: how large instances want to be, and nodes that are sized for it.
//!
//! A load depends on the seed, the instance and the minute, and not on the rule.

use berth_engine::elastic::Size;
use berth_engine::{Amounts, NodeFacts, Ratios};

use super::Options;
use crate::{NOW, SeededRng, node_id};

/// The hours of a tenant that is busiest at two in the afternoon, in thousandths of its most.
const HOURS: [u32; 24] = [
    180, 140, 120, 110, 120, 160, 240, 380, 540, 680, 780, 840, 860, 880, 900, 880, 820, 740, 660,
    600, 520, 430, 330, 240,
];

const TENANTS: u64 = 200;
const DAY_MIN: u32 = 1440;

/// How long a burst and a small change of load last.
const BURST_MIN: u32 = 20;
const RIPPLE_MIN: u32 = 8;

/// One instance in this many bursts at any time.
const BURSTS: u64 = 40;

/// The fixed properties of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) tenant: u32,
    pub(super) unit: Size,
    pub(super) min_units: u32,
    pub(super) max_units: u32,
    /// How far its tenant's day is shifted.
    shift_min: u32,
    /// Seeds its bursts.
    key: u64,
}

impl Shape {
    /// How busy it is, in thousandths of the most that it can be.
    pub(super) fn load_permille(&self, minute: u32) -> u32 {
        let of_day = (minute + self.shift_min) % DAY_MIN;
        let (hour, into) = ((of_day / 60) as usize, of_day % 60);
        let (from, to) = (HOURS[hour], HOURS[(hour + 1) % 24]);
        let daily = (from * (60 - into) + to * into) / 60;
        let chance = |kind: u64, length: u32| {
            let time = u64::from((minute + self.shift_min) / length);
            SeededRng::new(self.key ^ (kind << 56) ^ time.wrapping_mul(0x9e37_79b9)).draw()
        };
        let burst = chance(1, BURST_MIN).is_multiple_of(BURSTS);
        let ripple = u32::try_from(chance(2, RIPPLE_MIN) % 60).unwrap_or(0);
        (daily + ripple + if burst { 450 } else { 0 }).min(1000)
    }

    /// How many units it needs at this load.
    pub(super) fn wanted_units(&self, load_permille: u32) -> u32 {
        let range = self.max_units - self.min_units;
        self.min_units + (range * load_permille).div_ceil(1000).min(range)
    }

    /// The size of this many units.
    pub(super) fn size(&self, units: u32) -> Size {
        Size::new(self.unit.cpu_milli * units, self.unit.memory_mib * units)
    }

    /// What it wants on the average of a whole day.
    fn mean(&self) -> Size {
        let hourly = (0..24).map(|hour| self.wanted_units(self.load_permille(hour * 60 + 30)));
        let units: u32 = hourly.sum();
        self.size(units).each(Size::ZERO, |sum, _| sum / 24)
    }
}

/// The instances of a day.
pub(super) fn shapes(options: &Options) -> Vec<Shape> {
    let mut rng = SeededRng::new(options.seed);
    // Some tenants keep office hours, the others are in all time zones.
    let shifts: Vec<u32> = (0..TENANTS)
        .map(|_| match rng.below(10) {
            0..4 => rng.below_u32(120),
            _ => rng.below_u32(DAY_MIN),
        })
        .collect();
    let units = [Size::new(250, 1024), Size::new(250, 2048), Size::new(500, 1024)];
    let shape = |number: u32| {
        let tenant = rng.below(TENANTS);
        let flavour = [0, 0, 0, 1, 2][usize::try_from(rng.below(5)).unwrap_or(0)];
        let min_units = 1 << rng.below(3);
        let growth = 2 + rng.below_u32(6);
        Shape {
            tenant: u32::try_from(tenant).unwrap_or(0),
            unit: units[flavour],
            min_units,
            max_units: min_units * growth,
            shift_min: shifts[usize::try_from(tenant).unwrap_or(0)],
            key: options.seed.wrapping_mul(31) ^ (u64::from(number) << 20),
        }
    };
    (0..options.instances).map(shape).collect()
}

/// Nodes of three sizes, together as large as these instances need on the average of a day.
pub(super) fn nodes(options: &Options, shapes: &[Shape]) -> Vec<NodeFacts> {
    let mut rng = SeededRng::new(options.seed ^ 0x0d0d_e5ee);
    let mut weight = || [2, 2, 3, 4][usize::try_from(rng.below(4)).unwrap_or(0)];
    let weights: Vec<u64> = (0..options.nodes).map(|_| weight()).collect();
    let all: u64 = weights.iter().sum();
    let overhead = 64;
    let cpu: u64 = shapes.iter().map(|shape| u64::from(shape.mean().cpu_milli)).sum();
    let memory: u64 =
        shapes.iter().map(|shape| u64::from(shape.mean().memory_mib + overhead)).sum();
    let watermark = u64::from(options.policy.elastic().watermark.cpu_permille);
    // The fill is a share of the watermark, which is a share of the whole.
    let sized = |sum: u64, weight: u64, step: u64| {
        let share = sum * weight * 100_000 / (all * u64::from(options.fill_percent) * watermark);
        let rounded = share.div_ceil(step) * step;
        u32::try_from(rounded).unwrap_or(Amounts::MAX).min(Amounts::MAX)
    };
    let facts = |(number, &weight): (usize, &u64)| {
        let capacity = Amounts::new(sized(cpu, weight, 250), sized(memory, weight, 256));
        let id = node_id(number as u64);
        NodeFacts {
            heartbeat_at: NOW,
            ratios: Ratios { cpu_permille: 1000, ..Ratios::default() },
            vmm_overhead_mib: overhead,
            instance_limit: 10_000,
            ..NodeFacts::new(id.as_str(), capacity.with_disk(1_000_000_000))
        }
    };
    weights.iter().enumerate().map(facts).collect()
}
