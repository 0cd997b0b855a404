//! Schedules the entries at the head of the queue.

use std::sync::Arc;

use tokio::time::Instant;

use super::SchedulerCore;
use crate::cluster::PodState;
use crate::cluster::outcome::{GangOutcome, GroupPlan, Outcome};
use crate::cluster::pod::Key;
use crate::cluster::pod_groups::describe_gang;
use crate::scheduler::messages::Action;
use crate::scheduler::metrics::AttemptResult;
use crate::scheduler::queue::{Moment, QueueKey};

impl SchedulerCore {
    /// Tries at most `max` queue entries and appends the resulting actions.
    pub(crate) fn schedule_batch(&mut self, now: Moment, max: usize, actions: &mut Vec<Action>) {
        if !self.is_active() {
            return;
        }
        self.report_overfull_nodes(now, actions);
        self.drain_nodes(now, actions);
        self.run_elastic_pass(now, actions);
        self.flush_deferred_notices(now, actions);
        for _ in 0..max {
            let Some(entry) = self.queue.pop() else { return };
            let began = Instant::now();
            let result = match &entry {
                QueueKey::Pod(uid) => self.schedule_pod(uid, now, actions),
                QueueKey::Gang(gang) => self.schedule_gang(gang, now, actions),
            };
            self.metrics.record_attempt(result, began.elapsed());
        }
    }

    fn schedule_pod(
        &mut self,
        uid: &Arc<str>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) -> AttemptResult {
        let entry = QueueKey::Pod(Arc::clone(uid));
        match self.cluster.schedule_pod(uid, now.date) {
            Outcome::Reserved(mut reservation) => {
                self.settle_nomination(&reservation, actions);
                self.mark_reserved(uid);
                reservation.is_contested = self.is_contested(uid, now);
                actions.push(Action::Bind(reservation));
                AttemptResult::Scheduled
            }
            Outcome::Preempt(preemption, refusal) => {
                self.notify_refusal(uid, &refusal, now, actions);
                self.preempt(entry, preemption, now, actions);
                AttemptResult::Preempting
            }
            Outcome::Refused(refusal) => {
                self.notify_refusal(uid, &refusal, now, actions);
                self.expire_nomination(uid, &refusal.pod, now, actions);
                self.release_stuck_claims(uid, actions);
                self.queue.requeue_with_backoff(&entry, now.millis);
                AttemptResult::Unschedulable
            }
            Outcome::NotPending => {
                self.queue.remove(&entry);
                AttemptResult::NotPending
            }
        }
    }

    fn schedule_gang(
        &mut self,
        gang: &Key,
        now: Moment,
        actions: &mut Vec<Action>,
    ) -> AttemptResult {
        let entry = QueueKey::Gang(gang.clone());
        match self.cluster.schedule_gang(&gang.namespace, &gang.name, now.date) {
            GangOutcome::Reserved(members) if members.is_empty() => {
                self.queue.remove(&entry);
                AttemptResult::NotPending
            }
            GangOutcome::Reserved(members) => {
                for member in &members {
                    self.settle_nomination(member, actions);
                    self.mark_reserved(&member.uid);
                }
                actions.push(Action::BindGang { gang: gang.clone(), members });
                AttemptResult::Scheduled
            }
            GangOutcome::Group(plan) => self.bind_group(gang, plan, now, actions),
            GangOutcome::Incomplete { present, size } => {
                let line = incomplete_gang(&gang.name, present, size);
                let content = line.as_str().into();
                self.notify_gang(gang, ("gang_incomplete", &line), &content, now, actions);
                self.queue.requeue_with_backoff(&entry, now.millis);
                AttemptResult::Unschedulable
            }
            GangOutcome::Refused(refusal) => {
                let refused = self.cluster.pod_by_name(&refusal.pod);
                if let Some(uid) = refused.map(|it| Arc::clone(&it.uid)) {
                    self.release_stuck_claims(&uid, actions);
                }
                let summary = (refusal.code.as_str(), refusal.line.as_str());
                self.notify_gang(gang, summary, &(&*refusal).into(), now, actions);
                self.queue.requeue_with_backoff(&entry, now.millis);
                AttemptResult::Unschedulable
            }
        }
    }

    /// Binds the pods of a group that fit, together if its minimum depends on it, and says why the others
    /// wait.
    fn bind_group(
        &mut self,
        gang: &Key,
        plan: GroupPlan,
        now: Moment,
        actions: &mut Vec<Action>,
    ) -> AttemptResult {
        let entry = QueueKey::Gang(gang.clone());
        let GroupPlan { members, is_gang, refusal } = plan;
        let result = match (members.is_empty(), &refusal) {
            (true, Some(_)) => AttemptResult::Unschedulable,
            (true, None) => {
                self.queue.remove(&entry);
                AttemptResult::NotPending
            }
            (false, _) => AttemptResult::Scheduled,
        };
        for member in &members {
            self.settle_nomination(member, actions);
            self.mark_reserved(&member.uid);
        }
        if is_gang && !members.is_empty() {
            actions.push(Action::BindGang { gang: gang.clone(), members });
        } else {
            actions.extend(members.into_iter().map(|it| Action::Bind(Box::new(it))));
        }
        if let Some(refusal) = refusal {
            let summary = (refusal.code.as_str(), refusal.line.as_str());
            self.notify_gang(gang, summary, &(&*refusal).into(), now, actions);
            self.queue.requeue_with_backoff(&entry, now.millis);
        }
        result
    }

    /// Has claims deallocated that were left from an earlier attempt, and fit no node now.
    fn release_stuck_claims(&mut self, uid: &Arc<str>, actions: &mut Vec<Action>) {
        let claims = self.cluster.release_stuck_claims(uid);
        if !claims.is_empty() {
            actions.push(Action::ReleaseClaims { uid: Arc::clone(uid), claims });
        }
    }

    fn mark_reserved(&mut self, uid: &Arc<str>) {
        self.cluster.mark_submitted(uid);
        self.last_notices.remove(uid);
        self.deferred_notices.remove(uid);
        if let Some(record) = self.pods.get_mut(uid) {
            record.state = PodState::Reserved;
        }
    }
}

fn incomplete_gang(gang: &str, present: usize, size: usize) -> String {
    let missing = size.saturating_sub(present);
    let gang = describe_gang(gang);
    format!("{gang} has {present} of {size} pods; waiting for the other {missing}")
}
