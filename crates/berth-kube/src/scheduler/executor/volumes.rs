//! Prepares the volumes of a pod before it is bound: assigns claims the chosen volumes, or tells the
//! provisioner the selected node, and waits until the claims are bound.
//!
//! Claims of volumes are bound by Kubernetes' own controllers. Every write is guarded by the resource version of
//! the object that the decision was based on.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::binder::BindOutcome;
use super::{ApiExecutor, ApiFailure};
use crate::client::{backoff_delay, object_reference};
use crate::cluster::outcome::Reservation;
use crate::cluster::pod::Key;

/// Tells a provisioner the node to provision a volume for; it removes the annotation if it cannot.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Marks a volume that was bound by a controller and not by a person: it may be unbound again.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Marks a claim whose binding is complete.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// How often claims are read while waiting for them.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Attempts at a write that conflicts with other writers.
const TRIES: u32 = 5;

/// Why a step of the preparation ended.
enum StepError {
    Failed(BindOutcome),
    /// A conflict or no answer: retry.
    Retry(String),
}

impl From<ApiFailure> for StepError {
    fn from(failure: ApiFailure) -> Self {
        match failure {
            ApiFailure::Conflict(reason)
            | ApiFailure::RetryLater { reason, .. }
            | ApiFailure::Forbidden(reason)
            | ApiFailure::Unknown(reason) => Self::Retry(reason),
            ApiFailure::NotFound(reason) | ApiFailure::Rejected(reason) => {
                Self::Failed(BindOutcome::Failed(format!("failed to prepare a volume: {reason}")))
            }
        }
    }
}

fn failed<T>(reason: String) -> Result<T, StepError> {
    Err(StepError::Failed(BindOutcome::Failed(reason)))
}

impl ApiExecutor {
    /// Prepares a pod's volumes.
    ///
    /// # Errors
    /// The outcome of the binding, if they cannot be prepared.
    pub(super) async fn prepare_volumes(
        &self,
        reservation: &Reservation,
    ) -> Result<(), BindOutcome> {
        let plan = &reservation.volumes;
        for (claim, volume) in &plan.bind {
            self.retry_step(|| self.assign_volume(claim, volume)).await?;
        }
        for claim in &plan.provision {
            self.retry_step(|| self.select_node(claim, &reservation.node)).await?;
        }
        let claims: Vec<(&Key, bool)> = plan
            .bind
            .iter()
            .map(|(claim, _)| (claim, false))
            .chain(plan.provision.iter().map(|claim| (claim, true)))
            .collect();
        self.wait_for_claims(&claims, reservation).await
    }

    /// Retries a step after conflicts and transient failures.
    async fn retry_step<F, R>(&self, step: F) -> Result<(), BindOutcome>
    where
        F: Fn() -> R,
        R: Future<Output = Result<(), StepError>>,
    {
        let mut last = String::new();
        for failures in 1..=TRIES {
            if !self.is_leader() {
                return Err(BindOutcome::NotLeader);
            }
            match step().await {
                Ok(()) => return Ok(()),
                Err(StepError::Failed(outcome)) => return Err(outcome),
                Err(StepError::Retry(reason)) => last = reason,
            }
            tokio::time::sleep(backoff_delay(failures)).await;
        }
        Err(BindOutcome::Failed(format!("failed to prepare a volume: {last}")))
    }

    async fn get_claim(&self, key: &Key) -> Result<core::PersistentVolumeClaim, ApiFailure> {
        let api: Api<core::PersistentVolumeClaim> =
            Api::namespaced(self.inner.client.clone(), &key.namespace);
        self.call("get", api.get(&key.name)).await
    }

    /// Sets the claim reference of a free volume.
    async fn assign_volume(&self, key: &Key, name: &str) -> Result<(), StepError> {
        let claim = self.get_claim(key).await?;
        if claim
            .spec
            .as_ref()
            .and_then(|it| it.volume_name.as_deref())
            .is_some_and(|it| !it.is_empty())
        {
            // It was bound meanwhile; `check_bound_volume` tells whether to the chosen volume.
            return Ok(());
        }
        let api: Api<core::PersistentVolume> = Api::all(self.inner.client.clone());
        let mut volume = self.call("get", api.get(name)).await?;
        let spec = volume.spec.get_or_insert_default();
        if let Some(other) = &spec.claim_ref {
            let same = other.namespace.as_deref() == Some(&*key.namespace)
                && other.name.as_deref() == Some(&*key.name);
            let is_ours = other.uid.is_none() || other.uid == claim.metadata.uid;
            if !same || !is_ours {
                let whose = format!(
                    "{}/{}",
                    other.namespace.as_deref().unwrap_or_default(),
                    other.name.as_deref().unwrap_or_default()
                );
                return failed(format!("volume {name} was taken by claim {whose} meanwhile"));
            }
            if other.uid.is_some() {
                return Ok(());
            }
        } else {
            let annotations = volume.metadata.annotations.get_or_insert_default();
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
        let (kind, uid) = ("PersistentVolumeClaim", claim.metadata.uid.as_deref());
        spec.claim_ref = Some(core::ObjectReference {
            resource_version: claim.metadata.resource_version,
            ..object_reference(kind, Some(&key.namespace), &key.name, uid)
        });
        // The resource version guards against overwriting a concurrent change.
        self.call("update", api.replace(name, &PostParams::default(), &volume)).await?;
        Ok(())
    }

    /// Sets the selected node of a claim whose volume is to be provisioned.
    async fn select_node(&self, key: &Key, node: &Arc<str>) -> Result<(), StepError> {
        let mut claim = self.get_claim(key).await?;
        if is_bound(&claim) {
            return Ok(());
        }
        let annotations = claim.metadata.annotations.get_or_insert_default();
        if annotations.get(SELECTED_NODE).map(String::as_str) == Some(&**node) {
            return Ok(());
        }
        annotations.insert(SELECTED_NODE.to_owned(), node.to_string());
        let api: Api<core::PersistentVolumeClaim> =
            Api::namespaced(self.inner.client.clone(), &key.namespace);
        self.call("update", api.replace(&key.name, &PostParams::default(), &claim)).await?;
        Ok(())
    }

    async fn wait_for_claims(
        &self,
        claims: &[(&Key, bool)],
        reservation: &Reservation,
    ) -> Result<(), BindOutcome> {
        let end = Instant::now() + self.inner.limits.volumes;
        let mut pending: Vec<(&Key, bool)> = claims.to_vec();
        loop {
            let mut unbound = Vec::new();
            for (key, provisioned) in pending {
                match self.get_claim(key).await {
                    Ok(claim) if is_bound(&claim) => {
                        self.check_bound_volume(key, &claim, reservation)?;
                    }
                    Ok(claim)
                        if provisioned && selected_node(&claim) != Some(&*reservation.node) =>
                    {
                        return Err(BindOutcome::Failed(format!(
                            "failed to provision a volume for claim {key} on node {}: the provisioner \
                             gave up",
                            reservation.node
                        )));
                    }
                    Ok(_) => unbound.push((key, provisioned)),
                    Err(failure) if failure.is_transient() => unbound.push((key, provisioned)),
                    Err(failure) => {
                        let reason = failure.reason();
                        return Err(BindOutcome::Failed(format!(
                            "failed to read claim {key}: {reason}"
                        )));
                    }
                }
            }
            pending = unbound;
            let Some((first, _)) = pending.first() else { return Ok(()) };
            if !self.is_leader() {
                return Err(BindOutcome::NotLeader);
            }
            if Instant::now() >= end {
                let waited = self.inner.limits.volumes.as_secs();
                return Err(BindOutcome::Failed(format!(
                    "claim {first} was not bound within {waited} s"
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Rejects a claim that was bound to another volume than the chosen one: it may not be usable here.
    fn check_bound_volume(
        &self,
        key: &Key,
        claim: &core::PersistentVolumeClaim,
        reservation: &Reservation,
    ) -> Result<(), BindOutcome> {
        let chosen = reservation.volumes.bind.iter().find(|(claim, _)| claim == key);
        let bound = claim.spec.as_ref().and_then(|it| it.volume_name.as_deref());
        match (chosen, bound) {
            (Some((_, chosen)), Some(bound)) if chosen != bound => Err(BindOutcome::Failed(
                format!("claim {key} was bound to volume {bound} instead of {chosen}"),
            )),
            _ => Ok(()),
        }
    }
}

fn selected_node(claim: &core::PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}

fn is_bound(claim: &core::PersistentVolumeClaim) -> bool {
    let named = claim.spec.as_ref().and_then(|it| it.volume_name.as_deref());
    let phase = claim.status.as_ref().and_then(|it| it.phase.as_deref());
    let completed =
        claim.metadata.annotations.as_ref().is_some_and(|it| it.contains_key(BIND_COMPLETED));
    named.is_some_and(|it| !it.is_empty()) && (completed || phase == Some("Bound"))
}
