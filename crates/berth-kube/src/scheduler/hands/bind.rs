//! A pod with a place is bound to it.
//!
//! A binding whose answer did not come may have been made: then the pod is looked at, and only what is
//! seen counts. Its place stays reserved until it is known what became of it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::{ObjectMeta, PostParams};
use serde_json::Value;
use tokio::time::Instant;

use super::{Failure, Hands, back_off};
use crate::cluster::outcome::Reservation;
use crate::scheduler::messages::Report;

/// A binding that was not answered may still be made for this long: no API server works on a request
/// for longer.
const MAY_STILL_HAPPEN: Duration = Duration::from_secs(60);
/// Conflicts with a pod that looks free, after which it is given up.
const CONFLICTS: u32 = 5;

/// What became of a binding.
#[derive(Debug)]
pub(super) enum Fate {
    Bound,
    /// The pod is not what it was: bound elsewhere, or not to be bound.
    Changed(Box<core::Pod>),
    Gone,
    NotLeading,
    Failed(String),
}

/// What a look at a pod shows.
enum Seen {
    Bound,
    Changed(Box<core::Pod>),
    Gone,
    /// It waits for a node as before.
    Free,
    Unknown,
}

impl Hands {
    /// Prepares its volumes, binds it, and tells the brain what became of it.
    pub(super) async fn bind_pod(&self, reservation: Reservation) {
        let began = Instant::now();
        if !reservation.volumes.is_empty()
            && let Err(fate) = self.prepare_volumes(&reservation).await
        {
            return self.bound(&reservation, fate, began).await;
        }
        let fate = self.bind(&reservation).await;
        self.bound(&reservation, fate, began).await;
    }

    /// Tells the brain and the pod what became of a binding.
    pub(super) async fn bound(&self, reservation: &Reservation, fate: Fate, began: Instant) {
        let (pod, uid) = (&reservation.pod, Arc::clone(&reservation.uid));
        let report = match fate {
            Fate::Bound => {
                self.inner.metrics.bound(began.elapsed());
                self.inner.teller.scheduled(pod, &uid, &reservation.node);
                return;
            }
            Fate::Changed(seen) => {
                self.inner.metrics.not_bound("changed");
                Report::Changed { uid, pod: seen }
            }
            Fate::Gone => {
                self.inner.metrics.not_bound("gone");
                Report::Gone { uid }
            }
            Fate::NotLeading => {
                self.inner.metrics.not_bound("not_leading");
                Report::NotLeading { uid }
            }
            Fate::Failed(why) => {
                self.inner.metrics.not_bound("failed");
                tracing::warn!(%pod, node = &*reservation.node, why, "a pod could not be bound");
                Report::Failed { uid, why }
            }
        };
        self.report(report).await;
    }

    /// Binds a pod to its node, until it is known to be bound or not to be.
    pub(super) async fn bind(&self, reservation: &Reservation) -> Fate {
        // The moment until which an unanswered binding may still be made.
        let mut open_until: Option<Instant> = None;
        let (mut failures, mut conflicts) = (0, 0);
        loop {
            let is_open = open_until.is_some_and(|it| it > Instant::now());
            match self.try_binding(reservation).await {
                Some(Ok(())) => return Fate::Bound,
                // Whoever leads now places it; but what may still happen keeps its place.
                None if !is_open => return Fate::NotLeading,
                None => {}
                Some(Err(Failure::Refused(why))) if !is_open => {
                    let node = &reservation.node;
                    return Fate::Failed(format!("binding to {node} was refused: {why}"));
                }
                Some(Err(Failure::Gone(why) | Failure::Conflict(why)))
                    if !is_open && conflicts >= CONFLICTS =>
                {
                    let node = &reservation.node;
                    return Fate::Failed(format!("binding to {node} was refused: {why}"));
                }
                // What the pod is now is seen below.
                Some(Err(Failure::Gone(_) | Failure::Conflict(_))) => conflicts += 1,
                Some(Err(Failure::Refused(_) | Failure::Later { .. })) => {}
                Some(Err(Failure::Unknown(why))) => {
                    tracing::debug!(pod = %reservation.pod, why, "a binding was not answered");
                    open_until = Some(Instant::now() + MAY_STILL_HAPPEN);
                }
            }
            failures += 1;
            match self.look(reservation).await {
                Seen::Bound => return Fate::Bound,
                Seen::Changed(pod) => return Fate::Changed(pod),
                Seen::Gone => return Fate::Gone,
                Seen::Free | Seen::Unknown => {}
            }
            tokio::time::sleep(back_off(failures)).await;
        }
    }

    /// Binds once, when it is its turn. Nothing: we do not lead.
    async fn try_binding(&self, reservation: &Reservation) -> Option<Result<(), Failure>> {
        let _permit = self.inner.permits.acquire().await.ok()?;
        if !self.leads() {
            return None;
        }
        Some(self.post_binding(reservation, false).await)
    }

    /// Asks once. With `dry_run`, whether it would be accepted.
    pub(super) async fn post_binding(
        &self,
        reservation: &Reservation,
        dry_run: bool,
    ) -> Result<(), Failure> {
        let name = reservation.pod.name.to_string();
        let binding = core::Binding {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(reservation.pod.namespace.to_string()),
                // Another pod of the same name is not to be bound.
                uid: Some(reservation.uid.to_string()),
                ..ObjectMeta::default()
            },
            target: core::ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(reservation.node.to_string()),
                ..core::ObjectReference::default()
            },
        };
        let api = self.pods(&reservation.pod.namespace);
        let params = PostParams { dry_run, ..PostParams::default() };
        let request = api.create_subresource::<_, Value>("binding", &name, &params, &binding);
        self.ask("bind", request).await.map(drop)
    }

    /// Looks at a pod whose binding was not answered, or was refused for what the pod is.
    async fn look(&self, reservation: &Reservation) -> Seen {
        let api = self.pods(&reservation.pod.namespace);
        let pod = match self.ask("get", api.get(&reservation.pod.name)).await {
            Ok(pod) => pod,
            Err(Failure::Gone(_)) => return Seen::Gone,
            Err(_) => return Seen::Unknown,
        };
        if pod.metadata.uid.as_deref() != Some(&*reservation.uid) {
            return Seen::Gone;
        }
        let spec = pod.spec.as_ref();
        match spec.and_then(|it| it.node_name.as_deref()).filter(|it| !it.is_empty()) {
            Some(node) if node == &*reservation.node => return Seen::Bound,
            Some(_) => return Seen::Changed(Box::new(pod)),
            None => {}
        }
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let gated =
            spec.and_then(|it| it.scheduling_gates.as_ref()).is_some_and(|it| !it.is_empty());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        if pod.metadata.deletion_timestamp.is_some() || gated || ended {
            return Seen::Changed(Box::new(pod));
        }
        Seen::Free
    }
}
