//! One bit per node.

/// Bits by a node's place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// The bit at a place.
    pub(super) fn get(&self, place: usize) -> bool {
        self.0.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    /// Sets the bit at a place.
    pub(super) fn set(&mut self, place: usize, on: bool) {
        let word = place / 64;
        if word >= self.0.len() {
            if !on {
                return;
            }
            self.0.resize(word + 1, 0);
        }
        let bit = 1 << (place % 64);
        if on {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    /// All bits off.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The words.
    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }
}
