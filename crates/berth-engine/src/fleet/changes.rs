//! Which nodes changed, in order: the one feed that everything derived follows.
//!
//! The log is bounded. A follower that fell behind further than it reaches is told so and rebuilds
//! from the rows, which is never wrong, only slower.

use super::columns::Slot;

/// What about a node changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Its usage.
    Load(Slot),
    /// Its facts, and perhaps its usage.
    Facts(Slot),
}

impl Change {
    /// The node.
    pub(crate) const fn slot(self) -> Slot {
        match self {
            Self::Load(slot) | Self::Facts(slot) => slot,
        }
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
        Self {
            ring: Vec::new(),
            next: 0,
        }
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
            changes.push(Change::Load(Slot(number)));
        }
        assert!(changes.since(4).is_none(), "five are gone");
        let seen: Vec<u32> = changes
            .since(5)
            .map_or(vec![], |c| c.map(|c| c.slot().0).collect());
        assert_eq!(seen.len(), REACH);
        assert_eq!((seen[0], seen[REACH - 1]), (5, REACH as u32 + 4));
        assert_eq!(changes.since(changes.end()).map(Iterator::count), Some(0));
    }
}
