//! Handles the outcomes of actions.

use std::sync::Arc;

use super::SchedulerCore;
use super::notifications::BIND_FAILED;
use crate::cluster::PodState;
use crate::cluster::pod::instance_id;
use crate::scheduler::messages::{Action, ActionResult};
use crate::scheduler::queue::Moment;

impl SchedulerCore {
    pub(super) fn handle_result(
        &mut self,
        result: ActionResult,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        match result {
            ActionResult::PodChanged { uid, pod } => {
                if !self.pods.contains_key(&uid) {
                    // It was deleted after it was read.
                    return;
                }
                self.unreserve(&uid);
                self.put_pod(&pod);
                // If this version was already known, nothing has queued the pod yet.
                let entry = self.queue_key(&uid);
                self.queue.requeue(&entry);
            }
            ActionResult::PodDeleted { uid } => {
                self.unreserve(&uid);
                let Some(key) = self.pods.get(&uid).map(|it| it.key.clone()) else { return };
                let entry = self.queue_key(&uid);
                self.delete_pod(&key, &uid);
                self.queue.requeue(&entry);
                self.tombstones.insert(uid);
            }
            ActionResult::BindFailed { uid, reason } => {
                self.unreserve(&uid);
                let entry = self.queue_key(&uid);
                self.queue.requeue_with_backoff(&entry, now.millis);
                // The watch may have shown it on a node meanwhile.
                let pending = self.pods.get(&uid).filter(|it| it.state == PodState::Pending);
                let Some(key) = pending.map(|it| it.key.clone()) else { return };
                let summary = (BIND_FAILED, reason.as_str());
                self.notify_pod(&uid, &key, summary, || reason.as_str().into(), now, actions);
            }
            ActionResult::NotLeader { uid } => {
                self.unreserve(&uid);
                let entry = self.queue_key(&uid);
                self.queue.requeue(&entry);
            }
            ActionResult::Recalled { uid } => self.requeue_recalled(&uid, now),
            ActionResult::Preempted { uid, done } => {
                let entry = self.queue_key(&uid);
                if done {
                    self.queue.requeue_unschedulable(&entry, now.millis);
                } else {
                    self.nominations.remove(&uid);
                    self.cluster.clear_nomination(&uid);
                    self.queue.requeue_with_backoff(&entry, now.millis);
                }
            }
            ActionResult::ClaimsSettled { uid, claims } => {
                let id = instance_id(&uid);
                for (claim, version) in claims {
                    self.cluster.devices().settle(id, &claim, version);
                }
            }
            ActionResult::ClaimsReleased { claims } => {
                for (claim, version) in claims {
                    self.cluster.devices().settle_release(&claim, version);
                }
            }
            ActionResult::Evicted { uid, outcome } => {
                self.drains.record_eviction(&uid, outcome, now);
            }
            ActionResult::PermitWritten { uid, result } => {
                self.finish_permit(&uid, result, now, actions);
            }
            ActionResult::DepartureStarted { uid, result } => {
                self.record_departure(&uid, &result, now);
            }
        }
    }

    fn requeue_recalled(&mut self, uid: &Arc<str>, now: Moment) {
        let is_ahead_of_watch = self.shared_nodes.take_outrun(uid);
        self.unreserve(uid);
        let entry = self.queue_key(uid);
        if is_ahead_of_watch {
            // At once, it would choose the same node again.
            self.queue.requeue_with_backoff(&entry, now.millis);
        } else {
            self.queue.requeue(&entry);
        }
    }

    /// Returns the capacity that was reserved for a pod.
    fn unreserve(&mut self, uid: &Arc<str>) {
        self.cluster.unreserve(uid);
        self.shared_nodes.forget(uid);
        if let Some(record) = self.pods.get_mut(uid).filter(|it| it.state == PodState::Reserved) {
            record.state = PodState::Pending;
        }
    }
}
