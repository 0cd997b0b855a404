//! Why this node, why not that one, and what would help.
//!
//! Explanations are values, computed by the same filters and scorers that decide, and only on request
//! or when nothing fits. Text is made in `render`, where the audience is known; a tenant never sees
//! another tenant's instances or any rack.

mod diagnosis;
mod failure_sets;
mod fix_text;
mod render;
mod table;
mod waiting;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::filter::FilterId;
use crate::fleet::UsualShape;
use crate::model::{Amounts, Evidence, InstanceId, NodeFacts, NodeId, NodeState};
use crate::prepared_request::Notice;

pub(crate) use diagnosis::{Diagnosis, PassedTests, describe, diagnose, remedy};
pub(crate) use failure_sets::FilterSet;
pub(crate) use table::{explain_choice, explain_page};
pub(crate) use waiting::may_take_later;

/// Who reads an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience<'a> {
    /// An operator of the fleet: sees everything.
    Operator,
    /// The tenant of the request: nothing of others, no racks, nodes only if the policy says so.
    Tenant(&'a str),
}

/// A stable name or code: borrowed by the engine, owned by a client that reads an answer, which may
/// contain names that are newer than the client.
pub(crate) type StableName = Cow<'static, str>;

/// How many nodes one filter removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FilterCount {
    /// The filter.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub filter: StableName,
    /// Nodes for which it was the first filter to fail.
    pub removed: usize,
}

/// The node that came closest to passing a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NearestMiss {
    /// The filter.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub filter: StableName,
    /// The node; hidden from tenants if the policy says so.
    pub node: Option<NodeId>,
    /// Wanted and found.
    pub evidence: Evidence,
}

/// Limits of a tenant; absent: unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QuotaLimits {
    /// Thousandths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<i64>,
    /// MiB of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// MiB of disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// Instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<i64>,
}

/// A change that was tried and found to work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// Ask for less.
    Shrink {
        /// What would fit.
        resources: Amounts,
        /// Further classes of which less would fit, and how much.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        extra: BTreeMap<String, u32>,
        /// A node that could take it then.
        node: Option<NodeId>,
    },
    /// Drop or soften one of the request's rules.
    Relax {
        /// The filter it concerns.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        filter: StableName,
        /// What to change, in words.
        change: String,
        /// A node that could take it then.
        node: Option<NodeId>,
    },
    /// Release other instances.
    Free {
        /// Which.
        instances: Vec<InstanceId>,
        /// Their names in the same order, where they are known; empty: it has none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        names: Vec<String>,
        /// Whose.
        #[serde(alias = "owners")]
        tenants: Vec<String>,
        /// Where; absent if they are on several nodes.
        node: Option<NodeId>,
        /// Whether all of them have a lower priority than the request, which then can be placed in
        /// their room: a preemption.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        preempts: bool,
    },
    /// Make a node fit again.
    Mend {
        /// The filter that keeps it out.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        filter: StableName,
        /// What the operator can do.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        remedy: StableName,
        /// Which node.
        node: Option<NodeId>,
        /// The state that must end, if it is its state that keeps instances out. An operator can end
        /// all but `lost` and `degraded`, which take work on the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<NodeState>,
    },
    /// Add nodes of this shape.
    AddNode {
        /// The least that each must have.
        shape: Amounts,
        /// How many.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        #[cfg_attr(feature = "schema", schema(default = one, minimum = 1))]
        count: u32,
        /// All that was tried: the shape, and the facts that the request asks for. Further nodes
        /// differ in their names alone.
        facts: Box<NodeFacts>,
    },
    /// Place fewer instances of a batch now.
    Fewer {
        /// How many can be placed: at least this many are to be asked for.
        count: u32,
        /// Of how many.
        of: u32,
    },
    /// Ask for fewer instances: a quota or a pool has no more, and the whole request counts.
    Count {
        /// How many would be placed.
        count: u32,
        /// Of how many.
        of: u32,
    },
    /// Take a value of another pool, or of none.
    ChangePool {
        /// The pool that the request names.
        pool: String,
        /// The pool to name in its place; absent: none.
        to: Option<String>,
    },
    /// Raise limits of the tenant.
    RaiseQuota {
        /// The tenant.
        tenant: String,
        /// All limits that it would have then; absent: unlimited.
        limits: QuotaLimits,
    },
    /// Change a pool: give it more values, or open it.
    SetPool {
        /// The pool.
        pool: String,
        /// Its range then: a network, or numbers.
        range: String,
        /// How long a released value is withheld, in seconds.
        quarantine_s: u32,
        /// The only tenant that takes values; absent: all may.
        tenant: Option<String>,
    },
    /// Do all of these: none of them is enough alone.
    Combined {
        /// What to do: to the fleet first, then to the request.
        #[cfg_attr(feature = "schema", schema(no_recursion))]
        changes: Vec<Fix>,
    },
}

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

impl Fix {
    /// All of some changes as one fix.
    #[must_use]
    pub fn all_of(changes: Vec<Self>) -> Self {
        match <[Self; 1]>::try_from(changes) {
            Ok([one]) => one,
            Err(changes) => Self::Combined { changes },
        }
    }

    /// The node on which the changed request fits, where there is one.
    #[must_use]
    pub fn tried_on(&self) -> Option<&NodeId> {
        match self {
            Self::Shrink { node, .. } | Self::Relax { node, .. } => node.as_ref(),
            Self::Combined { changes } => changes.iter().find_map(Self::tried_on),
            _ => None,
        }
    }

    /// Whether both change the same things, by whatever amount and on whatever node.
    pub(crate) fn changes_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Relax { change, .. }, Self::Relax { change: other, .. }) => change == other,
            (Self::Combined { changes }, Self::Combined { changes: others }) => {
                let mut pairs = changes.iter().zip(others);
                changes.len() == others.len() && pairs.all(|(one, two)| one.changes_the_same(two))
            }
            (one, two) => std::mem::discriminant(one) == std::mem::discriminant(two),
        }
    }

    /// Whether a tenant can do this without an operator and without releasing what others run.
    #[must_use]
    pub fn is_for_tenant(&self, tenant: &str) -> bool {
        match self {
            Self::Shrink { .. }
            | Self::Relax { .. }
            | Self::Fewer { .. }
            | Self::Count { .. }
            | Self::ChangePool { .. } => true,
            Self::Free { tenants, .. } => tenants.iter().all(|other| other == tenant),
            Self::Mend { .. }
            | Self::AddNode { .. }
            | Self::RaiseQuota { .. }
            | Self::SetPool { .. } => false,
            Self::Combined { changes } => changes.iter().all(|one| one.is_for_tenant(tenant)),
        }
    }

    /// Adds the names of instances that are to be released; they are not part of the fleet.
    pub fn name_instances(&mut self, name_of: &dyn Fn(InstanceId) -> Option<String>) {
        match self {
            Self::Free { instances, names, .. } => {
                *names = instances.iter().map(|id| name_of(*id).unwrap_or_default()).collect();
                if names.iter().all(String::is_empty) {
                    names.clear();
                }
            }
            Self::Combined { changes } => {
                changes.iter_mut().for_each(|change| change.name_instances(name_of));
            }
            _ => {}
        }
    }

    /// Takes the names of nodes out.
    pub fn hide_nodes(&mut self) {
        self.for_each_node(&mut |node| *node = None);
    }

    /// Calls `visit` for every node that is named.
    pub(crate) fn for_each_node(&mut self, visit: &mut dyn FnMut(&mut Option<NodeId>)) {
        match self {
            Self::Shrink { node, .. }
            | Self::Relax { node, .. }
            | Self::Free { node, .. }
            | Self::Mend { node, .. } => visit(node),
            Self::AddNode { .. }
            | Self::Fewer { .. }
            | Self::Count { .. }
            | Self::ChangePool { .. }
            | Self::RaiseQuota { .. }
            | Self::SetPool { .. } => {}
            Self::Combined { changes } => {
                changes.iter_mut().for_each(|one| one.for_each_node(visit));
            }
        }
    }
}

/// How the search for a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SearchEnd {
    /// The order given worked.
    Greedy,
    /// Largest first worked.
    LargestFirst,
    /// The exact search found it.
    Search,
    /// Every possibility was ruled out: it does not fit.
    DoesNotFit,
    /// The budget ran out first: not found, which does not mean that it does not fit.
    NotFoundWithinBudget,
}

/// A decision that placed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// The instance.
    pub instance: InstanceId,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// The stable reason code.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub code: StableName,
    /// The filter that removed the last nodes.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub filter: Option<StableName>,
    /// What can be done about that filter.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub remedy: StableName,
    /// How many nodes there are.
    pub nodes: usize,
    /// Nodes removed by each filter, in the order of filters; adds up to the number of nodes.
    pub counts: Vec<FilterCount>,
    /// For each filter that removed a node, the one that came closest.
    pub nearest: Vec<NearestMiss>,
    /// The single filter whose relaxation would admit most nodes, and how many.
    #[cfg_attr(feature = "schema", schema(value_type = Option<(String, usize)>))]
    pub best_relaxation: Option<(StableName, usize)>,
    /// Changes that were tried and found to work: to the request first, then to the fleet.
    pub fixes: Vec<Fix>,
    /// Whether waiting may help: whether some node could take it once others have come and gone and its
    /// state has changed; of a batch, whether the nodes could hold all of it then.
    pub waiting_may_help: bool,
    /// What the caller should know about its rules.
    pub notices: Vec<Notice>,
    /// For a batch: how the search ended.
    pub search: Option<SearchEnd>,
}

impl Refusal {
    /// Whether a request that may wait should: something behind the refusal can change, if only by new
    /// nodes. Wider than `waiting_may_help`, which asks whether the present nodes could hold it: what
    /// waits is the signal to add some.
    #[must_use]
    pub fn is_worth_queueing(&self) -> bool {
        let transient = |count: &FilterCount| {
            FilterId::named(&count.filter).is_some_and(|id| id.filter().transient)
        };
        self.nodes == 0 || self.counts.iter().any(transient)
    }
}

/// One scorer's part in a node's total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Term {
    /// The scorer.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub scorer: StableName,
    /// Its value, `0..=1_000_000`.
    #[cfg_attr(feature = "schema", schema(maximum = 1000000))]
    pub value: u32,
    /// Its weight in thousandths.
    #[cfg_attr(feature = "schema", schema(maximum = 1000000))]
    pub weight_permille: u32,
    /// The load of the fleet that the weight was chosen by, in thousandths; absent where the weight is the
    /// same at every load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 4294967295_u64))]
    pub load_permille: Option<u32>,
    /// What it adds, in millionths of a point.
    pub points: i64,
}

impl Term {
    /// The scorer's name, and the load of the fleet where its weight depends on that.
    #[must_use]
    pub fn label(&self) -> String {
        match self.load_permille {
            None => self.scorer.to_string(),
            Some(load) => format!("{} at {} % load", self.scorer, load / 10),
        }
    }
}

/// The verdict on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NodeVerdict {
    /// A filter removed it.
    Removed {
        /// The node.
        node: NodeId,
        /// The first filter that failed.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        filter: StableName,
        /// Why.
        evidence: Evidence,
        /// Later filters that failed as well; all others passed.
        #[cfg_attr(feature = "schema", schema(value_type = Vec<(String, Evidence)>))]
        others: Vec<(StableName, Evidence)>,
    },
    /// It could take the instance.
    Scored {
        /// The node.
        node: NodeId,
        /// Its total.
        total: i64,
        /// Every term of it.
        terms: Vec<Term>,
    },
}

/// A node that could take the instance, with its total and terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Decision {
    /// The node.
    pub node: NodeId,
    /// Its total.
    pub total: i64,
    /// Every term of it.
    pub terms: Vec<Term>,
}

/// Everything about one choice: the winner, the runner-up, and every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The policy's name.
    pub policy: String,
    /// The policy's version.
    pub policy_hash: String,
    /// The node that won, if any could.
    pub winner: Option<Decision>,
    /// The node that came second, if any did.
    pub runner_up: Option<Decision>,
    /// How many nodes there are.
    #[serde(default)]
    pub nodes: usize,
    /// How many of them could take the instance.
    #[serde(default)]
    pub eligible: usize,
    /// The first nodes in order of id, as many as were asked for.
    pub table: Vec<NodeVerdict>,
    /// Where the next nodes begin, if there are more: a cursor for `/v1/decisions/{id}/explain`, and
    /// of a dry run for `/v1/placements/explain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What the caller should know about its rules.
    pub notices: Vec<Notice>,
    /// The usual shapes, where the policy keeps room for them. Not for tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usual_shapes: Vec<UsualShape>,
    /// The positions of the winner and the runner-up.
    #[serde(skip)]
    pub(crate) positions: [Option<usize>; 2],
}

/// One choice, and a page of the nodes it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExplanationPage {
    /// The policy's name.
    pub policy: String,
    /// The policy's version.
    pub policy_hash: String,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of them could take the instance.
    pub eligible: usize,
    /// Nodes removed by each filter, each node by the first that failed, in the order of filters.
    pub counts: Vec<FilterCount>,
    /// The filters in force, in order: every eligible node passed all of them.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub filters: Vec<StableName>,
    /// The node that won, if any could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winner: Option<Decision>,
    /// The node that came second, if any did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_up: Option<Decision>,
    /// Nodes in order of id, each with every filter that it fails or every term of its total.
    pub items: Vec<NodeVerdict>,
    /// Where to continue: the cursor of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What the caller should know about its rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Notice>,
    /// The usual shapes, where the policy keeps room for them. Not for tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usual_shapes: Vec<UsualShape>,
    /// The position of the first item.
    #[serde(skip)]
    pub(crate) first: usize,
    /// The positions of the winner and the runner-up.
    #[serde(skip)]
    pub(crate) positions: [Option<usize>; 2],
}
