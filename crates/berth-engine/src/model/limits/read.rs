//! Reading lists whose items are expensive: reading stops at the limit, not after it.
//!
//! A rule with a regular expression takes a thousand times the memory of its text, so a list of
//! them must not be read to its end before it is counted.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use super::table;
use super::{Excess, LimitExceeded};
use crate::affinity::Rule;

/// Reads a list. `check` is called after each item, with all that were read so far.
///
/// # Errors
/// When an item cannot be read, there are more than `most`, or `check` refuses one.
pub fn read_items<'de, D, T, C>(input: D, most: usize, check: C) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
    C: FnMut(&[T]) -> Result<(), LimitExceeded>,
{
    input.deserialize_seq(Items { most, check, item: PhantomData })
}

struct Items<T, C> {
    most: usize,
    check: C,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, C: FnMut(&[T]) -> Result<(), LimitExceeded>> Visitor<'de>
    for Items<T, C>
{
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of at most {} items", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut input: A) -> Result<Vec<T>, A::Error> {
        let mut items: Vec<T> = Vec::new();
        while let Some(item) = input.next_element()? {
            if items.len() == self.most {
                let most = self.most;
                return Err(A::Error::custom(format_args!(
                    "more than {most} items; accepted is at most {most} items"
                )));
            }
            items.push(item);
            (self.check)(&items).map_err(A::Error::custom)?;
        }
        Ok(items)
    }
}

/// Reads the affinity rules of one instance.
///
/// # Errors
/// When a rule cannot be read, or there are too many.
pub fn read_rules<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Rule>, D::Error> {
    let mut regexes = 0;
    read_items(input, table::RULES.most(), |rules: &[Rule]| {
        regexes += usize::from(rules.last().is_some_and(|rule| rule.pattern().is_regex()));
        check_regexes(regexes, table::REGEXES)
    })
}

/// Refuses more regular expressions than there may be.
///
/// # Errors
/// When there are more than `most`.
pub fn check_regexes(found: usize, most: usize) -> Result<(), LimitExceeded> {
    if found <= most {
        return Ok(());
    }
    Err(LimitExceeded::new(Excess::Regexes { found, most }))
}
