//! What became of work changes what is known.

use std::sync::Arc;

use super::{Brain, Moment};
use crate::cluster::PodState;
use crate::scheduler::messages::{Report, Work};

impl Brain {
    pub(super) fn report(&mut self, report: Report, now: Moment, work: &mut Vec<Work>) {
        match report {
            Report::Changed { uid, pod } => {
                if !self.pods.contains_key(&uid) {
                    // It was there when it was looked at, and has gone since.
                    return;
                }
                self.give_up(&uid);
                self.put_pod(&pod);
                // What was seen may be known already, and then nothing has put it in line.
                let who = self.entry_of(&uid);
                self.queue.put_back(&who);
            }
            Report::Gone { uid } => {
                self.give_up(&uid);
                let Some(key) = self.pods.get(&uid).map(|known| known.key.clone()) else { return };
                let who = self.entry_of(&uid);
                self.pod_gone(&key, &uid);
                self.queue.put_back(&who);
                self.buried.insert(uid);
            }
            Report::Failed { uid, why } => {
                self.give_up(&uid);
                let who = self.entry_of(&uid);
                self.queue.refuse(&who, now.millis);
                // The watch may have shown it on a node meanwhile.
                let waits = self.pods.get(&uid).filter(|it| it.state == PodState::Pending);
                let Some(key) = waits.map(|known| known.key.clone()) else { return };
                self.tell_pod(&uid, &key, ("bind_failed", &why), || why.clone(), now, work);
            }
            Report::NotLeading { uid } => {
                self.give_up(&uid);
                let who = self.entry_of(&uid);
                self.queue.put_back(&who);
            }
            Report::Preempted { uid, done } => {
                let who = self.entry_of(&uid);
                if done {
                    self.queue.park(&who, now.millis);
                } else {
                    self.promises.remove(&uid);
                    self.cluster.forget_promise(&uid);
                    self.queue.refuse(&who, now.millis);
                }
            }
            Report::Evicted { uid, outcome } => self.drains.evicted(&uid, outcome, now),
        }
    }

    /// Its place is free again.
    fn give_up(&mut self, uid: &Arc<str>) {
        self.cluster.give_up(uid);
        if let Some(known) = self.pods.get_mut(uid).filter(|it| it.state == PodState::Reserved) {
            known.state = PodState::Pending;
        }
    }
}
