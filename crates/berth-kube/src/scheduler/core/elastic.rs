//! Elastic pods: permits that are answered once they are stored, resizes that annotations ask for, relief of
//! nodes under pressure, and policies from a ConfigMap.

use std::sync::Arc;

use berth_engine::elastic::{Account, PermitRequest};
use tokio::sync::oneshot;

use super::SchedulerCore;
use crate::cluster::elastic::permits::{
    AgentRequest, PermitError, PermitPlan, PermitReply, WriteOutcome,
};
use crate::cluster::elastic::relief::{Departure, StuckNode};
use crate::cluster::pod::Key;
use crate::scheduler::messages::{
    Action, NodeWarning, ObservedPolicy, PermitWriteResult, PolicyNotice,
};
use crate::scheduler::queue::{Millis, Moment};
use crate::wire::PermitCall;

/// When a resize that an annotation asks for and that was not granted in full is tried again.
const RESIZE_RETRY_MS: Millis = 5_000;
/// When one that the API server rejected is tried again; each rejection is an event.
const RESIZE_REJECTED_RETRY_MS: Millis = 60_000;

type Reply = oneshot::Sender<Result<PermitReply, PermitError>>;

/// A permit that is being written.
#[derive(Debug)]
pub(super) struct PendingPermit {
    pod: Key,
    plan: PermitPlan,
    /// Absent: an annotation asked for it.
    reply: Option<Reply>,
    /// A request that came meanwhile; a later one replaces it.
    next: Option<PermitCall>,
}

impl SchedulerCore {
    /// Decides how large an elastic pod may be. A replica that does not lead does not answer: two that
    /// decide would grant the same capacity twice.
    pub(super) fn decide_permit(
        &mut self,
        call: PermitCall,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        if !self.is_active() {
            return;
        }
        let uid = self.cluster.pod_by_name(&call.pod).map(|it| Arc::clone(&it.uid));
        if let Some(pending) = uid.and_then(|uid| self.permit_writes.get_mut(&uid)) {
            pending.next = Some(call);
            return;
        }
        let PermitCall { pod, asked, reply } = call;
        if self.cluster.is_sized_by_annotation(&pod) {
            let _ = reply.send(Err(PermitError::SizedByAnnotation(pod)));
            return;
        }
        self.start_permit(pod, &asked, Some(reply), now, actions);
    }

    fn start_permit(
        &mut self,
        pod: Key,
        asked: &AgentRequest,
        reply: Option<Reply>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let plan = match self.cluster.plan_permit(&pod, asked, now.date.0) {
            Ok(plan) => plan,
            Err(error) => {
                self.metrics.record_permit("refused");
                // Its receiver may be gone.
                reply.map(|it| it.send(Err(error)));
                return;
            }
        };
        let is_full = plan.decision.permit.granted == asked.request.size;
        self.metrics.record_permit(if is_full { "granted" } else { "limited" });
        let Some(uid) = self.cluster.pod_by_name(&pod).map(|it| Arc::clone(&it.uid)) else {
            return;
        };
        match plan.write.clone() {
            None => {
                self.cluster.apply_permit(&uid, &plan);
                reply.map(|it| it.send(Ok(plan.reply)));
            }
            Some(write) => {
                self.cluster.begin_permit_write(&uid, &plan);
                let pending = PendingPermit { pod, plan, reply, next: None };
                self.permit_writes.insert(uid, pending);
                actions.push(Action::StorePermit(Box::new(write)));
            }
        }
    }

    /// Handles the outcome of a write, and answers.
    pub(super) fn finish_permit(
        &mut self,
        uid: &Arc<str>,
        result: PermitWriteResult,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        // Leadership was lost meanwhile: what is stored counts, and it is watched.
        let Some(pending) = self.permit_writes.remove(uid) else { return };
        let not_stored = |why| Err(PermitError::NotStored { pod: pending.pod.clone(), why });
        let (outcome, answer) = match &result {
            PermitWriteResult::StoredOnVm(_) | PermitWriteResult::StoredInPod(_) => {
                (WriteOutcome::Stored, Ok(pending.plan.reply))
            }
            PermitWriteResult::NotStored(why) => (WriteOutcome::NotStored, not_stored(why.clone())),
            PermitWriteResult::Unknown(why) => (WriteOutcome::Unknown, not_stored(why.clone())),
        };
        if outcome != WriteOutcome::Stored {
            self.metrics.record_permit("not_stored");
        }
        self.cluster.end_permit_write(uid, &pending.plan, outcome);
        match result {
            PermitWriteResult::StoredOnVm(vm) => self.cluster.put_vm(&vm),
            PermitWriteResult::StoredInPod(pod) if self.pods.contains_key(uid) => {
                self.put_pod(&pod);
            }
            _ => {}
        }
        if let (Err(PermitError::NotStored { pod, why }), None) = (&answer, &pending.reply) {
            tracing::warn!(%pod, why, "failed to resize pod");
            let retry_at = now.millis.saturating_add(RESIZE_REJECTED_RETRY_MS);
            self.resize_retries.insert(pod.clone(), retry_at);
        }
        pending.reply.map(|it| it.send(answer));
        if let Some(call) = pending.next {
            self.decide_permit(call, now, actions);
        }
    }

    /// Another replica may lead by now: nothing that is being written is answered, and what is stored
    /// counts.
    pub(super) fn forget_permits(&mut self) {
        self.permit_writes.clear();
        self.cluster.reset_permits();
    }

    /// Whether elastic pods need passes.
    pub(super) fn next_elastic_pass(&self) -> Option<Millis> {
        self.cluster.has_elastic_pods().then(|| self.relief.next_check())
    }

    /// Runs a pass over elastic pods and their nodes, when one is due.
    pub(super) fn run_elastic_pass(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if let Some(notice) = self.policy_notice.take() {
            actions.push(Action::NotifyPolicy(notice));
        }
        if !self.cluster.has_elastic_pods() {
            self.metrics.set_pressure(0, 0);
            return;
        }
        if !self.relief.begin_pass(now) {
            return;
        }
        self.resize_by_annotation(now, actions);
        let limits = self.cluster.policy().elastic().migration;
        for (migration, is_late) in self.cluster.expired_migrations(now.date.0) {
            if is_late && let Some(vm) = self.cluster.vm_of_migration(&migration) {
                self.relief.rest(vm, limits, now);
            }
            // Until the watch shows that it is gone, it is asked for again in each pass.
            actions.push(Action::DeleteMigration { migration, is_late });
        }
        let pass = self.cluster.plan_relief(&self.relief.limits(now), now.date);
        self.metrics.set_pressure(pass.pressured, pass.without_target);
        for stuck in self.relief.stuck_to_report(pass.stuck, now) {
            let StuckNode { node, without_target, excess } = stuck;
            let why = match without_target {
                0 => "none of its elastic pods may leave now".to_owned(),
                pods => format!(
                    "pods that would help: {pods}, and no other node can take them below its watermark"
                ),
            };
            let note = format!("it is above its watermark by {excess}, which stays: {why}");
            let warning = NodeWarning::PressureStays;
            actions.push(Action::WarnOfNode { node, warning, note });
        }
        for leaver in pass.leavers {
            self.relief.start(leaver.clone(), now);
            let leaver = Box::new(leaver);
            actions.push(match leaver.departure {
                Departure::Migrate { .. } => {
                    Action::Migrate { leaver, timeout_s: limits.timeout_s }
                }
                Departure::Evict => Action::EvictForPressure(leaver),
            });
        }
    }

    fn resize_by_annotation(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for (pod, size) in self.cluster.resizes_by_annotation() {
            if self.resize_retries.get(&pod).is_some_and(|at| *at > now.millis) {
                continue;
            }
            self.resize_retries.insert(pod.clone(), now.millis.saturating_add(RESIZE_RETRY_MS));
            let asked = AgentRequest::new(PermitRequest::new(size), None);
            self.start_permit(pod, &asked, None, now, actions);
        }
        self.resize_retries.retain(|_, at| *at > now.millis);
    }

    /// A departure began, or did not.
    pub(super) fn record_departure(
        &mut self,
        uid: &Arc<str>,
        result: &Result<(), String>,
        now: Moment,
    ) {
        if result.is_err() {
            let limits = self.cluster.policy().elastic().migration;
            self.relief.record_failure(uid, limits, now);
        }
    }

    /// Puts a valid policy in use; an invalid one is kept out.
    pub(super) fn observe_policy(&mut self, observed: ObservedPolicy) {
        let ObservedPolicy { config_map, uid, policy } = observed;
        let result = match policy {
            Ok(policy) => {
                let name = policy.name().to_owned();
                tracing::info!(policy = name, %config_map, "policy applied");
                self.metrics.record_policy("applied");
                self.cluster.set_policy(policy);
                Ok(name)
            }
            Err(why) => {
                tracing::warn!(%config_map, why, "invalid policy kept out");
                self.metrics.record_policy("invalid");
                Err(why)
            }
        };
        self.policy_notice = Some(PolicyNotice { config_map, uid, result });
    }

    /// Pods whose permits are being written.
    pub(super) fn pods_with_permit_writes(&self) -> Vec<String> {
        let mut pods: Vec<String> =
            self.permit_writes.values().map(|it| it.pod.to_string()).collect();
        pods.sort();
        pods
    }

    /// The account of a node.
    pub(crate) fn account(&self, node: &str, now: Moment) -> Option<Account> {
        self.cluster.account_by_name(node, now.date.0)
    }
}
