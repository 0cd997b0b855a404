//! Replaces misplaced pods by eviction, one at a time per workload, so that budgets are respected and
//! the replacement is ready before the next pod goes.
//!
//! The engine's reconciler for Berth's own workloads decides which pod is misplaced. Only the leader
//! does this, and a second one would do no harm: an eviction names the pod's uid.

use std::sync::Arc;

use berth_control::workload::WorkloadKey;
use berth_engine::workload::{
    CapacityRule, Cause, DesiredState, HostState, Member, MemberState, OnChange, Rolling, Step,
    WorkloadPlan, deletion_cost, reconcile, slot_class,
};
use berth_engine::{CapacityType, InstanceId};
use berth_ledger::ClaimState;
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::annotations::{self, WorkloadSettings};
use super::events::WorkloadEvents;
use super::metrics::Metrics;
use super::missing_nodes::report_missing_nodes;
use super::owners::{Owner, ReadMode, controller};
use super::pod_cache::LivePod;
use super::settings::RebuildOptions;
use super::slot_reconciler::SlotReconciler;
use super::slot_store::SlotClaim;
use crate::client;

/// Passes between two cleanups of deleted workloads and orphaned slots.
const CLEANUP_EVERY: u64 = 30;

/// Cleanups after which a workload without members is forgotten although it may still exist. Nothing is lost:
/// its rule is stored again with its next pod.
const IDLE_CLEANUPS: u32 = 10;

/// The deletion cost of a misplaced pod: it is deleted before all others of its workload.
const FIRST_TO_DELETE: &str = "-1";

/// The progress of a workload whose pods are replaced.
#[derive(Default)]
struct Progress {
    /// No eviction before this time.
    wait_until: Option<Instant>,
    /// Consecutive refused evictions.
    refused: u32,
    /// The pods at the time of the last eviction.
    before: Option<HashSet<String>>,
    /// Whether its new pods bypass the webhook, which makes evictions useless until one does not.
    bypassed: bool,
}

/// Replaces misplaced pods.
pub(super) struct Rebuilder {
    pub(super) client: Client,
    pub(super) reconciler: Arc<SlotReconciler>,
    pub(super) events: Arc<WorkloadEvents>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) settings: RebuildOptions,
    pub(super) wake: Arc<Notify>,
    progress: HashMap<WorkloadKey, Progress>,
    /// Slots without a pod at the last check, by fence.
    empty: HashMap<InstanceId, i64>,
    /// Workloads without members, and for how many cleanups they had none.
    idle: HashMap<WorkloadKey, u32>,
}

/// A workload whose members all exist and that is not rolling out.
struct SettledWorkload {
    owner: Owner,
    rule: CapacityRule,
    replicas: u32,
    members: Vec<(SlotClaim, Arc<LivePod>)>,
}

impl SettledWorkload {
    /// Whether a member is on another capacity type than its slot. One that chose its type itself never
    /// is: its replacement would choose the same.
    fn is_misplaced(&self, claim: &SlotClaim, pod: &LivePod) -> bool {
        !pod.is_pinned() && self.class(claim.slot).is_some_and(|class| class != claim.class)
    }

    fn class(&self, slot: i64) -> Option<CapacityType> {
        slot_class(&self.rule, None, u32::try_from(slot).unwrap_or(u32::MAX))
    }

    /// What the reconciler of workloads proposes.
    fn plan(&self) -> WorkloadPlan {
        let member = |(claim, pod): &(SlotClaim, Arc<LivePod>)| {
            let misplaced = self.is_misplaced(claim, pod);
            let own = || self.class(claim.slot).unwrap_or(claim.class);
            Member {
                id: claim.id,
                revision: 1,
                slot: u32::try_from(claim.slot).unwrap_or(u32::MAX),
                fence: claim.fence,
                class: if misplaced { claim.class } else { own() },
                state: if pod.ready { MemberState::Ready } else { MemberState::Starting },
                host: HostState::Fine,
            }
        };
        let members: Vec<Member> = self.members.iter().map(member).collect();
        let desired = DesiredState {
            replicas: self.replicas,
            revision: 1,
            capacity: Some(&self.rule),
            pinned: None,
            rolling: &Rolling::default(),
            paused: false,
            single_writer: false,
            failing: false,
        };
        reconcile(&desired, &members)
    }

    /// The pod to evict now, and the capacity type of its replacement.
    fn next_victim(&self) -> Option<(&SlotClaim, &Arc<LivePod>, CapacityType)> {
        let steps = self.plan().steps;
        let (in_place_of, class) = steps.iter().find_map(|step| match step {
            Step::Create { cause: Cause::Rebuild, in_place_of, class, .. } => {
                Some((*in_place_of, *class))
            }
            Step::Create { .. } | Step::Release { .. } => None,
        })?;
        let member = |id: InstanceId| self.members.iter().find(|(claim, _)| claim.id == id);
        let found = match in_place_of {
            Some(id) => member(id),
            // A low slot is free while all members exist: the spot pod in the highest slot gives way.
            None => self
                .members
                .iter()
                .filter(|(claim, pod)| claim.class == CapacityType::Spot && !pod.is_pinned())
                .max_by_key(|(claim, _)| claim.slot),
        };
        let (claim, pod) = found?;
        // A ready pod is evicted only while all others are ready. One that is not ready is not missed.
        let others = self.members.iter().filter(|(it, _)| it.id != claim.id);
        let others_ready =
            others.filter(|(it, pod)| !self.is_misplaced(it, pod)).all(|(_, pod)| pod.ready);
        (others_ready || !pod.ready).then_some((claim, pod, class.unwrap_or_default()))
    }
}

impl Rebuilder {
    pub(super) fn new(
        client: Client,
        reconciler: Arc<SlotReconciler>,
        events: Arc<WorkloadEvents>,
        metrics: Arc<Metrics>,
        settings: RebuildOptions,
        wake: Arc<Notify>,
    ) -> Self {
        let (progress, empty, idle) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { client, reconciler, events, metrics, settings, wake, progress, empty, idle }
    }

    /// Checks workloads while this replica leads, until stopped.
    pub(super) async fn run(mut self, mut leader: watch::Receiver<bool>, stop: CancellationToken) {
        let mut passes = 0_u64;
        loop {
            let is_leader = *leader.borrow_and_update();
            self.metrics.leader.set(i64::from(is_leader));
            self.update_slot_metrics();
            report_missing_nodes(&self.reconciler, &self.events, &self.metrics, is_leader).await;
            if is_leader {
                self.check_workloads().await;
                if passes.is_multiple_of(CLEANUP_EVERY) {
                    self.remove_deleted_workloads().await;
                    self.release_orphaned_slots().await;
                }
                passes += 1;
            } else {
                self.progress.clear();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = leader.changed() => if changed.is_err() { return },
                () = self.wake.notified() => {}
                () = tokio::time::sleep(self.settings.every) => {}
            }
        }
    }

    fn update_slot_metrics(&self) {
        let (mut on_demand, mut spot) = (0, 0);
        for claim in self.reconciler.slots.all_claims() {
            match claim.class {
                CapacityType::OnDemand => on_demand += 1,
                CapacityType::Spot => spot += 1,
            }
        }
        self.metrics.set_slots(on_demand, spot);
    }

    async fn check_workloads(&mut self) {
        let workloads = self.reconciler.slots.workloads();
        let known: HashSet<WorkloadKey> = workloads.iter().map(|(key, _)| key.clone()).collect();
        self.progress.retain(|key, _| known.contains(key));
        let mut misplaced = 0;
        for (key, _) in workloads {
            let Some(workload) = self.settled_workload(&key).await else {
                self.set_old_revision_costs(&key).await;
                continue;
            };
            let misplaced_members =
                workload.members.iter().filter(|(it, pod)| workload.is_misplaced(it, pod));
            misplaced += i64::try_from(misplaced_members.count()).unwrap_or(0);
            self.set_deletion_costs(&workload).await;
            if workload.rule.on_change == OnChange::Rebuild {
                self.replace_one(&key, &workload).await;
            }
        }
        self.metrics.misplaced.set(misplaced);
    }

    /// A workload with its current rule, if all its members exist and none is being created or deleted.
    async fn settled_workload(&self, key: &WorkloadKey) -> Option<SettledWorkload> {
        let claim = self.reconciler.slots.claims_of(key);
        let mut members = Vec::with_capacity(claim.len());
        for claim in claim {
            let pod = self.reconciler.pods.by_id(claim.id);
            match pod.filter(|_| claim.state == ClaimState::Active) {
                Some(pod) => members.push((claim, pod)),
                None => return None,
            }
        }
        let (_, first) = members.first()?;
        let resolved = self
            .reconciler
            .owners
            .resolve(&first.namespace, &first.metadata, ReadMode::Watched)
            .await;
        let owner = resolved.ok().flatten().filter(|owner| owner.key == *key)?;
        let WorkloadSettings::On { rule, .. } = owner.settings else { return None };
        let version = owner.version.as_deref();
        let rule = self.reconciler.slots.put_rule(key, rule, version).await.ok()?;
        let live = self.reconciler.pods.of_controller(&owner.controller_uid);
        // Pods on nodes without a capacity type have no slot, and are no reason to wait.
        let neither = live.iter().filter(|pod| self.reconciler.has_no_capacity_type(pod)).count();
        let replicas = owner.replicas.and_then(|it| usize::try_from(it).ok());
        let wanted = replicas.map_or(members.len(), |it| it.saturating_sub(neither));
        let all = live.len() - neither == members.len() && wanted == members.len();
        if !all || self.is_rolling_out(first) {
            return None;
        }
        let replicas = u32::try_from(wanted).ok()?;
        Some(SettledWorkload { owner, rule, replicas, members })
    }

    /// The ReplicaSet of a pod, and the other ones of the same workload.
    fn siblings(&self, pod: &LivePod) -> Option<(Arc<ReplicaSet>, Vec<Arc<ReplicaSet>>)> {
        let own = controller(pod.metadata.owner_references.as_deref())?;
        let sets = &self.reconciler.owners.stores().replica_sets;
        let set = sets.get(&ObjectRef::new(&own.name).within(&pod.namespace))?;
        let parent = controller(set.metadata.owner_references.as_deref())?;
        let others = sets.state_filter(|it| {
            it.metadata.uid != set.metadata.uid
                && controller(it.metadata.owner_references.as_deref())
                    .is_some_and(|other| other.uid == parent.uid)
        });
        Some((Arc::clone(&set), others))
    }

    /// Whether another revision of the same workload still has pods.
    fn is_rolling_out(&self, pod: &LivePod) -> bool {
        let Some((_, others)) = self.siblings(pod) else { return false };
        let has_pods = |uid: &String| !self.reconciler.pods.of_controller(uid).is_empty();
        others.iter().filter_map(|it| it.metadata.uid.as_ref()).any(has_pods)
    }

    /// Whether a later revision of the same Deployment is taking over.
    fn is_superseded(&self, pod: &LivePod) -> bool {
        let revision = |set: &ReplicaSet| -> Option<u64> {
            let annotations = set.metadata.annotations.as_ref()?;
            annotations.get("deployment.kubernetes.io/revision")?.parse().ok()
        };
        let Some((own, others)) = self.siblings(pod) else { return false };
        let wanted = |set: &ReplicaSet| set.spec.replicas.is_none_or(|it| it > 0);
        others.iter().any(|it| wanted(it) && revision(it) > revision(&own))
    }

    /// Makes misplaced pods that stay the first to be deleted, and other pods not.
    async fn set_deletion_costs(&self, workload: &SettledWorkload) {
        for (claim, pod) in &workload.members {
            let Some(cost) = pod.managed_deletion_cost() else { continue };
            let lazy = workload.rule.on_change == OnChange::Lazy;
            let own = deletion_cost(claim.class).to_string();
            let wanted = if lazy && workload.is_misplaced(claim, pod) {
                FIRST_TO_DELETE
            } else {
                own.as_str()
            };
            if cost == wanted {
                continue;
            }
            self.set_cost(pod, wanted).await;
        }
    }

    /// Makes on-demand pods of an old revision the first to be deleted: the new revision starts with its
    /// own on-demand pods, and both together should be few.
    async fn set_old_revision_costs(&self, key: &WorkloadKey) {
        for claim in self.reconciler.slots.claims_of(key) {
            let Some(pod) = self.reconciler.pods.by_id(claim.id) else { continue };
            if !self.is_superseded(&pod) {
                return;
            }
            let wanted = match claim.class {
                CapacityType::OnDemand => "0",
                CapacityType::Spot => "1",
            };
            if pod.managed_deletion_cost().is_some_and(|cost| cost != wanted) {
                self.set_cost(&pod, wanted).await;
            }
        }
    }

    async fn set_cost(&self, pod: &LivePod, cost: &str) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({ "metadata": {
            "uid": pod.uid,
            "annotations": { annotations::DELETION_COST: cost },
        } });
        let patched = api.patch(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        if let Err(error) = patched {
            tracing::debug!(%error, pod = pod.name, "failed to set deletion cost");
        }
    }

    async fn replace_one(&mut self, key: &WorkloadKey, workload: &SettledWorkload) {
        let Some((claim, pod, class)) = workload.next_victim() else {
            self.progress.remove(key);
            return;
        };
        let progress = self.progress.entry(key.clone()).or_default();
        if progress.wait_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        // Evictions are useless if new pods bypass the webhook.
        let is_new =
            |pod: &LivePod| progress.before.as_ref().is_some_and(|it| !it.contains(&pod.uid));
        let mut new = workload.members.iter().map(|(_, pod)| pod).filter(|pod| is_new(pod));
        let (came, bypassed) = new.by_ref().fold((false, false), |(came, bypassed), pod| {
            (came || pod.is_tagged(), bypassed || !pod.is_tagged())
        });
        if progress.bypassed && !came {
            return;
        }
        progress.bypassed = bypassed && !came;
        if progress.bypassed {
            let note = "new pods of this workload bypass the webhook; misplaced pods are not evicted until \
                        a new pod is admitted by it";
            let about = &workload.owner.object;
            self.events.record_warning(about, "RebuildIneffective", "Rebuilding", note.to_owned());
            return;
        }
        let outcome = client::evict_pod(&self.client, &pod.namespace, &pod.name, &pod.uid).await;
        self.record_eviction(key, workload, (claim, pod, class), outcome);
    }

    fn record_eviction(
        &mut self,
        key: &WorkloadKey,
        workload: &SettledWorkload,
        (claim, pod, class): (&SlotClaim, &Arc<LivePod>, CapacityType),
        outcome: Result<(), kube::Error>,
    ) {
        let progress = self.progress.entry(key.clone()).or_default();
        let backoff = self.settings.backoff * 2_u32.pow(progress.refused.min(5));
        match outcome {
            Ok(()) => {
                let before = workload.members.iter().map(|(_, pod)| pod.uid.clone()).collect();
                *progress = Progress { before: Some(before), ..Progress::default() };
                self.metrics.record_eviction("evicted");
                // Its replacement may be created before the watch reports the deletion.
                self.reconciler.pods.mark_leaving(&pod.uid);
                self.reconciler.enqueue_pod(&pod.uid);
                let (name, slot, class) = (&pod.name, claim.slot, class.name());
                let note = format!("evicted pod {name} of slot {slot}; {class} replaces it");
                let (namespace, uid) = (Some(pod.namespace.as_str()), Some(pod.uid.as_str()));
                let pod = client::object_reference("Pod", namespace, name, uid);
                let about = (&workload.owner.object, Some(pod));
                self.events.record_normal(about, "RebuildingPod", "Rebuilding", note);
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                // It is gone, or was recreated under the same name.
            }
            Err(kube::Error::Api(status)) if status.code == 429 => {
                progress.refused += 1;
                progress.wait_until = Some(Instant::now() + backoff);
                self.metrics.record_eviction("budget");
                tracing::debug!(pod = pod.name, "eviction blocked by a disruption budget");
            }
            Err(error) => {
                progress.refused += 1;
                progress.wait_until = Some(Instant::now() + backoff);
                self.metrics.record_eviction("failed");
                tracing::warn!(%error, pod = pod.name, "failed to evict pod");
            }
        }
    }

    /// Removes workloads without members: deleted ones at once, others when they had none for a while.
    /// Whether a workload of an unwatched kind exists is not known.
    async fn remove_deleted_workloads(&mut self) {
        let slots = &self.reconciler.slots;
        let without_members = slots.workloads().into_iter().map(|(key, _)| key);
        let before = std::mem::take(&mut self.idle);
        for key in without_members.filter(|key| slots.claims_of(key).is_empty()) {
            let cleanups = before.get(&key).map_or(1, |cleanups| cleanups + 1);
            if cleanups < IDLE_CLEANUPS && !self.is_deleted(&key) {
                self.idle.insert(key, cleanups);
            } else if let Err(error) = slots.remove_workload(&key).await {
                tracing::debug!(%error, "failed to remove workload without members");
            }
        }
    }

    /// Releases slots that have had no pod for a while, which happens only if the ledger was unavailable
    /// when the pod was deleted. Lists the pods first.
    async fn release_orphaned_slots(&mut self) {
        let is_empty = |claim: &SlotClaim| {
            claim.state != ClaimState::Held && self.reconciler.pods.by_id(claim.id).is_none()
        };
        let found: Vec<SlotClaim> =
            self.reconciler.slots.all_claims().into_iter().filter(is_empty).collect();
        let mut empty_twice: HashMap<String, Vec<SlotClaim>> = HashMap::new();
        for claim in &found {
            if self.empty.get(&claim.id) == Some(&claim.fence) {
                empty_twice.entry(claim.key.0.to_string()).or_default().push(claim.clone());
            }
        }
        self.empty = found.iter().map(|claim| (claim.id, claim.fence)).collect();
        for (namespace, claims) in empty_twice {
            let freed =
                self.reconciler.release_missing(&namespace, &ListParams::default(), claims).await;
            if let Err(error) = freed {
                tracing::debug!(%error, namespace, "failed to release orphaned slots");
            }
        }
    }

    fn is_deleted(&self, key: &WorkloadKey) -> bool {
        let (namespace, name) = (Some(&*key.0), &*key.1);
        let mut parts = name.split('/');
        let (kind, object) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let stores = self.reconciler.owners.stores();
        let same = |metadata: &ObjectMeta| {
            metadata.namespace.as_deref() == namespace && metadata.name.as_deref() == Some(object)
        };
        match (kind, parts.next()) {
            ("StatefulSet", None) => stores.stateful_sets.find(|it| same(&it.metadata)).is_none(),
            ("ReplicaSet", None) => stores.replica_sets.find(|it| same(&it.metadata)).is_none(),
            ("Deployment", Some(revision)) => {
                let has = |metadata: &ObjectMeta| {
                    let hash = metadata.labels.as_ref().and_then(|it| it.get("pod-template-hash"));
                    metadata.namespace.as_deref() == namespace
                        && (hash.is_some_and(|it| it == revision)
                            || metadata.name.as_deref() == Some(revision))
                };
                stores.replica_sets.find(|it| has(&it.metadata)).is_none()
            }
            // Other kinds are not watched.
            _ => false,
        }
    }
}
