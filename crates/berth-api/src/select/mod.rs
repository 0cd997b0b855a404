//! Selectors: which nodes, in a line that a person types.
//!
//! `platform < 20260101 and rack = r1`, `used.memory > 80% or has trait:ssd`. A selector is parsed
//! once, with every value already read in the unit of its attribute, and then asked of each node.
//! It must never decide where an instance goes: that is the engine's business.
//!
//! An attribute that a node lacks matches nothing but `!=` and `not`.

mod attribute;
mod error;
mod eval;
mod parse;
#[cfg(test)]
mod tests;
mod value;

use std::fmt;
use std::str::FromStr;

use berth_engine::{Amounts, NodeFacts, NodeUsage, Timestamp};

pub use attribute::{Attribute, Resource};
pub use error::SelectError;
pub use parse::{MAX_DEPTH, MAX_SELECTOR_BYTES};
pub use value::Value;

/// Where something is in the text of a selector, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
}

// The same expression is equal wherever it is.
impl PartialEq for Span {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Span {}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// `has`: the node has it at all; a switch is on.
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

    /// Whether it asks which of two comes first.
    const fn is_order(self) -> bool {
        matches!(self, Self::Below | Self::AtMost | Self::Above | Self::AtLeast)
    }
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The attribute of the node that is compared.
    pub attribute: Attribute,
    /// How it is compared.
    pub operator: Operator,
    /// With what: none for `has`, any number for `in`, else one.
    pub values: Vec<Value>,
    /// Where it is in the text.
    pub at: Span,
}

/// A selector's tree. `All` and `Any` hold two or more, none of its own kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Every one of these.
    All(Vec<Self>),
    /// At least one of these.
    Any(Vec<Self>),
    /// Not this.
    Not(Box<Self>),
    /// This comparison.
    Comparison(Comparison),
}

/// Which nodes. Shown as its canonical text, which parses back to an equal selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    expr: Expr,
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// Points at the place, and names what was found and what is accepted there.
    pub fn parse(text: &str) -> Result<Self, SelectError> {
        parse::parse(text).map(|expr| Self { expr })
    }

    /// Its tree.
    #[must_use]
    pub const fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Whether it selects this node.
    #[must_use]
    pub fn matches(&self, node: &NodeView<'_>) -> bool {
        self.expr.holds(node)
    }
}

impl FromStr for Selector {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        Self::parse(text)
    }
}

/// What a selector may look at.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// What is known of the node.
    pub facts: &'a NodeFacts,
    /// What is used on it, the hypervisor's overhead included.
    pub used: Amounts,
    /// How many instances are on it.
    pub instances: u32,
    /// The time, for ages.
    pub now: Timestamp,
}

impl<'a> NodeView<'a> {
    /// A node as the engine's fleet knows it.
    #[must_use]
    pub fn new(facts: &'a NodeFacts, usage: &NodeUsage, now: Timestamp) -> Self {
        let within = |amount: i64| u32::try_from(amount.max(0)).unwrap_or(u32::MAX);
        let used = Amounts {
            cpu_milli: within(usage.cpu_milli.used),
            memory_mib: within(usage.memory_mib.used),
            disk_mib: within(usage.disk_mib.used),
            bandwidth_mbps: within(usage.bandwidth_mbps.used),
        };
        Self { facts, used, instances: within(usage.instances.used), now }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(parts) => join(f, parts, " and ", |part| matches!(part, Self::Any(_))),
            Self::Any(parts) => join(f, parts, " or ", |_| false),
            Self::Not(inner) if matches!(**inner, Self::All(_) | Self::Any(_)) => {
                write!(f, "not ({inner})")
            }
            Self::Not(inner) => write!(f, "not {inner}"),
            Self::Comparison(test) => test.fmt(f),
        }
    }
}

fn join(
    f: &mut fmt::Formatter<'_>,
    parts: &[Expr],
    between: &str,
    needs_parentheses: fn(&Expr) -> bool,
) -> fmt::Result {
    for (place, part) in parts.iter().enumerate() {
        if place > 0 {
            f.write_str(between)?;
        }
        if needs_parentheses(part) {
            write!(f, "({part})")?;
        } else {
            write!(f, "{part}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.attribute.kind();
        let write = |value: &Value| value.to_text(kind);
        match (self.operator, self.values.as_slice()) {
            (Operator::Has, _) => write!(f, "has {}", self.attribute),
            (Operator::In, values) => {
                let texts: Vec<String> = values.iter().map(write).collect();
                write!(f, "{} in ({})", self.attribute, texts.join(", "))
            }
            (operator, values) => {
                let text = values.first().map(write).unwrap_or_default();
                write!(f, "{} {} {text}", self.attribute, operator.symbol())
            }
        }
    }
}
