//! The tree of a selector, whatever it compares: joined comparisons, their text, whether they hold.
//! Knows no attribute; [`Attribute`] says which there are.

use std::cmp::Ordering;
use std::fmt::{self, Debug, Display};
use std::hash::Hash;

use super::error::ExpectedInput;

/// What selectors of one kind compare. Shown as it is written in a selector.
pub trait Attribute: Clone + Debug + Display + Eq + Hash {
    /// What it is compared with.
    type Value: Clone + Debug + Eq + Hash;

    /// The longest text.
    const MAX_BYTES: usize;
    /// The most values that one selector compares with.
    const MAX_TERMS: usize;
    /// The deepest nesting of parentheses and `not`.
    const MAX_DEPTH: usize;

    /// The attribute of that name.
    ///
    /// # Errors
    /// Says which names there are.
    fn by_name(name: &str) -> Result<Self, ExpectedInput>;

    /// Every name, for messages.
    fn names() -> String;

    /// The operators that mean something for it.
    fn operators(&self) -> Vec<Operator>;

    /// Reads a value that it is compared with.
    ///
    /// # Errors
    /// Says what would be accepted.
    fn read_value(&self, text: &str, operator: Operator) -> Result<Self::Value, ExpectedInput>;

    /// The canonical text of a value, which reads back to the same value.
    fn write_value(&self, value: &Self::Value) -> String;
}

/// Something that has attributes. What it lacks is not equal to anything.
pub trait Facts<A: Attribute> {
    /// Whether it has the attribute at all; a switch is on.
    fn has(&self, attribute: &A) -> bool;

    /// Whether the attribute compares with the value as asked; never asked for [`Operator::In`],
    /// [`Operator::NotEqual`] or [`Operator::Has`].
    fn compares(&self, attribute: &A, operator: Operator, value: &A::Value) -> bool;
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Below,
    /// `<=`
    AtMost,
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `~`: the text fits a pattern with `*` and `?`.
    Like,
    /// `in (…)`: equal to one of these.
    In,
    /// `has`: it is there at all; a switch is on.
    Has,
}

impl Operator {
    /// How it is written.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Below => "<",
            Self::AtMost => "<=",
            Self::Above => ">",
            Self::AtLeast => ">=",
            Self::Like => "~",
            Self::In => "in",
            Self::Has => "has",
        }
    }

    /// Those that ask which of two comes first.
    pub const ORDER: [Self; 4] = [Self::Below, Self::AtMost, Self::Above, Self::AtLeast];

    /// Whether two values that compare so are as asked.
    #[must_use]
    pub fn accepts(self, found: Ordering) -> bool {
        match self {
            Self::Equal | Self::In => found == Ordering::Equal,
            Self::NotEqual => found != Ordering::Equal,
            Self::Below => found == Ordering::Less,
            Self::AtMost => found != Ordering::Greater,
            Self::Above => found == Ordering::Greater,
            Self::AtLeast => found != Ordering::Less,
            Self::Like | Self::Has => false,
        }
    }
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Comparison<A: Attribute> {
    /// What is compared.
    pub attribute: A,
    /// How it is compared.
    pub operator: Operator,
    /// With what: none for `has`, any number for `in`, else one.
    pub values: Vec<A::Value>,
}

/// The tree of a selector. `All` and `Any` hold two or more, none of its own kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr<A: Attribute> {
    /// Every one of these.
    All(Vec<Self>),
    /// At least one of these.
    Any(Vec<Self>),
    /// Not this.
    Not(Box<Self>),
    /// This comparison.
    Comparison(Comparison<A>),
}

impl<A: Attribute> Expr<A> {
    /// Whether it holds for these facts.
    pub fn holds(&self, facts: &impl Facts<A>) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(facts)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(facts)),
            Self::Not(inner) => !inner.holds(facts),
            Self::Comparison(comparison) => comparison.holds(facts),
        }
    }

    /// All comparisons, in the order in which they are written.
    #[must_use]
    pub fn comparisons(&self) -> Vec<&Comparison<A>> {
        match self {
            Self::All(parts) | Self::Any(parts) => {
                parts.iter().flat_map(Self::comparisons).collect()
            }
            Self::Not(inner) => inner.comparisons(),
            Self::Comparison(comparison) => vec![comparison],
        }
    }

    /// All of these; what is itself all of some is taken apart.
    pub(super) fn all(parts: Vec<Self>) -> Self {
        let flat = parts.into_iter().flat_map(|part| match part {
            Self::All(inner) => inner,
            other => vec![other],
        });
        Self::one_or(flat.collect(), Self::All)
    }

    /// Any of these; what is itself any of some is taken apart.
    pub(super) fn any(parts: Vec<Self>) -> Self {
        let flat = parts.into_iter().flat_map(|part| match part {
            Self::Any(inner) => inner,
            other => vec![other],
        });
        Self::one_or(flat.collect(), Self::Any)
    }

    fn one_or(mut parts: Vec<Self>, group: fn(Vec<Self>) -> Self) -> Self {
        match (parts.len(), parts.pop()) {
            (1, Some(only)) => only,
            (_, last) => {
                parts.extend(last);
                group(parts)
            }
        }
    }
}

impl<A: Attribute> Comparison<A> {
    fn holds(&self, facts: &impl Facts<A>) -> bool {
        let any = |by| self.values.iter().any(|value| facts.compares(&self.attribute, by, value));
        match self.operator {
            Operator::Has => facts.has(&self.attribute),
            Operator::NotEqual => !any(Operator::Equal),
            Operator::In => any(Operator::Equal),
            operator => any(operator),
        }
    }
}

impl<A: Attribute> Display for Expr<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |f: &mut fmt::Formatter<'_>, parts: &[Self], between: &str| {
            for (place, part) in parts.iter().enumerate() {
                if place > 0 {
                    f.write_str(between)?;
                }
                // `or` binds less than `and`, so only it needs parentheses, and only within `and`.
                if between == " and " && matches!(part, Self::Any(_)) {
                    write!(f, "({part})")?;
                } else {
                    write!(f, "{part}")?;
                }
            }
            Ok(())
        };
        match self {
            Self::All(parts) => join(f, parts, " and "),
            Self::Any(parts) => join(f, parts, " or "),
            Self::Not(inner) if matches!(**inner, Self::All(_) | Self::Any(_)) => {
                write!(f, "not ({inner})")
            }
            Self::Not(inner) => write!(f, "not {inner}"),
            Self::Comparison(comparison) => write!(f, "{comparison}"),
        }
    }
}

impl<A: Attribute> Display for Comparison<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attribute, operator, values } = self;
        let values: Vec<String> = values.iter().map(|value| attribute.write_value(value)).collect();
        match operator {
            Operator::Has => write!(f, "has {attribute}"),
            Operator::In => write!(f, "{attribute} in ({})", values.join(", ")),
            operator => write!(f, "{attribute} {} {}", operator.symbol(), values.join("")),
        }
    }
}

/// Words that mean something in a selector and so must be quoted as values.
const KEYWORDS: [&str; 5] = ["and", "or", "not", "in", "has"];

/// Whether the word has a meaning of its own.
pub(super) fn is_keyword(word: &str) -> bool {
    KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(word))
}

/// Whether a word may hold the character without quotes.
pub(super) fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || "-_.:/@+%*?".contains(character)
}

/// A text as it stands in a selector: plain where that reads back, else between quotes.
#[must_use]
pub fn quote(text: &str) -> String {
    if !text.is_empty() && text.chars().all(is_plain) && !is_keyword(text) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A switch as people write it.
#[must_use]
pub fn read_switch(text: &str) -> Option<bool> {
    match text {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Whether a text fits a pattern in which `*` is any text and `?` any one character.
///
/// On a mismatch only the last star takes one more character: an earlier one need never be tried
/// again, so this takes no more than length times length.
#[must_use]
pub fn fits_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                last_star = Some((p, t));
                p += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match last_star {
                None => return false,
                Some((star, taken)) => {
                    last_star = Some((star, taken + 1));
                    (p, t) = (star + 1, taken + 1);
                }
            },
        }
    }
    pattern[p..].iter().all(|rest| *rest == '*')
}
