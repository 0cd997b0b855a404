//! Reconciles slots with pods: a live pod has its slot, a deleted one has none.
//!
//! Compares the current pod with its current slot and does what is missing; any replica may do so at
//! any time, also concurrently. Failures are retried.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_engine::{CapacityType, InstanceId};
use berth_ledger::ClaimState;
use futures_util::StreamExt as _;
use futures_util::stream;
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::affinity::AllowedCapacity;
use super::annotations::{self, ObjectTags, WorkloadSettings};
use super::metrics::Metrics;
use super::owners::{self, Owner, OwnerResolver, ReadMode, SlotOrdering};
use super::pod_cache::{LivePod, PodCache, derive_id, is_terminated, read_token};
use super::settings::NodeLabel;
use super::slot_store::{SlotClaim, SlotRequest, SlotResult, SlotStore, SlotStoreError};
use super::watched_pod::WatchedPod;

/// Workers; tasks for one pod always go to the same one.
pub(crate) const WORKERS: usize = 16;

/// The delay before a failed task is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A task.
#[derive(Clone)]
enum Task {
    /// Reconcile a live pod, by uid.
    Reconcile(String),
    /// Release the slot of a pod that was deleted.
    PodGone(Arc<LivePod>),
    /// Release a slot whose pod is gone.
    Release(SlotClaim),
}

/// See the module.
pub(super) struct SlotReconciler {
    client: Client,
    pub(super) slots: Arc<SlotStore>,
    pub(super) owners: Arc<OwnerResolver>,
    pub(super) pods: Arc<PodCache>,
    nodes: Store<PartialObjectMeta<Node>>,
    label: NodeLabel,
    excluded: Vec<String>,
    workers: Vec<UnboundedSender<Task>>,
    /// Pods that wait for an update of their node, by its name.
    waiting: Mutex<HashMap<String, HashSet<String>>>,
    metrics: Arc<Metrics>,
}

/// A task failed for now.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error(transparent)]
    Slots(#[from] SlotStoreError),
    #[error("API request failed: {0}")]
    Api(#[from] kube::Error),
}

/// Nodes by capacity type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeCounts {
    pub(super) on_demand: i64,
    pub(super) spot: i64,
}

/// What the reconciler works with.
pub(super) struct ReconcilerParts {
    pub(super) client: Client,
    pub(super) slots: Arc<SlotStore>,
    pub(super) owners: Arc<OwnerResolver>,
    pub(super) pods: Arc<PodCache>,
    pub(super) nodes: Store<PartialObjectMeta<Node>>,
    pub(super) label: NodeLabel,
    pub(super) excluded: Vec<String>,
    pub(super) metrics: Arc<Metrics>,
}

impl SlotReconciler {
    /// Starts the workers, which run until stopped.
    pub(super) fn start(
        parts: ReconcilerParts,
        stop: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Arc<Self> {
        let (workers, receivers): (Vec<_>, Vec<_>) =
            (0..WORKERS).map(|_| unbounded_channel()).unzip();
        let ReconcilerParts { client, slots, owners, pods, nodes, label, excluded, metrics } =
            parts;
        let reconciler = Arc::new(Self {
            client,
            slots,
            owners,
            pods,
            nodes,
            label,
            excluded,
            workers,
            waiting: Mutex::default(),
            metrics,
        });
        for worker in receivers {
            tasks.spawn(run_worker(Arc::clone(&reconciler), worker, stop.clone()));
        }
        reconciler
    }

    /// Queues a pod. Tasks for one pod run one after the other.
    pub(super) fn enqueue_pod(&self, uid: &str) {
        self.enqueue(uid, Task::Reconcile(uid.to_owned()));
    }

    /// Queues the release of a deleted pod's slot.
    pub(super) fn enqueue_gone(&self, pod: Arc<LivePod>) {
        let uid = pod.uid.clone();
        self.enqueue(&uid, Task::PodGone(pod));
    }

    fn enqueue(&self, uid: &str, task: Task) {
        if let Some(worker) = self.worker(uid) {
            // Workers stop only with the process.
            let _ = worker.send(task);
        }
    }

    /// Queues a pod after a moment.
    fn enqueue_later(&self, uid: &str) {
        let Some(worker) = self.worker(uid).cloned() else { return };
        let task = Task::Reconcile(uid.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(RETRY_DELAY).await;
            // Workers stop only with the process.
            let _ = worker.send(task);
        });
    }

    fn worker(&self, uid: &str) -> Option<&UnboundedSender<Task>> {
        let number = uid
            .bytes()
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        self.workers.get(number % WORKERS)
    }

    async fn run_task(&self, task: &Task) -> Result<(), ReconcileError> {
        match task {
            Task::Reconcile(uid) => match self.pods.get_any(uid) {
                None => Ok(()),
                Some(pod) if self.pods.get(uid).is_none() => self.release(&pod).await,
                Some(pod) => self.ensure_slot(&pod).await,
            },
            // If the pod had only copied its token, another pod may have that id now.
            Task::PodGone(pod) if self.pods.by_id(pod.id).is_some() => Ok(()),
            Task::PodGone(pod) => self.release(pod).await,
            Task::Release(claim) => Ok(self.slots.release(claim, "pod_gone").await?),
        }
    }

    async fn release(&self, pod: &LivePod) -> Result<(), ReconcileError> {
        if let Some(claim) = self.find_claim(pod).await? {
            self.slots.release(&claim, "pod_gone").await?;
        }
        Ok(())
    }

    /// The claim of a pod. Most pods of a cluster have no token and no slot; for them the database is
    /// not queried.
    async fn find_claim(&self, pod: &LivePod) -> Result<Option<SlotClaim>, SlotStoreError> {
        if pod.is_tagged() {
            self.slots.find_claim(pod.id).await
        } else {
            Ok(self.slots.cached_claim(pod.id))
        }
    }

    /// Assigns a slot to a live pod, if it should have one, and releases one that it should not have.
    async fn ensure_slot(&self, pod: &LivePod) -> Result<(), ReconcileError> {
        if self.excluded.contains(&pod.namespace) {
            return Ok(());
        }
        let claim = self.find_claim(pod).await?;
        if pod.controller_uid().is_none() {
            // It was orphaned: it counts for no workload any more.
            if let Some(claim) = claim.filter(|claim| *claim.key.0 == *pod.namespace) {
                self.slots.release(&claim, "orphaned").await?;
            }
            return Ok(());
        }
        let Some(claim) = claim else { return self.adopt_pod(pod, None).await };
        if *claim.key.0 != *pod.namespace {
            // The token was copied from another namespace.
            return Ok(());
        }
        if let Some(owner) = self.changed_owner(pod, &claim).await? {
            self.slots.release(&claim, "adopted").await?;
            // It may keep its number, unless numbers are ordinals.
            let wanted = (owner.ordering == SlotOrdering::Lowest).then_some(claim.slot);
            return self.adopt_pod(pod, wanted).await;
        }
        if self.slots.activate(&claim).await? {
            return Ok(());
        }
        // Its lease expired before the pod was seen.
        self.slots.release(&claim, "lease_ended").await?;
        self.adopt_pod(pod, None).await
    }

    /// The workload of a pod, if its slot is one of another workload, or is not that of its ordinal.
    async fn changed_owner(
        &self,
        pod: &LivePod,
        claim: &SlotClaim,
    ) -> Result<Option<Owner>, ReconcileError> {
        // Reading an owner of an unwatched kind takes a request.
        if owners::is_direct_owner(&pod.metadata, &claim.key.1) {
            return Ok(None);
        }
        let owner = self.owners.resolve(&pod.namespace, &pod.metadata, ReadMode::Watched).await?;
        Ok(owner.filter(|owner| !is_slot_of(owner, pod, claim)))
    }

    /// Assigns a slot to a pod without one: it was created while the webhook was down, or before its
    /// workload was enabled, or its reservation expired.
    async fn adopt_pod(&self, pod: &LivePod, preferred: Option<i64>) -> Result<(), ReconcileError> {
        if self.owners.settings().opts_out(ObjectTags::of(&pod.metadata)) {
            return Ok(());
        }
        let owner = self.owners.resolve(&pod.namespace, &pod.metadata, ReadMode::Watched).await?;
        let Some(owner) = owner else { return Ok(()) };
        let WorkloadSettings::On { rule, .. } = owner.settings else { return Ok(()) };
        // Its node is not known yet: it is reconciled again when it is.
        let Some(class) = self.capacity_of(pod).or_else(|| self.wait_for_node(pod)) else {
            return Ok(());
        };
        self.slots.put_rule(&owner.key, rule, owner.version.as_deref()).await?;
        let wanted = match owner.ordering {
            SlotOrdering::Ordinal { start } => {
                match ordinal(&pod.name, pod.metadata.labels.as_ref()) {
                    // Below the first ordinal, its controller is about to delete it.
                    Some(ordinal) if ordinal >= start => Some(ordinal - start),
                    Some(_) | None => return Ok(()),
                }
            }
            SlotOrdering::Lowest => {
                let same = pod.is_tagged() && pod.workload() == Some(&*owner.key.1);
                preferred.or_else(|| pod.slot().filter(|_| same))
            }
        };
        let Some(claim) = self.reserve_slot(pod.id, &owner, class, wanted).await? else {
            self.enqueue_later(&pod.uid);
            return Ok(());
        };
        self.slots.activate(&claim).await?;
        self.metrics.adopted.inc();
        Ok(())
    }

    async fn reserve_slot(
        &self,
        id: InstanceId,
        owner: &Owner,
        class: CapacityType,
        wanted: Option<i64>,
    ) -> Result<Option<SlotClaim>, ReconcileError> {
        let unique = uuid::Uuid::now_v7();
        let request = |slot: Option<i64>| SlotRequest {
            key: owner.key.clone(),
            id,
            request_id: format!("adopt/{}/{unique}/{}", id.0, u8::from(slot.is_some())),
            class: Some(class),
            slot,
        };
        if let Some(slot) = wanted {
            match self.slots.reserve(&request(Some(slot))).await? {
                SlotResult::Assigned(claim) => return Ok(Some(claim)),
                // An ordinal is unique: its holder is gone, or has the slot of an ordinal that it has no
                // longer, because the first ordinal was changed.
                SlotResult::Taken(by) if owner.ordering != SlotOrdering::Lowest => {
                    if let Some(holder) = self.pods.by_id(by) {
                        self.enqueue_pod(&holder.uid);
                    }
                    return Ok(None);
                }
                SlotResult::Taken(_) => {}
            }
        }
        match self.slots.reserve(&request(None)).await? {
            SlotResult::Assigned(claim) => Ok(Some(claim)),
            SlotResult::Taken(_) => Ok(None),
        }
    }

    /// The capacity type that a pod runs on, or has to run on.
    fn capacity_of(&self, pod: &LivePod) -> Option<CapacityType> {
        let of_node = || {
            let node = self.nodes.get(&ObjectRef::new(pod.node.as_deref()?))?;
            self.label.class(node.metadata.labels.as_ref()?.get(&self.label.key)?)
        };
        let admitted = || pod.admitted_class().filter(|_| pod.is_tagged());
        let allowed = || match pod.allowed {
            AllowedCapacity::Only(class) => Some(class),
            AllowedCapacity::Both | AllowedCapacity::Neither => None,
        };
        of_node().or_else(admitted).or_else(allowed)
    }

    /// Queues a pod again when its node is updated. Returns its capacity type if that arrived
    /// meanwhile.
    fn wait_for_node(&self, pod: &LivePod) -> Option<CapacityType> {
        let node = pod.node.clone()?;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.entry(node).or_default().insert(pod.uid.clone());
        self.capacity_of(pod)
    }

    /// Queues the pods that wait for a node.
    pub(super) fn enqueue_pods_of_node(&self, node: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let uids = waiting.remove(node).unwrap_or_default();
        drop(waiting);
        for uid in uids {
            self.enqueue_pod(&uid);
        }
    }

    /// The label of nodes with the capacity type.
    pub(super) const fn label(&self) -> &NodeLabel {
        &self.label
    }

    /// How many nodes have each capacity type.
    pub(super) fn count_nodes(&self) -> NodeCounts {
        let mut counts = NodeCounts::default();
        for node in self.nodes.state() {
            let value = node.metadata.labels.as_ref().and_then(|it| it.get(&self.label.key));
            match value.and_then(|value| self.label.class(value)) {
                Some(CapacityType::OnDemand) => counts.on_demand += 1,
                Some(CapacityType::Spot) => counts.spot += 1,
                None => {}
            }
        }
        counts
    }

    /// Whether a pod is on a node without a capacity type, and so has no slot.
    pub(super) fn has_no_capacity_type(&self, pod: &LivePod) -> bool {
        pod.node.is_some()
            && self.capacity_of(pod).is_none()
            && self.slots.cached_claim(pod.id).is_none()
    }

    /// Reconciles all pods: those with tokens first, each into its own slot, then the others. `before`
    /// are the claims from before the pods were listed; those without a pod are released.
    pub(super) async fn reconcile_all(&self, before: &[SlotClaim], stop: &CancellationToken) {
        for tagged in [true, false] {
            let mut pods = self.pods.all();
            pods.retain(|pod| pod.is_tagged() == tagged);
            pods.sort_by_key(|pod| (pod.slot(), pod.metadata.creation_timestamp.clone()));
            let tasks = pods.iter().map(|pod| Task::Reconcile(pod.uid.clone())).collect();
            self.run_tasks(tasks, stop).await;
        }
        let gone = before
            .iter()
            .filter(|claim| claim.state != ClaimState::Held && self.pods.by_id(claim.id).is_none());
        self.run_tasks(gone.cloned().map(Task::Release).collect(), stop).await;
        self.slots.wait_for_writes().await;
    }

    /// Runs tasks in order, several at a time, until all have succeeded.
    async fn run_tasks(&self, mut left: Vec<Task>, stop: &CancellationToken) {
        while !left.is_empty() && !stop.is_cancelled() {
            // In order: pods without a token take the lowest slots by age.
            let results = stream::iter(left)
                .map(|task| async move { (self.run_task(&task).await, task) })
                .buffered(WORKERS);
            let done: Vec<_> = results.collect().await;
            left = Vec::new();
            for (result, task) in done {
                if let Err(error) = result {
                    tracing::warn!(%error, "failed to reconcile pod; retrying");
                    self.metrics.ledger_errors.inc();
                    left.push(task);
                }
            }
            if !left.is_empty() {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Lists the pods of a revision, and releases the slots of those that are gone.
    pub(super) async fn release_missing_members(
        &self,
        namespace: &str,
        owner: &Owner,
    ) -> Result<(), ReconcileError> {
        self.slots.wait_for_writes().await;
        // Claims from before the list that have no pod in it are orphaned.
        let members = self.slots.claims_of(&owner.key);
        self.slots.expire_reservations().await?;
        self.release_missing(namespace, &pods_of_revision(&owner.key.1), members).await
    }

    /// Lists pods, and releases those of the given claims whose pods are gone.
    pub(super) async fn release_missing(
        &self,
        namespace: &str,
        params: &ListParams,
        members: Vec<SlotClaim>,
    ) -> Result<(), ReconcileError> {
        let api: Api<WatchedPod> = Api::namespaced(self.client.clone(), namespace);
        let mut live = HashSet::new();
        for pod in api.list(params).await?.items {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if is_terminated(&pod) {
                // The watch will report it later.
                self.pods.mark_leaving(&uid);
                continue;
            }
            let token = pod.metadata.annotations.as_ref().and_then(|it| it.get(annotations::TOKEN));
            live.extend(token.and_then(|text| read_token(text)));
            live.insert(derive_id("pod", &uid));
        }
        for member in members {
            if member.state == ClaimState::Held || live.contains(&member.id) {
                continue;
            }
            if let Some(pod) = self.pods.by_id(member.id) {
                self.pods.mark_leaving(&pod.uid);
            }
            self.slots.release(&member, "pod_gone").await?;
        }
        Ok(())
    }
}

/// Selects the pods of a revision `KIND/NAME/REVISION`, among others perhaps.
pub(super) fn pods_of_revision(workload: &str) -> ListParams {
    let mut parts = workload.split('/');
    match (parts.next(), parts.nth(1)) {
        (Some("Deployment"), Some(hash)) => {
            ListParams::default().labels(&format!("pod-template-hash={hash}"))
        }
        _ => ListParams::default(),
    }
}

/// Whether a slot is the one that a pod of this workload has.
pub(super) fn is_slot_of(owner: &Owner, pod: &LivePod, claim: &SlotClaim) -> bool {
    let numbered = match owner.ordering {
        SlotOrdering::Lowest => true,
        SlotOrdering::Ordinal { start } => ordinal(&pod.name, pod.metadata.labels.as_ref())
            .is_none_or(|ordinal| ordinal - start == claim.slot),
    };
    numbered && owner.key == claim.key
}

/// The ordinal of a pod of a StatefulSet.
pub(super) fn ordinal(
    name: &str,
    labels: Option<&std::collections::BTreeMap<String, String>>,
) -> Option<i64> {
    let label = labels.and_then(|it| it.get(owners::POD_INDEX));
    let from_label = label.and_then(|text| text.parse().ok());
    let from_name = || name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
    from_label.or_else(from_name).filter(|ordinal| *ordinal >= 0)
}

async fn run_worker(
    reconciler: Arc<SlotReconciler>,
    mut worker: UnboundedReceiver<Task>,
    stop: CancellationToken,
) {
    loop {
        let task = tokio::select! {
            () = stop.cancelled() => return,
            task = worker.recv() => match task {
                Some(task) => task,
                None => return,
            },
        };
        while let Err(error) = reconciler.run_task(&task).await {
            tracing::warn!(%error, "failed to reconcile pod; retrying");
            reconciler.metrics.ledger_errors.inc();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
        }
    }
}
