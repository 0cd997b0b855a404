//! CPU and memory together, and the only arithmetic that elastic code may do with them.
//!
//! Subtraction saturates at zero, and sums at [`Amounts::MAX`]. Unsigned underflow was the most common
//! defect of the systems that this design follows.
#![deny(clippy::arithmetic_side_effects)]

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::amounts::Amounts;
use super::room::Room;
use crate::units;

/// CPU and memory: what an instance may grow and shrink in.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Thousandths of a core.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub cpu_milli: u32,
    /// Mebibytes of memory.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub memory_mib: u32,
}

impl Size {
    /// Nothing.
    pub const ZERO: Self = Self::new(0, 0);

    /// This much CPU and memory.
    #[must_use]
    pub const fn new(cpu_milli: u32, memory_mib: u32) -> Self {
        Self { cpu_milli, memory_mib }
    }

    /// The CPU and memory of amounts.
    #[must_use]
    pub const fn of(amounts: &Amounts) -> Self {
        Self::new(amounts.cpu_milli, amounts.memory_mib)
    }

    /// Amounts with this CPU and memory, and the rest as it was.
    #[must_use]
    pub const fn within(self, amounts: Amounts) -> Amounts {
        Amounts { cpu_milli: self.cpu_milli, memory_mib: self.memory_mib, ..amounts }
    }

    /// Whether it is nothing at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.cpu_milli == 0 && self.memory_mib == 0
    }

    /// What is left without the other; nothing where the other is more.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self::new(
            self.cpu_milli.saturating_sub(other.cpu_milli),
            self.memory_mib.saturating_sub(other.memory_mib),
        )
    }

    /// Both together, at most what can be stored.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.each(other, |one, more| one.saturating_add(more).min(Amounts::MAX))
    }

    /// The lesser of both, each resource by itself.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        self.each(other, u32::min)
    }

    /// The greater of both, each resource by itself.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        self.each(other, u32::max)
    }

    /// Whether there is at least this much of both.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.cpu_milli >= other.cpu_milli && self.memory_mib >= other.memory_mib
    }

    /// A function of both, each resource by itself.
    #[must_use]
    pub fn each(self, other: Self, of: impl Fn(u32, u32) -> u32) -> Self {
        Self::new(of(self.cpu_milli, other.cpu_milli), of(self.memory_mib, other.memory_mib))
    }

    /// Names and values, for messages.
    #[must_use]
    pub const fn named(self) -> [(&'static str, u32); 2] {
        [("cpu_milli", self.cpu_milli), ("memory_mib", self.memory_mib)]
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpu, memory) = (self.cpu_milli.into(), self.memory_mib.into());
        write!(f, "{} and {}", units::cpu(cpu), units::size(memory))
    }
}

/// How many times a node's capacity may be given to instances of a class, in thousandths. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "u32", into = "u32")]
#[cfg_attr(feature = "schema", schema(value_type = u32, minimum = 1, maximum = 1000000))]
pub struct Overcommit(u32);

/// A factor that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("overcommit_permille is {0}; accepted is 1 to 1000000, where 1000 means once")]
pub struct InvalidOvercommit(u32);

impl Overcommit {
    /// No overcommit.
    pub const NONE: Self = Self(1000);

    /// In thousandths.
    #[must_use]
    pub const fn permille(self) -> u32 {
        self.0
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// What a node is charged for this much: rounded up, so that charges never add up to less than
    /// what was promised.
    #[must_use]
    pub fn charge(self, raw: Size) -> Size {
        let one = |raw: u32| {
            let charged = u64::from(raw).saturating_mul(1000).div_ceil(u64::from(self.0.max(1)));
            u32::try_from(charged).unwrap_or(Amounts::MAX).min(Amounts::MAX)
        };
        Size::new(one(raw.cpu_milli), one(raw.memory_mib))
    }

    /// The most that can be had for such a charge.
    #[must_use]
    pub fn most_for(self, charge: u64) -> u32 {
        let raw = charge.saturating_mul(u64::from(self.0)) / 1000;
        u32::try_from(raw).unwrap_or(Amounts::MAX).min(Amounts::MAX)
    }
}

impl Default for Overcommit {
    fn default() -> Self {
        Self::NONE
    }
}

impl TryFrom<u32> for Overcommit {
    type Error = InvalidOvercommit;

    fn try_from(permille: u32) -> Result<Self, Self::Error> {
        let accepted = (1..=1_000_000).contains(&permille);
        accepted.then_some(Self(permille)).ok_or(InvalidOvercommit(permille))
    }
}

impl From<Overcommit> for u32 {
    fn from(factor: Overcommit) -> Self {
        factor.0
    }
}

/// CPU and memory that are free; negative when more is used than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Thousandths of a core.
    pub cpu: i64,
    /// Mebibytes.
    pub memory: i64,
}

impl Free {
    /// No limit.
    pub const UNLIMITED: Self = Self { cpu: i64::MAX, memory: i64::MAX };

    /// What a node has left for instances that are on it.
    #[must_use]
    pub fn on(room: &Room) -> Self {
        Self {
            cpu: room.limits.cpu.saturating_sub(room.used.cpu),
            memory: room.limits.memory.saturating_sub(room.memory_used()),
        }
    }

    /// What is left when the charge of an instance changes.
    #[must_use]
    pub fn recharged(self, from: Size, to: Size) -> Self {
        let one = |free: i64, from: u32, to: u32| {
            free.saturating_add(i64::from(from)).saturating_sub(i64::from(to))
        };
        Self {
            cpu: one(self.cpu, from.cpu_milli, to.cpu_milli),
            memory: one(self.memory, from.memory_mib, to.memory_mib),
        }
    }

    /// Whichever leaves less.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self { cpu: self.cpu.min(other.cpu), memory: self.memory.min(other.memory) }
    }
}
