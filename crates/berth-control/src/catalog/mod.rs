//! The catalogue: what is where, for readers.
//!
//! A second copy of the ledger in memory, apart from the planner's and updated by a thread of its
//! own, so that a long list never delays a decision. It decides nothing: it may be a moment old, and
//! the ledger's guards check whatever is written because of it.

mod locality;
mod state;
mod state_message;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use arc_swap::ArcSwapOption;
use berth_engine::{NodeId, Policy};
use berth_ledger::{EventBody, Micros, SnapshotItem, Text};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{oneshot, watch};

pub use state::{CatalogState, ClaimEntry, MemberEntry, NodeEntry};

use crate::documents::DocumentChange;
use crate::workload::WorkloadKey;
pub use locality::LocalityKey;

/// An update of the catalogue. Updates come in the order in which things happened.
pub enum CatalogUpdate {
    /// A snapshot begins.
    Begin,
    /// One thing of a snapshot.
    Load(SnapshotItem),
    /// The snapshot is complete.
    Loaded,
    /// What happened.
    Events(Micros, Vec<EventBody>),
    /// When agents were last heard, by any server.
    Heartbeats(Vec<(NodeId, i64)>),
    /// The log has been read to its end.
    EndOfLog,
    /// Answered when everything before it is in the catalogue.
    Barrier(oneshot::Sender<()>),
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
    documents: tokio::sync::mpsc::UnboundedSender<DocumentChange>,
    /// Workloads to be reconciled, since something of theirs changed.
    dirty: Mutex<FxHashSet<WorkloadKey>>,
    /// Rises whenever there are any.
    dirty_version: watch::Sender<u64>,
}

impl Catalog {
    /// An empty catalogue, the sender of its updates, and changes of documents.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> std::io::Result<(
        Arc<Self>,
        Sender<CatalogUpdate>,
        tokio::sync::mpsc::UnboundedReceiver<DocumentChange>,
    )> {
        let (documents, changed) = tokio::sync::mpsc::unbounded_channel();
        let catalog = Arc::new(Self {
            catalog: RwLock::default(),
            watched: Mutex::default(),
            room: watch::Sender::new(0),
            policy: ArcSwapOption::empty(),
            documents,
            dirty: Mutex::default(),
            dirty_version: watch::Sender::new(0),
        });
        let (sender, receiver) = mpsc::channel();
        let kept = Arc::clone(&catalog);
        std::thread::Builder::new()
            .name("catalog".to_owned())
            .spawn(move || kept.run(&receiver))?;
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
        self.catalog.write().unwrap_or_else(PoisonError::into_inner).record_heartbeat(node, at);
    }

    fn run(&self, notes: &Receiver<CatalogUpdate>) {
        // A snapshot replaces the current state only when it is complete.
        let mut fresh: Option<CatalogState> = None;
        let mut is_reload = false;
        while let Ok(first) = notes.recv() {
            let mut barriers = Vec::new();
            let mut changes = state::ChangeSet::default();
            let mut room = false;
            {
                let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
                // A bounded number under one lock, so that readers are not blocked for long.
                for note in std::iter::once(first).chain(notes.try_iter().take(64)) {
                    match note {
                        CatalogUpdate::Begin => fresh = Some(CatalogState::default()),
                        CatalogUpdate::Load(item) => {
                            if let Some(fresh) = &mut fresh {
                                fresh.load(item);
                            }
                        }
                        CatalogUpdate::Loaded => {
                            if let Some(fresh) = fresh.take() {
                                catalog.replace(fresh);
                            }
                            // The caches are loaded by themselves when the server starts.
                            if std::mem::replace(&mut is_reload, true) {
                                let _ = self.documents.send(DocumentChange::Reloaded);
                            }
                            changes.workloads.extend(catalog.workloads.keys().cloned());
                            room = true;
                        }
                        CatalogUpdate::Events(at, events) => {
                            for event in events {
                                room |= makes_room(&event);
                                self.forward_document_change(&event);
                                catalog.apply(at, event, &mut changes);
                            }
                        }
                        CatalogUpdate::Heartbeats(heard) => {
                            for (node, at) in heard {
                                catalog.record_heartbeat(&node, at);
                            }
                        }
                        CatalogUpdate::EndOfLog => catalog.rotate_tombstones(),
                        CatalogUpdate::Barrier(reached) => barriers.push(reached),
                    }
                }
                room |= changes.made_room;
                if room {
                    self.policy.store(catalog.policy.clone());
                }
            }
            self.notify_watchers(&changes.nodes, room);
            self.mark_dirty(changes.workloads);
            for reached in barriers {
                // The caller may have stopped waiting.
                let _ = reached.send(());
            }
        }
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
            let _ = self
                .documents
                .send(DocumentChange::Changed(Text::clone(document), Text::clone(id)));
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

fn makes_room(event: &EventBody) -> bool {
    matches!(
        event,
        EventBody::Released { .. }
            | EventBody::Resized { .. }
            | EventBody::NodeChanged { .. }
            | EventBody::NodeState { .. }
            | EventBody::PoolChanged { .. }
            | EventBody::QuotaChanged { .. }
            | EventBody::VolumeChanged { .. }
            | EventBody::GroupChanged { .. }
            | EventBody::SecretsChanged { .. }
            | EventBody::PolicyChanged { .. }
    )
}
