//! Rows in chunks of equal length.
//!
//! A vector that doubles copies itself and leaves its old memory to the allocator, which may keep it
//! for good; and up to half of the new memory is spare. A chunk is never moved, and only the last
//! one has room to spare.

use std::ops::{Index, IndexMut};

/// Rows by number. A number whose row is gone stays, empty, until it is used again.
#[derive(Clone, Debug)]
pub(super) struct Chunks<T, const CHUNK: usize> {
    chunks: Vec<Vec<Option<T>>>,
}

impl<T, const CHUNK: usize> Chunks<T, CHUNK> {
    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    /// How many numbers there are, those without a row included.
    pub(super) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    /// Adds a number, without a row yet.
    pub(super) fn push_empty(&mut self) {
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(last) = self.chunks.last_mut() {
            // The copy of a chunk has no room to spare, and would double.
            last.reserve_exact(CHUNK - last.len());
            last.push(None);
        }
    }

    /// The row of a number.
    pub(super) fn get(&self, number: usize) -> Option<&T> {
        self.chunks.get(number / CHUNK)?.get(number % CHUNK)?.as_ref()
    }

    /// The row of a number, to change.
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.chunks.get_mut(number / CHUNK)?.get_mut(number % CHUNK)?.as_mut()
    }

    /// All rows, in order of number.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().flatten()
    }
}

impl<T, const CHUNK: usize> Index<usize> for Chunks<T, CHUNK> {
    type Output = Option<T>;

    fn index(&self, number: usize) -> &Self::Output {
        &self.chunks[number / CHUNK][number % CHUNK]
    }
}

impl<T, const CHUNK: usize> IndexMut<usize> for Chunks<T, CHUNK> {
    fn index_mut(&mut self, number: usize) -> &mut Self::Output {
        &mut self.chunks[number / CHUNK][number % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_on_over_the_ends_of_chunks() {
        let mut rows: Chunks<usize, 4> = Chunks::new();
        for number in 0..9 {
            assert_eq!(rows.len(), number);
            rows.push_empty();
            rows[number] = Some(number * 10);
        }
        assert_eq!((rows.get(3), rows.get(4), rows.get(9)), (Some(&30), Some(&40), None));
        assert_eq!(rows[5].take(), Some(50));
        assert_eq!(rows.len(), 9, "the number stays");
        assert_eq!(rows.iter().count(), 8);
    }

    #[test]
    fn no_chunk_grows_beyond_its_length_even_after_a_copy() {
        let mut rows: Chunks<usize, 8> = Chunks::new();
        (0..3).for_each(|_| rows.push_empty());
        let mut copy = rows.clone();
        (0..9).for_each(|_| copy.push_empty());
        assert!(copy.chunks.iter().all(|chunk| chunk.capacity() == 8));
    }
}
