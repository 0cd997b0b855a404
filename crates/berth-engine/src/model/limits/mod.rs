//! How much a caller may send: a limit for every text, list and map, in one table.
//!
//! The numbers are in [`table`] and nowhere else. The API checks whole requests against them, the
//! engine and the ledger check what reaches them another way, and the OpenAPI document and
//! `docs/limits.md` are made of the same table. A check must never cost more than reading the value
//! once: it compares lengths and looks at each character, and allocates only for an error.

mod fields;
mod read;
pub mod table;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

pub(crate) use fields::check_counts;
pub use read::{check_regexes, read_items, read_rules};

use crate::affinity::Rule;
use crate::model::{Hint, InstanceId, NodeId, PlatformVersion, Timestamp, TraitValue};
use crate::node_selector::NodeSelector;

/// Bytes that every item of a list and every entry of a map counts for besides its text.
const ITEM_BYTES: usize = 16;

/// How much of a map's key is repeated in an error.
const SHOWN_CHARS: usize = 40;

/// The limit of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// One line of text: its most characters, none of them a control character.
    Text(usize),
    /// Text of several lines: its most characters; of control characters only line ends and tabs.
    Lines(usize),
    /// A list: its most items, and the limit of each.
    List(usize, &'static Self),
    /// A map: its most entries, and the limits of each key and value.
    Map(usize, &'static Self, &'static Self),
    /// A value whose parts have their own limits, or that has a fixed size.
    Parts,
}

impl Limit {
    /// Most characters, items or entries.
    #[must_use]
    pub const fn most(self) -> usize {
        match self {
            Self::Text(most) | Self::Lines(most) | Self::List(most, _) | Self::Map(most, _, _) => {
                most
            }
            Self::Parts => usize::MAX,
        }
    }

    /// Refuses a list or map with more items than this.
    ///
    /// # Errors
    /// When there are too many.
    pub fn check_items(self, found: usize) -> Result<(), LimitExceeded> {
        check_length(found, self.most())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(most) => write!(f, "{most} characters"),
            Self::Lines(most) => write!(f, "{most} characters in lines"),
            Self::List(most, Self::Parts) | Self::Map(most, Self::Parts, Self::Parts) => {
                write!(f, "{most} items")
            }
            Self::List(most, item) => write!(f, "{most} items of {item}"),
            Self::Map(most, Self::Parts, value) => write!(f, "{most} entries of {value}"),
            Self::Map(most, key, Self::Parts) => write!(f, "{most} entries, keys of {key}"),
            Self::Map(most, key, value) => {
                write!(f, "{most} entries, keys of {key}, values of {value}")
            }
            Self::Parts => f.write_str("see its fields"),
        }
    }
}

/// What is wrong with a value that exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// A text is too long.
    Characters {
        /// How many it has.
        found: usize,
        /// How many it may have.
        most: usize,
    },
    /// A list or map has too many items.
    Items {
        /// How many it has.
        found: usize,
        /// How many it may have.
        most: usize,
    },
    /// Texts and items take up too much together.
    Bytes {
        /// How much they take up.
        found: usize,
        /// How much they may.
        most: usize,
    },
    /// Too many regular expressions.
    Regexes {
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A text has a control character.
    Control(char),
}

/// A value that exceeds its limit: which, what was found and what is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{} has {}; accepted is {}", self.field(), self.found(), self.accepted())]
pub struct LimitExceeded {
    /// The parts of the path, the innermost first.
    path: Vec<String>,
    /// What is wrong.
    pub excess: Excess,
}

impl LimitExceeded {
    /// An excess of the value that is being checked.
    #[must_use]
    pub const fn new(excess: Excess) -> Self {
        Self { path: Vec::new(), excess }
    }

    /// The same, in a field of a larger value.
    #[must_use]
    pub fn inside(mut self, field: &str) -> Self {
        self.path.push(field.to_owned());
        self
    }

    /// The same, in an item of a list.
    #[must_use]
    pub fn at(mut self, place: usize) -> Self {
        self.path.push(format!("[{place}]"));
        self
    }

    fn under_key(mut self, key: &dyn fmt::Display) -> Self {
        let shown: String = key.to_string().chars().take(SHOWN_CHARS).collect();
        self.path.push(format!("[{shown:?}]"));
        self
    }

    /// The path of the value, such as `instances[0].tags["role"]`.
    #[must_use]
    pub fn field(&self) -> String {
        let mut field = String::new();
        for part in self.path.iter().rev() {
            if !field.is_empty() && !part.starts_with('[') {
                field.push('.');
            }
            field.push_str(part);
        }
        if field.is_empty() { "the value".to_owned() } else { field }
    }

    /// What was found, in words.
    #[must_use]
    pub fn found(&self) -> String {
        match self.excess {
            Excess::Characters { found, .. } => format!("{found} characters"),
            Excess::Items { found, .. } => format!("{found} items"),
            Excess::Bytes { found, .. } => format!("{found} bytes in all its texts and lists"),
            Excess::Regexes { found, .. } => format!("{found} regular expressions"),
            Excess::Control(found) => {
                format!("the control character U+{:04X}", u32::from(found))
            }
        }
    }

    /// What is accepted, in words.
    #[must_use]
    pub fn accepted(&self) -> String {
        match self.excess {
            Excess::Characters { most, .. } => format!("at most {most} characters"),
            Excess::Items { most, .. } => format!("at most {most} items"),
            Excess::Bytes { most, .. } => format!("at most {most} bytes"),
            Excess::Regexes { most, .. } => format!("at most {most} regular expressions"),
            Excess::Control(_) => "text without control characters".to_owned(),
        }
    }
}

/// What a check adds up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// Bytes of texts and items so far.
    pub bytes: usize,
    /// Whether control characters are let pass.
    pub ignores_control: bool,
}

impl Meter {
    /// Adds what a value takes up.
    pub fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// What can be checked against a limit.
pub trait Limited {
    /// Checks a value, and adds what it takes up to the meter.
    ///
    /// # Errors
    /// Names the first part that exceeds its limit.
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded>;

    /// Checks a value whose parts have their own limits.
    ///
    /// # Errors
    /// Names the first part that exceeds its limit.
    fn check_limits(&self) -> Result<(), LimitExceeded> {
        self.check(Limit::Parts, &mut Meter::default())
    }

    /// The same for a value that was stored earlier, when control characters may still have been
    /// accepted: they harm nobody who stores and places, only those who print.
    ///
    /// # Errors
    /// Names the first part that exceeds its limit.
    fn check_stored(&self) -> Result<(), LimitExceeded> {
        self.check(Limit::Parts, &mut Meter { bytes: 0, ignores_control: true })
    }
}

/// Whether a character may not be part of a name or a line of text. Besides control characters
/// these are line separators and those that change the direction in which the rest is shown.
#[must_use]
pub fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a text is a name: not empty, not too long, without control characters.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.check(table::NAME, &mut Meter::default()).is_ok()
}

fn check_length(found: usize, most: usize) -> Result<(), LimitExceeded> {
    if found <= most {
        return Ok(());
    }
    Err(LimitExceeded::new(Excess::Items { found, most }))
}

/// Refuses a value whose texts and items take up too much together.
///
/// # Errors
/// When it takes up more than `most` bytes.
pub fn check_size(found: usize, most: usize) -> Result<(), LimitExceeded> {
    if found <= most {
        return Ok(());
    }
    Err(LimitExceeded::new(Excess::Bytes { found, most }))
}

impl Limited for str {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        // One word where a list of words is also accepted.
        if let Limit::List(_, item) = limit {
            return self.check(*item, meter);
        }
        meter.add(self.len());
        let (most, lines) = match limit {
            Limit::Text(most) => (most, false),
            Limit::Lines(most) => (most, true),
            Limit::List(..) | Limit::Map(..) | Limit::Parts => return Ok(()),
        };
        // Bytes are at least as many as characters, which so need not be counted in most texts.
        if self.len() > most {
            let found = self.chars().count();
            if found > most {
                return Err(LimitExceeded::new(Excess::Characters { found, most }));
            }
        }
        if meter.ignores_control || self.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
            return Ok(());
        }
        let is_line = |character: &char| lines && matches!(character, '\n' | '\r' | '\t');
        match self.chars().find(|character| is_control(*character) && !is_line(character)) {
            Some(found) => Err(LimitExceeded::new(Excess::Control(found))),
            None => Ok(()),
        }
    }
}

impl Limited for String {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        self.as_str().check(limit, meter)
    }
}

impl Limited for NodeId {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        self.as_str().check(limit, meter)
    }
}

/// The parser has checked the text; what counts is how many there are and what they take up.
impl Limited for Rule {
    fn check(&self, _: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        meter.add(self.as_str().len());
        Ok(())
    }
}

/// The parser has checked the text, its terms and its nesting.
impl Limited for NodeSelector {
    fn check(&self, _: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        meter.add(self.to_string().len());
        Ok(())
    }
}

impl Limited for TraitValue {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        match self {
            Self::Bool(_) => Ok(()),
            Self::Text(word) => word.check(limit, meter),
            Self::List(words) => words.check(limit, meter),
        }
    }
}

impl Limited for Hint {
    fn check(&self, _: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        match self {
            Self::Instance(_) => Ok(()),
            Self::Tag(name, value) => {
                name.check(table::NAME, meter).map_err(|error| error.inside("tag"))?;
                value.check(table::TAG_VALUE, meter).map_err(|error| error.inside("tag"))
            }
        }
    }
}

impl<T: Limited + ?Sized> Limited for Box<T> {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        self.as_ref().check(limit, meter)
    }
}

impl<T: Limited> Limited for Option<T> {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        self.as_ref().map_or(Ok(()), |value| value.check(limit, meter))
    }
}

impl<T: Limited> Limited for Vec<T> {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        let (most, item) = match limit {
            Limit::List(most, item) => (most, *item),
            Limit::Text(_) | Limit::Lines(_) | Limit::Map(..) | Limit::Parts => (usize::MAX, limit),
        };
        check_length(self.len(), most)?;
        meter.add(self.len().saturating_mul(ITEM_BYTES));
        for (place, value) in self.iter().enumerate() {
            value.check(item, meter).map_err(|error| error.at(place))?;
        }
        Ok(())
    }
}

impl<K: Limited + fmt::Display, V: Limited> Limited for BTreeMap<K, V> {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        let (most, key_limit, value_limit) = match limit {
            Limit::Map(most, key, value) => (most, *key, *value),
            Limit::Text(_) | Limit::Lines(_) | Limit::List(..) | Limit::Parts => {
                (usize::MAX, Limit::Parts, Limit::Parts)
            }
        };
        check_length(self.len(), most)?;
        meter.add(self.len().saturating_mul(ITEM_BYTES));
        for (key, value) in self {
            key.check(key_limit, meter).map_err(|error| error.under_key(key))?;
            value.check(value_limit, meter).map_err(|error| error.under_key(key))?;
        }
        Ok(())
    }
}

macro_rules! of_fixed_size {
    ($($type:ty),*) => {
        $(impl Limited for $type {
            fn check(&self, _: Limit, _: &mut Meter) -> Result<(), LimitExceeded> {
                Ok(())
            }
        })*
    };
}

// A JSON value is the patch of something that is checked when the patch was applied.
of_fixed_size!(bool, u32, u64, i64, InstanceId, Timestamp, PlatformVersion, serde_json::Value);

/// The limits of an object's fields. States each field that has a limit with it, and every other
/// field by its name, so that a new field cannot be forgotten. `as` gives the name of a field in
/// JSON where it differs. `within` limits what the fields take up together.
#[macro_export]
macro_rules! limit_fields {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (
        $type:ty { $($field:ident $(as $name:literal)?: $limit:expr),* $(,)? }
        fixed { $($fixed:ident),* $(,)? }
    ) => {
        $crate::limit_fields!(
            $type {$($field $(as $name)?: $limit),*} fixed {$($fixed),*} within usize::MAX
        );
    };
    (
        $type:ty { $($field:ident $(as $name:literal)?: $limit:expr),* $(,)? }
        fixed { $($fixed:ident),* $(,)? } within $most:expr
    ) => {
        impl $crate::limits::Limited for $type {
            fn check(
                &self,
                _: $crate::limits::Limit,
                meter: &mut $crate::limits::Meter,
            ) -> Result<(), $crate::limits::LimitExceeded> {
                let Self { $($field,)* $($fixed: _,)* } = self;
                let before = meter.bytes;
                $($crate::limits::Limited::check($field, $limit, meter)
                    .map_err(|error| error.inside($crate::limit_fields!(@name $field $($name)?)))?;)*
                $crate::limits::check_size(meter.bytes.saturating_sub(before), $most)
            }
        }

        impl $crate::limits::FieldLimits for $type {
            const FIELDS: &'static [(&'static str, $crate::limits::Limit)] =
                &[$(($crate::limit_fields!(@name $field $($name)?), $limit)),*];
        }
    };
}

/// An object whose fields have limits.
pub trait FieldLimits {
    /// The fields with their limits.
    const FIELDS: &'static [(&'static str, Limit)];
}

#[cfg(test)]
mod tests;
