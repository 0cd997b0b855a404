//! Keeps the desk in step with the pods: a pod that lives has its seat, one that is gone has none.
//!
//! It looks at a pod as it is now and at its seat as it is now, and does what is missing; any
//! replica may do so at any time, and several at once. What fails is done again later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_engine::{CapacityType, InstanceId};
use berth_ledger::ClaimState;
use futures_util::StreamExt as _;
use futures_util::stream;
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::affinity::Leaves;
use super::desk::{Ask, Asked as Given, Desk, DeskError, Seated};
use super::keys::{self, Asked, Marks};
use super::metrics::Metrics;
use super::owners::{Look, Numbering, Owner, Owners};
use super::roster::{LivePod, Roster, derived, is_gone, read_token};
use super::settings::NodeLabel;

/// How many pods are looked at at once.
const LANES: usize = 16;

/// How long to wait before what failed is done again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What to look at.
#[derive(Clone)]
enum Task {
    /// A pod that lives, by its uid.
    Look(String),
    /// A pod that lived until now.
    Gone(Arc<LivePod>),
    /// A seat whose pod is gone.
    Free(Seated),
}

/// What keeps the desk in step.
pub(super) struct Keeper {
    client: Client,
    pub(super) desk: Arc<Desk>,
    pub(super) owners: Arc<Owners>,
    pub(super) roster: Arc<Roster>,
    nodes: Store<PartialObjectMeta<Node>>,
    label: NodeLabel,
    excluded: Vec<String>,
    lanes: Vec<UnboundedSender<Task>>,
    /// Pods that wait for news of their node, by its name.
    waiting: Mutex<HashMap<String, HashSet<String>>>,
    metrics: Arc<Metrics>,
}

/// Something that could not be done now.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    #[error(transparent)]
    Desk(#[from] DeskError),
    #[error("the API server does not answer: {0}")]
    Api(#[from] kube::Error),
}

/// What a keeper is made of.
pub(super) struct Parts {
    pub(super) client: Client,
    pub(super) desk: Arc<Desk>,
    pub(super) owners: Arc<Owners>,
    pub(super) roster: Arc<Roster>,
    pub(super) nodes: Store<PartialObjectMeta<Node>>,
    pub(super) label: NodeLabel,
    pub(super) excluded: Vec<String>,
    pub(super) metrics: Arc<Metrics>,
}

impl Keeper {
    /// A keeper whose lanes work until it is told to stop.
    pub(super) fn start(parts: Parts, stop: &CancellationToken, tasks: &TaskTracker) -> Arc<Self> {
        let (lanes, receivers): (Vec<_>, Vec<_>) = (0..LANES).map(|_| unbounded_channel()).unzip();
        let Parts { client, desk, owners, roster, nodes, label, excluded, metrics } = parts;
        let keeper = Arc::new(Self {
            client,
            desk,
            owners,
            roster,
            nodes,
            label,
            excluded,
            lanes,
            waiting: Mutex::default(),
            metrics,
        });
        for lane in receivers {
            tasks.spawn(work(Arc::clone(&keeper), lane, stop.clone()));
        }
        keeper
    }

    /// Has a pod looked at. Tasks about one pod are done one after the other.
    pub(super) fn look_at(&self, uid: &str) {
        self.send(uid, Task::Look(uid.to_owned()));
    }

    /// Has the seat of a pod that is gone given back.
    pub(super) fn is_gone(&self, pod: Arc<LivePod>) {
        let uid = pod.uid.clone();
        self.send(&uid, Task::Gone(pod));
    }

    fn send(&self, uid: &str, task: Task) {
        let number = uid
            .bytes()
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        if let Some(lane) = self.lanes.get(number % LANES) {
            // Lanes end when the process does.
            let _ = lane.send(task);
        }
    }

    async fn work_on(&self, task: &Task) -> Result<(), KeepError> {
        match task {
            Task::Look(uid) => match self.roster.known(uid) {
                None => Ok(()),
                Some(pod) if self.roster.get(uid).is_none() => self.release(&pod).await,
                Some(pod) => self.seat(&pod).await,
            },
            // Another may have got the name since, if the pod only had it by copying.
            Task::Gone(pod) if self.roster.named(pod.id).is_some() => Ok(()),
            Task::Gone(pod) => self.release(pod).await,
            Task::Free(seated) => Ok(self.desk.release(seated, "pod_gone").await?),
        }
    }

    async fn release(&self, pod: &LivePod) -> Result<(), KeepError> {
        if let Some(seated) = self.find(pod).await? {
            self.desk.release(&seated, "pod_gone").await?;
        }
        Ok(())
    }

    /// The seat of a pod. Most pods of a cluster have no token and no seat, and the database is not
    /// asked for them.
    async fn find(&self, pod: &LivePod) -> Result<Option<Seated>, DeskError> {
        if pod.is_tagged() { self.desk.find(pod.id).await } else { Ok(self.desk.in_books(pod.id)) }
    }

    /// Sees to it that a pod that lives has its seat, if it should have one.
    async fn seat(&self, pod: &LivePod) -> Result<(), KeepError> {
        if pod.controller_uid().is_none() || self.excluded.contains(&pod.namespace) {
            return Ok(());
        }
        if let Some(seated) = self.find(pod).await? {
            let its_own = *seated.key.0 == *pod.namespace;
            if !its_own || self.desk.bind(&seated).await? {
                return Ok(());
            }
            // Its lease ended before the pod was seen.
            self.desk.release(&seated, "lease_ended").await?;
        }
        self.adopt(pod).await
    }

    /// Counts a pod that has no seat: it was created while we were away, or before its workload was
    /// switched on, or its reservation ended.
    async fn adopt(&self, pod: &LivePod) -> Result<(), KeepError> {
        if self.owners.keys().opts_out(Marks::of(&pod.metadata)) {
            return Ok(());
        }
        let owner = self.owners.owner(&pod.namespace, &pod.metadata, Look::Watched).await?;
        let Some(owner) = owner else { return Ok(()) };
        let Asked::On { rule, .. } = owner.asked else { return Ok(()) };
        // Where it will be is not known yet: it is looked at again when it is on a node.
        let Some(class) = self.class(pod).or_else(|| self.wait_for_node(pod)) else {
            return Ok(());
        };
        self.desk.define(&owner.key, rule, owner.version.as_deref()).await?;
        let wanted = match owner.numbering {
            Numbering::Ordinal { start } => {
                match ordinal(&pod.name, pod.metadata.labels.as_ref()) {
                    Some(ordinal) => Some(ordinal - start),
                    None => return Ok(()),
                }
            }
            Numbering::Lowest => {
                let same = pod.is_tagged() && pod.workload() == Some(&*owner.key.1);
                pod.slot().filter(|_| same)
            }
        };
        let Some(seated) = self.give(pod.id, &owner, class, wanted).await? else { return Ok(()) };
        self.desk.bind(&seated).await?;
        self.metrics.adopted.inc();
        Ok(())
    }

    async fn give(
        &self,
        id: InstanceId,
        owner: &Owner,
        class: CapacityType,
        wanted: Option<i64>,
    ) -> Result<Option<Seated>, KeepError> {
        let unique = uuid::Uuid::now_v7();
        let ask = |slot: Option<i64>| Ask {
            key: owner.key.clone(),
            id,
            request_id: format!("adopt/{}/{unique}/{}", id.0, u8::from(slot.is_some())),
            class: Some(class),
            slot,
        };
        if let Some(slot) = wanted {
            match self.desk.reserve(&ask(Some(slot))).await? {
                Given::Seated(seated) => return Ok(Some(seated)),
                // An ordinal is nobody else's: whoever has it is gone, which we shall be told.
                Given::Taken(_) if owner.numbering != Numbering::Lowest => return Ok(None),
                Given::Taken(_) => {}
            }
        }
        match self.desk.reserve(&ask(None)).await? {
            Given::Seated(seated) => Ok(Some(seated)),
            Given::Taken(_) => Ok(None),
        }
    }

    /// The kind of capacity that a pod is on, or must go to.
    fn class(&self, pod: &LivePod) -> Option<CapacityType> {
        let of_node = || {
            let node = self.nodes.get(&ObjectRef::new(pod.node.as_deref()?))?;
            self.label.class(node.metadata.labels.as_ref()?.get(&self.label.key)?)
        };
        let told = || pod.told_class().filter(|_| pod.is_tagged());
        let left = || match pod.leaves {
            Leaves::Only(class) => Some(class),
            Leaves::Both | Leaves::Neither => None,
        };
        of_node().or_else(told).or_else(left)
    }

    /// Has a pod looked at again when something is heard of its node. Returns its kind if that came
    /// meanwhile.
    fn wait_for_node(&self, pod: &LivePod) -> Option<CapacityType> {
        let node = pod.node.clone()?;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.entry(node).or_default().insert(pod.uid.clone());
        self.class(pod)
    }

    /// Something was heard of a node: whoever waited for it is looked at.
    pub(super) fn node_is_known(&self, node: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let uids = waiting.remove(node).unwrap_or_default();
        drop(waiting);
        for uid in uids {
            self.look_at(&uid);
        }
    }

    /// Whether a pod is on a node that says nothing of its kind, and so cannot be counted.
    pub(super) fn is_of_neither_kind(&self, pod: &LivePod) -> bool {
        pod.node.is_some() && self.class(pod).is_none() && self.desk.in_books(pod.id).is_none()
    }

    /// Brings the desk in step with all pods: those with tokens first, each into its own slot, then
    /// the others. `before` is who had seats before the pods were listed; of these, whoever is not
    /// among the pods is gone.
    pub(super) async fn rebuild(&self, before: &[Seated], stop: &CancellationToken) {
        for tagged in [true, false] {
            let mut pods = self.roster.all();
            pods.retain(|pod| pod.is_tagged() == tagged);
            pods.sort_by_key(|pod| (pod.slot(), pod.metadata.creation_timestamp.clone()));
            let tasks = pods.iter().map(|pod| Task::Look(pod.uid.clone())).collect();
            self.until_done(tasks, stop).await;
        }
        let gone = before.iter().filter(|seated| {
            seated.state != ClaimState::Held && self.roster.named(seated.id).is_none()
        });
        self.until_done(gone.cloned().map(Task::Free).collect(), stop).await;
        self.desk.settled().await;
    }

    /// Does tasks, a few at a time in order, until all are done.
    async fn until_done(&self, mut left: Vec<Task>, stop: &CancellationToken) {
        while !left.is_empty() && !stop.is_cancelled() {
            // In order: untagged pods take the lowest seats in the order of their age.
            let results = stream::iter(left)
                .map(|task| async move { (self.work_on(&task).await, task) })
                .buffered(LANES);
            let done: Vec<_> = results.collect().await;
            left = Vec::new();
            for (result, task) in done {
                if let Err(error) = result {
                    tracing::warn!(%error, "a pod cannot be counted yet");
                    self.metrics.ledger_errors.inc();
                    left.push(task);
                }
            }
            if !left.is_empty() {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }

    /// Asks the API server which pods of a revision live, and frees the seats of the others.
    pub(super) async fn refresh(&self, namespace: &str, owner: &Owner) -> Result<(), KeepError> {
        self.desk.settled().await;
        // Who had a seat before the pods are listed, and is not among them, is gone.
        let members = self.desk.members(&owner.key);
        self.desk.reap().await?;
        let mut parts = owner.key.1.split('/');
        let params = match (parts.next(), parts.nth(1)) {
            (Some("Deployment"), Some(hash)) => {
                ListParams::default().labels(&format!("pod-template-hash={hash}"))
            }
            _ => ListParams::default(),
        };
        self.free_missing(namespace, &params, members).await
    }

    /// Asks the API server whether the pods of these seats live, and frees those whose pods do not.
    pub(super) async fn free_missing(
        &self,
        namespace: &str,
        params: &ListParams,
        members: Vec<Seated>,
    ) -> Result<(), KeepError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut live = HashSet::new();
        for pod in api.list(params).await?.items {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if is_gone(&pod) {
                // The watch will say so too, later.
                self.roster.leaves(&uid);
                continue;
            }
            let token = pod.metadata.annotations.as_ref().and_then(|it| it.get(keys::TOKEN));
            live.extend(token.and_then(|text| read_token(text)));
            live.insert(derived("pod", &uid));
        }
        for member in members {
            if member.state == ClaimState::Held || live.contains(&member.id) {
                continue;
            }
            if let Some(pod) = self.roster.named(member.id) {
                self.roster.leaves(&pod.uid);
            }
            self.desk.release(&member, "pod_gone").await?;
        }
        Ok(())
    }
}

/// The number of a pod of a StatefulSet.
pub(super) fn ordinal(
    name: &str,
    labels: Option<&std::collections::BTreeMap<String, String>>,
) -> Option<i64> {
    let label = labels.and_then(|it| it.get("apps.kubernetes.io/pod-index"));
    let from_label = label.and_then(|text| text.parse().ok());
    let from_name = || name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
    from_label.or_else(from_name).filter(|ordinal| *ordinal >= 0)
}

async fn work(keeper: Arc<Keeper>, mut lane: UnboundedReceiver<Task>, stop: CancellationToken) {
    loop {
        let task = tokio::select! {
            () = stop.cancelled() => return,
            task = lane.recv() => match task {
                Some(task) => task,
                None => return,
            },
        };
        while let Err(error) = keeper.work_on(&task).await {
            tracing::warn!(%error, "a pod's seat cannot be kept yet");
            keeper.metrics.ledger_errors.inc();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(AGAIN_AFTER) => {}
            }
        }
    }
}
