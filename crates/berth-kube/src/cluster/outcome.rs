//! What became of a pod that was to be placed: reserved, refused with reasons, or others must go.

use std::sync::Arc;

use super::pod::Key;

/// A place that is held for a pod until it is bound or given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The pod.
    pub pod: Key,
    /// The API server's id of it.
    pub uid: Arc<str>,
    /// The node.
    pub node: Arc<str>,
    /// What has to be done to its volumes before it is bound.
    pub volumes: VolumePlan,
}

/// What has to be done to a pod's volumes before it is bound.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VolumePlan {
    /// Claims to be bound to volumes that exist: the claim, and the volume's name.
    pub bind: Vec<(Key, String)>,
    /// Claims whose volumes are to be made for the node.
    pub provision: Vec<Key>,
}

impl VolumePlan {
    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

/// A pod that has to go so that another can come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The pod.
    pub pod: Key,
    /// The API server's id of it.
    pub uid: Arc<str>,
    /// Its priority.
    pub priority: i32,
    /// Whether a disruption budget would rather keep it.
    pub breaks_budget: bool,
}

/// Room that is made by letting others go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// The pod that comes.
    pub pod: Key,
    /// The API server's id of it.
    pub uid: Arc<str>,
    /// The node, which from now on is promised to it.
    pub node: Arc<str>,
    /// Who has to go.
    pub victims: Vec<Victim>,
    /// Pods of lower priority that the node was promised to, and no longer is.
    pub unpromised: Vec<(Key, Arc<str>)>,
}

/// What became of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has a place.
    Reserved(Box<Reservation>),
    /// It gets a place when these have gone. The refusal says why it has none now.
    Preempt(Box<Preemption>, Box<Refusal>),
    /// It has no place.
    Refused(Box<Refusal>),
    /// It is not to be placed: it is bound, gone, gated, or another scheduler's.
    NotPending,
}

/// What became of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangOutcome {
    /// All of its pods that had no place have one.
    Reserved(Vec<Reservation>),
    /// It is not complete: so many are there of so many.
    Incomplete {
        /// Pods that are there.
        there: usize,
        /// Pods that it has.
        size: usize,
    },
    /// Not all of them can be placed; none is. The refusal is of the first that could not.
    Refused(Box<Refusal>),
}

/// How many nodes one rule removed, and the nearest miss among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule's name, such as `memory` or `taints`.
    pub rule: String,
    /// Nodes that it was the first to remove.
    pub nodes: usize,
    /// The nearest miss: a node, and what it lacks.
    pub nearest: Option<(Arc<str>, String)>,
}

/// Why a pod has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The pod.
    pub pod: Key,
    /// A stable code, such as `no_capacity_memory`.
    pub code: String,
    /// Nodes that were looked at.
    pub nodes: usize,
    /// What removed them, the most first.
    pub counts: Vec<RuleCount>,
    /// Why, in one line.
    pub line: String,
    /// What would help, line by line.
    pub help: Vec<String>,
}

impl Refusal {
    /// All of it as text: the one line first.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.line.clone();
        for line in &self.help {
            text.push('\n');
            text.push_str(line);
        }
        text
    }
}

/// One node in the table of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// The node.
    pub node: Arc<str>,
    /// Every rule that removes it, and why; empty: it could take the pod.
    pub removed_by: Vec<(String, String)>,
    /// Its total, where nothing removes it.
    pub total: Option<i64>,
}

/// Everything about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodExplanation {
    /// The pod.
    pub pod: Key,
    /// Where it is, if it is somewhere.
    pub node: Option<Arc<str>>,
    /// The node that it would be given now.
    pub best: Option<Arc<str>>,
    /// Why it has no place, if there is none.
    pub refusal: Option<Refusal>,
    /// Every node, in order of name.
    pub table: Vec<NodeVerdict>,
}
