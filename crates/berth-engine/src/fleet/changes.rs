//! The log of changed nodes, which all derived state follows.
//!
//! The log is bounded. A follower that fell behind further than the log reaches rebuilds from the
//! rows, which is never wrong, only slower.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::columns::{Columns, NodeIndex};

/// A change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The node.
    pub(crate) index: NodeIndex,
    /// What about it changed.
    pub(crate) kind: ChangeKind,
    /// The node's availability after the change. Set when points are computed, before any ranking
    /// reads it.
    pub(crate) after: Availability,
}

/// What a node offers to the next instance: all that the repair of a ranking needs to know. It is
/// stored in the log, where the next reader finds it without a lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Availability {
    /// Room of each kind, as in the columns: memory, disk, CPU, bandwidth.
    pub(crate) room: [i32; 4],
    /// Points by facts and load.
    pub(crate) points: i32,
    /// How much these points changed by a claim.
    pub(crate) points_delta: i32,
    /// What the node takes, as bits below.
    pub(crate) flags: u32,
}

impl Availability {
    /// Passes every filter that looks only at facts and time.
    pub(crate) const ELIGIBLE: u32 = 1;
    /// The instance limit is not reached.
    pub(crate) const OPEN: u32 = 2;
    /// Accepts a capped instance.
    pub(crate) const TAKES_CAPPED: u32 = 4;
    /// Accepts an uncapped instance.
    pub(crate) const TAKES_UNCAPPED: u32 = 8;

    /// From the columns.
    pub(crate) fn new(columns: &Columns, index: NodeIndex, eligible: bool, points: i32) -> Self {
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        Self {
            room: [
                columns.memory.get(index),
                columns.disk.get(index),
                columns.cpu.get(index),
                columns.bandwidth.get(index),
            ],
            points,
            points_delta: 0,
            flags: flag(eligible, Self::ELIGIBLE)
                | flag(columns.open.get(index), Self::OPEN)
                | flag(columns.takes_capped.get(index), Self::TAKES_CAPPED)
                | flag(columns.takes_uncapped.get(index), Self::TAKES_UNCAPPED),
        }
    }
}

impl Change {
    pub(crate) const fn new(index: NodeIndex, kind: ChangeKind) -> Self {
        let after = Availability { room: [0; 4], points: 0, points_delta: 0, flags: 0 };
        Self { index, kind, after }
    }
}

/// What about a node changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// Its facts, and perhaps its usage.
    Facts,
    /// Its eligibility or its own points, with the passing of time.
    Eligibility,
    /// An instance was claimed, released or resized.
    Claim(Claimant),
}

/// The tenant and workload of an instance that was claimed or released, as hashes: followers use them
/// to skip changes that cannot affect them. A collision costs an unneeded recomputation, never a
/// missed one. Hashes of the texts and not of their symbols, which may be reused for other texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimant {
    pub(crate) tenant: u32,
    pub(crate) workload: u32,
}

impl Claimant {
    pub(crate) fn new(tenant: &str, workload: Option<&str>) -> Self {
        let mut hasher = FxHasher::default();
        tenant.hash(&mut hasher);
        let of_tenant = hasher.finish();
        workload.hash(&mut hasher);
        Self { tenant: (of_tenant >> 32) as u32, workload: (hasher.finish() >> 32) as u32 }
    }
}

/// The newest entries of a log.
#[derive(Clone, Debug)]
pub(crate) struct Log<T> {
    ring: Vec<T>,
    /// How many entries there ever were; the next one's number.
    next: u64,
}

/// The last changes.
pub(crate) type Changes = Log<Change>;

/// The nodes of the last changes of facts.
pub(crate) type FactChanges = Log<NodeIndex>;

/// A power of two, so that a number's place in the ring is a mask.
const REACH: usize = 8192;

/// A ring that outgrows this gets its full length at once: doubling would leave as much freed memory
/// behind as the ring holds.
const SMALL: usize = 256;

impl<T: Copy> Log<T> {
    pub(crate) const fn new() -> Self {
        Self { ring: Vec::new(), next: 0 }
    }

    /// The place a follower has reached when it has seen everything.
    pub(crate) const fn end(&self) -> u64 {
        self.next
    }

    pub(crate) fn push(&mut self, change: T) {
        let place = usize::try_from(self.next).unwrap_or(0) & (REACH - 1);
        if place == self.ring.len() {
            if place >= SMALL {
                self.ring.reserve_exact(REACH - place);
            }
            self.ring.push(change);
        } else {
            self.ring[place] = change;
        }
        self.next += 1;
    }

    /// The changes since a place, or nothing when some of them are gone.
    pub(crate) fn since(&self, place: u64) -> Option<impl Iterator<Item = T> + '_> {
        let behind = self.next.checked_sub(place)?;
        if behind > REACH as u64 {
            return None;
        }
        Some(
            (place..self.next)
                .map(|number| self.ring[usize::try_from(number).unwrap_or(0) & (REACH - 1)]),
        )
    }
}

impl Changes {
    /// Sets a node's availability after a logged change.
    pub(crate) fn set_availability(&mut self, number: u64, after: Availability) {
        let place = usize::try_from(number).unwrap_or(0) & (REACH - 1);
        self.ring[place].after = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_sees_every_change_once_or_is_told_to_rebuild() {
        let mut changes = Changes::new();
        for number in 0..8197 {
            changes.push(Change::new(NodeIndex(number), ChangeKind::Eligibility));
        }
        assert!(changes.since(4).is_none(), "five are gone");
        let seen: Vec<u32> = changes.since(5).map_or(vec![], |c| c.map(|c| c.index.0).collect());
        assert_eq!(seen.len(), REACH);
        assert_eq!((seen[0], seen[REACH - 1]), (5, 8196));
        assert_eq!(changes.since(changes.end()).map(Iterator::count), Some(0));
    }
}
