//! What the planner leaves to the explainer, and what it makes of the result.

use std::sync::Arc;

use berth_engine::{Engine, InstanceRequest, Placement, Timestamp};

use super::PlaceAnswer;
use super::explainer::{FleetUpdate, OpenDecision, Task, ToExplainer};
use super::pending_plan::{Decided, PendingPlan};
use super::planner::Planner;
use super::turns::Lane;

impl Planner {
    /// Leaves something to the explainer, with all that it must know for it.
    pub(super) fn leave(&mut self, lane: Lane, task: Task) {
        self.update_explainer();
        // It lives as long as the planner.
        let _ = self.explainer.send(ToExplainer::Task(lane, task));
    }

    /// Sends the explainer what changed since the last time.
    pub(super) fn update_explainer(&mut self) {
        let update = self.fleet_update();
        let _ = self.explainer.send(ToExplainer::Changes(update));
    }

    /// Sends the explainer a fleet that was loaded again.
    pub(super) fn reload_explainer(&mut self) {
        self.replica.engine().fleet_mut().record_changes();
        let fleet = Box::new(self.replica.engine().fleet().clone());
        let update = self.fleet_update();
        let _ = self.explainer.send(ToExplainer::Fleet(fleet, update));
    }

    fn fleet_update(&mut self) -> FleetUpdate {
        let hash = self.replica.engine().policy().hash().to_string();
        let policy =
            (hash != self.explainer_policy).then(|| self.replica.engine().policy().clone());
        self.explainer_policy = hash;
        FleetUpdate {
            changes: self.replica.engine().fleet_mut().take_changes(),
            policy,
            cursor: self.replica.cursor,
            in_flight: self.replica.in_flight(),
        }
    }

    /// No room was found. The explainer looks more closely, and says why.
    pub(super) fn no_room(&mut self, pending: PendingPlan, instances: Vec<Arc<InstanceRequest>>) {
        let request = &pending.job.request;
        if request.quiet && instances.len() == 1 {
            pending.answer(PlaceAnswer::NoRoom(Vec::new()));
            return;
        }
        // What was granted once is never refused later, though it may be gone and its room taken.
        if pending.may_have_an_answer() {
            self.ask(pending);
            return;
        }
        self.leave_decision(pending, instances, false);
    }

    pub(super) fn leave_decision(
        &mut self,
        pending: PendingPlan,
        instances: Vec<Arc<InstanceRequest>>,
        has_room: bool,
    ) {
        let lane = Lane::of(&pending.job.request);
        let open = OpenDecision { pending, instances, has_room };
        self.leave(lane, Task::Decide(Box::new(open)));
    }

    /// Claims what the explainer chose, if it is still possible: its fleet is a little older.
    pub(super) fn claim_decided(&mut self, mut pending: PendingPlan, decided: Decided) {
        pending.tries += 1;
        pending.planned_at = self.replica.cursor;
        let instances = self.instances(&mut pending);
        let Decided { placements, left_out, explanation, basis } = decided;
        pending.now = Timestamp(basis.now);
        if !still_fit(self.replica.engine(), &instances, &placements, (self.clock)()) {
            self.release_slots(&pending, &[]);
            pending.outrun += 1;
            self.plan(pending);
            return;
        }
        pending.basis = Some(basis);
        pending.left_out = left_out;
        pending.explanation = explanation;
        let chosen = self.planned(&pending, &instances, &placements);
        self.dispatch(pending, instances, chosen);
    }
}

/// Whether instances still fit where they are to go, each with the others there.
fn still_fit(
    engine: &mut Engine,
    instances: &[Arc<InstanceRequest>],
    placements: &[Placement],
    now: Timestamp,
) -> bool {
    let of = |placement: &Placement| {
        let instance = instances.iter().find(|instance| instance.id == placement.instance);
        instance.map(|instance| (&**instance, placement.node.clone()))
    };
    let planned: Option<Vec<_>> = placements.iter().map(of).collect();
    planned.is_some_and(|planned| engine.admits_all(&planned, now))
}
