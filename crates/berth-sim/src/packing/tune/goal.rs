//! What a tuned policy should be good at: measures in the order of their importance.

use thiserror::Error;

use super::super::outcome::Outcome;

/// A number of an outcome; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Instances without a place when they arrived.
    Rejected,
    /// CPU that these asked for, in thousandths of a core.
    RejectedCpu,
    /// Memory that these asked for, in MiB.
    RejectedMemory,
    /// Nodes in use on average, in thousandths.
    Nodes,
    /// Stranded CPU, in millionths of all.
    Stranded,
}

impl Measure {
    const ALL: [(&'static str, Self); 5] = [
        ("rejected", Self::Rejected),
        ("rejected-cpu", Self::RejectedCpu),
        ("rejected-memory", Self::RejectedMemory),
        ("nodes", Self::Nodes),
        ("stranded", Self::Stranded),
    ];

    /// Its name in a goal.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, measure)| *measure == self).map_or("", |(name, _)| name)
    }

    /// The measure of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, measure)| *measure)
    }

    /// Its value.
    #[must_use]
    pub fn of(self, outcome: &Outcome) -> u64 {
        match self {
            Self::Rejected => outcome.rejected,
            Self::RejectedCpu => outcome.rejected_cpu_milli,
            Self::RejectedMemory => outcome.rejected_memory_mib,
            Self::Nodes => outcome.mean_nodes_milli,
            Self::Stranded => outcome.stranded_cpu_ppm,
        }
    }
}

/// Measures, the most important first. A later one counts where all earlier ones are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal(pub Vec<Measure>);

/// A goal that cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "goal: {part:?}: expected min and one of rejected, rejected-cpu, rejected-memory, nodes or stranded, \
     such as 'min rejected, then min nodes'"
)]
pub struct GoalError {
    part: String,
}

impl std::str::FromStr for Goal {
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Self, GoalError> {
        let measure = |part: &str| {
            let words: Vec<&str> = part.split_whitespace().filter(|word| *word != "then").collect();
            match words.as_slice() {
                ["min", name] => Measure::named(name),
                _ => None,
            }
            .ok_or_else(|| GoalError { part: part.trim().to_owned() })
        };
        text.split(',').map(measure).collect::<Result<_, _>>().map(Self)
    }
}
