//! Node selectors: where a request may or should go, in a line that a person types.
//!
//! `zone = z1 and not rack in (r1, r2)`, `label:tier = gold or node ~ "db-*"`. A selector is parsed
//! once and asked of each node. It compares only facts that seldom change, so that the result is
//! kept as one bit per node. The grammar is that of the selectors of node lists, of which this is
//! the part that the engine can decide by.
//!
//! A fact that a node lacks matches nothing but `!=` and `not`.

mod error;
mod matching;
mod parse;
#[cfg(feature = "schema")]
mod schema;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use error::SelectorError;
pub use matching::PlaceFacts;

/// A fact that a selector compares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Attribute {
    Id,
    Zone,
    Rack,
    CapacityType,
    PlatformVersion,
    HardwareClass,
    Virtual,
    Label(String),
    Trait(String),
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operator {
    Equal,
    NotEqual,
    Below,
    AtMost,
    Above,
    AtLeast,
    /// The text fits a pattern with `*` and `?`.
    Like,
    /// Equal to one of these.
    In,
    /// The node has it at all; a switch is on.
    Has,
}

/// What a fact is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    Text(String),
    Number(i64),
    Version(u16, u16),
    Switch(bool),
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Comparison {
    attribute: Attribute,
    operator: Operator,
    /// None for `has`, any number for `in`, else one.
    values: Vec<Value>,
}

/// The tree of a selector. `All` and `Any` hold two or more, none of its own kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Expr {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Comparison(Comparison),
}

/// Which nodes. Shown and stored as its canonical text, which parses back to an equal selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeSelector {
    expr: Expr,
}

impl NodeSelector {
    /// The longest text.
    pub const MAX_BYTES: usize = 1024;
    /// The most values that one selector compares with.
    pub const MAX_TERMS: usize = 64;
    /// The deepest nesting of parentheses and `not`.
    pub const MAX_DEPTH: usize = 16;

    /// Reads a selector.
    ///
    /// # Errors
    /// Says what was found, where, and what is accepted there.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let expr = parse::parse(text)?;
        Ok(Self { expr })
    }

    /// Nodes in one of these zones; nothing if there are none.
    #[must_use]
    pub fn zones(names: &[String]) -> Option<Self> {
        one_of(Attribute::Zone, names)
    }

    /// Nodes in one of these racks; nothing if there are none.
    #[must_use]
    pub fn racks(names: &[String]) -> Option<Self> {
        one_of(Attribute::Rack, names)
    }

    /// One of these nodes; nothing if there are none.
    #[must_use]
    pub fn nodes(names: &[String]) -> Option<Self> {
        one_of(Attribute::Id, names)
    }

    /// Nodes that all of these select; nothing if there are none. Together they may be longer than
    /// what is accepted as text.
    #[must_use]
    pub fn all(selectors: Vec<Self>) -> Option<Self> {
        let parts: Vec<Expr> = selectors.into_iter().map(|selector| selector.expr).collect();
        (!parts.is_empty()).then(|| Self { expr: Expr::all(parts) })
    }

    /// Whether it selects a node with these facts.
    #[must_use]
    pub fn matches(&self, node: &impl PlaceFacts) -> bool {
        self.expr.holds(node)
    }

    /// The parts that must all hold, each as a selector.
    #[must_use]
    pub fn parts(&self) -> Vec<Self> {
        match &self.expr {
            Expr::All(parts) => parts.iter().map(|part| Self { expr: part.clone() }).collect(),
            Expr::Any(_) | Expr::Not(_) | Expr::Comparison(_) => vec![self.clone()],
        }
    }

    /// The same without one of its parts; nothing if that was the only one.
    #[must_use]
    pub fn without(&self, part: &Self) -> Option<Self> {
        let rest = self.parts().into_iter().filter(|other| other != part);
        let rest: Vec<Expr> = rest.map(|part| part.expr).collect();
        (!rest.is_empty()).then(|| Self { expr: Expr::all(rest) })
    }

    /// Equalities that would satisfy it, as far as it consists of them: what a new node should say
    /// of itself. Whether that is enough must be tried.
    pub(crate) fn wanted_facts(&self) -> Vec<(WantedFact<'_>, &str)> {
        let mut wanted = Vec::new();
        self.expr.collect_wanted(&mut wanted);
        wanted
    }
}

/// A fact that a new node can be given by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedFact<'a> {
    Id,
    Zone,
    Rack,
    Label(&'a str),
}

fn one_of(attribute: Attribute, names: &[String]) -> Option<NodeSelector> {
    let values: Vec<Value> = names.iter().cloned().map(Value::Text).collect();
    let operator = if values.len() == 1 { Operator::Equal } else { Operator::In };
    let comparison = Comparison { attribute, operator, values };
    (!names.is_empty()).then_some(NodeSelector { expr: Expr::Comparison(comparison) })
}

impl Expr {
    fn collect_wanted<'a>(&'a self, wanted: &mut Vec<(WantedFact<'a>, &'a str)>) {
        match self {
            Self::All(parts) => parts.iter().for_each(|part| part.collect_wanted(wanted)),
            Self::Any(parts) => parts.iter().take(1).for_each(|part| part.collect_wanted(wanted)),
            Self::Not(_) => {}
            Self::Comparison(comparison) => {
                let fact = match &comparison.attribute {
                    Attribute::Id => WantedFact::Id,
                    Attribute::Zone => WantedFact::Zone,
                    Attribute::Rack => WantedFact::Rack,
                    Attribute::Label(key) => WantedFact::Label(key),
                    Attribute::CapacityType
                    | Attribute::PlatformVersion
                    | Attribute::HardwareClass
                    | Attribute::Virtual
                    | Attribute::Trait(_) => return,
                };
                let is_equality = matches!(comparison.operator, Operator::Equal | Operator::In);
                if let (true, Some(Value::Text(text))) = (is_equality, comparison.values.first()) {
                    wanted.push((fact, text));
                }
            }
        }
    }

    /// All of these; what is itself all of some is taken apart.
    fn all(parts: Vec<Self>) -> Self {
        let flat = parts.into_iter().flat_map(|part| match part {
            Self::All(inner) => inner,
            other => vec![other],
        });
        Self::one_or(flat.collect(), Self::All)
    }

    /// Any of these; what is itself any of some is taken apart.
    fn any(parts: Vec<Self>) -> Self {
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

impl FromStr for NodeSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for NodeSelector {
    type Error = SelectorError;

    fn try_from(text: String) -> Result<Self, SelectorError> {
        Self::parse(&text)
    }
}

impl From<NodeSelector> for String {
    fn from(selector: NodeSelector) -> Self {
        selector.to_string()
    }
}

impl fmt::Display for NodeSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl fmt::Display for Expr {
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
            Self::Comparison(comparison) => comparison.fmt(f),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.values.iter().map(ToString::to_string).collect();
        match self.operator {
            Operator::Has => write!(f, "has {}", self.attribute),
            Operator::In => write!(f, "{} in ({})", self.attribute, values.join(", ")),
            operator => write!(f, "{} {} {}", self.attribute, operator.symbol(), values.join("")),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("id"),
            Self::Zone => f.write_str("zone"),
            Self::Rack => f.write_str("rack"),
            Self::CapacityType => f.write_str("capacity_type"),
            Self::PlatformVersion => f.write_str("platform_version"),
            Self::HardwareClass => f.write_str("hardware_class"),
            Self::Virtual => f.write_str("virtual"),
            Self::Label(key) => write!(f, "label:{}", parse::quote(key)),
            Self::Trait(key) => write!(f, "trait:{}", parse::quote(key)),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&parse::quote(text)),
            Self::Number(number) => number.fmt(f),
            Self::Version(major, minor) => write!(f, "{major}.{minor}"),
            Self::Switch(on) => on.fmt(f),
        }
    }
}

impl Operator {
    const fn symbol(self) -> &'static str {
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
}
