//! Nominations: nodes that pods wait for while their victims terminate.

use std::sync::Arc;

use super::{Nomination, SchedulerCore};
use crate::cluster::outcome::{Preemption, Reservation};
use crate::cluster::pod::Key;
use crate::scheduler::messages::Action;
use crate::scheduler::queue::{Millis, Moment, QueueKey};

/// How long a nomination by a previous leader is kept although the pod does not fit.
const INHERITED_MS: Millis = 60_000;

impl SchedulerCore {
    /// Ends the nomination of a pod that was reserved; if it was for another node, it is cleared.
    pub(super) fn settle_nomination(
        &mut self,
        reservation: &Reservation,
        actions: &mut Vec<Action>,
    ) {
        let uid = &reservation.uid;
        let inherited = self.cluster.pod(uid).and_then(|pod| pod.nominated_node.clone());
        let nominated = self.nominations.remove(uid).map(|it| it.node).or(inherited);
        if nominated.is_some_and(|node| node != reservation.node) {
            let (pod, uid) = (reservation.pod.clone(), Arc::clone(uid));
            actions.push(Action::ClearNomination { pod, uid });
        }
    }

    /// Nominates the node of a preemption and asks for its victims to be deleted.
    pub(super) fn preempt(
        &mut self,
        entry: QueueKey,
        preemption: Box<Preemption>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let uid = &preemption.uid;
        if let Some(node) = self.nominations.get(uid).map(|it| Arc::clone(&it.node))
            && self.has_terminating_victims(&node)
        {
            // Earlier victims are terminating, even if the watch has not shown it yet: no more pods
            // need to be deleted.
            self.cluster.nominate(uid, &node);
            self.queue.requeue_with_backoff(&entry, now.millis);
            return;
        }
        let victims = preemption.victims.iter().map(|victim| Arc::clone(&victim.uid)).collect();
        for (pod, uid) in &preemption.unnominated {
            self.nominations.remove(uid);
            actions.push(Action::ClearNomination { pod: pod.clone(), uid: Arc::clone(uid) });
        }
        let node = Arc::clone(&preemption.node);
        let nomination = Nomination { node, victims: Some(victims), until: now.millis };
        self.nominations.insert(Arc::clone(uid), nomination);
        // The entry stays in flight until the executor reports that the victims were deleted.
        actions.push(Action::Preempt(preemption));
    }

    /// Tries pods at once, instead of after their backoff, when the last victim on their node is gone.
    pub(super) fn activate_preemptors_of(&mut self, victim: &Arc<str>) {
        let had = |it: &&Nomination| it.victims.as_ref().is_some_and(|all| all.contains(victim));
        let nodes: Vec<Arc<str>> =
            self.nominations.values().filter(had).map(|it| Arc::clone(&it.node)).collect();
        for node in nodes {
            if self.has_terminating_victims(&node) {
                continue;
            }
            let waiting = self.nominations.iter().filter(|(_, it)| it.node == node);
            let waiting: Vec<QueueKey> = waiting.map(|(uid, _)| self.queue_key(uid)).collect();
            for entry in waiting {
                self.queue.reset_backoff(&entry);
            }
        }
    }

    /// Whether a victim of any nomination for this node still exists.
    fn has_terminating_victims(&self, node: &Arc<str>) -> bool {
        let nominations = self.nominations.values().filter(|it| it.node == *node);
        let mut victims = nominations.flat_map(|it| it.victims.iter().flatten());
        victims.any(|victim| self.pods.contains_key(victim))
    }

    /// Clears the nomination of a pod that was refused although none of its victims exists any more:
    /// it would only keep others away.
    pub(super) fn expire_nomination(
        &mut self,
        uid: &Arc<str>,
        pod: &Key,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        if !self.nominations.contains_key(uid) {
            let Some(node) = self.cluster.pod(uid).and_then(|it| it.nominated_node.clone()) else {
                return;
            };
            let until = now.millis.saturating_add(INHERITED_MS);
            self.nominations.insert(Arc::clone(uid), Nomination { node, victims: None, until });
        }
        let Some(nomination) = self.nominations.get(uid) else { return };
        let exist = |victims: &Vec<Arc<str>>| victims.iter().any(|it| self.pods.contains_key(it));
        if nomination.until > now.millis || nomination.victims.as_ref().is_some_and(exist) {
            return;
        }
        self.nominations.remove(uid);
        self.cluster.clear_nomination(uid);
        actions.push(Action::ClearNomination { pod: pod.clone(), uid: Arc::clone(uid) });
    }
}
