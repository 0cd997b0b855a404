//! Amounts of resources, and how they are rounded.
//!
//! Integers only. Requests round up, capacity rounds down. No amount may exceed [`Amounts::MAX`],
//! so that a column of signed 32-bit integers can hold any free amount, also a negative one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units;

/// One million: the value of a full score, and the scale of every share.
pub const PPM: u32 = 1_000_000;

/// CPU, memory, disk and bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Amounts {
    /// Thousandths of a core.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub cpu_milli: u32,
    /// Mebibytes of memory.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub memory_mib: u32,
    /// Mebibytes of local disk.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub disk_mib: u32,
    /// Megabits per second.
    #[cfg_attr(feature = "schema", schema(maximum = 2147483647))]
    pub bandwidth_mbps: u32,
}

impl Amounts {
    /// The largest amount of anything: about two million cores, two pebibytes.
    pub const MAX: u32 = i32::MAX as u32;

    /// CPU and memory; no disk, no bandwidth.
    #[must_use]
    pub const fn new(cpu_milli: u32, memory_mib: u32) -> Self {
        Self { cpu_milli, memory_mib, disk_mib: 0, bandwidth_mbps: 0 }
    }

    /// The same with this much disk.
    #[must_use]
    pub const fn with_disk(self, disk_mib: u32) -> Self {
        Self { disk_mib, ..self }
    }

    /// The same with this much bandwidth.
    #[must_use]
    pub const fn with_bandwidth(self, bandwidth_mbps: u32) -> Self {
        Self { bandwidth_mbps, ..self }
    }

    /// Amounts on one line as the least that will do: sizes are rounded up.
    #[must_use]
    pub fn at_least(&self) -> String {
        self.listed(|unit, amount| match unit {
            Unit::Mib => units::size_at_least(amount),
            Unit::MilliCpu | Unit::Mbps | Unit::Count | Unit::Seconds => unit.text(amount),
        })
    }

    fn listed(&self, text: impl Fn(Unit, i64) -> String) -> String {
        let after = ["", "", " disk", ""];
        let parts = self.named().into_iter().zip(after).filter(|((_, amount, _), _)| *amount > 0);
        let texts: Vec<String> = parts
            .map(|((_, amount, unit), after)| format!("{}{after}", text(unit, amount.into())))
            .collect();
        if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
    }

    /// Names and values, for validation and display.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u32, Unit); 4] {
        [
            ("cpu_milli", self.cpu_milli, Unit::MilliCpu),
            ("memory_mib", self.memory_mib, Unit::Mib),
            ("disk_mib", self.disk_mib, Unit::Mib),
            ("bandwidth_mbps", self.bandwidth_mbps, Unit::Mbps),
        ]
    }
}

/// Amounts on one line, without those that are zero: `2 CPU, 4 GiB, 10 GiB disk`.
impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.listed(Unit::text))
    }
}

/// Overcommit ratios in thousandths: 4000 means that four times the capacity may be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Ratios {
    /// CPU overcommit; 4.0 by default.
    pub cpu_permille: u32,
    /// Memory overcommit; 1.0 by default, since memory is a hard cap.
    pub memory_permille: u32,
    /// Disk overcommit; 1.0 by default.
    pub disk_permille: u32,
}

impl Default for Ratios {
    fn default() -> Self {
        Self { cpu_permille: 4000, memory_permille: 1000, disk_permille: 1000 }
    }
}

impl Ratios {
    /// Two ratios are the same package when they agree to two decimals, as Triton compares them.
    #[must_use]
    pub fn same_to_two_decimals(&self, other: &Self) -> bool {
        let rounded = |permille: u32| permille.saturating_add(5) / 10;
        rounded(self.cpu_permille) == rounded(other.cpu_permille)
            && rounded(self.memory_permille) == rounded(other.memory_permille)
            && rounded(self.disk_permille) == rounded(other.disk_permille)
    }
}

/// The unit of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Thousandths of a core.
    MilliCpu,
    /// Mebibytes.
    Mib,
    /// Megabits per second.
    Mbps,
    /// Whole things: slots, devices, licences.
    Count,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// An amount in this unit, as people read it: `4 GiB`, `0.5 CPU`.
    #[must_use]
    pub fn text(self, amount: i64) -> String {
        match self {
            Self::MilliCpu => units::cpu(amount),
            Self::Mib => units::size(amount),
            Self::Mbps => units::bandwidth(amount),
            Self::Count => amount.to_string(),
            Self::Seconds => units::duration(amount),
        }
    }
}

/// `part` of `whole` in parts per million, rounded down and held within `0..=PPM`.
///
/// A whole of zero counts as fully used.
#[must_use]
pub fn share_ppm(part: i64, whole: i64) -> u32 {
    if whole <= 0 {
        return PPM;
    }
    let part = part.clamp(0, whole).unsigned_abs();
    let share = match part.checked_mul(u64::from(PPM)) {
        Some(scaled) => scaled / whole.unsigned_abs(),
        // Beyond any real amount; exact, but slower.
        None => {
            let exact = u128::from(part) * u128::from(PPM) / u128::from(whole.unsigned_abs());
            u64::try_from(exact).unwrap_or(u64::from(PPM))
        }
    };
    u32::try_from(share).unwrap_or(PPM)
}

/// What usage outside Berth's control is charged, in whole units.
///
/// The raw sum is charged, not each part: fractions below the margin that rounding capacity down
/// to whole units left over cost nothing, the rest rounds up. `total` and
/// `system` are the node's capacity and reserve in the same base unit as `raw`.
#[must_use]
pub fn charge_for_other(total: u64, system: u64, raw: u64, unit: u64) -> u64 {
    let unit = unit.max(1);
    let reservable_units = total.saturating_sub(system) / unit;
    let margin = total.saturating_sub(system).saturating_sub(reservable_units * unit);
    raw.saturating_sub(margin).div_ceil(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_usage_is_charged_on_the_sum_above_the_rounding_margin() {
        // Research examples 11 and 12, Gen A: margin 410m of 7910m with 500m for the system.
        assert_eq!(charge_for_other(7910, 500, 410, 1000), 0);
        assert_eq!(charge_for_other(7910, 500, 411, 1000), 1);
        // Margin 420m, raw 810m then 1080m: one CPU before and after.
        assert_eq!(charge_for_other(7920, 500, 810, 1000), 1);
        assert_eq!(charge_for_other(7920, 500, 1080, 1000), 1);
        // Memory margin 947252 KiB, slots of 1 GiB: 3132 MiB costs 3 slots, 4176 MiB costs 4.
        let slot = 1 << 20;
        let total = 29 * slot + 947_252 + 512 * 1024;
        assert_eq!(charge_for_other(total, 512 * 1024, 3132 * 1024, slot), 3);
        assert_eq!(charge_for_other(total, 512 * 1024, 4176 * 1024, slot), 4);
    }

    #[test]
    fn shares_are_rounded_down_and_bounded() {
        for (part, whole, expected) in [
            (0, 10, 0),
            (1, 3, 333_333),
            (3, 3, PPM),
            (i64::MAX, i64::MAX, PPM),
            (9, 3, PPM),
            (-1, 3, 0),
            (1, 0, PPM),
        ] {
            assert_eq!(share_ppm(part, whole), expected, "{part} of {whole}");
        }
    }

    #[test]
    fn ratios_compare_at_two_decimals() {
        let of = |cpu_permille| Ratios { cpu_permille, ..Ratios::default() };
        assert!(of(4000).same_to_two_decimals(&of(4004)));
        assert!(!of(4000).same_to_two_decimals(&of(4006)));
    }
}
