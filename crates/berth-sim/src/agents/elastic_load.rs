//! The load of elastic instances in the demo: how large each wants to be over an accelerated day.
//!
//! Sizes follow from the time and the instance's own number, so that tenants peak at different hours
//! and no state is needed.

use berth_engine::elastic::Size;
use berth_engine::{Elastic, InstanceId};

/// How many steps there are between the least and the most.
const STEPS: u64 = 8;

/// What a host knows of an elastic instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ElasticLoad {
    min: Size,
    max: Size,
    unit: Size,
    /// What it may use.
    pub(super) has: Size,
}

impl ElasticLoad {
    /// From an assignment; absent when its present size is not known.
    pub(super) fn of(elastic: &Elastic) -> Option<Self> {
        let has = elastic.using?;
        let (min, max) = elastic.bounds(has);
        Some(Self { min, max, unit: elastic.compute_unit?, has })
    }

    /// The size it wants at a moment of its day, in whole units.
    pub(super) fn wanted_size(&self, instance: InstanceId, at_ms: u64, day_ms: u64) -> Size {
        let own = u64::try_from(instance.0.as_u128() & 0xffff).unwrap_or(0);
        let day = day_ms.max(1);
        let hour = (at_ms + own * day / 0x1_0000) % day;
        // Up for half of the day and down for the other half.
        let rising = hour.min(day - hour) * 2;
        let step = rising * (STEPS + 1) / (day + 1);
        let whole = self.max.less(self.min);
        let part = whole.each(self.unit, |whole, unit| {
            let part = u64::from(whole) * step.min(STEPS) / STEPS;
            let units = part / u64::from(unit.max(1));
            u32::try_from(units * u64::from(unit)).unwrap_or(0)
        });
        self.min.plus(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_engine::Amounts;

    #[test]
    fn a_day_goes_from_the_least_to_the_most_and_back_in_whole_units() {
        let unit = Size::new(1000, 4096);
        let (min, max) = (Amounts::new(1000, 4096), Amounts::new(8000, 32768));
        let using = Some(Size::new(4000, 16384));
        let elastic = Elastic { compute_unit: Some(unit), using, ..Elastic::new(min, max) };
        let elastic_load = ElasticLoad::of(&elastic).unwrap();
        for own in [0, 0x8000, 0xffff] {
            let wanted_size = |at| elastic_load.wanted_size(InstanceId::from_u128(own), at, 1000);
            let day: Vec<Size> = (0..1000).map(wanted_size).collect();
            assert!(day.contains(&Size::of(&min)) && day.contains(&Size::of(&max)), "{own}");
            let whole = |size: &Size| {
                size.cpu_milli.is_multiple_of(1000) && size.memory_mib.is_multiple_of(4096)
            };
            assert!(day.iter().all(whole));
            let same = |size: &Size| size.cpu_milli / 1000 == size.memory_mib / 4096;
            assert!(day.iter().all(same), "CPU and memory go together");
        }
    }
}
