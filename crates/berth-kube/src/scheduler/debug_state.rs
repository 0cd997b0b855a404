//! The form of `/debug/state`: everything that the scheduler knows and decides by, for people and support.
//!
//! Only copies, as plain data. A field that is removed or means something else raises the version; a new one does
//! not.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::messages::Counts;
use crate::cluster::elastic::state::ClusterState;

/// The version of the form.
pub(crate) const SCHEMA: u32 = 2;

/// The document.
#[derive(Clone, Debug, Serialize)]
pub struct DebugState {
    /// The version of this document's form.
    pub schema: u32,
    /// When, in seconds.
    pub at: i64,
    /// The scheduler name.
    pub scheduler: String,
    /// Numbers.
    pub counts: Counts,
    /// The cluster.
    #[serde(flatten)]
    pub cluster: ClusterState,
    /// What contradicts itself in the document; each is a bug.
    pub violations: Vec<String>,
    /// Pods and gangs that wait, in the order in which they are tried: those that can be tried first.
    pub queue: Vec<QueueEntryState>,
    /// Why pods wait, as it was published last, by uid.
    pub notices: BTreeMap<Arc<str>, NoticeState>,
    /// Pods whose bindings are recalled.
    pub recalled: Vec<Arc<str>>,
    /// For how many milliseconds no other scheduler was seen; absent: none was since the start.
    pub other_scheduler_seen_ms_ago: Option<u64>,
    /// Pods whose permits are being written.
    pub permit_writes: Vec<String>,
    /// Pods whose resize is tried again, and in how many milliseconds.
    pub resize_retries: BTreeMap<String, u64>,
    /// Departures that no object shows yet: pod, source and target.
    pub departures: Vec<(String, Arc<str>, Arc<str>)>,
    /// Pods and machines that are left alone after a failed departure.
    pub resting: Vec<String>,
    /// Nodes whose pressure nothing relieves.
    pub stuck_nodes: Vec<Arc<str>>,
    /// Nominated nodes, by pod uid.
    pub nominations: BTreeMap<Arc<str>, Arc<str>>,
    /// Unbound members of gangs.
    pub gangs: BTreeMap<String, Vec<Arc<str>>>,
    /// Nodes that are being drained.
    pub drains: Vec<Arc<str>>,
}

/// A pod or a gang that waits for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueEntryState {
    /// The uid of the pod, or namespace and name of the gang.
    pub key: String,
    /// Namespace and name of the pod or the gang.
    pub name: String,
    /// Whether it is a gang.
    pub is_gang: bool,
    /// Its state.
    pub state: QueueState,
    /// In how many milliseconds its backoff ends, or it is tried even if nothing changes.
    pub due_in_ms: Option<u64>,
    /// Its priority.
    pub priority: i32,
    /// When it was created, in seconds.
    pub created: i64,
    /// How often it was refused in a row.
    pub refusals: u32,
}

/// The state of an entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// It is being worked on.
    InFlight,
    /// It is tried next, by priority and age.
    Active,
    /// It was refused, and backs off.
    Backoff,
    /// It waits for a change in the cluster.
    Unschedulable,
}

/// Why a pod waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NoticeState {
    /// The stable code.
    pub code: String,
    /// The summary.
    pub line: String,
    /// How long ago it was published, in milliseconds.
    pub published_ms_ago: u64,
    /// Whether news is to be published, and in how many milliseconds.
    pub next_in_ms: Option<u64>,
}
