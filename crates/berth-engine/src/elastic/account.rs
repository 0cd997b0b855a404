//! The account of a node: how much of each resource exists, is reserved, is uncertain and is lacking,
//! and whether instances should leave.
//!
//! Nothing of it is stored. Totals follow from the node's facts, the rest from its claims, so the
//! account is always the sum of the instances, and nothing can leak when a migration fails.

use serde::{Deserialize, Serialize};

use super::permit::Permit;
use super::settings::WatermarkRule;
use crate::model::size::{Free, Size};
use crate::model::{Amounts, Limits, NodeFacts, OtherUsage, Room, Used};

/// What one instance adds to the account of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What the node is charged for it.
    pub charge: Size,
    /// Its permit; absent for instances of fixed size.
    pub permit: Option<Permit>,
    /// Whether it is being moved to another node.
    pub leaving: bool,
}

/// Sums over the instances of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sums {
    cpu: Sum,
    memory: Sum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Sum {
    buffer: i64,
    pressure: i64,
    accounted_for: i64,
}

impl Sum {
    fn add(&mut self, buffer: u32, pressure: u32, accounted_for: u32) {
        self.buffer = self.buffer.saturating_add(buffer.into());
        self.pressure = self.pressure.saturating_add(pressure.into());
        self.accounted_for = self.accounted_for.saturating_add(accounted_for.into());
    }
}

impl Sums {
    /// Sums up what instances hold, as of now.
    #[must_use]
    pub fn of(holdings: impl IntoIterator<Item = Holding>, now: i64, half_life_s: u32) -> Self {
        let mut sums = Self::default();
        for holding in holdings {
            let permit = holding.permit.as_ref();
            let buffer = permit.map(Permit::charged_buffer).unwrap_or_default();
            let pressure = permit.map(|permit| permit.charged_pressure(now, half_life_s));
            let pressure = pressure.unwrap_or_default();
            // The pressure of a leaving instance leaves with it.
            let leaving = holding.charge.plus(pressure);
            let leaving = if holding.leaving { leaving } else { Size::ZERO };
            sums.cpu.add(buffer.cpu_milli, pressure.cpu_milli, leaving.cpu_milli);
            sums.memory.add(buffer.memory_mib, pressure.memory_mib, leaving.memory_mib);
        }
        sums
    }
}

/// The account of one resource. Milli-CPU or MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourceAccount {
    /// What there is to give, with the node's ratio.
    pub total: i64,
    /// What the host keeps of it.
    pub system: i64,
    /// What is charged for processes that were not placed by Berth.
    pub other: i64,
    /// What is charged in all: instances, their overhead, and others.
    pub reserved: i64,
    /// The part of it that is set aside, and probably not used.
    pub buffer: i64,
    /// What was denied for lack of room, decaying over time.
    pub capacity_pressure: i64,
    /// What the migrations in progress will free, including denied requests.
    pub pressure_accounted_for: i64,
    /// Above this, instances should leave.
    pub watermark: i64,
}

impl ResourceAccount {
    /// What may be given: the total without what the host keeps.
    #[must_use]
    pub const fn reservable(&self) -> i64 {
        self.total.saturating_sub(self.system)
    }

    /// How far above its watermark it is.
    #[must_use]
    pub fn logical_pressure(&self) -> i64 {
        self.reserved.saturating_sub(self.watermark).max(0)
    }

    /// What is probably free below the watermark.
    #[must_use]
    pub fn slack(&self) -> i64 {
        self.buffer.saturating_add(self.watermark.saturating_sub(self.reserved).max(0))
    }

    /// What should leave in addition to what is leaving; zero or less when nothing should.
    #[must_use]
    pub fn excess(&self) -> i64 {
        let pressure = self.logical_pressure().saturating_add(self.capacity_pressure);
        pressure.saturating_sub(self.pressure_accounted_for).saturating_sub(self.slack())
    }
}

/// The account of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Milli-CPU.
    pub cpu: ResourceAccount,
    /// MiB.
    pub memory: ResourceAccount,
}

impl Account {
    /// The account of a node with these facts and this use.
    #[must_use]
    pub fn of(facts: &NodeFacts, used: &Used, watermark: WatermarkRule, sums: &Sums) -> Self {
        let frame = NodeLimits::of(facts);
        let room = Room { used: *used, ..Room::of(facts) };
        let unit = |unit: u32| i64::from(unit.max(1));
        Self {
            cpu: frame.cpu.account(
                used.cpu,
                watermark.cpu_permille,
                unit(facts.other.cpu_unit_milli),
                sums.cpu,
            ),
            memory: frame.memory.account(
                room.memory_used(),
                watermark.memory_permille,
                unit(facts.other.memory_unit_mib),
                sums.memory,
            ),
        }
    }

    /// Whether more instances should leave than are leaving already.
    ///
    /// A node that is at or below its watermark in CPU and below it in memory is left alone even if
    /// requests were denied: they are repeated, and count only once the node fills up. That CPU may be
    /// at the mark and memory may not follows the original rule.
    #[must_use]
    pub fn must_shed(&self) -> bool {
        let calm =
            self.cpu.reserved <= self.cpu.watermark && self.memory.reserved < self.memory.watermark;
        !calm && (self.cpu.excess() > 0 || self.memory.excess() > 0)
    }

    /// Whether more is reserved than may be. Then nothing grows.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.cpu.reserved > self.cpu.reservable() || self.memory.reserved > self.memory.reservable()
    }

    /// What may be added before a watermark is passed; negative above it.
    #[must_use]
    pub const fn below_watermark(&self) -> Free {
        Free {
            cpu: self.cpu.watermark.saturating_sub(self.cpu.reserved),
            memory: self.memory.watermark.saturating_sub(self.memory.reserved),
        }
    }
}

/// What may be added to a node before it passes a watermark; negative above it.
#[must_use]
pub fn watermark_free(facts: &NodeFacts, used: &Used, watermark: WatermarkRule) -> Free {
    Account::of(facts, used, watermark, &Sums::default()).below_watermark()
}

/// What is given by a node's facts alone.
struct NodeLimits {
    cpu: ResourceLimits,
    memory: ResourceLimits,
}

struct ResourceLimits {
    total: i64,
    system: i64,
    other: i64,
}

impl NodeLimits {
    fn of(facts: &NodeFacts) -> Self {
        let capacity = facts.capacity.unwrap_or_default();
        let none = OtherUsage { cpu_milli: 0, memory_kib: 0, ..facts.other };
        let reserve = facts.kept_by_host();
        let total = Limits::of(capacity, Amounts::default(), facts.ratios, none);
        let reservable = Limits::of(capacity, reserve, facts.ratios, none);
        let limits = Limits::of(capacity, reserve, facts.ratios, facts.other);
        let given = |total: i64, reservable: i64, limit: i64| ResourceLimits {
            total,
            system: total.saturating_sub(reservable),
            other: reservable.saturating_sub(limit),
        };
        Self {
            cpu: given(total.cpu, reservable.cpu, limits.cpu),
            memory: given(total.memory, reservable.memory, limits.memory),
        }
    }
}

impl ResourceLimits {
    fn account(&self, used: i64, permille: u16, unit: i64, sum: Sum) -> ResourceAccount {
        let reservable = self.total.saturating_sub(self.system).max(0);
        // Whole units, rounded down, like all capacity.
        let units = reservable.checked_div(unit).unwrap_or(0).saturating_mul(permille.into());
        let watermark = units.checked_div(1000).unwrap_or(0).saturating_mul(unit);
        ResourceAccount {
            total: self.total,
            system: self.system,
            other: self.other,
            reserved: used.saturating_add(self.other),
            buffer: sum.buffer,
            capacity_pressure: sum.pressure,
            pressure_accounted_for: sum.accounted_for,
            watermark,
        }
    }
}
