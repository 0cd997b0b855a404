//! Writes the devices of a pod to its claims before it is bound, and takes them back if it is not.
//!
//! The finalizer first, so that a claim with devices cannot vanish; then devices and pod in one update of
//! the status, guarded by the resource version. Kubernetes' resource claim controller removes ended and
//! deleted pods from claims, and deallocates claims that no pod uses any more; from here only what was
//! written for a binding that failed is taken back. Never changes devices that another pod uses.

use std::sync::Arc;

use k8s_openapi::api::resource::v1 as resource;
use kube::Api;
use kube::api::PostParams;

use super::binder::BindOutcome;
use super::{ApiExecutor, ApiFailure};
use crate::client::backoff_delay;
use crate::cluster::outcome::{ClaimPlan, ClaimRelease, Reservation};
use crate::cluster::pod::Key;
use crate::scheduler::messages::ActionResult;
use crate::watch::resource_version;

/// Keeps a claim with devices from being deleted; the same as kube-scheduler's, which Kubernetes'
/// controller removes.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Attempts at a write that conflicts with other writers.
const TRIES: u32 = 8;

/// How a step ended that is not done.
enum StepError {
    /// It cannot be done; the text says why.
    Failed(String),
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
            ApiFailure::NotFound(reason) | ApiFailure::Rejected(reason) => Self::Failed(reason),
        }
    }
}

impl ApiExecutor {
    /// Writes the devices of all claims of a pod.
    ///
    /// # Errors
    /// The outcome of the binding, if that is not possible. What was written is taken back when the outcome
    /// is reported.
    pub(super) async fn prepare_claims(
        &self,
        reservation: &Reservation,
    ) -> Result<(), BindOutcome> {
        for plan in &reservation.devices.claims {
            self.write_claim(reservation, plan).await?;
        }
        Ok(())
    }

    async fn write_claim(
        &self,
        reservation: &Reservation,
        plan: &ClaimPlan,
    ) -> Result<(), BindOutcome> {
        let mut last = String::new();
        for failures in 1..=TRIES {
            if !self.is_leader() {
                return Err(BindOutcome::NotLeader);
            }
            match self.try_write_claim(reservation, plan).await {
                Ok(()) => return Ok(()),
                Err(StepError::Failed(reason)) => {
                    last = reason;
                    break;
                }
                Err(StepError::Retry(reason)) => last = reason,
            }
            tokio::time::sleep(backoff_delay(failures)).await;
        }
        let claim = &plan.claim;
        Err(BindOutcome::Failed(format!("failed to reserve resource claim {claim}: {last}")))
    }

    async fn try_write_claim(
        &self,
        reservation: &Reservation,
        plan: &ClaimPlan,
    ) -> Result<(), StepError> {
        let (api, params) = (self.resource_claims(&plan.claim), PostParams::default());
        let mut claim = self.call("get", api.get(&plan.claim.name)).await?;
        let failed = |reason: &str| Err(StepError::Failed(reason.to_owned()));
        if claim.metadata.uid.as_deref() != Some(&*plan.uid) {
            return failed("it was replaced by another claim of the same name");
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return failed("it is being deleted");
        }
        let found = claim.status.as_ref().and_then(|it| it.allocation.as_ref());
        let is_allocated = match (found, &plan.allocation) {
            (Some(_), None) => true,
            (None, None) => return failed("it was deallocated meanwhile"),
            (Some(found), Some(allocation)) if same_devices(found, allocation) => true,
            (Some(_), Some(_)) => return failed("other devices were allocated to it meanwhile"),
            (None, Some(_)) => false,
        };
        if is_allocated && is_reserved_for(&claim, &reservation.uid) {
            return Ok(());
        }
        if !is_allocated && !has_finalizer(&claim) {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            finalizers.push(FINALIZER.to_owned());
            let update = api.replace(&plan.claim.name, &params, &claim);
            claim = self.call("update", update).await?;
        }
        let status = claim.status.get_or_insert_default();
        if !is_allocated {
            status.allocation = plan.allocation.as_deref().cloned();
        }
        status.reserved_for.get_or_insert_default().push(
            resource::ResourceClaimConsumerReference {
                api_group: None,
                resource: "pods".to_owned(),
                name: reservation.pod.name.to_string(),
                uid: reservation.uid.to_string(),
            },
        );
        let update = api.replace_status(&plan.claim.name, &params, &claim);
        self.call("update", update).await?;
        Ok(())
    }

    /// Takes back what was written for a pod that was not bound, and reports what its claims are.
    pub(super) async fn settle_claims(&self, reservation: &Reservation, outcome: &BindOutcome) {
        let is_bound = matches!(outcome, BindOutcome::Bound);
        let mut claims = Vec::with_capacity(reservation.devices.claims.len());
        for plan in &reservation.devices.claims {
            let version = if is_bound {
                self.claim_version(plan).await
            } else {
                self.retry_release(&plan.claim, &plan.uid, &reservation.uid).await
            };
            claims.push((plan.claim.clone(), version));
        }
        let uid = Arc::clone(&reservation.uid);
        self.send_result(ActionResult::ClaimsSettled { uid, claims }).await;
    }

    /// Deallocates claims that only one pod is reserved for, or none.
    pub(super) async fn release_claims(&self, uid: &Arc<str>, claims: Vec<ClaimRelease>) {
        let mut released = Vec::with_capacity(claims.len());
        for it in claims {
            let version = self.retry_deallocation(&it.claim, &it.uid, uid).await;
            released.push((it.claim, version));
        }
        self.send_result(ActionResult::ClaimsReleased { claims: released }).await;
    }

    /// The version of a claim that has its devices, which is not older than what was written.
    async fn claim_version(&self, plan: &ClaimPlan) -> Option<u64> {
        let api = self.resource_claims(&plan.claim);
        let found = self.retry(|| self.call("get", api.get(&plan.claim.name))).await.ok()?;
        resource_version(&found.metadata)
    }

    /// Removes a pod from a claim, and the devices if no other pod uses them. Does not end before that is
    /// certain, unless this replica does not lead any more. The version, if the claim still has devices.
    async fn retry_release(&self, key: &Key, claim: &str, pod: &str) -> Option<u64> {
        self.retry_write(key, || self.try_release(key, claim, pod, Unused::Deallocate)).await
    }

    /// The same for a claim that may have no pod at all. The version, if it was deallocated.
    async fn retry_deallocation(&self, key: &Key, claim: &str, pod: &str) -> Option<u64> {
        self.retry_write(key, || self.try_release(key, claim, pod, Unused::DeallocateAlways)).await
    }

    async fn retry_write<F, R>(&self, key: &Key, write: F) -> Option<u64>
    where
        F: Fn() -> R,
        R: Future<Output = Result<Option<u64>, StepError>>,
    {
        let mut failures = 0;
        while self.is_leader() {
            match write().await {
                Ok(version) => return version,
                Err(StepError::Failed(reason)) => {
                    tracing::warn!(claim = %key, reason, "failed to release resource claim");
                    return None;
                }
                Err(StepError::Retry(_)) => failures += 1,
            }
            tokio::time::sleep(backoff_delay(failures)).await;
        }
        None
    }

    async fn try_release(
        &self,
        key: &Key,
        uid: &str,
        pod: &str,
        unused: Unused,
    ) -> Result<Option<u64>, StepError> {
        let (api, params) = (self.resource_claims(key), PostParams::default());
        let mut claim = match self.call("get", api.get(&key.name)).await {
            Err(ApiFailure::NotFound(_)) => return Ok(None),
            found => found?,
        };
        if claim.metadata.uid.as_deref() != Some(uid) {
            return Ok(None);
        }
        if take_back(&mut claim, pod, unused) {
            let update = api.replace_status(&key.name, &params, &claim);
            claim = self.call("update", update).await?;
        }
        let is_certain = unused == Unused::DeallocateAlways;
        let version = resource_version(&claim.metadata);
        if claim.status.as_ref().is_some_and(|it| it.allocation.is_some()) {
            return Ok(version.filter(|_| !is_certain));
        }
        // A write of devices that was not answered fails from now on, because the version is another.
        if has_finalizer(&claim) {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|it| it != FINALIZER);
            match self.call("update", api.replace(&key.name, &params, &claim)).await {
                // It was the last finalizer of a claim that is being deleted.
                Ok(_) | Err(ApiFailure::NotFound(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(version.filter(|_| is_certain))
    }

    fn resource_claims(&self, key: &Key) -> Api<resource::ResourceClaim> {
        Api::namespaced(self.inner.client.clone(), &key.namespace)
    }
}

/// What happens to a claim that no pod uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unused {
    /// It is deallocated if the pod was the last that used it.
    Deallocate,
    /// It is deallocated.
    DeallocateAlways,
}

/// Removes a pod from a claim, and the devices if they are unused then; whether that changed anything.
fn take_back(claim: &mut resource::ResourceClaim, pod: &str, unused: Unused) -> bool {
    let was_reserved = is_reserved_for(claim, pod);
    let Some(status) = &mut claim.status else { return false };
    let consumers = status.reserved_for.get_or_insert_default();
    consumers.retain(|it| it.uid != *pod);
    let is_unused = consumers.is_empty() && status.allocation.is_some();
    let is_deallocated = is_unused && (was_reserved || unused == Unused::DeallocateAlways);
    if is_deallocated {
        status.allocation = None;
        status.devices = None;
    }
    was_reserved || is_deallocated
}

fn has_finalizer(claim: &resource::ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|it| it == FINALIZER)
}

fn is_reserved_for(claim: &resource::ResourceClaim, pod: &str) -> bool {
    let consumers = claim.status.as_ref().and_then(|it| it.reserved_for.as_ref());
    consumers.into_iter().flatten().any(|it| it.uid == *pod)
}

/// Whether two allocations are of the same devices for the same requests.
fn same_devices(a: &resource::AllocationResult, b: &resource::AllocationResult) -> bool {
    let devices = |it: &resource::AllocationResult| {
        let results = it.devices.as_ref().and_then(|it| it.results.as_ref());
        let ids = results
            .into_iter()
            .flatten()
            .map(|it| (it.request.clone(), it.driver.clone(), it.pool.clone(), it.device.clone()));
        ids.collect::<Vec<_>>()
    };
    devices(a) == devices(b)
}
