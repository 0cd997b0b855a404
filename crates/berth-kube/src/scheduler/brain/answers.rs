//! Questions to the brain.

use super::{Brain, Moment};
use crate::cluster::PodState;
use crate::scheduler::messages::{Ask, Counts};

impl Brain {
    pub(super) fn answer(&mut self, ask: Ask, now: Moment) {
        // Whoever asked may have gone.
        match ask {
            Ask::Explain(key, reply) => {
                let _ = reply.send(self.cluster.explain(&key, now.date));
            }
            Ask::Counts(reply) => {
                let _ = reply.send(self.counts());
            }
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let count = |state| self.pods.values().filter(|known| known.state == state).count();
        let lengths = self.queue.lengths();
        Counts {
            nodes: self.nodes.len(),
            pods: self.pods.len(),
            pending: count(PodState::Pending),
            reserved: count(PodState::Reserved),
            ready: lengths.ready,
            backing_off: lengths.backing_off,
            parked: lengths.parked,
            leader: self.leads,
            warm: self.warm,
        }
    }
}
