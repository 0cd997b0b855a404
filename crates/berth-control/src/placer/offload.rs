//! What the planner leaves to the explainer, and what it makes of the result.

use std::sync::Arc;

use berth_engine::{Engine, Fleet, InstanceId, InstanceRequest, Placement, Timestamp};
use berth_ledger::invariant_ok;
use rustc_hash::FxHashMap;

use super::PlaceAnswer;
use super::explainer::{FleetUpdate, OpenDecision, Task, ToExplainer};
use super::follow::AfterPass;
use super::pending_plan::{ExplainerChoice, PendingPlan};
use super::planner::{MAX_SCANS, Planner, TRIES};
use super::turns::Lane;
use crate::fleet_replica::FleetReplica;

impl Planner {
    /// Leaves something to the explainer, with all that it must know for it.
    pub(super) fn leave(&mut self, lane: Lane, task: Task) {
        self.update_explainer();
        // It lives as long as the planner.
        invariant_ok!(
            self.explainer.send(ToExplainer::Task(lane, task)),
            "explainer_outlives_planner"
        );
    }

    /// Sends the explainer what changed since the last time.
    pub(super) fn update_explainer(&mut self) {
        let update = self.fleet_update();
        self.explainer_backlog.add(update.changes.len());
        invariant_ok!(
            self.explainer.send(ToExplainer::Changes(update)),
            "explainer_outlives_planner"
        );
    }

    /// Sends the explainer a fleet that was loaded again, and the one before it to be freed there: that
    /// takes a while.
    pub(super) fn reload_explainer(&mut self, fleet: Box<Fleet>, replaced: Box<FleetReplica>) {
        let update = self.fleet_update();
        self.explainer_backlog.add(update.changes.len());
        invariant_ok!(
            self.explainer.send(ToExplainer::Fleet(fleet, update, replaced)),
            "explainer_outlives_planner"
        );
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
        // Others may have made room since, or leases have ended: look once before saying no. What waits
        // in the queue is tried again when something makes room.
        if !pending.looked && !request.quiet {
            let mut pending = pending;
            pending.looked = true;
            self.park(true, AfterPass::NoRoom(Box::new(pending), instances));
            return;
        }
        self.leave_decision(pending, instances);
    }

    /// Takes a request out of what the planner has under way, or turns it away if too much waits for the
    /// explainer already.
    pub(super) fn move_to_explainer(&self, mut pending: PendingPlan) -> Option<PendingPlan> {
        match pending.admitted.move_to_explainer() {
            Ok(()) => Some(pending),
            Err(overload) => {
                pending.answer(PlaceAnswer::Busy(overload));
                None
            }
        }
    }

    pub(super) fn leave_decision(
        &mut self,
        pending: PendingPlan,
        instances: Vec<Arc<InstanceRequest>>,
    ) {
        let Some(pending) = self.move_to_explainer(pending) else { return };
        let lane = Lane::of(&pending.job.request);
        let open = OpenDecision { pending, instances };
        self.leave(lane, Task::Decide(Box::new(open)));
    }

    /// Claims what the explainer chose, if it is still possible: its fleet is a little older.
    pub(super) fn claim_choice(&mut self, mut pending: PendingPlan, choice: ExplainerChoice) {
        pending.admitted.move_to_planner();
        if let Some(conflict) = self.outdated_defaults(&pending) {
            pending.answer(PlaceAnswer::Contended(conflict));
            return;
        }
        pending.tries += 1;
        pending.planned_at = self.replica.cursor;
        let instances = self.instances(&mut pending);
        let ExplainerChoice { placements, left_out, explanation, basis } = choice;
        pending.now = Timestamp(basis.now);
        if !still_fit(self.replica.engine(), &instances, &placements, (self.clock)()) {
            self.release_slots(&pending, &[]);
            pending.outrun += 1;
            // The explainer decides the last tries, and each time the place was gone. It has to end.
            if pending.tries >= 2 * TRIES {
                pending.answer_outrun();
                return;
            }
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
    let by_id: FxHashMap<InstanceId, &InstanceRequest> =
        instances.iter().map(|instance| (instance.id, &**instance)).collect();
    let of = |placement: &Placement| {
        by_id.get(&placement.instance).map(|instance| (*instance, placement.node.clone()))
    };
    let planned: Option<Vec<_>> = placements.iter().map(of).collect();
    planned.is_some_and(|planned| engine.admits_all(&planned, now))
}

/// Whether a batch takes too long for the planner, even without a search: rules about neighbours are
/// evaluated again after each instance, and the first of a class is compared with every node.
pub(super) fn is_left_to_the_explainer(instances: &[Arc<InstanceRequest>]) -> bool {
    let has_rules = |instance: &Arc<InstanceRequest>| {
        !instance.groups.is_empty()
            || !instance.affinity.is_empty()
            || !instance.locality.is_empty()
    };
    if instances.len() <= MAX_SCANS {
        return false;
    }
    let changes_class = |pair: &&[Arc<InstanceRequest>]| !pair[0].same_class(&pair[1]);
    let classes = 1 + instances.windows(2).filter(changes_class).take(MAX_SCANS).count();
    classes > MAX_SCANS || instances.iter().any(has_rules)
}
