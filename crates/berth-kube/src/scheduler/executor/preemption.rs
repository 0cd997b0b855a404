//! Preemption: nominates the node for the preemptor and deletes the victims.

use std::sync::Arc;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use super::{ApiExecutor, ApiFailure};
use crate::cluster::outcome::{Preemption, Victim};
use crate::cluster::pod::Key;
use crate::scheduler::messages::ActionResult;

impl ApiExecutor {
    /// Nominates the node in the pod's status, then deletes the victims.
    pub(super) async fn preempt(&self, preemption: Preemption) {
        let done = self.delete_victims(&preemption).await;
        if done {
            self.inner.metrics.record_preemption(preemption.victims.len());
            tracing::info!(
                pod = %preemption.pod,
                node = &*preemption.node,
                victims = preemption.victims.len(),
                "preempted pods"
            );
        }
        self.send_result(ActionResult::Preempted { uid: preemption.uid, done }).await;
    }

    async fn delete_victims(&self, preemption: &Preemption) -> bool {
        let (pod, uid, node) = (&preemption.pod, &preemption.uid, &preemption.node);
        if self.nominate(pod, uid, Some(node)).await.is_err() {
            return false;
        }
        for victim in &preemption.victims {
            if let Err(failure) = self.delete_victim(preemption, victim).await {
                let reason = failure.reason();
                tracing::warn!(%pod, victim = %victim.pod, reason, "failed to preempt pod");
                return false;
            }
        }
        true
    }

    /// Clears the nominated node of a pod.
    pub(super) async fn clear_nomination(&self, pod: &Key, uid: &Arc<str>) {
        if let Err(failure) = self.nominate(pod, uid, None).await {
            tracing::debug!(%pod, reason = failure.reason(), "failed to clear nominated node");
        }
    }

    async fn nominate(
        &self,
        pod: &Key,
        uid: &str,
        node: Option<&Arc<str>>,
    ) -> Result<(), ApiFailure> {
        let node = node.map(|it| it.to_string());
        let body = json!({"metadata": {"uid": uid}, "status": {"nominatedNodeName": node}});
        let api = self.pods(&pod.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&body));
        self.retry(|| self.call("patch", api.patch_status(&pod.name, &params, &patch))).await?;
        Ok(())
    }

    /// Sets the pod's DisruptionTarget condition, and deletes it.
    async fn delete_victim(
        &self,
        preemption: &Preemption,
        victim: &Victim,
    ) -> Result<(), ApiFailure> {
        let api = self.pods(&victim.pod.namespace);
        let message = format!(
            "{} has a higher priority and needs the room on node {}",
            preemption.pod, preemption.node
        );
        let body = json!({
            "metadata": {"uid": &*victim.uid},
            "status": {"conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": message,
                "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            }]},
        });
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&body));
        let patched = self
            .retry(|| self.call("patch", api.patch_status(&victim.pod.name, &params, &patch)))
            .await;
        match patched {
            // After a conflict: the deletion below names the uid, so a recreated pod is safe.
            Ok(_)
            | Err(ApiFailure::Conflict(_) | ApiFailure::Forbidden(_) | ApiFailure::Rejected(_)) => {
            }
            Err(ApiFailure::NotFound(_)) => return Ok(()),
            Err(failure) => return Err(failure),
        }
        let uid = Some(victim.uid.to_string());
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let deleted =
            self.retry(|| self.call("delete", api.delete(&victim.pod.name, &params))).await;
        match deleted {
            Ok(_) => {
                self.inner.events.record_preempted(&victim.pod, &victim.uid, &message);
                Ok(())
            }
            Err(ApiFailure::NotFound(_) | ApiFailure::Conflict(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
