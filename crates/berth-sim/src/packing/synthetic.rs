//! Traces that are made up: arrivals that follow a day, sizes as clouds sell them, and lifetimes of
//! which most are short and a few long. The same description gives the same trace, on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use thiserror::Error;

use super::fleet::FleetNode;
use super::trace::{Action, Demand, Trace, TraceEvent};
use crate::SeededRng;

const DAY_S: u64 = 86_400;
const HALF_DAY_S: u64 = DAY_S / 2;

/// Cores, GiB of memory, and how often each is asked for.
const SIZES: [(u32, u32, u64); 9] = [
    (1, 2, 24),
    (1, 4, 14),
    (2, 4, 18),
    (2, 8, 14),
    (4, 8, 10),
    (4, 16, 9),
    (8, 16, 5),
    (8, 64, 3),
    (16, 64, 3),
];

/// A node of a fleet that is made up: 64 cores, 192 GiB.
const NODE: Demand = Demand { cpu_milli: 64_000, memory_mib: 196_608, disk_mib: 1 << 30 };

/// What to make up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    /// How long instances arrive, in hours.
    pub hours: u64,
    /// Arrivals an hour, on average.
    pub arrivals: u64,
    /// Mean lifetime in minutes. Four of five instances live a quarter of it on average, the others four
    /// times as long.
    pub lifetime: u64,
    /// By how much arrivals rise above the average at noon and fall below it at midnight, in percent.
    pub diurnal: u64,
    /// Instances that change their size in the middle of their life, in percent.
    pub resizes: u64,
    /// Instances that have to leave their node in the middle of their life, in percent.
    pub reclaims: u64,
    /// Tenants.
    pub tenants: u64,
    /// Seed.
    pub seed: u64,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            hours: 48,
            arrivals: 500,
            lifetime: 240,
            diurnal: 40,
            resizes: 0,
            reclaims: 0,
            tenants: 20,
            seed: 1,
        }
    }
}

/// A description that cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("synthetic trace: {key}: {value:?}: expected {expected}")]
pub struct SyntheticError {
    key: String,
    value: String,
    expected: String,
}

impl Synthetic {
    /// Reads a description such as `synthetic` or `synthetic:hours=24,arrivals=600`; absent if the text
    /// is none.
    ///
    /// # Errors
    /// Names the key, the value and what would be accepted.
    pub fn parse(text: &str) -> Option<Result<Self, SyntheticError>> {
        let rest = text.strip_prefix("synthetic")?;
        let settings = match rest.strip_prefix(':') {
            Some(settings) => settings,
            None if rest.is_empty() => "",
            None => return None,
        };
        let mut description = Self::default();
        let mut pairs = settings.split(',').filter(|pair| !pair.is_empty());
        let read = pairs.try_for_each(|pair| description.set(pair));
        Some(read.map(|()| description))
    }

    fn set(&mut self, pair: &str) -> Result<(), SyntheticError> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let keys: [(&str, &mut u64, u64, u64); 8] = [
            ("hours", &mut self.hours, 1, 24 * 366),
            ("arrivals", &mut self.arrivals, 1, 1_000_000),
            ("lifetime", &mut self.lifetime, 1, 1_000_000),
            ("diurnal", &mut self.diurnal, 0, 100),
            ("resizes", &mut self.resizes, 0, 100),
            ("reclaims", &mut self.reclaims, 0, 100),
            ("tenants", &mut self.tenants, 1, 100_000),
            ("seed", &mut self.seed, 0, u64::MAX),
        ];
        let error = |expected: String| SyntheticError {
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        };
        let names = keys.each_ref().map(|(name, ..)| *name).join(", ");
        let found = keys.into_iter().find(|(name, ..)| *name == key);
        let Some((_, field, least, most)) = found else {
            return Err(error(format!("one of the keys {names}")));
        };
        let number = value.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
        *field = number.ok_or_else(|| error(format!("a whole number from {least} to {most}")))?;
        Ok(())
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let mut rng = SeededRng::new(self.seed);
        let mut trace = Trace {
            tenants: (1..=self.tenants).map(|number| format!("tenant-{number}")).collect(),
            ..Trace::default()
        };
        // At one moment ends come first, then what happens to running instances.
        let mut later: BinaryHeap<Reverse<(u64, u8, usize)>> = BinaryHeap::new();
        for time in self.arrival_times(&mut rng) {
            self.happen_until(time, &mut later, &mut trace, &mut rng);
            let instance = trace.demands.len();
            trace.demands.push(draw_size(&mut rng));
            trace.tenant_of.push(rng.below_u32(u32::try_from(self.tenants).unwrap_or(u32::MAX)));
            trace.events.push(TraceEvent { time, action: Action::Create(instance) });
            let life = self.draw_lifetime(&mut rng);
            later.push(Reverse((time + life, 0, instance)));
            if rng.below(100) < self.resizes {
                later.push(Reverse((time + life / 2, 1, instance)));
            }
            if rng.below(100) < self.reclaims {
                later.push(Reverse((time + life / 2, 2, instance)));
            }
        }
        self.happen_until(self.hours * 3600, &mut later, &mut trace, &mut rng);
        trace
    }

    fn happen_until(
        &self,
        time: u64,
        later: &mut BinaryHeap<Reverse<(u64, u8, usize)>>,
        trace: &mut Trace,
        rng: &mut SeededRng,
    ) {
        while let Some(Reverse((at, kind, instance))) = later.peek().copied()
            && at <= time
        {
            later.pop();
            let action = match kind {
                0 => Action::Delete(instance),
                1 => Action::Resize(instance, draw_size(rng)),
                _ => Action::SpotReclaim(instance),
            };
            trace.events.push(TraceEvent { time: at, action });
        }
    }

    /// Times at which instances arrive, in order: drawn at the rate of noon, of which as many are kept as
    /// the time of the day asks for.
    fn arrival_times(&self, rng: &mut SeededRng) -> Vec<u64> {
        let end_ms = self.hours * 3_600_000;
        let gap_ms = (3_600_000 * 100 / (self.arrivals * (100 + self.diurnal))).max(1);
        let mut times = Vec::new();
        let mut now_ms = draw_exponential(gap_ms, rng);
        while now_ms < end_ms {
            if rng.below(100 + self.diurnal) < self.rate_percent(now_ms / 1000) {
                times.push(now_ms / 1000);
            }
            now_ms += draw_exponential(gap_ms, rng);
        }
        times
    }

    /// Arrivals at a time, in percent of the average: a straight line from midnight to noon and back.
    fn rate_percent(&self, time: u64) -> u64 {
        let from_noon = (time % DAY_S).abs_diff(HALF_DAY_S);
        100 + self.diurnal - 2 * self.diurnal * from_noon / HALF_DAY_S
    }

    fn draw_lifetime(&self, rng: &mut SeededRng) -> u64 {
        let mean_s = self.lifetime * 60;
        let mean_s = if rng.below(5) > 0 { mean_s / 4 } else { mean_s * 4 };
        draw_exponential(mean_s, rng).max(1)
    }
}

/// Nearly exponential, by integers: its chance halves at every step of equal length, and is even within
/// a step. One and a half steps are its mean.
fn draw_exponential(mean: u64, rng: &mut SeededRng) -> u64 {
    let step = (mean * 2 / 3).max(1);
    let steps = u64::from(rng.draw().trailing_zeros());
    steps * step + rng.below(step + 1)
}

fn draw_size(rng: &mut SeededRng) -> Demand {
    let all: u64 = SIZES.iter().map(|(_, _, count)| count).sum();
    let mut drawn = rng.below(all);
    let mut size = SIZES[0];
    for candidate in SIZES {
        size = candidate;
        if drawn < candidate.2 {
            break;
        }
        drawn -= candidate.2;
    }
    Demand { cpu_milli: size.0 * 1000, memory_mib: size.1 * 1024, disk_mib: 0 }
}

/// A fleet that is made up: equal nodes.
#[must_use]
pub fn synthetic_fleet(count: usize) -> Vec<FleetNode> {
    (0..count).map(|at| FleetNode { name: format!("node-{at:05}"), capacity: NODE }).collect()
}
