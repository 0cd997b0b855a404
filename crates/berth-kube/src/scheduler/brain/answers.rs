//! Questions to the brain.

use super::{Brain, Moment};
use crate::cluster::PodState;
use crate::scheduler::messages::{Ask, Counts};
use crate::wire::PermitAsked;

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

    /// Decides how large a machine may be. One that does not lead says nothing: two who decide would
    /// promise the same room twice.
    pub(super) fn permit(&mut self, asked: PermitAsked, now: Moment) {
        if !self.acts() {
            return;
        }
        let decided = self.cluster.ask_permit(&asked.pod, &asked.wish, asked.unit, now.date.0);
        let _ = asked.answer.send(decided);
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
