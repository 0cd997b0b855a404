//! The span of facts over the whole fleet, which relative scores are measured against.
//!
//! Counted multisets, so that the newest platform is known after any change without a scan.

use std::collections::BTreeMap;

use super::rows::NodeRow;
use crate::model::Timestamp;

/// A value and how many nodes have it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Multiset<T>(BTreeMap<T, u32>);

impl<T> Default for Multiset<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Copy> Multiset<T> {
    fn add(&mut self, value: T) {
        *self.0.entry(value).or_insert(0) += 1;
    }

    fn remove(&mut self, value: T) {
        if let Some(count) = self.0.get_mut(&value) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&value);
            }
        }
    }

    fn span(&self) -> Option<(T, T)> {
        Some((*self.0.first_key_value()?.0, *self.0.last_key_value()?.0))
    }
}

/// Spans over all present nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    platforms: Multiset<i64>,
    hardware: Multiset<i32>,
    reboots: Multiset<i64>,
    without_reboot: u32,
    cpu: Multiset<u32>,
    memory: Multiset<u32>,
}

impl Ranges {
    pub(crate) fn add(&mut self, row: &NodeRow) {
        if let Some(platform) = row.platform {
            self.platforms.add(platform.built_at.0);
        }
        self.hardware.add(row.hardware_class);
        match row.pending_reboot() {
            Some(at) => self.reboots.add(at.0),
            None => self.without_reboot += 1,
        }
        self.cpu.add(row.capacity.cpu_milli);
        self.memory.add(row.capacity.memory_mib);
    }

    pub(crate) fn remove(&mut self, row: &NodeRow) {
        if let Some(platform) = row.platform {
            self.platforms.remove(platform.built_at.0);
        }
        self.hardware.remove(row.hardware_class);
        match row.pending_reboot() {
            Some(at) => self.reboots.remove(at.0),
            None => self.without_reboot -= 1,
        }
        self.cpu.remove(row.capacity.cpu_milli);
        self.memory.remove(row.capacity.memory_mib);
    }

    /// Oldest and newest platform build.
    pub(crate) fn platforms(&self) -> Option<(i64, i64)> {
        self.platforms.span()
    }

    /// Lowest and highest hardware class.
    pub(crate) fn hardware(&self) -> Option<(i32, i32)> {
        self.hardware.span()
    }

    /// The largest node's CPU and memory.
    pub(crate) fn largest(&self) -> (u32, u32) {
        let most = |set: &Multiset<u32>| set.span().map_or(0, |(_, most)| most);
        (most(&self.cpu), most(&self.memory))
    }

    /// Planned reboots, earliest first, each date once.
    pub(crate) fn reboots(&self) -> impl DoubleEndedIterator<Item = Timestamp> + '_ {
        self.reboots.0.keys().copied().map(Timestamp)
    }

    /// Whether some node has no planned reboot.
    pub(crate) const fn any_without_reboot(&self) -> bool {
        self.without_reboot > 0
    }
}
