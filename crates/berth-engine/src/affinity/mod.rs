//! Affinity expressions: which instances of the same tenant a new instance must, or should, be
//! near to or away from.
//!
//! `role==db` keeps the new instance on a node that holds one of the tenant's instances tagged
//! `role=db`; `role!=~web*@rack` would rather not share a rack with one whose role starts with
//! `web`. This file holds the terms of the language. The grammar is in `parse.rs`, value
//! matching in `pattern.rs`, and the check for rules that cannot hold together in `lint.rs`.
//!
//! This module must never look at nodes, tenants or capacity: it says which instances a rule
//! selects, and the planner decides what follows. It holds no state and does no I/O.

mod error;
mod lint;
mod parse;
mod pattern;
mod rule;
#[cfg(feature = "schema")]
mod schema;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use error::{AffinityError, Part};
pub use lint::{Finding, lint};
pub use parse::MAX_EXPRESSION_BYTES;
pub use pattern::{MAX_REGEX_BYTES, Pattern};
pub use rule::{Candidate, MIN_ID_PREFIX_CHARS, Rule};

/// The domain two instances share or do not share, from narrow to wide.
///
/// The order carries meaning: the same node implies the same rack, which implies the same zone.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// One host.
    #[default]
    Node,
    /// All hosts of one rack.
    Rack,
    /// All racks of one zone.
    Zone,
}

impl Topology {
    /// Every domain, narrowest first.
    pub const ALL: [Self; 3] = [Self::Node, Self::Rack, Self::Zone];

    /// The name used in expressions (after `@`) and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Rack => "rack",
            Self::Zone => "zone",
        }
    }

    /// The domain with exactly this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The attribute that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Its id, its name, or the start of its id. Written `instance` or `container`.
    Instance,
    /// The workload it belongs to.
    Workload,
    /// The image it runs.
    Image,
    /// The value of the tag with this key.
    Tag(String),
}

impl Subject {
    /// The key that names this subject in an expression.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Instance => "instance",
            Self::Workload => "workload",
            Self::Image => "image",
            Self::Tag(key) => key,
        }
    }
}

/// Whether the new instance belongs with the selected instances or apart from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// `==`: in the same domain.
    Same,
    /// `!=`: in another domain.
    Different,
}

impl Operator {
    /// How the operator is written.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Same => "==",
            Self::Different => "!=",
        }
    }
}

/// Whether a rule may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Strength {
    /// It must hold, or nothing is placed.
    Hard,
    /// It should hold. Written `~` right after the operator.
    Soft,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_one_name_in_expressions_and_in_json() {
        for scope in Topology::ALL {
            let json = serde_json::to_string(&scope).expect("a plain name");
            assert_eq!(json, format!("\"{scope}\""));
            assert_eq!(Topology::from_name(scope.name()), Some(scope));
        }
        assert_eq!(Topology::from_name("row"), None);
    }

    #[test]
    fn domains_are_ordered_from_narrow_to_wide() {
        assert!(Topology::ALL.is_sorted());
        assert_eq!(Topology::default(), Topology::Node);
    }
}
