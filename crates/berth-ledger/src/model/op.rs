//! Every write is one operation.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{
    Amounts, Demand, FactChange, FactLayer, Group, InstanceId, InstanceRequest, MeasuredLoad,
    NodeFacts, NodeId, NodeState, Volume,
};
use serde::{Deserialize, Serialize};

use super::claim::{ClaimKey, ClaimState, Text};
use super::elastic::{Bounds, DocumentWrite, Hold, PermitOperation, Switch, WithDocuments};
use super::plan::{Plan, PlannedClaim};
use super::pool::Pool;
use super::receipt::DecisionRecord;
use super::service::{Audited, Expect, IfUnanswered, QuarantinedTicket};
use super::tenant::{ForTenants, StartTenantRemoval};

/// A step in a claim's life, by the holder of its fence.
#[derive(Clone, Debug)]
pub struct Advance {
    /// The claim.
    pub key: ClaimKey,
    /// The tenant that asks; absent when an agent or operator does.
    pub tenant: Option<Text>,
    /// The fence it was granted with.
    pub fence: i64,
    /// The step.
    pub step: Step,
}

/// Which step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Held stays held, for so many seconds from now.
    Renew {
        /// How long.
        lease_s: u32,
    },
    /// Held becomes binding: an agent has taken it up.
    Bind,
    /// Binding becomes active: the instance runs.
    Activate,
}

impl Step {
    /// The state that the step leads to.
    pub(crate) const fn next_state(self) -> ClaimState {
        match self {
            Self::Renew { .. } => ClaimState::Held,
            Self::Bind => ClaimState::Binding,
            Self::Activate => ClaimState::Active,
        }
    }

    /// The state that a claim must be in for it, as errors name it.
    pub(crate) const fn required_state(self) -> &'static str {
        match self {
            Self::Renew { .. } | Self::Bind => "held",
            Self::Activate => "binding",
        }
    }

    /// Whether a claim in this state has taken the step before: a retry gets the answer again.
    pub(crate) const fn is_done(self, state: ClaimState) -> bool {
        match self {
            Self::Renew { .. } => false,
            Self::Bind => matches!(state, ClaimState::Binding | ClaimState::Active),
            Self::Activate => matches!(state, ClaimState::Active),
        }
    }
}

/// Ends a claim.
#[derive(Clone, Debug)]
pub struct Release {
    /// A retry under the same id gets the first answer.
    pub request_id: Text,
    /// The claim.
    pub key: ClaimKey,
    /// The tenant that asks; absent when an agent or operator does.
    pub tenant: Option<Text>,
    /// The fence it was granted with; absent when an operator forces it.
    pub fence: Option<i64>,
    /// The instance is known to be gone, or the caller answers for it. Else a bound claim goes to
    /// `releasing` and counts until its agent confirms.
    pub confirmed: bool,
    /// Why, for the event.
    pub reason: Text,
}

/// Ends a member's claim, if the workload is as it was and enough other members run. Two servers that
/// each stop another member at the same time cannot both succeed if that would be one too many.
#[derive(Clone, Debug)]
pub struct StopMember {
    /// The end of its claim.
    pub release: Release,
    /// What must hold.
    pub guard: Arc<AvailabilityGuard>,
}

/// What must hold so that a member of a workload may be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailabilityGuard {
    /// The tenant.
    pub tenant: Text,
    /// The workload.
    pub workload: Text,
    /// The version of the workload by which it was decided.
    pub version: i64,
    /// Members that run and are to stay.
    pub running: Vec<ClaimKey>,
    /// In how many slots one of these must run still.
    pub at_least: usize,
}

/// Claims a plan in the room of other instances, which are released with it: all of it, or nothing.
#[derive(Clone, Debug)]
pub struct Preempt {
    /// The plan; a retry under its request id gets the first answer, and releases nothing.
    pub plan: Plan,
    /// Who makes room.
    pub victims: Vec<PreemptVictim>,
}

/// An instance that is released for another.
#[derive(Clone, Debug)]
pub struct PreemptVictim {
    /// The instance.
    pub instance: InstanceId,
    /// The tenant that asks; absent when an operator does.
    pub tenant: Option<Text>,
    /// The fence of its claim.
    pub fence: i64,
    /// For a member of a workload: what must hold so that it may be stopped.
    pub guard: Option<Arc<AvailabilityGuard>>,
}

/// Changes what a claim is charged.
#[derive(Clone, Debug)]
pub struct Resize {
    /// A retry under the same id gets the first answer.
    pub request_id: Text,
    /// The claim.
    pub key: ClaimKey,
    /// The tenant that asks; absent when an agent or operator does.
    pub tenant: Option<Text>,
    /// The fence it was granted with.
    pub fence: Option<i64>,
    /// What it should be charged.
    pub amounts: Amounts,
    /// Whether CPU must be free for a growth.
    pub cpu_hard: bool,
    /// CPU of its host, above which it does not grow; absent: not limited.
    pub host_cpu_milli: Option<u32>,
}

/// Moves an instance to another node, both nodes in one transaction.
#[derive(Clone, Debug)]
pub struct Move {
    /// A retry under the same id gets the first answer.
    pub request_id: Text,
    /// The fence of the claim that is to move.
    pub fence: Option<i64>,
    /// Where to: guarded like any plan. If the instance holds a migration target on that node, it
    /// is that claim which becomes primary.
    pub to: PlannedClaim,
    /// Whether it is stopped there and started here, rather than carried over running: then it is
    /// `binding` until the agent of the new node reports that it runs, and the place that it leaves is
    /// a migration source until the agent there confirms that it is stopped.
    pub restart: bool,
    /// What must hold if it is a member that others must stand in for meanwhile.
    pub guard: Option<Arc<AvailabilityGuard>>,
}

/// An instance that an agent found without a claim: recorded, never refused.
#[derive(Clone, Debug)]
pub struct Adopt {
    /// A retry under the same id gets the first answer.
    pub request_id: Text,
    /// The instance.
    pub request: Arc<InstanceRequest>,
    /// Where it was found.
    pub node: NodeId,
    /// What it uses.
    pub demand: Demand,
}

/// What was lacking when a request found no room: the autoscaler's input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmetDemand {
    /// The tenant.
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: String,
    /// The refusal's code.
    pub code: String,
    /// What was asked for.
    pub spec: String,
    /// How often.
    pub times: i64,
    /// Since when, in microseconds.
    pub first_at: i64,
    /// When last, in microseconds.
    pub last_at: i64,
}

/// Limits of a tenant; absent means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Milli-CPU.
    pub cpu_milli: Option<i64>,
    /// MiB of memory, as requested.
    pub memory_mib: Option<i64>,
    /// MiB of disk.
    pub disk_mib: Option<i64>,
    /// Instances.
    pub instances: Option<i64>,
}

/// A workload as stored. What it means comes with its reconciler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The tenant.
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its revision.
    pub revision: i64,
    /// How many should run.
    pub replicas: i64,
    /// Template and rules, as JSON.
    pub body: String,
}

/// Whether the members of a workload can be placed, as a server found out.
#[derive(Clone, Debug)]
pub struct Scheduling {
    /// The tenant.
    pub tenant: Text,
    /// The environment, if it has one.
    pub env: Option<Text>,
    /// The workload.
    pub workload: Text,
    /// What is wrong; absent: nothing any more.
    pub failing: Option<SchedulingFailure>,
}

/// Why members of a workload cannot be placed.
#[derive(Clone, Debug)]
pub struct SchedulingFailure {
    /// A stable code.
    pub code: Text,
    /// In one sentence.
    pub message: Text,
    /// What readers are shown, as JSON with the same `code`.
    pub body: String,
}

impl Scheduling {
    /// The kind of document that it is kept as.
    pub const KIND: &str = "scheduling";

    /// The document it is kept as: names have no line breaks, so they stay distinct.
    #[must_use]
    pub fn document(&self) -> (Text, Text) {
        let id = format!("{}\n{}", self.tenant, self.workload);
        (Text::from(Self::KIND), Text::from(id))
    }
}

/// What a dry run takes for granted though it is not so: by this, a change is tried before it is
/// proposed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assumptions {
    /// Other limits of the plan's tenant, if it has limits.
    pub quota: Option<Quota>,
    /// Pools as they would be.
    pub pools: Vec<Pool>,
}

impl Assumptions {
    /// A pool as it would be.
    pub(crate) fn pool(&self, id: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| *pool.id == *id)
    }
}

/// One operation.
#[derive(Clone, Debug)]
pub enum Op {
    /// Claims a plan.
    Commit(Plan),
    /// Says whether a plan would be granted, and claims nothing.
    DryRun(Plan, Assumptions),
    /// A step in a claim's life.
    Advance(Advance),
    /// Ends a claim.
    Release(Release),
    /// Ends the claim of a member that others must stand in for.
    StopMember(Box<StopMember>),
    /// Claims a plan in the room of other instances.
    Preempt(Box<Preempt>),
    /// Changes what a claim is charged.
    Resize(Resize),
    /// Moves an instance.
    Move(Box<Move>),
    /// Asks how large an instance may be.
    Permit(PermitOperation),
    /// Changes between which sizes an instance may be.
    Bounds(Bounds),
    /// Holds a place for an instance that is to move while it runs.
    Hold(Box<Hold>),
    /// The instance runs in the place that was held for it, and no longer where it was.
    Switch(Switch),
    /// Records an instance that an agent found.
    Adopt(Adopt),
    /// Ends the expired leases of one node.
    Reap(NodeId),
    /// Recomputes one node's counters from its claims.
    ReconcileNode(NodeId),
    /// Recomputes one group's counts from its members.
    ReconcileGroup(Text),
    /// Recomputes one tenant's use from its claims.
    ReconcileTenant(Text),
    /// Adds a node, or states all facts of one layer of it. The state counts only when it is new.
    PutNode {
        /// What is known.
        facts: Box<NodeFacts>,
        /// Whose word it is. What an operator set survives every report.
        layer: FactLayer,
        /// The generation its facts must be in now, 0 if it must not be there; absent: any.
        expect: Option<i64>,
    },
    /// Changes some facts of one layer of a node. It is merged with the others when it is written, so
    /// that nothing said concurrently is lost.
    ChangeFacts {
        /// The node.
        node: NodeId,
        /// What changes, and for which layer.
        change: Box<FactChange>,
        /// What the node starts from if it is not there; absent: it must be there.
        create: Option<Box<NodeFacts>>,
        /// The generation its facts must be in now; absent: any.
        expect: Option<i64>,
    },
    /// Changes where a node stands in its life.
    SetNodeState {
        /// The node.
        node: NodeId,
        /// Its state.
        state: NodeState,
        /// The generation its facts must be in now; absent: any.
        expect: Option<i64>,
    },
    /// Applies what an agent says of its node: that it works, or why it works only in part. A node
    /// that is active or lost becomes degraded, and active again. Other states are the operator's.
    SetHealth {
        /// The node.
        node: NodeId,
        /// Why it is degraded; absent: it is not.
        degraded: Option<Text>,
        /// The generation its facts must be in now; absent: any.
        expect: Option<i64>,
    },
    /// Removes an empty node.
    RemoveNode {
        /// The node.
        node: NodeId,
        /// The generation its facts must be in now; absent: any.
        expect: Option<i64>,
    },
    /// Sets what the host keeps for itself by the policy.
    SetReserve {
        /// The node.
        node: NodeId,
        /// How much; absent: the node's own value.
        reserve: Option<Amounts>,
    },
    /// Logs that an agent reported an instance that its node was not given.
    RefuseReport {
        /// The node.
        node: NodeId,
        /// The instance.
        instance: InstanceId,
        /// Why it was refused: a stable code.
        code: Text,
    },
    /// Notes when agents were heard, in whole seconds.
    Heartbeats(Vec<(NodeId, i64)>),
    /// Records how busy nodes are; absent: not known.
    SetLoads(Vec<(NodeId, Option<MeasuredLoad>)>),
    /// Defines a group, or changes its rules.
    PutGroup(Group),
    /// Removes an empty group.
    RemoveGroup(Text),
    /// Defines a volume, or moves it.
    PutVolume(Volume),
    /// Removes an unused volume.
    RemoveVolume(Text),
    /// Marks an unused volume whose data are copied for the last time before it moves, or takes the mark
    /// away. No instance may begin to use it meanwhile.
    MarkVolume {
        /// The volume.
        volume: Text,
        /// Where its data are copied to; absent: they are not.
        moving_to: Option<NodeId>,
    },
    /// Defines a pool.
    PutPool(Pool),
    /// Removes an unused pool.
    RemovePool(Text),
    /// Sets a tenant's limits.
    PutQuota {
        /// The tenant.
        tenant: Text,
        /// Its limits.
        quota: Quota,
    },
    /// Removes a tenant's limits.
    RemoveQuota(Text),
    /// Stores a workload.
    PutWorkload {
        /// The workload, in its new revision.
        workload: Workload,
        /// What must be stored now.
        expect: Expect,
    },
    /// Removes a workload that has no slots taken.
    RemoveWorkload {
        /// The tenant.
        tenant: Text,
        /// Its name.
        name: Text,
        /// What must be stored now.
        expect: Expect,
    },
    /// Records whether the members of a workload can be placed. An event is logged when that changes.
    SetScheduling(Box<Scheduling>),
    /// States an environment's secrets.
    PutSecrets {
        /// The tenant; absent: those of tenants that have none of their own.
        tenant: Option<Text>,
        /// The environment.
        env: Text,
        /// Their version; absent: it has none.
        version: Option<Text>,
    },
    /// Stores a policy without activating it.
    PutPolicy {
        /// Its name.
        name: String,
        /// The hash of its content.
        hash: String,
        /// Its content, as JSON.
        body: String,
    },
    /// Stores a policy, and activates it.
    ActivatePolicy {
        /// Its name.
        name: String,
        /// The hash of its content.
        hash: String,
        /// Its content, as JSON.
        body: String,
        /// The hash of the policy that must be active now; absent: any or none.
        expect: Option<String>,
    },
    /// Stores a document, or changes it.
    PutDocument {
        /// What it is.
        kind: Text,
        /// Its name among those of its kind.
        id: Text,
        /// Its content.
        body: String,
        /// What must be stored now.
        expect: Expect,
    },
    /// Removes a document.
    RemoveDocument {
        /// What it is.
        kind: Text,
        /// Its name among those of its kind.
        id: Text,
        /// What must be stored now.
        expect: Expect,
    },
    /// Logs that a waiting request exceeds a limit of this version.
    QuarantineTicket(QuarantinedTicket),
    /// Records decisions that claimed nothing.
    Record(Vec<DecisionRecord>),
    /// Counts unmet demand.
    Demand(UnmetDemand),
    /// Begins the removal of a tenant: from then on nothing is granted to it or made for it.
    StartTenantRemoval(Box<StartTenantRemoval>),
    /// Ends the removal of a tenant that holds nothing any more.
    EndTenantRemoval {
        /// The tenant.
        tenant: Text,
        /// How long the removal must have gone on, in seconds, so that what was on its way when it
        /// began has been refused.
        quarantine_s: i64,
    },
    /// Makes something for tenants, unless one of them is being removed.
    ForTenants(Box<ForTenants>),
    /// Does something for a request that has no answer yet.
    IfUnanswered(Box<IfUnanswered>),
    /// Runs an operation on behalf of an actor, and adds an audit entry if it changed anything.
    /// The answer is that of the operation inside.
    Audited(Box<Audited>),
    /// Does something and writes documents with it: all of it, or nothing.
    WithDocuments(Box<WithDocuments>),
}

impl Op {
    /// Adds a node, or states what it reports, whatever is known now.
    #[must_use]
    pub fn put_node(facts: NodeFacts) -> Self {
        Self::PutNode { facts: Box::new(facts), layer: FactLayer::Reported, expect: None }
    }

    /// The operation itself, without on whose behalf it is done.
    #[must_use]
    pub fn bare(&self) -> &Self {
        let mut op = self;
        loop {
            op = match op {
                Self::Audited(audited) => &audited.op,
                Self::WithDocuments(with) => &with.op,
                Self::ForTenants(made) => &made.op,
                Self::IfUnanswered(request) => &request.op,
                _ => return op,
            };
        }
    }

    /// The documents that are written with it.
    pub(crate) fn documents(&self) -> impl Iterator<Item = &DocumentWrite> {
        let mut op = Some(self);
        std::iter::from_fn(move || {
            let (documents, next) = match op? {
                Self::Audited(audited) => (&[][..], &audited.op),
                Self::ForTenants(made) => (&[][..], &made.op),
                Self::IfUnanswered(request) => (&[][..], &request.op),
                Self::WithDocuments(with) => (&with.documents[..], &with.op),
                _ => return None,
            };
            op = Some(next);
            Some(documents)
        })
        .flatten()
    }

    /// The tenants that something is made for, where only the caller knows.
    pub(crate) fn made_for(&self) -> impl Iterator<Item = &Text> {
        let mut op = Some(self);
        std::iter::from_fn(move || {
            let (tenants, next) = match op? {
                Self::Audited(audited) => (&[][..], &audited.op),
                Self::ForTenants(made) => (&made.tenants[..], &made.op),
                Self::IfUnanswered(request) => (&[][..], &request.op),
                Self::WithDocuments(with) => (&[][..], &with.op),
                _ => return None,
            };
            op = Some(next);
            Some(tenants)
        })
        .flatten()
    }
}

impl Op {
    /// The request that it is done for, where it must have no answer yet.
    pub(crate) fn unanswered_request(&self) -> Option<(Text, Text)> {
        let mut op = self;
        loop {
            op = match op {
                Self::Audited(audited) => &audited.op,
                Self::ForTenants(made) => &made.op,
                Self::WithDocuments(with) => &with.op,
                Self::IfUnanswered(request) => {
                    return Some((Text::clone(&request.request_id), Text::clone(&request.tenant)));
                }
                _ => return None,
            };
        }
    }
}

/// A counter that differed from its claims, and by how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// The row: a node, a group with domain, or a tenant.
    pub row: String,
    /// Per counter: stored minus true.
    pub amounts: BTreeMap<String, i64>,
}
