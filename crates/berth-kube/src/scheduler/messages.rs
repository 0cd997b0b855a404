//! What the brain is told, and what it wants done.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1 as storage;
use rustc_hash::FxHashSet;
use tokio::sync::oneshot;

use super::drain::DrainStatus;
use crate::cluster::outcome::{PodExplanation, Preemption, Reservation};
use crate::cluster::pod::Key;
use crate::wire::PermitAsked;

/// Something of the cluster is as follows, or has gone.
#[derive(Debug)]
pub(crate) enum Change {
    Node(Box<core::Node>),
    NodeGone(Key),
    Pod(Box<core::Pod>),
    PodGone(Key, Arc<str>),
    Namespace(Box<core::Namespace>),
    NamespaceGone(Key),
    Budget(Box<PodDisruptionBudget>),
    BudgetGone(Key),
    Claim(Box<core::PersistentVolumeClaim>),
    ClaimGone(Key),
    Volume(Box<core::PersistentVolume>),
    VolumeGone(Key),
    Class(Box<storage::StorageClass>),
    ClassGone(Key),
    CsiNode(Box<storage::CSINode>),
    CsiNodeGone(Key),
    CsiDriver(Box<storage::CSIDriver>),
    CsiDriverGone(Key),
    CsiCapacity(Box<storage::CSIStorageCapacity>),
    CsiCapacityGone(Key),
    Vm(Box<serde_json::Value>),
    VmGone(Key),
}

/// What the brain is told.
#[derive(Debug)]
pub(crate) enum Message {
    /// The API server says so.
    Change(Change),
    /// All objects of a kind have been told.
    Listed(&'static str),
    /// All pods are about to be listed beside what the watch tells, which may be newer.
    Listing,
    /// All pods there are, listed just now and told as changes before this: others have gone, unless
    /// they are newer than the list.
    Fresh { uids: FxHashSet<Arc<str>>, version: Option<u64> },
    /// Whether pods are placed from now on.
    Lead(bool),
    /// What became of work.
    Report(Report),
    /// A question.
    Ask(Ask),
    /// A machine wants to be of another size.
    Permit(PermitAsked),
    /// The end.
    Stop,
}

/// What became of work. That a pod was bound is not told: its place stays reserved until the watch
/// shows it there.
#[derive(Debug)]
pub(crate) enum Report {
    /// The pod is not what it was, such as bound elsewhere: it looks like this.
    Changed { uid: Arc<str>, pod: Box<core::Pod> },
    /// The pod has gone, or is about to.
    Gone { uid: Arc<str> },
    /// The pod could not be bound, for certain.
    Failed { uid: Arc<str>, why: String },
    /// It was not tried, because we do not lead any more.
    NotLeading { uid: Arc<str> },
    /// Those who had to go for this pod were told to; or could not be told.
    Preempted { uid: Arc<str>, done: bool },
    /// A pod was told to leave its node.
    Evicted { uid: Arc<str>, outcome: Evicted },
}

/// What became of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// It goes.
    Goes,
    /// A disruption budget keeps it for now; try again after so many seconds.
    Kept { after_s: u64, why: String },
    /// It is not known, or was refused; try again.
    Failed { why: String },
}

/// A question to the brain.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Everything about one pod.
    Explain(Key, oneshot::Sender<Option<PodExplanation>>),
    /// How many of what there are.
    Counts(oneshot::Sender<Counts>),
}

/// How many of what there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Nodes.
    pub nodes: usize,
    /// Pods, whoever schedules them.
    pub pods: usize,
    /// Pods of ours without a place.
    pub pending: usize,
    /// Pods of ours with a place that they are being bound to.
    pub reserved: usize,
    /// Entries that are tried next.
    pub ready: usize,
    /// Entries that were refused a short time ago.
    pub backing_off: usize,
    /// Entries that wait for something to change.
    pub parked: usize,
    /// Whether this replica leads.
    pub leader: bool,
    /// Whether everything has been listed.
    pub warm: bool,
}

/// What the brain wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Bind a pod.
    Bind(Box<Reservation>),
    /// Bind these pods, all or none.
    BindGang { gang: Key, members: Vec<Reservation> },
    /// Tell others to go, so that this pod can come.
    Preempt(Box<Preemption>),
    /// A pod is not promised a node any more.
    Unnominate { pod: Key, uid: Arc<str> },
    /// A pod is told why it has no place.
    Tell(Notice),
    /// A node takes no more pods, because it is being emptied.
    Cordon { node: Arc<str> },
    /// A pod is told to leave its node.
    Evict { pod: Key, uid: Arc<str> },
    /// A node is told how far it is with being emptied.
    DrainStatus(DrainStatus),
}

/// Why a pod has no place, for its events and conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) pod: Key,
    pub(crate) uid: Arc<str>,
    /// One clear line first.
    pub(crate) message: String,
    /// The version of the pod that it is said of; a newer one may be bound.
    pub(crate) version: Option<u64>,
    /// Whether this is the first time since we know the pod.
    pub(crate) first: bool,
}
