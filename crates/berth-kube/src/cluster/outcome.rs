//! Results of scheduling: a reservation, a preemption, or a refusal with reasons.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::AllocationResult;

use super::pod::Key;

/// A node that is reserved for a pod until it is bound or unreserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The pod.
    pub pod: Key,
    /// Its uid.
    pub uid: Arc<str>,
    /// The node.
    pub node: Arc<str>,
    /// What to do with its volumes before it is bound.
    pub volumes: VolumePlan,
    /// What to write to its claims of devices before it is bound.
    pub devices: DevicePlan,
    /// Whether another scheduler may be filling the node: the API server is asked for its pods before the
    /// binding is sent.
    pub is_contested: bool,
}

/// What to write to a pod's claims of devices before it is bound.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DevicePlan {
    /// Each of its claims.
    pub claims: Vec<ClaimPlan>,
}

// Allocations contain no floating-point numbers.
impl Eq for DevicePlan {}

impl DevicePlan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }
}

/// What to write to a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimPlan {
    /// The claim.
    pub claim: Key,
    /// Its uid.
    pub uid: Arc<str>,
    /// The devices to allocate; absent: it has some, and is only reserved for the pod.
    pub allocation: Option<Arc<AllocationResult>>,
}

/// A claim to deallocate, because it keeps its only pod from being scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRelease {
    /// The claim.
    pub claim: Key,
    /// Its uid.
    pub uid: Arc<str>,
}

/// What to do with a pod's volumes before it is bound.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VolumePlan {
    /// Claims to bind to existing volumes: the claim, and the volume's name.
    pub bind: Vec<(Key, String)>,
    /// Claims whose volumes are to be provisioned for the node.
    pub provision: Vec<Key>,
}

impl VolumePlan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

/// A pod that is deleted by preemption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The pod.
    pub pod: Key,
    /// Its uid.
    pub uid: Arc<str>,
    /// Its priority.
    pub priority: i32,
    /// Whether its deletion violates a disruption budget.
    pub breaks_budget: bool,
}

/// Victims to delete so that a pod fits on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// The preempting pod.
    pub pod: Key,
    /// Its uid.
    pub uid: Arc<str>,
    /// The node, which is now nominated for it.
    pub node: Arc<str>,
    /// The pods to delete.
    pub victims: Vec<Victim>,
    /// Pods of lower priority whose nomination for the node was cleared.
    pub unnominated: Vec<(Key, Arc<str>)>,
}

/// The result for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A node is reserved for it.
    Reserved(Box<Reservation>),
    /// It fits when the victims are gone. The refusal says why it does not fit now.
    Preempt(Box<Preemption>, Box<Refusal>),
    /// It is unschedulable.
    Refused(Box<Refusal>),
    /// It must not be scheduled: it is bound, deleted, gated, or another scheduler's.
    NotPending,
}

/// The result for a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangOutcome {
    /// Every pending member has a reservation.
    Reserved(Vec<Reservation>),
    /// Members are missing.
    Incomplete {
        /// Members that exist.
        present: usize,
        /// Members that the gang has.
        size: usize,
    },
    /// Members of a group of Kubernetes have reservations, perhaps not all.
    Group(GroupPlan),
    /// Not all members fit, so none is reserved. The refusal is of the first that does not.
    Refused(Box<Refusal>),
}

/// The reservations of a group of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// The pods that fit.
    pub members: Vec<Reservation>,
    /// Whether they must be bound together for the group to have its minimum.
    pub is_gang: bool,
    /// Why another pod does not fit, if not all do.
    pub refusal: Option<Box<Refusal>>,
}

/// How many nodes a rule rejected, and the nearest miss among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule's name, such as `memory` or `taints`.
    pub rule: String,
    /// Nodes that it was the first to reject.
    pub nodes: usize,
    /// The nearest miss: the node, and what it lacks.
    pub nearest: Option<(Arc<str>, String)>,
}

/// Why a pod is unschedulable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The pod.
    pub pod: Key,
    /// A stable code, such as `no_capacity_memory`.
    pub code: String,
    /// Nodes that were considered.
    pub nodes: usize,
    /// The rules that rejected them, the most frequent first.
    pub counts: Vec<RuleCount>,
    /// The reason in one line.
    pub line: String,
    /// Suggestions, line by line.
    pub help: Vec<String>,
    /// The node that would take the pod, as JSON, if a new one could.
    pub shape: Option<Arc<str>>,
}

impl Refusal {
    /// The reason in one line, followed by the suggestions.
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

/// One node of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// The node.
    pub node: Arc<str>,
    /// Every rule that rejects it, and why; empty: it can take the pod.
    pub removed_by: Vec<(String, String)>,
    /// Its score, if no rule rejects it.
    pub total: Option<i64>,
}

/// A full explanation for one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodExplanation {
    /// The pod.
    pub pod: Key,
    /// The node that it is on, if any.
    pub node: Option<Arc<str>>,
    /// The node that would be chosen now.
    pub best: Option<Arc<str>>,
    /// Why it is unschedulable, if it is.
    pub refusal: Option<Refusal>,
    /// Every node, ordered by name.
    pub table: Vec<NodeVerdict>,
}
