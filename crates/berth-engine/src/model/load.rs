//! How busy hosts are. Plain data, and what is kept of a measurement; it knows no node.

use serde::{Deserialize, Serialize};

/// How busy a host is, as its agent measured it: shares of what the host has, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MeasuredLoad {
    /// The share of its CPU that was busy, averaged over about a minute.
    #[cfg_attr(feature = "schema", schema(maximum = 1000))]
    pub cpu_permille: u16,
    /// The share of its memory that is in use; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 1000))]
    pub memory_permille: Option<u16>,
}

impl MeasuredLoad {
    /// All of something.
    pub const FULL: u16 = 1000;

    /// Loads are kept in steps of this many thousandths.
    pub const STEP: u16 = 50;

    /// What is kept of a measurement after another: the one that is kept already unless this one is
    /// more than a step away from it, else this one in whole steps. So a load that wavers a little
    /// changes nothing.
    #[must_use]
    pub fn kept_after(self, kept: Option<Self>) -> Self {
        let is_near = |new: u16, old: u16| new.abs_diff(old) <= Self::STEP;
        if let Some(kept) = kept {
            let memory_stays = match (self.memory_permille, kept.memory_permille) {
                (Some(new), Some(old)) => is_near(new, old),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            if memory_stays && is_near(self.cpu_permille, kept.cpu_permille) {
                return kept;
            }
        }
        let whole = |share: u16| {
            let nearest = (share.min(Self::FULL) + Self::STEP / 2) / Self::STEP;
            nearest * Self::STEP
        };
        Self {
            cpu_permille: whole(self.cpu_permille),
            memory_permille: self.memory_permille.map(whole),
        }
    }
}
