//! Plans that the ledger did not grant, since something was no longer as the planner knew it: the log
//! is read to its end, and the request planned again.

use berth_engine::{InstanceId, InstanceRequest, NodeId};
use berth_ledger::{Conflict, Guard, Text};

use super::follow::AfterPass;
use super::pending_plan::PendingPlan;
use super::planner::{Planner, TRIES};
use super::{PlaceAnswer, PlaceRequest, tick};

impl Planner {
    /// The conflict of a request whose defaults come from another policy than the one in force: it
    /// must be read again.
    pub(super) fn outdated_defaults(&mut self, pending: &PendingPlan) -> Option<Box<Conflict>> {
        let request = &pending.job.request;
        let in_force = self.replica.engine().policy().hash();
        request.defaults_of.filter(|policy| *policy != in_force)?;
        let now = Some(self.replica.policy_in_force());
        let instance = request.instances.first().map_or_else(InstanceId::default, |it| it.id);
        let guard = Guard::PolicyChanged { now };
        Some(Box::new(Conflict { instance, node: NodeId::new(""), guard }))
    }

    /// The version of its workload that a member is planned by: the one by which its slot was chosen.
    pub(super) fn workload_version(
        &self,
        request: &PlaceRequest,
        instance: &InstanceRequest,
    ) -> Option<i64> {
        let workload = instance.workload.as_deref()?;
        let key = (Text::from(instance.tenant.as_str()), Text::from(workload));
        Some(request.workload_version.unwrap_or_else(|| self.replica.slots.version(&key)))
    }

    /// Others were faster, or a node denied the plan.
    pub(super) fn plan_around(&mut self, mut pending: PendingPlan, conflict: Box<Conflict>) {
        if let Some(metrics) = &self.metrics {
            metrics.conflict(conflict.guard.code());
        }
        pending.since = tick();
        let request = &pending.job.request;
        if let Some(attempt) = &request.attempt {
            attempt.found_no_room();
        }
        // Another server filled the slot, or the workload has other slots by now: the reconciler
        // that asked for this one looks again.
        let is_lost = match conflict.guard {
            Guard::SlotTaken { .. } => !request.slots.is_empty(),
            Guard::WorkloadChanged { .. } => {
                request.workload_version.is_some() || request.preemption.is_some()
            }
            // Another set of victims may do.
            Guard::VictimChanged { .. } | Guard::TooFewRunning { .. } => true,
            _ => false,
        };
        if pending.tries >= TRIES || is_lost {
            pending.answer(PlaceAnswer::Contended(conflict));
            return;
        }
        // The faster one has committed, so its events are in the log.
        self.park(false, AfterPass::Conflict(Box::new(pending), conflict));
    }

    /// Plans again with all that the log has. A node that denies a plan based on the whole log is not
    /// planned on again.
    pub(super) fn plan_after_conflict(&mut self, mut pending: PendingPlan, conflict: &Conflict) {
        pending.since = tick();
        if self.replica.cursor == pending.planned_at {
            match &conflict.guard {
                Guard::SlotTaken { slot, .. } => pending.denied_slots.push(slot.in_workload()),
                // Another node would not help. What changed is here with the next pass.
                Guard::PolicyChanged { .. }
                | Guard::SecretsChanged { .. }
                | Guard::WorkloadChanged { .. } => {}
                _ => pending.denied.push(conflict.node.clone()),
            }
        }
        self.plan(pending);
    }
}
