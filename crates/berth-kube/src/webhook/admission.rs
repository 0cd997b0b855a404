//! One admission: the pod's workload, its settings, its slot, and the patch.
//!
//! Answers before the deadline; what cannot be decided is answered as configured, never by a guess. A
//! dry run takes the same path and stores nothing.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::CapacityType;
use berth_engine::workload::{CapacityRule, slot_class};
use berth_ledger::ClaimState;
use kube::api::ObjectMeta;
use serde_json::Value;
use tokio::sync::watch;

use super::affinity::{AllowedCapacity, allowed_capacity};
use super::annotations::{self, InvalidSetting, ObjectTags, WorkloadSettings};
use super::events::WorkloadEvents;
use super::metrics::{AdmissionResult, Metrics};
use super::owners::{Owner, ReadMode, SlotOrdering};
use super::patch::{PodSlot, build_patch};
use super::pod_cache::{derive_id, read_token};
use super::review::{AdmissionRequest, AdmissionResponse, truncate_warning};
use super::settings::{NodeLabel, OnError, OnInvalid};
use super::slot_reconciler::{ReconcileError, SlotReconciler, ordinal};
use super::slot_store::{SlotClaim, SlotRequest, SlotResult, SlotStoreError};

/// Handles admission requests.
pub(super) struct AdmissionHandler {
    pub(super) reconciler: Arc<SlotReconciler>,
    pub(super) events: Arc<WorkloadEvents>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) label: NodeLabel,
    pub(super) on_invalid: OnInvalid,
    pub(super) on_error: OnError,
    pub(super) deadline: Duration,
    pub(super) excluded: Vec<String>,
    /// Whether the slots are reconciled with the existing pods.
    pub(super) ready: watch::Receiver<bool>,
}

/// Why no slot was assigned.
#[derive(Debug, thiserror::Error)]
enum AdmissionError {
    #[error("{0}")]
    Slots(#[from] SlotStoreError),
    #[error("{0}")]
    Reconcile(#[from] ReconcileError),
    #[error("API request failed")]
    Api(#[from] kube::Error),
    #[error("the webhook is still starting")]
    Starting,
}

/// A pod that is being created.
struct IncomingPod<'a> {
    uid: &'a str,
    namespace: &'a str,
    pod: &'a Value,
    metadata: ObjectMeta,
    dry_run: bool,
}

impl AdmissionHandler {
    /// Handles a request within its deadline.
    pub(super) async fn handle(
        &self,
        request: &AdmissionRequest,
        request_timeout: Option<Duration>,
    ) -> (AdmissionResponse, AdmissionResult) {
        if !request.creates_a_pod() {
            return (AdmissionResponse::unchanged(), AdmissionResult::Untouched);
        }
        let deadline = request_timeout.map_or(self.deadline, |it| self.deadline.min(it * 4 / 5));
        let why = match tokio::time::timeout(deadline, self.admit(request)).await {
            Ok(Ok(answered)) => return answered,
            Ok(Err(failed)) => failed.to_string(),
            Err(_) => format!("no answer within {deadline:?}"),
        };
        tracing::warn!(why, "failed to assign a slot");
        match self.on_error {
            OnError::Ignore => {
                let warning = format!("berth: no slot was assigned, the pod is unchanged: {why}");
                (AdmissionResponse::with_warning(&warning), AdmissionResult::Failed)
            }
            OnError::Refuse => {
                let message = format!("berth: no slot can be assigned now, retry: {why}");
                let answer = AdmissionResponse::rejected(503, "ServiceUnavailable", message);
                (answer, AdmissionResult::Refused)
            }
        }
    }

    async fn admit(
        &self,
        request: &AdmissionRequest,
    ) -> Result<(AdmissionResponse, AdmissionResult), AdmissionError> {
        let untouched = Ok((AdmissionResponse::unchanged(), AdmissionResult::Untouched));
        let Some(incoming) = IncomingPod::read(request) else { return untouched };
        if self.excluded.iter().any(|it| it == incoming.namespace) {
            return untouched;
        }
        if self.reconciler.owners.settings().opts_out(ObjectTags::of(&incoming.metadata)) {
            return untouched;
        }
        let owner = self
            .reconciler
            .owners
            .resolve(incoming.namespace, &incoming.metadata, ReadMode::Fresh)
            .await?;
        let Some(owner) = owner else { return untouched };
        let (rule, problem) = match &owner.settings {
            WorkloadSettings::Off => return untouched,
            WorkloadSettings::UnclearSwitch(problem) => {
                self.report_invalid_setting(&incoming, &owner, problem);
                let answer = AdmissionResponse::with_warning(&format!("berth: {problem}"));
                return Ok((answer, AdmissionResult::Untouched));
            }
            WorkloadSettings::InvalidCount(problem) => {
                return Ok(self.respond_to_invalid_count(&incoming, &owner, problem));
            }
            WorkloadSettings::On { rule, problem } => (*rule, problem.clone()),
        };
        if let Some(why) = incoming.skip_reason() {
            let answer = AdmissionResponse::with_warning(&format!("berth: {why}"));
            return Ok((answer, AdmissionResult::Untouched));
        }
        self.wait_until_started().await?;
        let (claim, pinned) = match self.find_earlier_claim(&incoming, &owner).await? {
            Some(claim) => (claim, incoming.annotation(annotations::PINNED) == Some("true")),
            None => {
                let pinned = match allowed_capacity(&incoming.pod["spec"], &self.label) {
                    AllowedCapacity::Both => None,
                    AllowedCapacity::Only(class) => Some(class),
                    AllowedCapacity::Neither => {
                        let key = &self.label.key;
                        let what = format!("berth: the pod requires a {key} that is neither type");
                        return Ok((
                            AdmissionResponse::with_warning(&what),
                            AdmissionResult::Untouched,
                        ));
                    }
                };
                (self.assign_slot(&incoming, &owner, rule, pinned).await?, pinned.is_some())
            }
        };
        if let Some(problem) = &problem {
            self.report_invalid_setting(&incoming, &owner, problem);
        }
        let mut answer = self.build_response(&incoming, &owner, &claim, pinned);
        answer.warnings.extend(problem.map(|it| truncate_warning(&format!("berth: {it}"))));
        let result = match (incoming.dry_run, claim.class) {
            (true, _) => AdmissionResult::DryRun,
            (false, CapacityType::OnDemand) => AdmissionResult::OnDemand,
            (false, CapacityType::Spot) => AdmissionResult::Spot,
        };
        Ok((answer, result))
    }

    /// A controller reads the warnings of an admission, not a person: so record an event as well.
    fn report_invalid_setting(
        &self,
        incoming: &IncomingPod<'_>,
        owner: &Owner,
        problem: &InvalidSetting,
    ) {
        if !incoming.dry_run {
            self.events.record_warning(
                &owner.object,
                "InvalidSetting",
                "Admitting",
                problem.to_string(),
            );
        }
    }

    fn respond_to_invalid_count(
        &self,
        incoming: &IncomingPod<'_>,
        owner: &Owner,
        problem: &InvalidSetting,
    ) -> (AdmissionResponse, AdmissionResult) {
        if !incoming.dry_run {
            let note = format!("{problem}; its pods are not split between on-demand and spot");
            self.events.record_warning(&owner.object, "InvalidMaxOnDemandCount", "Admitting", note);
        }
        match self.on_invalid {
            OnInvalid::Admit => (
                AdmissionResponse::with_warning(&format!("berth: {problem}")),
                AdmissionResult::Invalid,
            ),
            OnInvalid::Refuse => {
                let message = format!("berth: {problem}");
                (AdmissionResponse::rejected(422, "Invalid", message), AdmissionResult::Invalid)
            }
        }
    }

    fn build_response(
        &self,
        incoming: &IncomingPod<'_>,
        owner: &Owner,
        claim: &SlotClaim,
        pinned: bool,
    ) -> AdmissionResponse {
        let (token, slot, class) = (claim.id.0.to_string(), claim.slot, claim.class);
        let pod_slot = PodSlot { token, slot, class, pinned, workload: &owner.key.1 };
        let mut answer = AdmissionResponse {
            patch: build_patch(incoming.pod, &pod_slot, &self.label),
            ..AdmissionResponse::default()
        };
        answer.audit.insert("workload", owner.key.1.to_string());
        answer.audit.insert("slot", slot.to_string());
        answer.audit.insert("capacity", class.name().to_owned());
        answer
    }

    /// The slot that an earlier call for the same pod returned, which it keeps. A token that is unknown,
    /// of another workload, or of a live pod, was copied.
    async fn find_earlier_claim(
        &self,
        incoming: &IncomingPod<'_>,
        owner: &Owner,
    ) -> Result<Option<SlotClaim>, AdmissionError> {
        let Some(token) = incoming.annotation(annotations::TOKEN).and_then(read_token) else {
            return Ok(None);
        };
        self.reconciler.slots.wait_for_writes().await;
        let claim = self.reconciler.slots.find_claim(token).await?;
        let same = |it: &SlotClaim| it.key == owner.key && it.state == ClaimState::Held;
        if self.reconciler.pods.by_id(token).is_some() {
            return Ok(None);
        }
        // A dry run is not stored, nor is an ordinal whose slot another pod still has: then the answer
        // is only in the pod. Our own affinity must not be taken for the user's.
        let unwritten = incoming.dry_run || matches!(owner.ordering, SlotOrdering::Ordinal { .. });
        let annotated = || incoming.annotated_claim(owner, token).filter(|_| unwritten);
        Ok(claim.filter(same).or_else(annotated))
    }

    /// Assigns a slot to a pod that is being created.
    async fn assign_slot(
        &self,
        incoming: &IncomingPod<'_>,
        owner: &Owner,
        rule: CapacityRule,
        pinned: Option<CapacityType>,
    ) -> Result<SlotClaim, AdmissionError> {
        if let SlotOrdering::Ordinal { start } = owner.ordering {
            return self.assign_ordinal(incoming, owner, rule, pinned, start).await;
        }
        if incoming.dry_run {
            let (slot, class) =
                self.reconciler.slots.preview_slot(&owner.key, &rule, pinned, None).await;
            return Ok(incoming.planned_claim(owner, slot, class));
        }
        // A retry of a call that was answered with the second attempt.
        if let Some(claim) = self.reconciler.slots.cached_claim(incoming.new_id(2)) {
            return Ok(claim);
        }
        let version = owner.version.as_deref();
        self.reconciler.slots.put_rule(&owner.key, rule, version).await?;
        let claim = self.assign_lowest(incoming, owner, pinned, 1).await?;
        let expected = owner.replicas.is_none_or(|replicas| claim.slot < replicas);
        if expected {
            return Ok(claim);
        }
        // More slots are taken than there should be pods. Most likely a pod was lost, and its
        // controller knew before we did: list the pods, and use the free slot.
        self.metrics.relists.inc();
        if let Err(error) = self.reconciler.release_missing_members(incoming.namespace, owner).await
        {
            tracing::debug!(%error, "failed to list pods");
        }
        let slots = &self.reconciler.slots;
        let (free, _) = slots.preview_slot(&owner.key, &rule, pinned, Some(claim.id)).await;
        if free >= claim.slot {
            return Ok(claim);
        }
        self.reconciler.slots.release(&claim, "replaced").await?;
        self.assign_lowest(incoming, owner, pinned, 2).await
    }

    async fn assign_lowest(
        &self,
        incoming: &IncomingPod<'_>,
        owner: &Owner,
        class: Option<CapacityType>,
        attempt: u8,
    ) -> Result<SlotClaim, AdmissionError> {
        let request = SlotRequest {
            key: owner.key.clone(),
            id: incoming.new_id(attempt),
            request_id: format!("review/{}/{attempt}", incoming.uid),
            class,
            slot: None,
        };
        match self.reconciler.slots.reserve(&request).await? {
            SlotResult::Assigned(claim) => Ok(claim),
            SlotResult::Taken(_) => {
                Err(SlotStoreError::Refused("the slot is taken".to_owned()).into())
            }
        }
    }

    /// A pod of a StatefulSet has the slot of its ordinal, whichever pod holds it.
    async fn assign_ordinal(
        &self,
        incoming: &IncomingPod<'_>,
        owner: &Owner,
        rule: CapacityRule,
        pinned: Option<CapacityType>,
        start: i64,
    ) -> Result<SlotClaim, AdmissionError> {
        let name = incoming.metadata.name.as_deref().unwrap_or_default();
        let Some(number) = ordinal(name, incoming.metadata.labels.as_ref()) else {
            let why = format!("pod {name:?} of a StatefulSet has no ordinal");
            return Err(SlotStoreError::Refused(why).into());
        };
        let slot = number.saturating_sub(start).max(0);
        let narrow = u32::try_from(slot).unwrap_or(u32::MAX);
        let class = pinned.or_else(|| slot_class(&rule, None, narrow)).unwrap_or_default();
        let claim = incoming.planned_claim(owner, slot, class);
        if incoming.dry_run {
            return Ok(claim);
        }
        self.reconciler.slots.put_rule(&owner.key, rule, owner.version.as_deref()).await?;
        let request = SlotRequest {
            key: owner.key.clone(),
            id: claim.id,
            request_id: format!("review/{}/1", incoming.uid),
            class: Some(class),
            slot: Some(slot),
        };
        match self.reconciler.slots.reserve(&request).await? {
            SlotResult::Assigned(claim) => Ok(claim),
            // The previous pod is terminating, or this creation will fail. Which one shows when the
            // pod does; the capacity type is the same.
            SlotResult::Taken(_) => Ok(claim),
        }
    }

    /// Waits until the slots of existing pods are known.
    async fn wait_until_started(&self) -> Result<(), AdmissionError> {
        let mut ready = self.ready.clone();
        ready.wait_for(|ready| *ready).await.map(drop).map_err(|_| AdmissionError::Starting)
    }
}

impl<'a> IncomingPod<'a> {
    fn read(request: &'a AdmissionRequest) -> Option<Self> {
        let pod = &request.object;
        // Invalid metadata is left to the API server, which reports what is wrong.
        let metadata: ObjectMeta = serde_json::from_value(pod["metadata"].clone()).ok()?;
        let namespace = request.namespace.as_deref().filter(|it| !it.is_empty());
        let namespace = namespace.or_else(|| pod["metadata"]["namespace"].as_str())?;
        let dry_run = request.is_dry_run();
        Some(Self { uid: &request.uid, namespace, pod, metadata, dry_run })
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The pod's id in the store: the same for a retry of the call, and another for the second attempt
    /// within a call, so that they cannot be confused.
    fn new_id(&self, attempt: u8) -> berth_engine::InstanceId {
        derive_id("review", &format!("{}/{attempt}", self.uid))
    }

    fn planned_claim(&self, owner: &Owner, slot: i64, class: CapacityType) -> SlotClaim {
        let (id, key) = (self.new_id(1), owner.key.clone());
        SlotClaim { id, key, slot, class, state: ClaimState::Held, fence: 0 }
    }

    /// The slot that the pod's own annotations name, if they are complete.
    fn annotated_claim(&self, owner: &Owner, id: berth_engine::InstanceId) -> Option<SlotClaim> {
        let slot = self.annotation(annotations::SLOT)?.parse().ok()?;
        let class = self.metadata.labels.as_ref()?.get(annotations::CAPACITY)?;
        let kinds = [CapacityType::OnDemand, CapacityType::Spot];
        let class = kinds.into_iter().find(|it| it.name() == class)?;
        let ours = self.annotation(annotations::WORKLOAD)? == &*owner.key.1;
        ours.then(|| SlotClaim { id, ..self.planned_claim(owner, slot, class) })
    }

    /// Why no capacity type may be chosen for it.
    fn skip_reason(&self) -> Option<&'static str> {
        // It bypasses the scheduler, and the kubelet would reject a node that does not match.
        let node = self.pod["spec"]["nodeName"].as_str().is_some_and(|it| !it.is_empty());
        node.then_some("spec.nodeName is set, so the pod is unchanged")
    }
}
