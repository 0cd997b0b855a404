//! The one owner of what is known of the cluster and of who waits for a place.
//!
//! It is told changes, decides, and says what is to be done; it does nothing itself. No I/O and no
//! clock here: the real loop and the measurement drive the same code.

mod answers;
mod drains;
pub(crate) mod drive;
mod place;
mod pods;
mod reports;
#[cfg(test)]
mod telling_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use berth_engine::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use super::drain::Drains;
use super::messages::{Change, Message, Work};
use super::metrics::Metrics;
use super::queue::{Millis, Queue};
use crate::cluster::pod::Key;
use crate::cluster::{Cluster, PodState, Settings};

/// A moment: by a clock that only goes forward, and by the calendar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) millis: Millis,
    pub(crate) date: Timestamp,
}

/// What others may know of the brain at any time.
#[derive(Debug, Default)]
pub(crate) struct Status {
    missing: Mutex<BTreeSet<&'static str>>,
}

impl Status {
    /// Of a brain that has been told nothing yet.
    pub(crate) fn waiting_for(kinds: &[&'static str]) -> Self {
        Self { missing: Mutex::new(kinds.iter().copied().collect()) }
    }

    /// What has not been listed yet.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

/// A pod as the brain remembers it; the rest is the cluster's.
#[derive(Debug)]
struct Known {
    key: Key,
    version: Option<u64>,
    state: PodState,
    /// Whether a kubelet made it: nobody can move it.
    mirror: bool,
}

/// A node that a pod was promised.
#[derive(Debug)]
struct Promise {
    node: Arc<str>,
    /// Who was told to go; absent: another leader told them.
    victims: Option<Vec<Arc<str>>>,
    /// Until when it counts though nobody is leaving any more.
    until: Millis,
}

/// What a pod was told last.
#[derive(Debug)]
struct Told {
    code: String,
    line: String,
    at: Millis,
}

/// See the module.
pub(crate) struct Brain {
    cluster: Cluster,
    /// The name by which pods ask for us.
    scheduler: String,
    queue: Queue,
    pods: FxHashMap<Arc<str>, Known>,
    /// Members of gangs without a place: their priority and age.
    gangs: FxHashMap<Key, FxHashMap<Arc<str>, (i32, i64)>>,
    /// Pods that were seen to be gone before the watch has told so.
    buried: FxHashSet<Arc<str>>,
    /// While all pods are being listed: those that were told to be gone since that began. The list may
    /// still hold them.
    departed: Option<FxHashSet<Arc<str>>>,
    promises: FxHashMap<Arc<str>, Promise>,
    told: FxHashMap<Arc<str>, Told>,
    nodes: FxHashSet<Arc<str>>,
    drains: Drains,
    leads: bool,
    warm: bool,
    status: Arc<Status>,
    metrics: Arc<Metrics>,
}

impl Brain {
    pub(crate) fn new(
        settings: Settings,
        drains: Drains,
        status: Arc<Status>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let warm = status.missing().is_empty();
        Self {
            scheduler: settings.scheduler.clone(),
            cluster: Cluster::new(settings),
            queue: Queue::default(),
            pods: FxHashMap::default(),
            gangs: FxHashMap::default(),
            buried: FxHashSet::default(),
            departed: None,
            promises: FxHashMap::default(),
            told: FxHashMap::default(),
            nodes: FxHashSet::default(),
            drains,
            leads: false,
            warm,
            status,
            metrics,
        }
    }

    /// Takes one message in. Breaks when it was the last.
    pub(crate) fn hear(
        &mut self,
        message: Message,
        now: Moment,
        work: &mut Vec<Work>,
    ) -> ControlFlow<()> {
        match message {
            Message::Change(change) => self.change(change, now),
            Message::Listed(kind) => {
                let missing =
                    &mut *self.status.missing.lock().unwrap_or_else(PoisonError::into_inner);
                missing.remove(kind);
                if missing.is_empty() && !self.warm {
                    self.warm = true;
                    tracing::info!(
                        nodes = self.nodes.len(),
                        pods = self.pods.len(),
                        "everything has been listed"
                    );
                }
            }
            Message::Listing => self.departed = Some(FxHashSet::default()),
            Message::Fresh { uids, version } => {
                self.only_these(&uids, version);
                self.departed = None;
            }
            Message::Lead(leads) => self.lead(leads),
            Message::Report(report) => self.report(report, now, work),
            Message::Ask(ask) => self.answer(ask, now),
            Message::Permit(asked) => self.permit(asked, now),
            Message::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Leadership was won or lost.
    fn lead(&mut self, leads: bool) {
        self.leads = leads;
        self.metrics.leader(leads);
        // What was to be told when it was lost has not been: whoever leads next tells anew, and
        // looks at all who wait with its own eyes.
        self.told.clear();
        self.queue.news();
    }

    fn change(&mut self, change: Change, now: Moment) {
        let cluster = &mut self.cluster;
        match change {
            Change::Pod(pod) => self.put_pod(&pod),
            Change::PodGone(key, uid) => self.pod_gone(&key, &uid),
            Change::Node(node) => {
                if let Some(name) = node.metadata.name.as_deref() {
                    self.nodes.insert(name.into());
                    self.drains.put_node(&node, now);
                }
                cluster.put_node(&node);
            }
            Change::NodeGone(key) => {
                self.nodes.remove(&key.name);
                self.drains.remove_node(&key.name);
                cluster.remove_node(&key.name);
            }
            Change::Namespace(it) => {
                let labels = it.metadata.labels.unwrap_or_default();
                cluster.put_namespace(it.metadata.name.as_deref().unwrap_or_default(), &labels);
            }
            Change::NamespaceGone(key) => cluster.remove_namespace(&key.name),
            Change::Budget(budget) => cluster.put_budget(&budget),
            Change::BudgetGone(key) => cluster.remove_budget(&key),
            Change::Claim(claim) => cluster.volumes().put_claim(&claim),
            Change::ClaimGone(key) => cluster.volumes().remove_claim(&key),
            Change::Volume(volume) => cluster.volumes().put_volume(&volume),
            Change::VolumeGone(key) => cluster.volumes().remove_volume(&key.name),
            Change::Class(class) => cluster.volumes().put_class(&class),
            Change::ClassGone(key) => cluster.volumes().remove_class(&key.name),
            Change::CsiNode(node) => cluster.volumes().put_csi_node(&node),
            Change::CsiNodeGone(key) => cluster.volumes().remove_csi_node(&key.name),
            Change::CsiDriver(driver) => cluster.volumes().put_csi_driver(&driver),
            Change::CsiDriverGone(key) => cluster.volumes().remove_csi_driver(&key.name),
            Change::CsiCapacity(capacity) => cluster.volumes().put_csi_capacity(&capacity),
            Change::CsiCapacityGone(key) => cluster.volumes().remove_csi_capacity(&key),
            Change::Vm(vm) => cluster.put_vm(&vm),
            Change::VmGone(key) => cluster.remove_vm(&key),
        }
    }

    /// Whether pods are placed now.
    pub(crate) fn acts(&self) -> bool {
        self.leads && self.warm
    }

    /// Whether there is something to be done at once.
    pub(crate) fn is_busy(&self) -> bool {
        self.acts() && self.queue.is_ready()
    }

    /// When time alone gives something to do.
    pub(crate) fn next_at(&self) -> Option<Millis> {
        let drains = self.drains.next_at();
        if !self.acts() {
            return None;
        }
        self.queue.next_at().into_iter().chain(drains).min()
    }

    /// Takes in what the last messages have changed for those who wait.
    pub(crate) fn settle(&mut self, now: Moment) {
        if self.cluster.take_news() {
            self.queue.news();
        }
        self.queue.tick(now.millis);
        self.metrics.queue(self.queue.lengths());
    }
}
