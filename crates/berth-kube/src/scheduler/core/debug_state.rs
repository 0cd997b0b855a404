//! Copies the state for `/debug/state`.

use std::sync::Arc;

use berth_engine::Timestamp;
use rustc_hash::FxHashMap;

use super::SchedulerCore;
use crate::cluster::pod::Key;
use crate::scheduler::debug_state::{DebugState, NoticeState, SCHEMA};
use crate::scheduler::queue::Moment;

impl SchedulerCore {
    /// Everything that is known and decided.
    pub(super) fn debug_state(&self, now: Moment) -> DebugState {
        let Timestamp(at) = now.date;
        let members = |(key, members): (&Key, &FxHashMap<Arc<str>, (i32, i64)>)| {
            let mut uids: Vec<Arc<str>> = members.keys().cloned().collect();
            uids.sort();
            (key.to_string(), uids)
        };
        let cluster = self.cluster.state(at);
        let notice = |(uid, it): (&Arc<str>, &super::LastNotice)| {
            let next = self.deferred_notices.get(uid).map(|(due, _)| *due);
            let notice = NoticeState {
                code: it.code.clone(),
                line: it.line.clone(),
                published_ms_ago: now.millis.saturating_sub(it.at),
                next_in_ms: next.map(|due| due.saturating_sub(now.millis)),
            };
            (Arc::clone(uid), notice)
        };
        let retry = |(pod, at): (&Key, &u64)| (pod.to_string(), at.saturating_sub(now.millis));
        let nominations = self.nominations.iter();
        DebugState {
            schema: SCHEMA,
            at,
            scheduler: self.scheduler.clone(),
            counts: self.counts(),
            violations: cluster.violations(),
            cluster,
            queue: self.queue.state(now.millis),
            notices: self.last_notices.iter().map(notice).collect(),
            recalled: self.shared_nodes.recalled(),
            other_scheduler_seen_ms_ago: self.shared_nodes.foreign_seen_ms_ago(now),
            permit_writes: self.pods_with_permit_writes(),
            resize_retries: self.resize_retries.iter().map(retry).collect(),
            departures: self.relief.departures(),
            resting: self.relief.resting(now),
            stuck_nodes: self.relief.stuck_nodes(),
            nominations: nominations
                .map(|(uid, it)| (Arc::clone(uid), Arc::clone(&it.node)))
                .collect(),
            gangs: self.gangs.iter().map(members).collect(),
            drains: self.drains.nodes(),
        }
    }
}
