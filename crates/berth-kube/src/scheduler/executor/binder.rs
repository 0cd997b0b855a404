//! The binder: binds a pod to its reserved node.
//!
//! A binding request without an answer may have taken effect. Then the pod is read, and only what it
//! shows counts. The reservation is kept until the outcome is known.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{ApiExecutor, ApiFailure};
use crate::client::{backoff_delay, object_reference};
use crate::cluster::observed_pod::ObservedPod;
use crate::cluster::outcome::Reservation;
use crate::scheduler::messages::{ActionResult, Message, NodeListing};

/// How long an unanswered binding may still take effect: no API server works on a request for longer.
const IN_DOUBT_FOR: Duration = Duration::from_secs(60);
/// Conflicts with a pod that looks unbound, after which binding fails.
const CONFLICTS_MAX: u32 = 5;

/// The outcome of a binding.
#[derive(Debug)]
pub(super) enum BindOutcome {
    Bound,
    /// The pod changed: it is bound to another node, or must not be bound.
    Changed(Box<ObservedPod>),
    Deleted,
    NotLeader,
    /// The core does not want it any more.
    Recalled,
    Failed(String),
}

/// What reading a pod shows.
enum PodLookup {
    Bound,
    Changed(Box<ObservedPod>),
    Deleted,
    /// It still waits for a node.
    Unbound,
    Unknown,
}

impl ApiExecutor {
    /// Prepares the volumes and claims of a pod, binds it, and reports the outcome.
    pub(super) async fn bind_pod(&self, reservation: Reservation) {
        let began = Instant::now();
        let outcome = match self.prepare(&reservation).await {
            Ok(()) => self.bind(&reservation).await,
            Err(outcome) => outcome,
        };
        self.report_binding(&reservation, outcome, began).await;
    }

    /// Prepares the volumes and claims of a pod.
    ///
    /// # Errors
    /// The outcome of the binding, if they cannot be prepared.
    pub(super) async fn prepare(&self, reservation: &Reservation) -> Result<(), BindOutcome> {
        if !reservation.volumes.is_empty() {
            self.prepare_volumes(reservation).await?;
        }
        // Last, because volumes may take minutes.
        if reservation.devices.is_empty() { Ok(()) } else { self.prepare_claims(reservation).await }
    }

    /// Reports the outcome of a binding to the core, or records the event of a successful one.
    pub(super) async fn report_binding(
        &self,
        reservation: &Reservation,
        outcome: BindOutcome,
        began: Instant,
    ) {
        if !reservation.devices.is_empty() {
            self.settle_claims(reservation, &outcome).await;
        }
        let (pod, uid) = (&reservation.pod, Arc::clone(&reservation.uid));
        let result = match outcome {
            BindOutcome::Bound => {
                self.inner.metrics.record_bound(began.elapsed());
                self.inner.events.record_scheduled(pod, &uid, &reservation.node);
                return;
            }
            BindOutcome::Changed(current) => {
                self.inner.metrics.record_not_bound("changed");
                ActionResult::PodChanged { uid, pod: current }
            }
            BindOutcome::Deleted => {
                self.inner.metrics.record_not_bound("deleted");
                ActionResult::PodDeleted { uid }
            }
            BindOutcome::NotLeader => {
                self.inner.metrics.record_not_bound("not_leader");
                ActionResult::NotLeader { uid }
            }
            BindOutcome::Recalled => {
                self.inner.metrics.record_not_bound("recalled");
                ActionResult::Recalled { uid }
            }
            BindOutcome::Failed(reason) => {
                self.inner.metrics.record_not_bound("failed");
                tracing::warn!(%pod, node = &*reservation.node, reason, "failed to bind pod");
                ActionResult::BindFailed { uid, reason }
            }
        };
        self.send_result(result).await;
    }

    /// Binds a pod to its node, and returns when the outcome is certain.
    pub(super) async fn bind(&self, reservation: &Reservation) -> BindOutcome {
        // Until when an unanswered request may still take effect.
        let mut in_doubt_until: Option<Instant> = None;
        let (mut failures, mut conflicts) = (0, 0);
        loop {
            let in_doubt = in_doubt_until.is_some_and(|it| it > Instant::now());
            match self.try_binding(reservation, false).await {
                Some(Ok(())) => return BindOutcome::Bound,
                // The new leader schedules it, but a request in doubt keeps the reservation.
                None if !in_doubt && self.inner.recalled.take(&reservation.uid) => {
                    return BindOutcome::Recalled;
                }
                None if !in_doubt => return BindOutcome::NotLeader,
                None => {}
                Some(Err(ApiFailure::Forbidden(reason) | ApiFailure::Rejected(reason)))
                    if !in_doubt =>
                {
                    let node = &reservation.node;
                    return BindOutcome::Failed(format!("binding to {node} was refused: {reason}"));
                }
                Some(Err(ApiFailure::NotFound(reason) | ApiFailure::Conflict(reason)))
                    if !in_doubt && conflicts >= CONFLICTS_MAX =>
                {
                    let node = &reservation.node;
                    return BindOutcome::Failed(format!("binding to {node} was refused: {reason}"));
                }
                // The lookup below shows what the pod is now.
                Some(Err(ApiFailure::NotFound(_) | ApiFailure::Conflict(_))) => conflicts += 1,
                Some(Err(
                    ApiFailure::Forbidden(_)
                    | ApiFailure::Rejected(_)
                    | ApiFailure::RetryLater { .. },
                )) => {}
                Some(Err(ApiFailure::Unknown(reason))) => {
                    tracing::debug!(pod = %reservation.pod, reason, "binding request was not answered");
                    in_doubt_until = Some(Instant::now() + IN_DOUBT_FOR);
                }
            }
            failures += 1;
            match self.look_up_pod(reservation).await {
                PodLookup::Bound => return BindOutcome::Bound,
                PodLookup::Changed(pod) => return BindOutcome::Changed(pod),
                PodLookup::Deleted => return BindOutcome::Deleted,
                PodLookup::Unbound | PodLookup::Unknown => {}
            }
            tokio::time::sleep(backoff_delay(failures)).await;
        }
    }

    /// Sends one binding request, within the limit of concurrent ones. `None`: not the leader, or the core
    /// recalled it meanwhile. With `dry_run`, it only tells whether it would be accepted.
    pub(super) async fn try_binding(
        &self,
        reservation: &Reservation,
        dry_run: bool,
    ) -> Option<Result<(), ApiFailure>> {
        let _permit = self.inner.permits.acquire().await.ok()?;
        if reservation.is_contested && !dry_run && self.is_leader() {
            self.check_node(reservation).await;
        }
        if !self.is_leader() || !dry_run && self.inner.recalled.has(&reservation.uid) {
            return None;
        }
        Some(self.post_binding(reservation, dry_run).await)
    }

    /// Has the core check a binding against the pods that the API server has on the node now. The list is
    /// consistent: it shows every binding that was answered before. If it fails, the binding is sent
    /// as if there were no other scheduler.
    async fn check_node(&self, reservation: &Reservation) {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", reservation.node));
        let api: Api<ObservedPod> = Api::all(self.inner.client.clone());
        let pods = match self.call("list", api.list(&on_node)).await {
            Ok(list) => list.items,
            Err(failure) => {
                self.inner.metrics.record_node_check("failed");
                let reason = failure.reason();
                tracing::debug!(node = &*reservation.node, reason, "failed to list pods of node");
                return;
            }
        };
        let (checked, answer) = oneshot::channel();
        let listing = NodeListing { uid: Arc::clone(&reservation.uid), pods, checked };
        if self.inner.inbox.send(Message::NodeListed(listing)).await.is_ok() {
            // Without an answer the core has stopped, and this replica does not lead any more.
            let _ = answer.await;
        }
    }

    async fn post_binding(
        &self,
        reservation: &Reservation,
        dry_run: bool,
    ) -> Result<(), ApiFailure> {
        let name = reservation.pod.name.to_string();
        let binding = core::Binding {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(reservation.pod.namespace.to_string()),
                // A recreated pod of the same name must not be bound.
                uid: Some(reservation.uid.to_string()),
                ..ObjectMeta::default()
            },
            target: object_reference("Node", None, &reservation.node, None),
        };
        let api = self.pods(&reservation.pod.namespace);
        let params = PostParams { dry_run, ..PostParams::default() };
        let request = api.create_subresource::<_, Value>("binding", &name, &params, &binding);
        self.call("bind", request).await.map(drop)
    }

    /// Reads a pod after a binding that was not answered, or that was refused because of its state.
    async fn look_up_pod(&self, reservation: &Reservation) -> PodLookup {
        let api = self.pods(&reservation.pod.namespace);
        let observed = match self.call("get", api.get(&reservation.pod.name)).await {
            Ok(observed) => observed,
            Err(ApiFailure::NotFound(_)) => return PodLookup::Deleted,
            Err(_) => return PodLookup::Unknown,
        };
        let pod = &observed.pod;
        if pod.metadata.uid.as_deref() != Some(&*reservation.uid) {
            return PodLookup::Deleted;
        }
        let spec = pod.spec.as_ref();
        match spec.and_then(|it| it.node_name.as_deref()).filter(|it| !it.is_empty()) {
            Some(node) if node == &*reservation.node => return PodLookup::Bound,
            Some(_) => return PodLookup::Changed(Box::new(observed)),
            None => {}
        }
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let gated =
            spec.and_then(|it| it.scheduling_gates.as_ref()).is_some_and(|it| !it.is_empty());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        if pod.metadata.deletion_timestamp.is_some() || gated || ended {
            return PodLookup::Changed(Box::new(observed));
        }
        PodLookup::Unbound
    }
}
