//! Texts, and sets of tags, that many rows share, as small numbers.
//!
//! Every stored use is counted, so that the number of an unused text is freed: tags and names come
//! from tenants and must not accumulate. A [`Symbol`] never outlives its row.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::num::NonZeroU32;
use std::sync::Arc;

/// A shared text's number.
///
/// Never zero, so that "none" costs no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Symbol(NonZeroU32);

impl Symbol {
    /// The least and the greatest, for ranges of keys.
    pub(crate) const MIN: Self = Self(NonZeroU32::MIN);
    pub(crate) const MAX: Self = Self(NonZeroU32::MAX);

    fn at(place: usize) -> Self {
        let number = u32::try_from(place).unwrap_or(u32::MAX - 1).saturating_add(1);
        Self(NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX))
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }

    /// As a plain number.
    pub(crate) const fn number(self) -> u32 {
        self.0.get()
    }
}

// Tenants choose these texts, so the hash is the standard one, with fixed keys: the same inputs
// must give the same bytes, and no two runs may differ in the order of anything.
type Lookup<K> = HashMap<Arc<K>, Symbol, BuildHasherDefault<DefaultHasher>>;

#[derive(Debug)]
struct Entry<K: ?Sized> {
    value: Arc<K>,
    uses: u32,
}

// Derived, these would ask for values that can be copied; only their handles are.
impl<K: ?Sized> Clone for Entry<K> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), uses: self.uses }
    }
}

impl<K: ?Sized> Clone for InternTable<K> {
    fn clone(&self) -> Self {
        let (numbers, entries) = (self.numbers.clone(), self.entries.clone());
        Self { numbers, entries, free: self.free.clone() }
    }
}

/// Values and their numbers.
#[derive(Debug)]
pub(crate) struct InternTable<K: ?Sized> {
    numbers: Lookup<K>,
    entries: Vec<Option<Entry<K>>>,
    free: Vec<Symbol>,
}

/// Texts and their numbers.
pub(crate) type Interner = InternTable<str>;

/// Sets of tags and their numbers: the replicas of a workload all have the same.
pub(crate) type TagSets = InternTable<[(Symbol, Symbol)]>;

impl<K: ?Sized> Default for InternTable<K> {
    fn default() -> Self {
        Self { numbers: Lookup::default(), entries: Vec::new(), free: Vec::new() }
    }
}

impl<K: ?Sized + Hash + Eq> InternTable<K>
where
    for<'a> Arc<K>: From<&'a K>,
{
    /// The number of a value that is in use.
    pub(crate) fn find(&self, value: &K) -> Option<Symbol> {
        self.numbers.get(value).copied()
    }

    /// The number of a value, with one more use.
    pub(crate) fn acquire(&mut self, value: &K) -> Symbol {
        if let Some(&symbol) = self.numbers.get(value) {
            self.acquire_again(symbol);
            return symbol;
        }
        let value: Arc<K> = Arc::from(value);
        let entry = Some(Entry { value: Arc::clone(&value), uses: 1 });
        let symbol = match self.free.pop() {
            Some(symbol) => {
                self.entries[symbol.place()] = entry;
                symbol
            }
            None => {
                self.entries.push(entry);
                Symbol::at(self.entries.len() - 1)
            }
        };
        self.numbers.insert(value, symbol);
        symbol
    }

    /// One more use of a number that is in use.
    pub(crate) fn acquire_again(&mut self, symbol: Symbol) {
        if let Some(entry) = self.entries[symbol.place()].as_mut() {
            entry.uses += 1;
        }
    }

    /// One use less; at none, the number is free again. Returns whether that was the last.
    pub(crate) fn release(&mut self, symbol: Symbol) -> bool {
        let Some(entry) = self.entries[symbol.place()].as_mut() else { return false };
        entry.uses -= 1;
        if entry.uses > 0 {
            return false;
        }
        if let Some(entry) = self.entries[symbol.place()].take() {
            self.numbers.remove(&entry.value);
            self.free.push(symbol);
        }
        true
    }

    /// The value of a number.
    pub(crate) fn value(&self, symbol: Symbol) -> Option<&K> {
        self.entries.get(symbol.place())?.as_ref().map(|entry| &*entry.value)
    }

    /// How many values are in use.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

impl Interner {
    /// The text of a number.
    pub(crate) fn text(&self, symbol: Symbol) -> &str {
        self.value(symbol).unwrap_or("")
    }
}

impl TagSets {
    /// The tags of a set.
    pub(crate) fn tags(&self, set: Symbol) -> &[(Symbol, Symbol)] {
        self.value(set).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_nobody_uses_gives_its_number_back() {
        let mut interner = Interner::default();
        let web = interner.acquire("web");
        assert_eq!(interner.acquire("web"), web);
        interner.release(web);
        assert_eq!(interner.find("web"), Some(web));
        interner.release(web);
        assert_eq!(interner.find("web"), None);
        assert_eq!(interner.acquire("db"), web, "the freed number is used again");
        assert_eq!(interner.text(web), "db");
        assert_eq!(interner.len(), 1);
    }
}
