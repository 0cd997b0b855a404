//! Whether a node fits. Never fails: what a node lacks is simply not equal to anything.

use std::cmp::Ordering;

use super::{Attribute, Comparison, Expr, Operator, Value};

/// The facts of a node that a selector can compare.
pub trait PlaceFacts {
    /// Its name.
    fn id(&self) -> &str;
    /// Its zone.
    fn zone(&self) -> Option<&str>;
    /// Its rack.
    fn rack(&self) -> Option<&str>;
    /// `on-demand` or `spot`.
    fn capacity_type(&self) -> &str;
    /// The version of its platform, major and minor.
    fn platform_version(&self) -> Option<(u16, u16)>;
    /// Its hardware class.
    fn hardware_class(&self) -> i32;
    /// Whether it is a virtual machine.
    fn is_virtual(&self) -> bool;
    /// One of its labels.
    fn label(&self, key: &str) -> Option<&str>;
    /// The words of one of its traits: `true` or `false` for a switch.
    fn trait_words(&self, key: &str) -> Vec<&str>;
}

impl Expr {
    pub(super) fn holds(&self, node: &impl PlaceFacts) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(node)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(node)),
            Self::Not(inner) => !inner.holds(node),
            Self::Comparison(comparison) => comparison.holds(node),
        }
    }
}

impl Comparison {
    fn holds(&self, node: &impl PlaceFacts) -> bool {
        let compares =
            |operator| self.values.iter().any(|v| compares(&self.attribute, node, operator, v));
        match self.operator {
            Operator::Has => is_present(&self.attribute, node),
            Operator::NotEqual => !compares(Operator::Equal),
            Operator::In => compares(Operator::Equal),
            operator => compares(operator),
        }
    }
}

impl Operator {
    fn accepts(self, found: Ordering) -> bool {
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

fn compares(attribute: &Attribute, node: &impl PlaceFacts, by: Operator, value: &Value) -> bool {
    match value {
        Value::Text(pattern) if by == Operator::Like => {
            texts(attribute, node).iter().any(|text| fits(pattern, text))
        }
        Value::Text(text) => {
            texts(attribute, node).iter().any(|found| by.accepts((*found).cmp(text.as_str())))
        }
        Value::Number(number) => by.accepts(i64::from(node.hardware_class()).cmp(number)),
        Value::Version(major, minor) => {
            node.platform_version().is_some_and(|found| by.accepts(found.cmp(&(*major, *minor))))
        }
        Value::Switch(on) => by.accepts(node.is_virtual().cmp(on)),
    }
}

fn is_present(attribute: &Attribute, node: &impl PlaceFacts) -> bool {
    match attribute {
        Attribute::Virtual => node.is_virtual(),
        Attribute::PlatformVersion => node.platform_version().is_some(),
        Attribute::HardwareClass => true,
        Attribute::Trait(key) => {
            let words = node.trait_words(key);
            !words.is_empty() && words != ["false"]
        }
        Attribute::Id
        | Attribute::Zone
        | Attribute::Rack
        | Attribute::CapacityType
        | Attribute::Label(_) => !texts(attribute, node).is_empty(),
    }
}

/// A fact as text; several where any of them will do.
fn texts<'a>(attribute: &Attribute, node: &'a impl PlaceFacts) -> Vec<&'a str> {
    let one = |text: Option<&'a str>| text.into_iter().collect();
    match attribute {
        Attribute::Id => vec![node.id()],
        Attribute::Zone => one(node.zone()),
        Attribute::Rack => one(node.rack()),
        Attribute::CapacityType => vec![node.capacity_type()],
        Attribute::Label(key) => one(node.label(key)),
        Attribute::Trait(key) => node.trait_words(key),
        Attribute::PlatformVersion | Attribute::HardwareClass | Attribute::Virtual => Vec::new(),
    }
}

/// Whether a text fits a pattern in which `*` is any text and `?` any one character.
///
/// On a mismatch only the last star takes one more character: an earlier one need never be tried
/// again, so this takes no more than length times length.
fn fits(pattern: &str, text: &str) -> bool {
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
