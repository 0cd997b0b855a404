//! Instances that move from one node to another while they run, driven by what agents report.
//!
//! A migration is a document of the ledger. Every step that changes claims changes it in the same
//! commit, so a server killed at any point leaves the instance on its source or on its target, and
//! any other server goes on from there. Which migrations are under way is what the documents say:
//! nothing has to be given back when one fails.

mod begin;
mod drive;
mod record;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use berth_api::{MigrationAction, MigrationState, MigrationTask};
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{ClaimKey, ClaimState, Ledger, LedgerError};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::catalog::Books;

pub use begin::{Begin, Destination, begin, cancel, destination, preview};
pub(crate) use drive::keep_migrating;
pub use record::{MigrationRecord, view};
pub use report::{Observed, observed, report};

/// The kind of document that a migration is stored as.
pub const KIND: &str = "migration";

/// The document whose revision rises with every migration that is decided. Whoever decides one must
/// have seen all before it, or limits on their number would not hold with several servers.
pub const GUARD: &str = "guard";

pub(crate) type Known = Arc<(MigrationRecord, i64)>;

/// What is known of migrations.
#[derive(Default)]
pub struct Book {
    records: BTreeMap<String, Known>,
    by_instance: FxHashMap<InstanceId, Vec<String>>,
    /// Those that agents may have something to do for, by node: all but those that are done.
    by_node: FxHashMap<NodeId, BTreeSet<String>>,
    guard: Option<i64>,
}

impl Book {
    fn put(&mut self, id: &str, record: MigrationRecord, revision: i64) {
        let instance = record.instance;
        for node in [&record.source, &record.target] {
            if record.state == MigrationState::Done {
                if let Some(ids) = self.by_node.get_mut(node) {
                    ids.remove(id);
                }
            } else {
                self.by_node.entry(node.clone()).or_default().insert(id.to_owned());
            }
        }
        let before = self.records.insert(id.to_owned(), Arc::new((record, revision)));
        if before.is_none() {
            self.by_instance.entry(instance).or_default().push(id.to_owned());
        }
    }

    fn remove(&mut self, id: &str) {
        let Some(gone) = self.records.remove(id) else { return };
        for node in [&gone.0.source, &gone.0.target] {
            if let Some(ids) = self.by_node.get_mut(node) {
                ids.remove(id);
                if ids.is_empty() {
                    self.by_node.remove(node);
                }
            }
        }
        let instance = gone.0.instance;
        if let Some(ids) = self.by_instance.get_mut(&instance) {
            ids.retain(|known| known != id);
            if ids.is_empty() {
                self.by_instance.remove(&instance);
            }
        }
    }
}

/// All migrations, also those that ended lately.
#[derive(Default)]
pub struct Migrations {
    known: RwLock<Book>,
    /// Told whenever one was begun or went on.
    wake: Notify,
}

impl Migrations {
    /// Reads all migrations there are.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn load(ledger: &Ledger) -> Result<Self, LedgerError> {
        let migrations = Self::default();
        let mut after: Option<String> = None;
        loop {
            let page = ledger.documents(KIND, after.as_deref(), 1000)?;
            let Some(last) = page.last() else { return Ok(migrations) };
            after = Some(last.id.to_string());
            for document in &page {
                migrations.learn(&document.id, &document.body, document.rev);
            }
        }
    }

    /// Reads one migration anew: a server changed it.
    pub fn reload(&self, ledger: &Ledger, id: &str) {
        match ledger.document(KIND, id) {
            Ok(Some(document)) => self.learn(id, &document.body, document.rev),
            Ok(None) => self.forget(id),
            Err(error) => tracing::warn!(%error, id, "a migration could not be read"),
        }
        self.wake.notify_one();
    }

    fn learn(&self, id: &str, body: &str, revision: i64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if id == GUARD {
            known.guard = Some(revision);
            return;
        }
        match serde_json::from_str::<MigrationRecord>(body) {
            Ok(record) => {
                // What was read earlier may be learnt later.
                if known.records.get(id).is_some_and(|known| known.1 > revision) {
                    return;
                }
                known.put(id, record, revision);
            }
            Err(error) => tracing::error!(%error, id, "a stored migration cannot be read"),
        }
    }

    fn forget(&self, id: &str) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.remove(id);
    }

    fn read(&self) -> RwLockReadGuard<'_, Book> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A migration, and the revision of its document.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Known> {
        self.read().records.get(id).cloned()
    }

    /// All of them, in the order in which they were decided.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Known)> {
        let known = self.read();
        known.records.iter().map(|(id, known)| (id.clone(), Arc::clone(known))).collect()
    }

    /// Those that go on, in the order in which they were decided.
    #[must_use]
    pub fn open(&self) -> Vec<Known> {
        let known = self.read();
        known.records.values().filter(|known| known.0.is_open()).cloned().collect()
    }

    /// The revision that a decision must have seen; absent before the first.
    #[must_use]
    pub fn guard(&self) -> Option<i64> {
        self.read().guard
    }

    /// An instance's migrations, oldest first.
    #[must_use]
    pub fn of(&self, instance: InstanceId) -> Vec<(String, Known)> {
        let known = self.read();
        let ids = known.by_instance.get(&instance).into_iter().flatten();
        let mut found: Vec<(String, Known)> =
            ids.filter_map(|id| Some((id.clone(), Arc::clone(known.records.get(id)?)))).collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// The migration that an instance is in.
    #[must_use]
    pub fn open_of(&self, instance: InstanceId) -> Option<(String, Known)> {
        self.of(instance).into_iter().find(|(_, known)| known.0.is_open())
    }

    /// Where an instance is being moved to, while a place is held for it.
    #[must_use]
    pub fn target_of(&self, instance: InstanceId) -> Option<NodeId> {
        let known = self.read();
        let ids = known.by_instance.get(&instance)?;
        let records = ids.iter().filter_map(|id| known.records.get(id));
        records.map(|known| &known.0).find(|it| it.is_on_its_way()).map(|it| it.target.clone())
    }

    /// Whether an instance is on its way off a node.
    #[must_use]
    pub fn is_leaving(&self, instance: InstanceId, node: &NodeId) -> bool {
        let known = self.read();
        let Some(ids) = known.by_instance.get(&instance) else { return false };
        let records = ids.iter().filter_map(|id| known.records.get(id));
        records.map(|known| &known.0).any(|it| it.is_open() && it.source == *node)
    }

    /// What a node's agent has to do for migrations from or to it.
    #[must_use]
    pub fn tasks(&self, books: &Books, node: &NodeId) -> Vec<MigrationTask> {
        let known = self.read();
        let ids = known.by_node.get(node).into_iter().flatten();
        let concerned = ids.filter_map(|id| known.records.get_key_value(id));
        concerned.filter_map(|(id, known)| task(books, node, id, &known.0)).collect()
    }
}

fn task(books: &Books, node: &NodeId, id: &str, record: &MigrationRecord) -> Option<MigrationTask> {
    let is_source = record.source == *node;
    let held = books.claims.get(&ClaimKey::target(record.instance));
    let action = match record.state {
        MigrationState::TargetHeld | MigrationState::Copying if is_source => MigrationAction::Send,
        MigrationState::TargetHeld | MigrationState::Copying => MigrationAction::Receive,
        MigrationState::Switched if is_source => MigrationAction::CleanUp,
        MigrationState::Failed | MigrationState::Cancelled if !is_source => {
            held.filter(|held| held.node == *node && held.state == ClaimState::Releasing)?;
            MigrationAction::Drop
        }
        _ => return None,
    };
    let runs = books.claims.get(&ClaimKey::primary(record.instance));
    let on_target = held.or(runs).filter(|claim| claim.node == record.target);
    let claim = runs.or(held);
    Some(MigrationTask {
        id: id.to_owned(),
        instance: record.instance,
        action,
        source: record.source.clone(),
        target: record.target.clone(),
        fence: on_target.map(|claim| claim.fence).unwrap_or_default(),
        resources: claim
            .map(|claim| {
                let size = claim.permit.map(|permit| permit.granted);
                size.map_or(claim.amounts, |size| size.within(claim.amounts))
            })
            .unwrap_or_default(),
    })
}
