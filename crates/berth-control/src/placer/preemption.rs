//! A request that is placed in the room of others, which are released with it in one commit.
//!
//! Who makes room was decided before: the planner only checks that the request still fits there. In
//! memory the victims stay where they are until the commit is reported, and the node is fuller than
//! full meanwhile: no other request is planned into the room.

use std::sync::Arc;

use berth_engine::{InstanceId, InstanceRequest, NodeId};
use berth_ledger::{Op, Plan, Preempt, PreemptVictim};

use super::PlaceRequest;
use super::pending_plan::PendingPlan;
use super::planner::{PlanOutcome, Planner};
use super::recording::named;

/// Victims that an entry of the audit log names.
const NAMED_VICTIMS: usize = 8;

/// Where a request goes, and who makes room for it there.
#[derive(Clone, Debug)]
pub struct PreemptionPlan {
    /// The node.
    pub node: NodeId,
    /// Instances on it that are released.
    pub victims: Vec<PreemptVictim>,
}

impl Planner {
    /// Places the one instance in the room of others, if it still fits there.
    pub(super) fn choose_preempting(
        &mut self,
        pending: &PendingPlan,
        instances: &[Arc<InstanceRequest>],
        preemption: &PreemptionPlan,
    ) -> PlanOutcome {
        let [one] = instances else { return PlanOutcome::NoRoom };
        let victims: Vec<InstanceId> = preemption.victims.iter().map(|it| it.instance).collect();
        let node = &preemption.node;
        match self.replica.engine().place_preempting(one, node, &victims, pending.now) {
            Ok(placement) => self.planned(pending, instances, &[placement]),
            Err(berth_engine::CheckError::Invalid(invalid)) => PlanOutcome::Invalid(invalid),
            Err(_) => PlanOutcome::NoRoom,
        }
    }
}

/// The operation that claims a plan, under the name of its caller.
pub(super) fn claiming_op(request: &PlaceRequest, plan: Plan, is_question: bool) -> Op {
    let Some(preemption) = request.preemption.as_deref().filter(|_| !is_question) else {
        // The ledger says which node won.
        return named(request, "place", "", Op::Commit(plan));
    };
    let victims = preemption.victims.clone();
    let mut subject = format!("node {}, in place of", preemption.node);
    for victim in victims.iter().take(NAMED_VICTIMS) {
        subject.push_str(&format!(" {}", victim.instance));
    }
    if victims.len() > NAMED_VICTIMS {
        subject.push_str(&format!(" and {} more", victims.len() - NAMED_VICTIMS));
    }
    named(request, "preempt", &subject, Op::Preempt(Box::new(Preempt { plan, victims })))
}
