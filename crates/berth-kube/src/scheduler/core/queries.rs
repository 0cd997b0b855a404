//! Answers queries.

use super::SchedulerCore;
use crate::cluster::PodState;
use crate::scheduler::messages::{Counts, Query};
use crate::scheduler::queue::Moment;

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
            Query::DebugState(reply) => {
                let _ = reply.send(Box::new(self.debug_state(now)));
            }
        }
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
