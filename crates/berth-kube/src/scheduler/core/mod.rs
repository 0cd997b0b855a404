//! The single owner of the cluster state and the scheduling queue.
//!
//! Messages go in, actions come out; the core itself performs no I/O and reads no clock, so that the
//! service and the benchmark run the same code.

mod debug_state;
mod drains;
mod elastic;
pub(crate) mod event_loop;
mod nominations;
#[cfg(test)]
mod notification_tests;
mod notifications;
mod overfull;
mod pods;
mod queries;
mod results;
mod schedule;
mod shared_nodes;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::drain::DrainTracker;
use super::messages::{Action, Change, Message, PolicyNotice, SyncStatus};
use super::metrics::Metrics;
use super::queue::{Millis, Moment, SchedulingQueue};
use super::relief::ReliefTracker;
use crate::cluster::pod::Key;
use crate::cluster::{Cluster, PodState, Settings};

/// What the core keeps of a pod beyond the cluster state.
#[derive(Debug)]
struct PodRecord {
    key: Key,
    version: Option<u64>,
    state: PodState,
    /// Whether it is a static pod, which cannot be evicted.
    mirror: bool,
    /// The state in which the watch showed it last.
    noticed: Option<PodState>,
}

/// A node that was nominated for a pod by preemption.
#[derive(Debug)]
struct Nomination {
    node: Arc<str>,
    /// The pods that were deleted for it; absent if another leader deleted them.
    victims: Option<Vec<Arc<str>>>,
    /// How long it counts after the victims have gone.
    until: Millis,
}

/// The last reason that was published for a pod.
#[derive(Debug)]
struct LastNotice {
    code: String,
    line: String,
    at: Millis,
}

/// Why a pod cannot be scheduled.
#[derive(Clone, Debug)]
struct Notice {
    code: String,
    line: String,
    content: NoticeContent,
}

/// What is written of it.
#[derive(Clone, Debug)]
struct NoticeContent {
    text: String,
    /// The node that would help, as JSON.
    shape: Option<Arc<str>>,
}

/// See the module.
pub(crate) struct SchedulerCore {
    cluster: Cluster,
    /// The scheduler name that pods ask for.
    scheduler: String,
    queue: SchedulingQueue,
    pods: FxHashMap<Arc<str>, PodRecord>,
    /// Unbound members of gangs: their priority and creation time.
    gangs: FxHashMap<Key, FxHashMap<Arc<str>, (i32, i64)>>,
    /// Pods that a request found deleted before the watch reported it.
    tombstones: FxHashSet<Arc<str>>,
    /// While a relist is in progress: pods whose deletion was reported since it began. The list may
    /// still contain them.
    deleted_during_relist: Option<FxHashSet<Arc<str>>>,
    nominations: FxHashMap<Arc<str>, Nomination>,
    last_notices: FxHashMap<Arc<str>, LastNotice>,
    /// Notices that follow too soon after the last one of their pod, and when they are due.
    deferred_notices: FxHashMap<Arc<str>, (Millis, Notice)>,
    nodes: FxHashSet<Arc<str>>,
    drains: DrainTracker,
    relief: ReliefTracker,
    /// Permits that are being written, by pod uid.
    permit_writes: FxHashMap<Arc<str>, elastic::PendingPermit>,
    /// When resizes that annotations ask for may be tried again.
    resize_retries: FxHashMap<Key, Millis>,
    /// What became of the last policy, until it is published.
    policy_notice: Option<PolicyNotice>,
    /// Overfull nodes, and when their pods of lower priority may be evicted.
    overfull: FxHashMap<Arc<str>, Millis>,
    /// Whether pods of overfull nodes are evicted.
    evicts_overfull: bool,
    shared_nodes: shared_nodes::SharedNodes,
    is_leader: bool,
    synced: bool,
    sync_status: Arc<SyncStatus>,
    metrics: Arc<Metrics>,
}

impl SchedulerCore {
    pub(crate) fn new(
        settings: Settings,
        drains: DrainTracker,
        sync_status: Arc<SyncStatus>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let synced = sync_status.unsynced_kinds().is_empty();
        Self {
            scheduler: settings.scheduler.clone(),
            cluster: Cluster::new(settings),
            queue: SchedulingQueue::default(),
            pods: FxHashMap::default(),
            gangs: FxHashMap::default(),
            tombstones: FxHashSet::default(),
            deleted_during_relist: None,
            nominations: FxHashMap::default(),
            last_notices: FxHashMap::default(),
            deferred_notices: FxHashMap::default(),
            nodes: FxHashSet::default(),
            drains,
            relief: ReliefTracker::default(),
            permit_writes: FxHashMap::default(),
            resize_retries: FxHashMap::default(),
            policy_notice: None,
            overfull: FxHashMap::default(),
            evicts_overfull: false,
            shared_nodes: shared_nodes::SharedNodes::default(),
            is_leader: false,
            synced,
            sync_status,
            metrics,
        }
    }

    /// Handles one message. Breaks on the last one.
    pub(crate) fn handle_message(
        &mut self,
        message: Message,
        now: Moment,
        actions: &mut Vec<Action>,
    ) -> ControlFlow<()> {
        match message {
            Message::Change(change) => self.apply_change(change, now),
            Message::Synced(kind) => {
                if self.sync_status.mark_synced(kind) && !self.synced {
                    self.synced = true;
                    tracing::info!(
                        nodes = self.nodes.len(),
                        pods = self.pods.len(),
                        "initial lists complete"
                    );
                }
            }
            Message::RelistStarted => self.deleted_during_relist = Some(FxHashSet::default()),
            Message::Relisted { uids, version } => {
                self.retain_listed_pods(&uids, version);
                self.deleted_during_relist = None;
            }
            Message::LeadershipChanged(is_leader) => self.set_leader(is_leader),
            Message::ActionCompleted(result) => self.handle_result(result, now, actions),
            Message::Query(query) => self.answer_query(query, now),
            Message::PermitRequested(call) => self.decide_permit(call, now, actions),
            Message::NodeListed(listing) => self.check_binding(listing),
            Message::PolicyObserved(observed) => self.observe_policy(*observed),
            Message::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn set_leader(&mut self, is_leader: bool) {
        self.is_leader = is_leader;
        self.metrics.set_leader(is_leader);
        // Notices that were pending when leadership was lost were not written: the next leader
        // publishes them again, and retries every pod.
        self.last_notices.clear();
        self.deferred_notices.clear();
        self.forget_permits();
        self.queue.move_all_to_active();
    }

    fn apply_change(&mut self, change: Change, now: Moment) {
        let cluster = &mut self.cluster;
        match change {
            Change::Pod(pod) => self.observe_pod(&pod, now),
            Change::PodDeleted(key, uid) => {
                self.relief.forget_pod(&uid, now);
                self.delete_pod(&key, &uid);
            }
            Change::Node(node) => {
                if let Some(name) = node.metadata.name.as_deref() {
                    self.nodes.insert(name.into());
                    self.drains.put_node(&node, now);
                }
                cluster.put_node(&node);
            }
            Change::NodeDeleted(key) => {
                self.nodes.remove(&key.name);
                self.drains.remove_node(&key.name);
                cluster.remove_node(&key.name);
            }
            Change::Namespace(it) => {
                let labels = it.metadata.labels.unwrap_or_default();
                cluster.put_namespace(it.metadata.name.as_deref().unwrap_or_default(), &labels);
            }
            Change::NamespaceDeleted(key) => cluster.remove_namespace(&key.name),
            Change::Budget(budget) => cluster.put_budget(&budget),
            Change::BudgetDeleted(key) => cluster.remove_budget(&key),
            Change::Claim(claim) => cluster.volumes().put_claim(&claim),
            Change::ClaimDeleted(key) => cluster.volumes().remove_claim(&key),
            Change::Volume(volume) => cluster.volumes().put_volume(&volume),
            Change::VolumeDeleted(key) => cluster.volumes().remove_volume(&key.name),
            Change::Class(class) => cluster.volumes().put_class(&class),
            Change::ClassDeleted(key) => cluster.volumes().remove_class(&key.name),
            Change::CsiNode(node) => cluster.volumes().put_csi_node(&node),
            Change::CsiNodeDeleted(key) => cluster.volumes().remove_csi_node(&key.name),
            Change::CsiDriver(driver) => cluster.volumes().put_csi_driver(&driver),
            Change::CsiDriverDeleted(key) => cluster.volumes().remove_csi_driver(&key.name),
            Change::CsiCapacity(capacity) => cluster.volumes().put_csi_capacity(&capacity),
            Change::CsiCapacityDeleted(key) => cluster.volumes().remove_csi_capacity(&key),
            Change::Vm(vm) => cluster.put_vm(&vm),
            Change::VmDeleted(key) => cluster.remove_vm(&key),
            Change::Migration(migration) => {
                if let Some(vm) = cluster.put_migration(&migration) {
                    self.relief.observe_migration(&vm);
                }
            }
            Change::MigrationDeleted(key) => cluster.remove_migration(&key),
            Change::MigrationsServed(served) => cluster.set_migrations_served(served),
            Change::Group(kind, it) => cluster.put_group(kind, &it),
            Change::GroupDeleted(kind, key) => cluster.remove_group(kind, &key),
            Change::Device(kind, it) => cluster.devices().put(kind, &it),
            Change::DeviceDeleted(kind, key) => cluster.devices().remove(kind, &key),
        }
    }

    /// Whether pods are scheduled now: this replica leads, and the initial lists are complete.
    pub(crate) fn is_active(&self) -> bool {
        self.is_leader && self.synced
    }

    /// Whether a queue entry can be tried at once.
    pub(crate) fn has_active_entries(&self) -> bool {
        self.is_active() && self.queue.has_active()
    }

    /// When the next timer of the queue or of a drain expires.
    pub(crate) fn next_wakeup(&self) -> Option<Millis> {
        let drains = self.drains.next_check();
        if !self.is_active() {
            return None;
        }
        let elastic = self.next_elastic_pass();
        self.queue.next_expiry().into_iter().chain(drains).chain(elastic).min()
    }

    /// Moves queue entries that the last messages, or time, may have made schedulable.
    pub(crate) fn refresh_queue(&mut self, now: Moment) {
        self.recall_bindings();
        if self.cluster.take_changed() {
            self.queue.move_all_to_active();
        }
        self.queue.flush_expired(now.millis);
        self.metrics.set_queue_lengths(self.queue.lengths());
    }
}
