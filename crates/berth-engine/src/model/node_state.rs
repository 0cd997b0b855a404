//! The lifecycle state of a node, and which state may follow which. Who may ask for a change is decided elsewhere.

use serde::{Deserialize, Serialize};

/// The lifecycle state of a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Known, not yet ready.
    Joining,
    /// Takes instances.
    #[default]
    Active,
    /// Keeps what it has, takes nothing new.
    Cordoned,
    /// Being emptied.
    Draining,
    /// Works in part; takes nothing new unless the policy admits it.
    Degraded,
    /// Its heartbeats have been missing for too long.
    Lost,
}

impl NodeState {
    /// The state's name in serialized data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Active => "active",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Degraded => "degraded",
            Self::Lost => "lost",
        }
    }

    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Joining, Self::Active, Self::Cordoned, Self::Draining, Self::Degraded, Self::Lost];

    /// Whether a node may go from this state to another, or stay in it. Operators may open, cordon and drain any node.
    /// What is observed of a node changes only what nobody has decided: a drain or a cordon ends by an operator's
    /// word, never by silence or poor health.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match next {
            Self::Active | Self::Cordoned | Self::Draining => true,
            Self::Degraded => matches!(self, Self::Active | Self::Lost | Self::Degraded),
            Self::Lost => matches!(self, Self::Active | Self::Degraded | Self::Lost),
            Self::Joining => matches!(self, Self::Joining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_operators_decided_is_ended_by_operators_alone() {
        use NodeState::{Active, Cordoned, Degraded, Draining, Joining, Lost};
        let allowed = |from| match from {
            Joining => vec![Joining, Active, Cordoned, Draining],
            Active | Degraded => vec![Active, Cordoned, Draining, Degraded, Lost],
            Cordoned | Draining => vec![Active, Cordoned, Draining],
            Lost => vec![Active, Cordoned, Draining, Degraded, Lost],
        };
        for from in NodeState::ALL {
            for to in NodeState::ALL {
                assert_eq!(from.may_become(to), allowed(from).contains(&to), "{from:?} {to:?}");
            }
        }
    }
}
