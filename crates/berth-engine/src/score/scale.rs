//! What relative facts are measured against: the fleet's spans at one moment.

use crate::fleet::Ranges;
use crate::model::{PPM, Timestamp};
use crate::policy::{MissedReboot, Policy};

/// Reboots this close together are one bucket.
const BUCKET_S: i64 = 7 * Timestamp::DAY;

/// The spans that fact scores use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Oldest and newest platform build.
    pub(crate) platforms: Option<(i64, i64)>,
    /// Lowest and highest hardware class.
    pub(crate) hardware: Option<(i32, i32)>,
    /// The largest node's CPU and memory.
    pub(crate) largest: (u32, u32),
    /// Latest date of each bucket of reboots, latest first, with the bucket's value.
    buckets: Vec<(i64, u32)>,
}

impl Scale {
    pub(crate) fn new(ranges: &Ranges, policy: &Policy, now: Timestamp) -> Self {
        Self {
            platforms: ranges.platforms(),
            hardware: ranges.hardware(),
            largest: ranges.largest(),
            buckets: reboot_buckets(ranges, policy, now),
        }
    }

    /// The value of a node by its planned reboot: none is best, the soonest bucket is worst.
    pub(crate) fn reboot_value(&self, planned: Option<Timestamp>) -> u32 {
        let Some(planned) = planned else { return PPM };
        let bucket =
            self.buckets.iter().find(|(latest, _)| planned.0 > latest.saturating_sub(BUCKET_S));
        bucket.map_or(0, |&(_, value)| value)
    }
}

/// A planned reboot as scores see it.
pub(crate) fn counted_reboot(
    planned: Option<Timestamp>,
    policy: &Policy,
    now: Timestamp,
) -> Option<Timestamp> {
    planned.filter(|at| policy.options.missed_reboot == MissedReboot::Soonest || *at >= now)
}

fn reboot_buckets(ranges: &Ranges, policy: &Policy, now: Timestamp) -> Vec<(i64, u32)> {
    let mut latest: Vec<i64> = Vec::new();
    let mut any_without = ranges.any_without_reboot();
    for planned in ranges.reboots().rev() {
        match counted_reboot(Some(planned), policy, now) {
            None => any_without = true,
            Some(at) => match latest.last() {
                Some(last) if at.0 > last.saturating_sub(BUCKET_S) => {}
                Some(_) | None => latest.push(at.0),
            },
        }
    }
    let buckets = latest.len() + usize::from(any_without);
    let first = usize::from(any_without);
    let numbered = latest.into_iter().enumerate();
    numbered.map(|(place, at)| (at, linear(first + place, buckets))).collect()
}

/// The value of place `place` of `places`: the first gets all, the last nothing, one place all.
pub(crate) fn linear(place: usize, places: usize) -> u32 {
    if places <= 1 {
        return PPM;
    }
    let left = (places - 1 - place) as u64;
    u32::try_from(u64::from(PPM) * left / (places as u64 - 1)).unwrap_or(PPM)
}

/// Where `value` lies between two ends: 0 at the low end, a million at the high end.
pub(crate) fn between(value: i64, low: i64, high: i64) -> u32 {
    if high <= low {
        return PPM;
    }
    let (above, span) = (value.clamp(low, high).abs_diff(low), high.abs_diff(low));
    u32::try_from(u128::from(above) * u128::from(PPM) / u128::from(span)).unwrap_or(PPM)
}
