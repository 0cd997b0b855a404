//! Rows of one table as a transaction sees them: as they were read, and as they should become.
//!
//! Nothing is written here: a backend writes the difference when the work is done.

use std::hash::Hash;

use rustc_hash::FxHashMap;

#[derive(Clone, Debug)]
struct Entry<V> {
    /// As it was read under its lock; absent when there was no row.
    before: Option<V>,
    /// As it should become; absent when there should be none.
    now: Option<V>,
}

/// Rows of one table.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V> {
    rows: FxHashMap<K, Entry<V>>,
    /// What was replaced since the last mark, newest last.
    journal: Vec<(K, Option<V>)>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { rows: FxHashMap::default(), journal: Vec::new() }
    }
}

/// How one row changes.
#[derive(Debug)]
pub(crate) struct Change<'a, K, V> {
    pub(crate) key: &'a K,
    pub(crate) before: Option<&'a V>,
    pub(crate) now: Option<&'a V>,
}

impl<K: Clone + Eq + Hash + Ord, V: Clone + PartialEq> Table<K, V> {
    /// Notes a row as it was read.
    pub(crate) fn load(&mut self, key: K, row: V) {
        self.rows.insert(key, Entry { before: Some(row.clone()), now: Some(row) });
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key)?.now.as_ref()
    }

    /// Whether the row was read, or put here since.
    pub(crate) fn is_loaded(&self, key: &K) -> bool {
        self.rows.contains_key(key)
    }

    /// Says what a row should become.
    pub(crate) fn set(&mut self, key: &K, row: Option<V>) {
        match self.rows.get_mut(key) {
            Some(entry) => {
                let replaced = std::mem::replace(&mut entry.now, row);
                self.journal.push((key.clone(), replaced));
            }
            None => {
                self.rows.insert(key.clone(), Entry { before: None, now: row });
                self.journal.push((key.clone(), None));
            }
        }
    }

    /// Changes a row that is there.
    pub(crate) fn edit(&mut self, key: &K, change: impl FnOnce(&mut V)) {
        if let Some(entry) = self.rows.get_mut(key)
            && let Some(row) = entry.now.as_mut()
        {
            self.journal.push((key.clone(), Some(row.clone())));
            change(row);
        }
    }

    /// Whatever was set so far stays.
    pub(crate) fn keep(&mut self) {
        self.journal.clear();
    }

    /// Takes back what was set since the last [`Table::keep`].
    pub(crate) fn undo(&mut self) {
        while let Some((key, row)) = self.journal.pop() {
            if let Some(entry) = self.rows.get_mut(&key) {
                entry.now = row;
            }
        }
    }

    /// Rows that differ from what was read, in the order of their keys, which is the lock order.
    pub(crate) fn changes(&self) -> Vec<Change<'_, K, V>> {
        let changed = self.rows.iter().filter(|(_, entry)| entry.before != entry.now);
        let mut changes: Vec<Change<'_, K, V>> = changed
            .map(|(key, entry)| Change {
                key,
                before: entry.before.as_ref(),
                now: entry.now.as_ref(),
            })
            .collect();
        changes.sort_unstable_by_key(|change| change.key);
        changes
    }

    /// Rows as they should become.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().filter_map(|(key, entry)| Some((key, entry.now.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_restores_and_changes_are_sorted_differences() {
        let mut table: Table<u8, u8> = Table::default();
        table.load(2, 20);
        table.load(1, 10);
        table.set(&3, Some(30));
        table.edit(&2, |row| *row += 1);
        table.keep();
        table.edit(&2, |row| *row += 1);
        table.set(&1, None);
        table.set(&4, Some(40));
        table.undo();
        assert_eq!((table.get(&1), table.get(&2), table.get(&4)), (Some(&10), Some(&21), None));
        let changes: Vec<_> =
            table.changes().iter().map(|c| (*c.key, c.before.copied(), c.now.copied())).collect();
        assert_eq!(changes, [(2, Some(20), Some(21)), (3, None, Some(30))]);
    }
}
