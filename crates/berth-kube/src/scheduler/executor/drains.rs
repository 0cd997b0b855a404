//! Drains: cordons nodes, evicts their pods, and writes the progress to the node.

use std::sync::Arc;

use berth_ledger::invariant_ok;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{ApiExecutor, ApiFailure, NOT_LEADER};
use crate::client;
use crate::cluster::pod::Key;
use crate::scheduler::messages::{ActionResult, DrainState, DrainStatus, EvictionOutcome};

/// Seconds to wait when a disruption budget blocks an eviction and the API server does not say how long.
const BUDGET_RETRY_S: u64 = 5;

impl ApiExecutor {
    /// Marks a node unschedulable.
    pub(super) async fn cordon_node(&self, node: &str) {
        let body = json!({"spec": {"unschedulable": true}});
        if let Err(failure) = self.patch_node(node, &body).await {
            tracing::warn!(node, reason = failure.reason(), "failed to cordon node");
        }
    }

    async fn patch_node(&self, node: &str, body: &Value) -> Result<(), ApiFailure> {
        let api: Api<core::Node> = Api::all(self.inner.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Merge(body));
        self.retry(|| self.call("patch", api.patch(node, &params, &patch))).await.map(drop)
    }

    /// Evicts a pod, as far as disruption budgets allow, and reports the outcome.
    pub(super) async fn evict_pod(&self, pod: &Key, uid: &Arc<str>) {
        let outcome = if self.is_leader() {
            self.request_eviction(pod, uid).await
        } else {
            EvictionOutcome::Failed { reason: NOT_LEADER.to_owned() }
        };
        self.inner.metrics.record_eviction(match &outcome {
            EvictionOutcome::Accepted => "accepted",
            EvictionOutcome::BlockedByBudget { .. } => "blocked",
            EvictionOutcome::Failed { .. } => "failed",
        });
        self.send_result(ActionResult::Evicted { uid: Arc::clone(uid), outcome }).await;
    }

    pub(super) async fn request_eviction(&self, pod: &Key, uid: &Arc<str>) -> EvictionOutcome {
        let request = client::evict_pod(&self.inner.client, &pod.namespace, &pod.name, uid);
        match self.call("evict", request).await {
            Ok(()) => EvictionOutcome::Accepted,
            // It is already gone, or was recreated under the same name.
            Err(ApiFailure::NotFound(_) | ApiFailure::Conflict(_)) => EvictionOutcome::Accepted,
            Err(ApiFailure::RetryLater { after, reason }) => {
                let after_s = after.map_or(BUDGET_RETRY_S, |it| it.as_secs()).clamp(1, 60);
                EvictionOutcome::BlockedByBudget { after_s, reason }
            }
            Err(
                ApiFailure::Forbidden(reason)
                | ApiFailure::Rejected(reason)
                | ApiFailure::Unknown(reason),
            ) => EvictionOutcome::Failed { reason },
        }
    }

    /// Writes the progress of a drain to the node, and records an event for a change of state.
    pub(super) async fn write_drain_status(&self, status: DrainStatus) {
        let node = &status.node;
        let record = |it: &_| invariant_ok!(serde_json::to_string(it), "drain_record_is_json");
        let text = status.record.as_ref().map(|it| record(it).unwrap_or_default());
        let body = json!({"metadata": {"annotations": {&*status.key: text}}});
        if let Err(failure) = self.patch_node(node, &body).await {
            let reason = failure.reason();
            tracing::debug!(node = &**node, reason, "failed to write drain status");
        }
        if let Some(record) = status.record.filter(|_| status.is_event) {
            let (warning, reason) = match record.state {
                DrainState::Running => (false, "Draining"),
                DrainState::Blocked => (true, "DrainBlocked"),
                DrainState::Done => (false, "Drained"),
            };
            self.inner.events.record_node_event(
                node,
                warning,
                (reason, "Draining"),
                record.message,
            );
        }
    }
}
