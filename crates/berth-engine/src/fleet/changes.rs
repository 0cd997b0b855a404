//! Which nodes changed, in order: the one feed that everything derived follows.
//!
//! The log is bounded. A follower that fell behind further than it reaches is told so and rebuilds
//! from the rows, which is never wrong, only slower.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::columns::Slot;

/// A change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The node.
    pub(crate) slot: Slot,
    /// What about it changed.
    pub(crate) what: What,
}

/// What about a node changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Its facts, and perhaps its usage.
    Facts,
    /// Whether it is eligible, or the points it has by itself.
    Standing,
    /// An instance came or went.
    Claim(Whose),
}

/// Whose instance came or went, as numbers that tell owners and workloads apart well enough:
/// followers use them to leave out changes that cannot concern them, and two workloads with one
/// hash cost a look too many, never one too few. Hashes of the texts and not of their symbols,
/// which may be given to other texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whose {
    pub(crate) owner: u32,
    pub(crate) workload: u32,
}

impl Whose {
    pub(crate) fn new(owner: &str, workload: Option<&str>) -> Self {
        let mut hasher = FxHasher::default();
        owner.hash(&mut hasher);
        let of_owner = hasher.finish();
        workload.hash(&mut hasher);
        Self { owner: (of_owner >> 32) as u32, workload: (hasher.finish() >> 32) as u32 }
    }
}

/// The last changes.
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    ring: Vec<Change>,
    /// How many changes there ever were; the next one's number.
    next: u64,
}

/// A power of two, so that a number's place in the ring is a mask.
const REACH: usize = 8192;

impl Changes {
    pub(crate) const fn new() -> Self {
        Self { ring: Vec::new(), next: 0 }
    }

    /// The place a follower has reached when it has seen everything.
    pub(crate) const fn end(&self) -> u64 {
        self.next
    }

    pub(crate) fn push(&mut self, change: Change) {
        let place = usize::try_from(self.next).unwrap_or(0) & (REACH - 1);
        if place == self.ring.len() {
            self.ring.push(change);
        } else {
            self.ring[place] = change;
        }
        self.next += 1;
    }

    /// The changes since a place, or nothing when some of them are gone.
    pub(crate) fn since(&self, place: u64) -> Option<impl Iterator<Item = Change> + '_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_sees_every_change_once_or_is_told_to_rebuild() {
        let mut changes = Changes::new();
        for number in 0..REACH as u32 + 5 {
            changes.push(Change { slot: Slot(number), what: What::Standing });
        }
        assert!(changes.since(4).is_none(), "five are gone");
        let seen: Vec<u32> = changes.since(5).map_or(vec![], |c| c.map(|c| c.slot.0).collect());
        assert_eq!(seen.len(), REACH);
        assert_eq!((seen[0], seen[REACH - 1]), (5, REACH as u32 + 4));
        assert_eq!(changes.since(changes.end()).map(Iterator::count), Some(0));
    }
}
