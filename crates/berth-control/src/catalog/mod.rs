//! The catalogue: what is where, for readers.
//!
//! A second copy of the ledger in memory, apart from the planner's and updated by a thread of its
//! own, so that a long list never delays a decision. It decides nothing: it may be a moment old, and
//! the ledger's guards check whatever is written because of it.

mod entries;
mod locality;
#[cfg(test)]
mod order_tests;
mod state;
mod state_message;
#[cfg(test)]
mod tests;

use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use berth_api::name_hints::Names;
use berth_engine::{NodeFacts, NodeId, Policy};
use berth_ledger::{CommitRecord, EventBody, Micros, Text};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{oneshot, watch};

pub use entries::{ClaimEntry, MemberEntry, NodeEntry};
pub use state::CatalogState;
pub(crate) use state::SPECS;

use crate::applied_from_log::{AheadOfLog, AppliedFromLog};
use crate::backlog::{Backlog, BacklogReceiver, REPORTED_EVENTS_MAX};
use crate::documents::{ChangeReceiver, ChangeSender, DocumentChange, change_queue};
use crate::metrics::Metrics;
use crate::supervision::{Supervisor, ThreadMonitor, ThreadWork};
use crate::workload::{CrashHistories, WorkloadKey};
pub use locality::LocalityKey;

/// An update of the catalogue. None of them waits for the planner: own commits come from the writers, and
/// the log from its reader.
pub enum CatalogUpdate {
    /// A snapshot, which replaces what is here. Reports of all commits that are in it came before it.
    Replace(Box<CatalogState>),
    /// What this server committed, as soon as that is known.
    Committed(Arc<CommitRecord>),
    /// Part of the log, in order.
    Log(Vec<LogSegment>),
    /// When agents were last heard, by any server.
    Heartbeats(Vec<(NodeId, i64)>),
    /// The log has been read to its end, or cannot be read further for now.
    PassEnded,
    /// What is gone by now cannot come up again.
    TombstonesPassed,
    /// Answered when everything that this server committed before it is in the catalogue.
    Barrier(oneshot::Sender<()>),
}

/// Sends updates. Whoever reports a commit waits while too many events of others wait here; nothing is
/// dropped.
#[derive(Clone)]
pub struct CatalogUpdateSender {
    updates: Sender<CatalogUpdate>,
    backlog: Arc<Backlog>,
}

impl CatalogUpdateSender {
    /// Sends an update.
    ///
    /// # Errors
    /// When the catalogue's thread has ended.
    pub fn send(&self, update: CatalogUpdate) -> Result<(), SendError<CatalogUpdate>> {
        if let CatalogUpdate::Committed(report) = &update {
            self.backlog.add(report.events.len());
        }
        self.updates.send(update)
    }

    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }
}

/// What one transaction wrote, from the log.
#[derive(Clone, Debug)]
pub struct LogSegment {
    /// When.
    pub at: Micros,
    /// The writer's chain.
    pub origin: Text,
    /// Whether it is one of this server's own.
    pub is_own: bool,
    /// What happened.
    pub events: Vec<EventBody>,
}

/// Where the catalogue's thread is in reports and log.
#[derive(Default)]
struct Progress {
    is_loaded: bool,
    /// Whether own segments come from the log as well.
    reads_own_log: bool,
    applied_from_log: AppliedFromLog,
    ahead_of_log: AheadOfLog,
    /// Whether a snapshot took the place of reports that were newer: they come again with the log.
    is_behind: bool,
    /// Barriers that wait for that.
    held: Vec<oneshot::Sender<()>>,
}

/// The copy for readers.
pub struct Catalog {
    catalog: RwLock<CatalogState>,
    /// One for each node that is watched.
    watched: Mutex<FxHashMap<NodeId, watch::Sender<u64>>>,
    /// Rises with everything that may make room.
    room: watch::Sender<u64>,
    /// The policy in force, readable without the lock: every answer to a tenant needs it.
    policy: ArcSwapOption<Policy>,
    documents: ChangeSender,
    /// Workloads to be reconciled, since something of theirs changed.
    dirty: Mutex<FxHashSet<WorkloadKey>>,
    /// Rises whenever there are any.
    dirty_version: watch::Sender<u64>,
    /// Events that were written on behalf of each tenant, and not asked for yet.
    written: Mutex<FxHashMap<String, usize>>,
    /// Names of traits, labels and the like that nodes have.
    names: Mutex<Option<NodeNames>>,
}

/// The names that nodes had at some version of their facts.
struct NodeNames {
    facts_version: u64,
    collected_at: Instant,
    names: Arc<Names>,
}

/// How often names are collected at most: it takes a look at every node.
const NAMES_INTERVAL: Duration = Duration::from_secs(1);

impl Catalog {
    /// An empty catalogue, the sender of its updates, and changes of documents.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        supervisor: &Arc<Supervisor>,
        metrics: Option<Arc<Metrics>>,
    ) -> std::io::Result<(Arc<Self>, CatalogUpdateSender, ChangeReceiver)> {
        let (documents, changed) = change_queue();
        let catalog = Arc::new(Self {
            catalog: RwLock::default(),
            watched: Mutex::default(),
            room: watch::Sender::new(0),
            policy: ArcSwapOption::empty(),
            documents,
            dirty: Mutex::default(),
            written: Mutex::default(),
            names: Mutex::default(),
            dirty_version: watch::Sender::new(0),
        });
        let (updates, receiver) = mpsc::channel();
        let backlog = Arc::new(Backlog::new(REPORTED_EVENTS_MAX));
        let sender = CatalogUpdateSender { updates, backlog: Arc::clone(&backlog) };
        let kept = Arc::clone(&catalog);
        let monitor = supervisor.monitor("catalog", ThreadWork::Computes, metrics);
        std::thread::Builder::new()
            .name("catalog".to_owned())
            .spawn(move || kept.run(&receiver, &BacklogReceiver(backlog), &monitor))?;
        Ok((catalog, sender, changed))
    }

    /// What is where. Hold it briefly: the catalogue does not change meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, CatalogState> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The policy in force, once one was stored.
    #[must_use]
    pub fn policy(&self) -> Option<Arc<Policy>> {
        self.policy.load_full()
    }

    /// The names that nodes have now; none while nodes change faster than names are collected.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "only how often names are collected depends on it"
    )]
    pub fn node_names(&self) -> Option<Arc<Names>> {
        let mut known = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let catalog = self.read();
        let facts_version = catalog.facts_version;
        match &*known {
            Some(known) if known.facts_version == facts_version => {
                return Some(Arc::clone(&known.names));
            }
            Some(known) if known.collected_at.elapsed() < NAMES_INTERVAL => return None,
            Some(_) | None => {}
        }
        let facts: Vec<Arc<NodeFacts>> =
            catalog.nodes.values().map(|node| Arc::clone(&node.facts)).collect();
        drop(catalog);
        let names = Arc::new(Names::of_nodes(facts.iter().map(|facts| &**facts)));
        let collected_at = Instant::now();
        *known = Some(NodeNames { facts_version, collected_at, names: Arc::clone(&names) });
        Some(names)
    }

    /// Changes whenever something may have made room: a release, a node.
    #[must_use]
    pub fn room(&self) -> watch::Receiver<u64> {
        self.room.subscribe()
    }

    /// Changes whenever what should be on a node does.
    #[must_use]
    pub fn watch(&self, node: &NodeId) -> watch::Receiver<u64> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|_, sender| sender.receiver_count() > 0);
        watched.entry(node.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Records that a node's agent was heard.
    pub(crate) fn record_heartbeat(&self, node: &NodeId, at: i64) {
        self.read().record_heartbeat(node, at);
    }

    /// Takes in how often members of a workload ended, as the ledger has it.
    pub(crate) fn merge_crashes(&self, key: &WorkloadKey, stored: &CrashHistories) {
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        catalog.crashes.entry(key.clone()).or_default().merge(stored);
    }

    fn run(
        &self,
        updates: &Receiver<CatalogUpdate>,
        backlog: &BacklogReceiver,
        monitor: &ThreadMonitor,
    ) {
        let mut progress = Progress::default();
        while let Ok(first) = updates.recv() {
            monitor.begin();
            // A bounded number under one lock, so that readers are not blocked for long.
            let updates = std::iter::once(first).chain(updates.try_iter().take(64));
            let updates = updates.inspect(|update| {
                if let CatalogUpdate::Committed(report) = update {
                    backlog.0.remove(report.events.len());
                }
            });
            let applied = monitor.guard(|| self.apply_updates(updates, &mut progress));
            monitor.idle();
            if applied.is_err() {
                // What it worked on is half applied.
                monitor.supervisor().request_reload();
            }
        }
        monitor.stop();
    }

    fn apply_updates(&self, updates: impl Iterator<Item = CatalogUpdate>, progress: &mut Progress) {
        let (mut reached, mut replaced) = (Vec::new(), Vec::new());
        let mut changes = state::ChangeSet::default();
        let mut room = false;
        {
            let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
            let mut apply = |catalog: &mut CatalogState, at, events: Vec<EventBody>| {
                for event in events {
                    room |= makes_room(&event);
                    self.forward_document_change(&event);
                    catalog.apply(at, event, &mut changes);
                }
            };
            for update in updates {
                match update {
                    CatalogUpdate::Replace(fresh) => {
                        replaced.push(catalog.replace(*fresh));
                        progress.replaced();
                    }
                    CatalogUpdate::Committed(report) => {
                        if !progress.is_applied(&report) {
                            let report = Arc::unwrap_or_clone(report);
                            progress.note_applied(&report);
                            apply(&mut catalog, report.at, report.events);
                        }
                    }
                    CatalogUpdate::Log(segments) => {
                        for segment in segments {
                            let (at, events) = (segment.at, progress.news_of(segment));
                            apply(&mut catalog, at, events);
                        }
                    }
                    CatalogUpdate::Heartbeats(heard) => {
                        for (node, at) in heard {
                            catalog.record_heartbeat(&node, at);
                        }
                    }
                    CatalogUpdate::PassEnded => reached.append(&mut progress.pass_ended()),
                    CatalogUpdate::TombstonesPassed => {
                        catalog.rotate_tombstones();
                        progress.ahead_of_log.purge();
                        progress.ahead_of_log.seal();
                    }
                    CatalogUpdate::Barrier(barrier) if progress.is_behind => {
                        progress.held.push(barrier);
                    }
                    CatalogUpdate::Barrier(barrier) => reached.push(barrier),
                }
            }
            room |= changes.made_room || !replaced.is_empty();
            if room {
                self.policy.store(catalog.policy.clone());
            }
            if !replaced.is_empty() {
                changes.workloads.extend(catalog.workloads.keys().cloned());
            }
        }
        // The caches are loaded by themselves when the server starts.
        if !replaced.is_empty() && std::mem::replace(&mut progress.is_loaded, true) {
            self.documents.send(DocumentChange::Reloaded);
        }
        self.count_written(changes.written);
        self.notify_watchers(&changes.nodes, room);
        self.mark_dirty(changes.workloads);
        for barrier in reached {
            // The caller may have stopped waiting.
            let _ = barrier.send(());
        }
        // It takes a while to free a whole fleet: nobody waits for that.
        drop(replaced);
    }

    fn count_written(&self, events: FxHashMap<String, usize>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for (tenant, count) in events {
            *written.entry(tenant).or_default() += count;
        }
    }

    /// How many events about its instances were written on behalf of a tenant since this was last asked, by any server.
    pub(crate) fn take_events_written(&self, tenant: &str) -> usize {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.remove(tenant).unwrap_or(0)
    }

    /// Has workloads reconciled.
    pub fn mark_dirty(&self, workloads: impl IntoIterator<Item = WorkloadKey>) {
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        dirty.extend(workloads);
        if !dirty.is_empty() {
            self.dirty_version.send_modify(|version| *version += 1);
        }
    }

    /// Changes whenever workloads are to be reconciled.
    #[must_use]
    pub fn dirty_changes(&self) -> watch::Receiver<u64> {
        self.dirty_version.subscribe()
    }

    /// Takes the workloads to be reconciled.
    #[must_use]
    pub fn take_dirty(&self) -> FxHashSet<WorkloadKey> {
        std::mem::take(&mut *self.dirty.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn forward_document_change(&self, event: &EventBody) {
        if let EventBody::DocumentChanged { document, id, .. } = event {
            self.documents.send(DocumentChange::Changed(Text::clone(document), Text::clone(id)));
        }
    }

    fn notify_watchers(&self, changes: &[NodeId], room: bool) {
        if room {
            self.room.send_modify(|version| *version += 1);
        }
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.is_empty() {
            return;
        }
        for sender in changes.iter().filter_map(|node| watched.get(node)) {
            sender.send_modify(|version| *version += 1);
        }
    }
}

impl Progress {
    /// Whether the log delivered what a writer reports now.
    fn is_applied(&mut self, report: &CommitRecord) -> bool {
        self.reads_own_log && self.applied_from_log.note_report(report)
    }

    /// Notes a report that is applied.
    fn note_applied(&mut self, report: &CommitRecord) {
        if self.reads_own_log {
            report.events.iter().for_each(|event| self.ahead_of_log.note_report(event));
        }
    }

    /// What of a segment of the log is newer than what is known.
    fn news_of(&mut self, segment: LogSegment) -> Vec<EventBody> {
        self.reads_own_log = true;
        let LogSegment { at, origin, is_own, mut events } = segment;
        let is_reported = is_own && self.applied_from_log.note_segment(&origin, at);
        events.retain(|event| !self.ahead_of_log.is_ahead_of(event, is_reported));
        events
    }

    /// A snapshot took the place of everything. Nothing can have been committed here before the first one.
    fn replaced(&mut self) {
        self.is_behind = self.is_loaded;
        self.reads_own_log = self.is_loaded;
        self.applied_from_log = AppliedFromLog::default();
        self.ahead_of_log = AheadOfLog::default();
    }

    /// The log has been read as far as it can be. If that is not to its end, the database does not answer:
    /// readers then get what is here.
    fn pass_ended(&mut self) -> Vec<oneshot::Sender<()>> {
        self.is_behind = false;
        std::mem::take(&mut self.held)
    }
}

fn makes_room(event: &EventBody) -> bool {
    matches!(
        event,
        EventBody::Released { .. }
            | EventBody::Resized { .. }
            | EventBody::NodeChanged { .. }
            | EventBody::NodeState { .. }
            | EventBody::PoolChanged { .. }
            | EventBody::QuotaChanged { .. }
            | EventBody::TenantRemoving { .. }
            | EventBody::TenantRemoved { .. }
            | EventBody::VolumeChanged { .. }
            | EventBody::GroupChanged { .. }
            | EventBody::SecretsChanged { .. }
            | EventBody::PolicyChanged { .. }
    )
}
