//! Why a filter removed a node, as values. The text is in `evidence_text`.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::amounts::Unit;
use super::node_state::NodeState;
use crate::affinity::Topology;

/// What a tenant reads instead of what others run or use.
pub(super) const HIDDEN: &str = "hidden";

/// What was wanted and what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Evidence {
    /// Not enough of something that is counted.
    Short {
        /// The resource.
        resource: String,
        /// How much the request wants.
        wanted: i64,
        /// Overhead on top of that.
        overhead: i64,
        /// How much is free; negative when the node is over-full.
        free: i64,
        /// What it is counted in.
        unit: Unit,
    },
    /// More than the node has at all, however empty it is.
    Exceeds {
        /// The resource.
        resource: String,
        /// How much the request wants.
        wanted: i64,
        /// How much the node has.
        most: i64,
        /// What it is counted in.
        unit: Unit,
    },
    /// The node's state does not take instances.
    State {
        /// The state it is in.
        found: NodeState,
    },
    /// Something happened too long ago, or will happen too soon.
    Time {
        /// What happened, or will.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        what: Cow<'static, str>,
        /// How many seconds ago, or until then.
        seconds: i64,
        /// How many would be accepted.
        limit: i64,
    },
    /// A fact that differs from what is wanted.
    Fact {
        /// Which fact.
        fact: String,
        /// As it is.
        found: String,
        /// As it should be.
        wanted: String,
        /// Whether `found` tells what others run or use, which a tenant must not see. It is stored
        /// too: a refusal that is read again must hide as much as it did at first.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        about_others: bool,
    },
    /// Other instances are where they may not be, or are not where they must be.
    Neighbours {
        /// The group or rule.
        rule: String,
        /// The level it holds at.
        topology: Topology,
        /// Members in this node's domain.
        members: u32,
        /// What the rule would accept.
        wanted: String,
    },
}

impl Evidence {
    /// How far the node is from passing, where that is a number.
    #[must_use]
    pub fn shortfall(&self) -> Option<i64> {
        match self {
            Self::Short { wanted, overhead, free, .. } => Some(wanted + overhead - free),
            Self::Exceeds { wanted, most, .. } => Some(wanted - most),
            Self::Time { seconds, limit, .. } => Some((limit - seconds).abs()),
            Self::State { .. } | Self::Fact { .. } | Self::Neighbours { .. } => None,
        }
    }

    /// What is found of a network that the node does not have.
    pub(crate) const ABSENT: &'static str = "absent";

    /// Whether waiting does not bring to this node what it lacks, only to a new one.
    pub(crate) fn is_absence(&self) -> bool {
        let Self::Fact { fact, found, .. } = self else { return false };
        fact == "capacity type" || (fact == "network" && found == Self::ABSENT)
    }

    pub(crate) fn fact(fact: &str, found: impl fmt::Display, wanted: impl fmt::Display) -> Self {
        let (found, wanted) = (found.to_string(), wanted.to_string());
        Self::Fact { fact: fact.to_owned(), found, wanted, about_others: false }
    }

    /// A fact that tells what others run or use.
    pub(crate) fn about_others(
        fact: &str,
        found: impl fmt::Display,
        wanted: impl fmt::Display,
    ) -> Self {
        let (found, wanted) = (found.to_string(), wanted.to_string());
        Self::Fact { fact: fact.to_owned(), found, wanted, about_others: true }
    }

    /// Takes out what others run or use.
    pub(crate) fn hide_others(&mut self) {
        if let Self::Fact { found, about_others: true, .. } = self {
            HIDDEN.clone_into(found);
        }
    }
}
