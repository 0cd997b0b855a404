//! Node selectors: where a request may or should go, in a line that a person types.
//!
//! `zone = z1 and not rack in (r1, r2)`, `label:tier = gold or node ~ "db-*"`. A selector is parsed
//! once and asked of each node. It compares only facts that seldom change, so that the result is
//! kept as one bit per node. Selectors of node lists are written in the same grammar and compare
//! more.
//!
//! A fact that a node lacks matches nothing but `!=` and `not`.

mod attribute;
mod error;
pub mod grammar;
mod matching;
mod parse;
#[cfg(feature = "schema")]
mod schema;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use attribute::{PlaceAttribute, Value};
pub use error::{ExpectedInput, SelectorError};
use grammar::{Attribute as _, Comparison, Operator};
pub use matching::PlaceFacts;

/// Which nodes. Shown and stored as its canonical text, which parses back to an equal selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeSelector {
    expr: Expr,
}

type Expr = grammar::Expr<PlaceAttribute>;

impl NodeSelector {
    /// The longest text.
    pub const MAX_BYTES: usize = PlaceAttribute::MAX_BYTES;

    /// Reads a selector.
    ///
    /// # Errors
    /// Says what was found, where, and what is accepted there.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        Expr::parse(text).map(|expr| Self { expr })
    }

    /// Nodes in one of these zones; nothing if there are none.
    #[must_use]
    pub fn zones(names: &[String]) -> Option<Self> {
        one_of(PlaceAttribute::Zone, names)
    }

    /// Nodes in one of these racks; nothing if there are none.
    #[must_use]
    pub fn racks(names: &[String]) -> Option<Self> {
        one_of(PlaceAttribute::Rack, names)
    }

    /// One of these nodes; nothing if there are none.
    #[must_use]
    pub fn nodes(names: &[String]) -> Option<Self> {
        one_of(PlaceAttribute::Id, names)
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
        collect_wanted(&self.expr, &mut wanted);
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

fn one_of(attribute: PlaceAttribute, names: &[String]) -> Option<NodeSelector> {
    let values: Vec<Value> = names.iter().cloned().map(Value::Text).collect();
    let operator = if values.len() == 1 { Operator::Equal } else { Operator::In };
    let comparison = Comparison { attribute, operator, values };
    (!names.is_empty()).then_some(NodeSelector { expr: Expr::Comparison(comparison) })
}

fn collect_wanted<'a>(expr: &'a Expr, wanted: &mut Vec<(WantedFact<'a>, &'a str)>) {
    match expr {
        Expr::All(parts) => parts.iter().for_each(|part| collect_wanted(part, wanted)),
        Expr::Any(parts) => parts.iter().take(1).for_each(|part| collect_wanted(part, wanted)),
        Expr::Not(_) => {}
        Expr::Comparison(comparison) => {
            let fact = match &comparison.attribute {
                PlaceAttribute::Id => WantedFact::Id,
                PlaceAttribute::Zone => WantedFact::Zone,
                PlaceAttribute::Rack => WantedFact::Rack,
                PlaceAttribute::Label(key) => WantedFact::Label(key),
                PlaceAttribute::CapacityType
                | PlaceAttribute::PlatformVersion
                | PlaceAttribute::HardwareClass
                | PlaceAttribute::Virtual
                | PlaceAttribute::Trait(_) => return,
            };
            let is_equality = matches!(comparison.operator, Operator::Equal | Operator::In);
            if let (true, Some(Value::Text(text))) = (is_equality, comparison.values.first()) {
                wanted.push((fact, text));
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
    /// In one line: this is shown within a message about a document.
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).map_err(|error| error.to_line())
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
