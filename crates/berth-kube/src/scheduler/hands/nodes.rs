//! Nodes that are being emptied: they are closed, their pods are evicted, and they say how far it is.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Failure, Hands};
use crate::cluster::pod::Key;
use crate::scheduler::drain::{DRAIN_STATUS, DrainState, DrainStatus};
use crate::scheduler::messages::{Evicted, Report};

/// Seconds to wait when a disruption budget keeps a pod and the API server does not say for how long.
const KEPT_S: u64 = 5;

impl Hands {
    /// Lets no new pods come to a node.
    pub(super) async fn cordon(&self, node: &str) {
        let body = json!({"spec": {"unschedulable": true}});
        if let Err(failure) = self.patch_node(node, &body).await {
            tracing::warn!(node, why = failure.why(), "it could not be closed to new pods");
        }
    }

    async fn patch_node(&self, node: &str, body: &Value) -> Result<(), Failure> {
        let api: Api<core::Node> = Api::all(self.inner.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Merge(body));
        self.repeat(|| self.ask("patch", api.patch(node, &params, &patch))).await.map(drop)
    }

    /// Tells a pod to leave, as far as disruption budgets let it.
    pub(super) async fn evict(&self, pod: &Key, uid: &Arc<str>) {
        let outcome = if self.leads() {
            self.ask_to_leave(pod, uid).await
        } else {
            Evicted::Failed { why: "we do not lead any more".to_owned() }
        };
        self.inner.metrics.evicted(match &outcome {
            Evicted::Goes => "goes",
            Evicted::Kept { .. } => "kept",
            Evicted::Failed { .. } => "failed",
        });
        self.report(Report::Evicted { uid: Arc::clone(uid), outcome }).await;
    }

    async fn ask_to_leave(&self, pod: &Key, uid: &Arc<str>) -> Evicted {
        let preconditions =
            meta::Preconditions { uid: Some(uid.to_string()), ..meta::Preconditions::default() };
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(pod.name.to_string()),
                namespace: Some(pod.namespace.to_string()),
                ..ObjectMeta::default()
            },
            delete_options: Some(meta::DeleteOptions {
                preconditions: Some(preconditions),
                ..meta::DeleteOptions::default()
            }),
        };
        let api = self.pods(&pod.namespace);
        let params = PostParams::default();
        let request = api.create_subresource::<_, Value>("eviction", &pod.name, &params, &eviction);
        match self.ask("evict", request).await {
            Ok(_) => Evicted::Goes,
            // It has gone by itself, or another has its name.
            Err(Failure::Gone(_) | Failure::Conflict(_)) => Evicted::Goes,
            Err(Failure::Later { after, why }) => {
                let after_s = after.map_or(KEPT_S, |it| it.as_secs()).clamp(1, 60);
                Evicted::Kept { after_s, why }
            }
            Err(Failure::Refused(why) | Failure::Unknown(why)) => Evicted::Failed { why },
        }
    }

    /// Writes on a node how far it is.
    pub(super) async fn drain_status(&self, status: DrainStatus) {
        let node = &status.node;
        let text = status.record.as_ref().map(|it| serde_json::to_string(it).unwrap_or_default());
        let body = json!({"metadata": {"annotations": {DRAIN_STATUS: text}}});
        if let Err(failure) = self.patch_node(node, &body).await {
            tracing::debug!(node = &**node, why = failure.why(), "its status could not be written");
        }
        if let Some(record) = status.record.filter(|_| status.is_event) {
            let (warning, reason) = match record.state {
                DrainState::Running => (false, "Draining"),
                DrainState::Blocked => (true, "DrainBlocked"),
                DrainState::Done => (false, "Drained"),
            };
            self.inner.teller.about_node(node, warning, reason, record.message);
        }
    }
}
