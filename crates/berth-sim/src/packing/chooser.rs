//! What chooses nodes in a replay: a policy of the engine, or a simple rule.

use berth_engine::{BUILTIN_POLICIES, Policy, PolicyError};
use thiserror::Error;

use super::peers::Peer;

/// Names of the simple rules.
pub const PEERS: [&str; Peer::ALL.len()] = {
    let mut names = [""; Peer::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Peer::ALL[at].0;
        at += 1;
    }
    names
};

/// A name that is neither a policy nor a rule.
#[derive(Debug, Error)]
pub enum ChooserError {
    /// Unknown.
    #[error(
        "policy {name:?} is unknown: expected a file that ends in .toml, a built-in policy \
         ({}), or a simple rule ({})",
        BUILTIN_POLICIES.join(", "),
        PEERS.join(", ")
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// A policy that cannot be read.
    #[error("policy {name:?} cannot be read")]
    Policy {
        /// Its name or file.
        name: String,
        /// Why.
        source: PolicyError,
    },
}

/// What chooses nodes.
#[derive(Clone, Debug)]
pub struct Chooser {
    pub(super) name: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Policy(Box<Policy>),
    Peer(Peer),
}

impl Chooser {
    /// A built-in policy or a simple rule.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn named(name: &str) -> Result<Self, ChooserError> {
        if let Some((_, peer)) = Peer::ALL.iter().find(|(known, _)| *known == name) {
            return Ok(Self { name: name.to_owned(), kind: Kind::Peer(*peer) });
        }
        match Policy::builtin(name) {
            Ok(policy) => Ok(Self::of_policy(name, policy)),
            Err(_) => Err(ChooserError::Unknown { name: name.to_owned() }),
        }
    }

    /// A policy from its text; `name` is what the results call it.
    ///
    /// # Errors
    /// When it is not a valid policy.
    pub fn from_toml(name: &str, text: &str) -> Result<Self, ChooserError> {
        let invalid = |source| ChooserError::Policy { name: name.to_owned(), source };
        Ok(Self::of_policy(name, Policy::from_toml(text).map_err(invalid)?))
    }

    /// A policy, with hard CPU: a soft one would promise more CPU than the others may.
    #[must_use]
    pub fn of_policy(name: &str, policy: Policy) -> Self {
        Self { name: name.to_owned(), kind: Kind::Policy(Box::new(policy.with_hard_cpu())) }
    }

    /// Its name in the results.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}
