//! What is asked of elastic instances, and what is answered: permits, bounds, and moves while they run.

use berth_engine::elastic::{
    Grants, InvalidPermitRequest, Permit, PermitRequest, Size, WatermarkRule,
};
use berth_engine::{Amounts, InstanceId, NodeId};

use super::claim::Text;
use super::op::Op;
use super::plan::PlannedClaim;
use super::service::Expect;

/// Asks how large an instance may be.
#[derive(Clone, Debug)]
pub struct PermitOperation {
    /// The instance.
    pub instance: InstanceId,
    /// The tenant that asks; absent when an agent or operator does.
    pub tenant: Option<Text>,
    /// The node whose agent asks; absent when it need not be checked.
    pub node: Option<NodeId>,
    /// The fence of its claim; absent: whatever it is.
    pub fence: Option<i64>,
    /// What it wants.
    pub wish: PermitRequest,
    /// What grants are multiples of.
    pub unit: Size,
    /// How wishes that do not fit are granted.
    pub grants: Grants,
    /// Whether sizes must be multiples of the unit that its agent was given.
    pub whole_units: bool,
    /// An instance that is being moved must not change its size at all.
    pub rigid_while_moving: bool,
    /// Where pressure begins on its node.
    pub watermark: WatermarkRule,
    /// CPU of its host, above which it does not grow; absent: not limited.
    pub host_cpu_milli: Option<u32>,
    /// What unit, grants, watermark and CPU of the host were taken from; absent: they do not depend on
    /// anything that may change.
    pub basis: Option<PermitBasis>,
}

/// What the rules of a permit were taken from. If it is no longer so, the permit is a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitBasis {
    /// The policy, under the hash that the ledger has it; empty if none was in force.
    pub policy: Text,
    /// The node that the instance was on, and the generation of its facts; absent: neither was known.
    pub node: Option<(NodeId, i64)>,
}

/// The answer to a request for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitAnswer {
    /// The node it is on.
    pub node: NodeId,
    /// The tenant.
    pub tenant: Text,
    /// The fence of its claim.
    pub fence: i64,
    /// What is recorded now.
    pub permit: Permit,
    /// What the node is charged.
    pub charged: Amounts,
    /// The request was answered before, or a later one was.
    pub repeated: bool,
    /// Its agent holds more than was recorded.
    pub found_larger: bool,
    /// It is being moved to this node, and stays as it is meanwhile.
    pub moving_to: Option<NodeId>,
}

/// Changes between which sizes an instance may be.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The instance.
    pub instance: InstanceId,
    /// The tenant that asks; absent when an operator does.
    pub tenant: Option<Text>,
    /// The least it runs with.
    pub min: Size,
    /// The most it may grow to.
    pub max: Size,
}

/// Holds a place for an instance that is to move while it runs.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The fence of the claim where it runs.
    pub fence: i64,
    /// Where to: guarded like any plan, with what the instance is charged by now.
    pub to: PlannedClaim,
}

/// The instance runs in the place that was held for it.
#[derive(Clone, Debug)]
pub struct Switch {
    /// The instance.
    pub instance: InstanceId,
    /// The node where a place was held.
    pub to: NodeId,
}

/// A document that is written with something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentWrite {
    /// What it is.
    pub kind: Text,
    /// Its name among those of its kind.
    pub id: Text,
    /// Its content.
    pub body: String,
    /// What must be stored now.
    pub expect: Expect,
}

/// An operation with documents: all of it is done, or nothing.
#[derive(Clone, Debug)]
pub struct WithDocuments {
    /// What to do.
    pub op: Op,
    /// What to write if it is done.
    pub documents: Vec<DocumentWrite>,
}

impl From<InvalidPermitRequest> for super::answer::ClaimRejection {
    fn from(invalid: InvalidPermitRequest) -> Self {
        Self::Wish(invalid)
    }
}
