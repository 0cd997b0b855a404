//! Answers queries and permit requests.

use super::SchedulerCore;
use crate::cluster::PodState;
use crate::scheduler::messages::{Counts, Query};
use crate::scheduler::queue::Moment;
use crate::wire::PermitCall;

impl SchedulerCore {
    pub(super) fn answer_query(&mut self, query: Query, now: Moment) {
        // The receiver may be gone.
        match query {
            Query::Explain(key, reply) => {
                let _ = reply.send(self.cluster.explain(&key, now.date));
            }
            Query::Counts(reply) => {
                let _ = reply.send(self.counts());
            }
        }
    }

    /// Decides how large a virtual machine may be. A replica that does not lead does not answer: two
    /// that decide would grant the same capacity twice.
    pub(super) fn decide_permit(&mut self, call: PermitCall, now: Moment) {
        if !self.is_active() {
            return;
        }
        let decision = self.cluster.request_permit(&call.pod, &call.request, call.unit, now.date.0);
        let _ = call.reply.send(decision);
    }

    pub(crate) fn counts(&self) -> Counts {
        let count = |state| self.pods.values().filter(|record| record.state == state).count();
        let lengths = self.queue.lengths();
        Counts {
            nodes: self.nodes.len(),
            pods: self.pods.len(),
            pending: count(PodState::Pending),
            reserved: count(PodState::Reserved),
            active: lengths.active,
            backoff: lengths.backoff,
            unschedulable: lengths.unschedulable,
            leader: self.is_leader,
            synced: self.synced,
        }
    }
}
