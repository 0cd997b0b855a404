//! Texts that many rows share, as small numbers.
//!
//! Every stored use is counted, so that a text nobody uses any more gives its number back: tags and
//! names come from tenants and must not pile up for ever. A [`Symbol`] never outlives its row.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// A shared text's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Symbol(pub(crate) u32);

// Tenants choose these texts, so the hash is the standard one, with fixed keys: the same inputs
// must give the same bytes, and no two runs may differ in the order of anything.
type Lookup = HashMap<Arc<str>, u32, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone, Debug)]
struct Entry {
    text: Arc<str>,
    uses: u32,
}

/// Texts and their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interner {
    numbers: Lookup,
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Interner {
    /// The number of a text that is in use.
    pub(crate) fn find(&self, text: &str) -> Option<Symbol> {
        self.numbers.get(text).copied().map(Symbol)
    }

    /// The number of a text, with one more use.
    pub(crate) fn acquire(&mut self, text: &str) -> Symbol {
        if let Some(&number) = self.numbers.get(text) {
            if let Some(entry) = self.entries.get_mut(number as usize) {
                entry.uses += 1;
            }
            return Symbol(number);
        }
        let text: Arc<str> = Arc::from(text);
        let entry = Entry { text: Arc::clone(&text), uses: 1 };
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.numbers.insert(text, number);
        Symbol(number)
    }

    /// One use less; at none, the number is free again.
    pub(crate) fn release(&mut self, symbol: Symbol) {
        let Some(entry) = self.entries.get_mut(symbol.0 as usize) else {
            return;
        };
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses == 0 && self.numbers.remove(&entry.text).is_some() {
            self.free.push(symbol.0);
        }
    }

    /// The text of a number.
    pub(crate) fn text(&self, symbol: Symbol) -> &str {
        self.entries.get(symbol.0 as usize).map_or("", |entry| &entry.text)
    }

    /// How many texts are in use.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
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
