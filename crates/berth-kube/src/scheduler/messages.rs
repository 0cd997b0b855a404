//! What the core receives (messages) and what it asks to be done (actions).
//!
//! Plain data: the lowest layer of the scheduler, without I/O.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use berth_engine::Policy;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1 as storage;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::debug_state::DebugState;
use crate::cluster::devices::DeviceKind;
use crate::cluster::elastic::permits::PermitWrite;
use crate::cluster::elastic::relief::Leaver;
use crate::cluster::observed_pod::ObservedPod;
use crate::cluster::outcome::{ClaimRelease, PodExplanation, Preemption, Reservation};
use crate::cluster::pod::Key;
use crate::cluster::pod_groups::GroupKind;
use crate::wire::PermitCall;

/// An object was created, updated or deleted.
#[derive(Debug)]
pub(crate) enum Change {
    Node(Box<core::Node>),
    NodeDeleted(Key),
    Pod(Box<ObservedPod>),
    PodDeleted(Key, Arc<str>),
    Namespace(Box<core::Namespace>),
    NamespaceDeleted(Key),
    Budget(Box<PodDisruptionBudget>),
    BudgetDeleted(Key),
    Claim(Box<core::PersistentVolumeClaim>),
    ClaimDeleted(Key),
    Volume(Box<core::PersistentVolume>),
    VolumeDeleted(Key),
    Class(Box<storage::StorageClass>),
    ClassDeleted(Key),
    CsiNode(Box<storage::CSINode>),
    CsiNodeDeleted(Key),
    CsiDriver(Box<storage::CSIDriver>),
    CsiDriverDeleted(Key),
    CsiCapacity(Box<storage::CSIStorageCapacity>),
    CsiCapacityDeleted(Key),
    Vm(Box<serde_json::Value>),
    VmDeleted(Key),
    Migration(Box<serde_json::Value>),
    MigrationDeleted(Key),
    /// Whether the cluster serves migrations.
    MigrationsServed(bool),
    Group(GroupKind, Box<serde_json::Value>),
    GroupDeleted(GroupKind, Key),
    Device(DeviceKind, Box<serde_json::Value>),
    DeviceDeleted(DeviceKind, Key),
}

/// An input of the core.
#[derive(Debug)]
pub(crate) enum Message {
    /// A watch event.
    Change(Change),
    /// The initial list of a kind is complete.
    Synced(&'static str),
    /// A full list of pods is about to be taken; watch events that arrive meanwhile may be newer.
    RelistStarted,
    /// The list is complete, and its pods were sent as changes before this message. Pods that are
    /// not in it are deleted, unless they are newer than the list.
    Relisted { uids: FxHashSet<Arc<str>>, version: Option<u64> },
    /// Whether this replica is the leader from now on.
    LeadershipChanged(bool),
    /// The outcome of an action.
    ActionCompleted(ActionResult),
    /// A read-only question.
    Query(Query),
    /// The agent of an elastic pod asks for another size.
    PermitRequested(PermitCall),
    /// The pods that the API server has on a node, before a pod is bound to it.
    NodeListed(NodeListing),
    /// The ConfigMap with the policy was read.
    PolicyObserved(Box<ObservedPolicy>),
    /// Stop the loop.
    Stop,
}

/// The outcome of an action. A successful binding is not reported: the pod stays reserved until the
/// watch shows it on its node. What became of its claims of devices is reported in any case, first.
#[derive(Debug)]
pub(crate) enum ActionResult {
    /// The pod changed since the decision, for example it is bound to another node.
    PodChanged { uid: Arc<str>, pod: Box<ObservedPod> },
    /// The pod no longer exists.
    PodDeleted { uid: Arc<str> },
    /// The pod is certainly not bound.
    BindFailed { uid: Arc<str>, reason: String },
    /// Nothing was attempted, because this replica is not the leader any more.
    NotLeader { uid: Arc<str> },
    /// Nothing was attempted, because the binding was recalled.
    Recalled { uid: Arc<str> },
    /// The victims of a preemption were deleted, or that failed.
    Preempted { uid: Arc<str>, done: bool },
    /// The claims of a pod are written, or that was undone: for each claim that has its devices, the version
    /// that shows it.
    ClaimsSettled { uid: Arc<str>, claims: Vec<(Key, Option<u64>)> },
    /// Claims are deallocated, or that failed: for each that was written, the version that shows it.
    ClaimsReleased { claims: Vec<(Key, Option<u64>)> },
    /// The answer to an eviction.
    Evicted { uid: Arc<str>, outcome: EvictionOutcome },
    /// A permit was stored, or not.
    PermitWritten { uid: Arc<str>, result: PermitWriteResult },
    /// A pod began to leave a node under pressure, or did not.
    DepartureStarted { uid: Arc<str>, result: Result<(), String> },
}

/// What became of the write of a permit.
#[derive(Debug)]
pub(crate) enum PermitWriteResult {
    /// It is stored on this machine, or in the spec of this pod.
    StoredOnVm(Box<serde_json::Value>),
    StoredInPod(Box<ObservedPod>),
    /// It is certainly not stored.
    NotStored(String),
    /// Nobody knows.
    Unknown(String),
}

/// A policy from a ConfigMap.
#[derive(Debug)]
pub(crate) struct ObservedPolicy {
    pub(crate) config_map: Key,
    pub(crate) uid: Arc<str>,
    /// The policy, or why it is invalid.
    pub(crate) policy: Result<Policy, String>,
}

/// What became of a policy, for an event of its ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyNotice {
    pub(crate) config_map: Key,
    pub(crate) uid: Arc<str>,
    /// The name of the policy that is in use now, or why the new one is not.
    pub(crate) result: Result<String, String>,
}

/// The pods that the API server has on a node to which a pod is about to be bound.
#[derive(Debug)]
pub(crate) struct NodeListing {
    /// The pod that is about to be bound.
    pub(crate) uid: Arc<str>,
    pub(crate) pods: Vec<ObservedPod>,
    /// Answered when the binding was checked; it is recalled if it does not fit.
    pub(crate) checked: oneshot::Sender<()>,
}

/// The answer to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EvictionOutcome {
    /// The pod is terminating.
    Accepted,
    /// A disruption budget forbids it for now; retry after this many seconds.
    BlockedByBudget { after_s: u64, reason: String },
    /// Rejected, or the result is unknown; retry.
    Failed { reason: String },
}

/// A read-only question to the core.
#[derive(Debug)]
pub(crate) enum Query {
    /// Why a pod is where it is.
    Explain(Key, oneshot::Sender<Option<PodExplanation>>),
    /// Numbers of nodes, pods and queue entries.
    Counts(oneshot::Sender<Counts>),
    /// Everything that is known and decided.
    DebugState(oneshot::Sender<Box<DebugState>>),
}

/// Numbers of nodes, pods and queue entries, as `/v1/state` returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Nodes.
    pub nodes: usize,
    /// Pods of all schedulers.
    pub pods: usize,
    /// Pods of this scheduler without a node.
    pub pending: usize,
    /// Pods of this scheduler that are being bound.
    pub reserved: usize,
    /// Queue entries that are tried next.
    #[serde(rename = "ready")]
    pub active: usize,
    /// Queue entries in backoff after a failed attempt.
    #[serde(rename = "backing_off")]
    pub backoff: usize,
    /// Queue entries that wait for a change in the cluster.
    #[serde(rename = "parked")]
    pub unschedulable: usize,
    /// Whether this replica is the leader.
    pub leader: bool,
    /// Whether the initial lists of all kinds are complete.
    #[serde(rename = "warm")]
    pub synced: bool,
}

/// A change that the core asks the executor to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Bind a pod.
    Bind(Box<Reservation>),
    /// Bind all of these pods or none.
    BindGang { gang: Key, members: Vec<Reservation> },
    /// Nominate a node for a pod and delete the victims on it.
    Preempt(Box<Preemption>),
    /// Deallocate claims that only this pod is reserved for, or no pod.
    ReleaseClaims { uid: Arc<str>, claims: Vec<ClaimRelease> },
    /// Clear the nominated node of a pod.
    ClearNomination { pod: Key, uid: Arc<str> },
    /// Write the condition and the event of a pod that cannot be scheduled.
    NotifyUnschedulable(UnschedulableNotice),
    /// Cordon a node that is being drained.
    Cordon { node: Arc<str> },
    /// Evict a pod from a node that is being drained.
    Evict { pod: Key, uid: Arc<str> },
    /// Write the progress of a drain to the node.
    WriteDrainStatus(DrainStatus),
    /// Store a permit.
    StorePermit(Box<PermitWrite>),
    /// Migrate the virtual machine of a pod.
    Migrate { leaver: Box<Leaver>, timeout_s: u32 },
    /// Evict a pod from a node under pressure.
    EvictForPressure(Box<Leaver>),
    /// Delete a migration that ended long ago, or whose target did not start in time.
    DeleteMigration { migration: Key, is_late: bool },
    /// Write an event about the policy.
    NotifyPolicy(PolicyNotice),
    /// Record a warning about a node.
    WarnOfNode { node: Arc<str>, warning: NodeWarning, note: String },
}

/// What an event warns of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeWarning {
    /// Its pods request more than it has.
    Overfull,
    /// It is under pressure, and no pod can leave it.
    PressureStays,
}

/// Bindings that the core recalls, because another scheduler filled the node. The executor looks before it
/// sends one; a binding that was sent already is not affected.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecalledBindings(Arc<Mutex<FxHashSet<Arc<str>>>>);

impl RecalledBindings {
    /// Recalls the binding of a pod.
    pub(crate) fn recall(&self, uid: Arc<str>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
    }

    /// Whether the binding of a pod was recalled.
    pub(crate) fn has(&self, uid: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<str>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Arc<str>> = all.iter().cloned().collect();
        all.sort();
        all
    }

    /// Whether the binding of a pod was recalled; it is not from then on.
    pub(crate) fn take(&self, uid: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }
}

/// Why a pod cannot be scheduled, for its condition and event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnschedulableNotice {
    pub(crate) pod: Key,
    pub(crate) uid: Arc<str>,
    /// The reason of the condition: `Unschedulable` asks autoscalers for a node.
    pub(crate) reason: &'static str,
    /// The first line is the summary.
    pub(crate) message: String,
    /// The node that would help, as JSON; absent: a new node would not help.
    pub(crate) shape: Option<Arc<str>>,
    /// The resource version that the decision was made for; a newer pod may be bound.
    pub(crate) version: Option<u64>,
    /// Whether this is the first notice for this pod.
    pub(crate) first: bool,
}

/// The state of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// Pods are being evicted.
    Running,
    /// Pods remain, and none of them can be evicted now.
    Blocked,
    /// No pods remain.
    Done,
}

/// The progress of a drain, as it is written to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// The state.
    pub state: DrainState,
    /// The state in one sentence.
    pub message: String,
    /// When the drain began.
    pub since: jiff::Timestamp,
    /// From when on pods are evicted even if no other node can take them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<jiff::Timestamp>,
    /// The largest number of pods seen on the node since then.
    pub total: usize,
    /// The number of pods that remain.
    pub left: usize,
}

/// A drain's progress for the executor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainStatus {
    pub(crate) node: Arc<str>,
    /// The annotation.
    pub(crate) key: Arc<str>,
    /// Absent: remove the annotation.
    pub(crate) record: Option<DrainRecord>,
    /// Whether to record an event as well.
    pub(crate) is_event: bool,
}

/// Which kinds the informers have not listed yet; shared by the core, the readiness probe and
/// [`super::leadership_sync`].
#[derive(Debug, Default)]
pub(crate) struct SyncStatus {
    unsynced: Mutex<BTreeSet<&'static str>>,
}

impl SyncStatus {
    /// The status before anything was listed.
    pub(crate) fn new(kinds: &[&'static str]) -> Self {
        Self { unsynced: Mutex::new(kinds.iter().copied().collect()) }
    }

    /// Kinds that have not been listed yet.
    pub(crate) fn unsynced_kinds(&self) -> Vec<&'static str> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Records that a kind was listed. Returns whether all are now.
    pub(crate) fn mark_synced(&self, kind: &'static str) -> bool {
        let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        unsynced.remove(kind);
        unsynced.is_empty()
    }
}
