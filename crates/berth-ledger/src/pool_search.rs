//! Finds free values of pools for a transaction. Knows no database: the caller reads
//! which are taken.

use std::collections::BTreeMap;

use crate::error::Fault;
use crate::model::{Pool, Text};
use crate::unit_of_work::{Keys, Rows};

/// Rows read per step of a search.
pub(crate) const STEP: i64 = 512;

/// Values of a pool that have a row, each with the time it was given back, if it was.
pub(crate) type TakenValues = Vec<(u128, Option<i64>)>;

/// Finds as many free values as the transaction may need, pool by pool. `look` reads the rows of a
/// range in order, at most [`STEP`] of them.
///
/// Small pools are searched while their row is locked, since two searches would find the same value.
/// Large ones are searched from the writer's own position, and need no lock.
pub(crate) fn find_free_values(
    keys: &Keys,
    rows: &mut Rows,
    runs: &mut PoolCursors,
    mut look: impl FnMut(&Pool, u128, u128) -> Result<TakenValues, Fault>,
) -> Result<(), Fault> {
    for (id, &wanted) in keys.pools.iter().filter(|(_, wanted)| **wanted > 0) {
        let Some(row) = rows.pools.get(id) else { continue };
        let searched = row.pool.is_searched();
        let start = if searched { row.next } else { runs.start(&row.pool) };
        let mut search = Search::new(&row.pool, start, wanted, rows.now.0);
        while let Some((from, to)) = search.range() {
            let taken = look(&row.pool, from, to)?;
            let all = i64::try_from(taken.len()).unwrap_or(i64::MAX) < STEP;
            search.step(&taken, all);
        }
        let mut values = search.found;
        if !searched {
            runs.advance(&row.pool, &values);
        }
        // Given out from the end.
        values.reverse();
        rows.free_values.insert(Text::clone(id), values);
    }
    for (key, (pool, wanted)) in &keys.assumed_pools {
        let mut search = Search::new(pool, pool.first, *wanted, rows.now.0);
        while let Some((from, to)) = search.range() {
            let taken = look(pool, from, to)?;
            let all = i64::try_from(taken.len()).unwrap_or(i64::MAX) < STEP;
            search.step(&taken, all);
        }
        rows.free_values.insert(Text::clone(key), search.found);
    }
    Ok(())
}

/// Where a writer looks for values of large pools: each pool at a random position of its own,
/// and upwards from there, so that writers practically never collide and the pool needs no lock.
/// A value that another took in the meantime makes it start elsewhere.
#[derive(Default)]
pub(crate) struct PoolCursors(BTreeMap<Text, u128>);

impl PoolCursors {
    /// Where to look next.
    pub(crate) fn start(&mut self, pool: &Pool) -> u128 {
        let random = || pool.first + fastrand::u128(0..pool.size());
        let next = *self.0.entry(Text::clone(&pool.id)).or_insert_with(random);
        if (pool.first..=pool.last).contains(&next) { next } else { pool.first }
    }

    /// Goes on after the values that were found.
    pub(crate) fn advance(&mut self, pool: &Pool, found: &[u128]) {
        if let Some(last) = found.last() {
            self.0.insert(Text::clone(&pool.id), last.saturating_add(1));
        }
    }

    /// Starts elsewhere.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A search for free values: from where the last one ended to the end, then from
/// the start, so that a returned value is reused late.
pub(crate) struct Search {
    first: u128,
    last: u128,
    start: u128,
    next: u128,
    wrapped: bool,
    ended: bool,
    wanted: usize,
    rested_before: i64,
    pub(crate) found: Vec<u128>,
}

impl Search {
    pub(crate) fn new(pool: &Pool, start: u128, wanted: usize, now: i64) -> Self {
        Self {
            first: pool.first,
            last: pool.last,
            start,
            next: start,
            wrapped: false,
            ended: false,
            wanted,
            rested_before: now - i64::from(pool.quarantine_s) * 1_000_000,
            found: Vec::new(),
        }
    }

    /// The range to look at next; absent when enough was found or everything was searched.
    pub(crate) fn range(&mut self) -> Option<(u128, u128)> {
        if self.found.len() >= self.wanted || self.ended {
            return None;
        }
        let end = if self.wrapped { self.start.checked_sub(1)? } else { self.last };
        if self.next > end || end < self.first {
            if self.wrapped || self.start == self.first {
                return None;
            }
            self.wrapped = true;
            self.next = self.first;
            return self.range();
        }
        Some((self.next, end))
    }

    /// Takes in the rows of the range, in order: each value with the time it was released, if it
    /// was. `all` says that there are no more rows in the range.
    pub(crate) fn step(&mut self, rows: &[(u128, Option<i64>)], all: bool) {
        let end = if self.wrapped { self.start.saturating_sub(1) } else { self.last };
        for &(value, released_at) in rows {
            self.take_until(value);
            let rested = released_at.is_some_and(|at| at <= self.rested_before);
            if rested && self.found.len() < self.wanted {
                self.found.push(value);
            }
            self.next = value.saturating_add(1);
        }
        if all {
            self.take_until(end.saturating_add(1));
            if self.wrapped {
                self.ended = true;
            }
            self.next = end.saturating_add(1);
        }
    }

    fn take_until(&mut self, bound: u128) {
        while self.next < bound && self.found.len() < self.wanted {
            self.found.push(self.next);
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(taken: &[(u128, Option<i64>)], start: u128, wanted: usize, step: usize) -> Vec<u128> {
        let mut pool = Pool::parse("p", "10-19").unwrap();
        pool.quarantine_s = 1;
        let mut search = Search::new(&pool, start, wanted, 5_000_000);
        while let Some((from, to)) = search.range() {
            let rows: Vec<_> =
                taken.iter().copied().filter(|(v, _)| *v >= from && *v <= to).take(step).collect();
            let all = rows.len() < step;
            search.step(&rows, all);
        }
        search.found
    }

    #[test]
    fn free_values_are_found_after_the_start_then_before_it() {
        let taken = [(10, None), (12, None), (15, None), (16, None)];
        for step in [1, 2, 3, 100] {
            assert_eq!(search(&taken, 14, 99, step), [14, 17, 18, 19, 11, 13], "step {step}");
            assert_eq!(search(&taken, 14, 3, step), [14, 17, 18], "step {step}");
            assert_eq!(search(&taken, 10, 2, step), [11, 13], "step {step}");
        }
    }

    #[test]
    fn a_value_at_rest_is_not_given_out_until_it_has_rested() {
        let all: Vec<_> = (10..20).map(|value| (value, None)).collect();
        assert_eq!(search(&all, 13, 5, 4), [0u128; 0]);
        let mut resting = all.clone();
        resting[2].1 = Some(4_500_000);
        resting[5].1 = Some(4_000_000);
        assert_eq!(search(&resting, 13, 5, 4), [15]);
    }

    #[test]
    fn a_run_goes_on_after_what_was_found_and_stays_within_its_pool() {
        let pool = Pool::parse("p", "fd00::/104").unwrap();
        let mut runs = PoolCursors::default();
        let start = runs.start(&pool);
        assert!((pool.first..=pool.last).contains(&start));
        runs.advance(&pool, &[pool.first, pool.first + 4]);
        assert_eq!(runs.start(&pool), pool.first + 5);
        runs.advance(&pool, &[pool.last]);
        assert_eq!(runs.start(&pool), pool.first);
    }
}
