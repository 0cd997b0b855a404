//! Selectors: which nodes, in a line that a person types.
//!
//! `platform < 20260101 and rack = r1`, `used.memory > 80% or has trait:ssd`. A selector is parsed
//! once, with every value already read in the unit of its attribute, and then asked of each node.
//! It must never decide where an instance goes: that is the engine's business, whose node selectors
//! have the same grammar and fewer attributes.
//!
//! An attribute that a node lacks matches nothing but `!=` and `not`.

mod attribute;
mod eval;
#[cfg(test)]
mod tests;
mod value;

use std::fmt;
use std::str::FromStr;

use berth_engine::node_selector::SelectorError;
use berth_engine::node_selector::grammar::{self, Expr};
use berth_engine::{Amounts, NodeFacts, NodeUsage, Timestamp};

pub use attribute::{Attribute, Resource};
pub use grammar::Operator;
pub use value::Value;

/// One comparison.
pub type Comparison = grammar::Comparison<Attribute>;

/// Which nodes. Shown as its canonical text, which parses back to an equal selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    expr: Expr<Attribute>,
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// Points at the place, and names what was found and what is accepted there.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        Expr::parse(text).map(|expr| Self { expr })
    }

    /// All comparisons, in the order in which they are written.
    #[must_use]
    pub fn comparisons(&self) -> Vec<&Comparison> {
        self.expr.comparisons()
    }

    /// Whether it selects this node.
    #[must_use]
    pub fn matches(&self, node: &NodeView<'_>) -> bool {
        self.expr.holds(node)
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
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
