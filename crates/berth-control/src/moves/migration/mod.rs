//! Live migration: moving an instance to another node while it runs. Agents do the copying and
//! report their progress.
//!
//! A migration is a document of the ledger. Every step that changes claims changes the document in
//! the same commit, so a server that is killed at any point leaves the instance either on its source
//! or on its target, and any other server continues from there. Only the documents say which
//! migrations are under way, so a failed one leaves nothing to be cleaned up in memory.

mod driver;
mod record;
mod report;
mod start;

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLockReadGuard};

use berth_api::{MigrationAction, MigrationState, MigrationTask};
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{ClaimKey, ClaimState, Ledger, LedgerError};
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use crate::catalog::CatalogState;
use crate::documents::{
    CacheContents, CacheableDocument, DocumentCache, DocumentFollower, DocumentIndex, Versioned,
};

pub(crate) use driver::run;
pub use record::{MigrationRecord, view};
pub use report::{ObservationEffect, apply_observation, report};
pub use start::{Destination, MigrationRequest, cancel, find_destination, preview, start};

/// The kind of document that a migration is stored as.
pub const KIND: &str = "migration";

/// The document whose revision rises with every migration that is decided. A decision must have seen
/// all earlier ones, or limits on their number would not hold with several servers.
pub const GUARD: &str = "guard";

/// A migration as last read, with its revision.
pub type StoredMigration = Arc<Versioned<MigrationRecord>>;

impl CacheableDocument for MigrationRecord {
    const KIND: &'static str = KIND;

    fn decode(id: &str, body: &str) -> serde_json::Result<Option<Self>> {
        if id == GUARD { Ok(None) } else { serde_json::from_str(body).map(Some) }
    }
}

/// Migrations by what they concern.
#[derive(Default)]
pub struct MigrationIndex {
    by_instance: FxHashMap<InstanceId, BTreeSet<String>>,
    /// Those that agents may have something to do for, by node: all but those that are done.
    by_node: FxHashMap<NodeId, BTreeSet<String>>,
}

impl DocumentIndex<MigrationRecord> for MigrationIndex {
    fn insert(&mut self, id: &str, record: &MigrationRecord, _: Option<&MigrationRecord>) {
        self.by_instance.entry(record.instance).or_default().insert(id.to_owned());
        for node in [&record.source, &record.target] {
            if record.state == MigrationState::Done {
                remove_entry(&mut self.by_node, node, id);
            } else {
                self.by_node.entry(node.clone()).or_default().insert(id.to_owned());
            }
        }
    }

    fn remove(&mut self, id: &str, record: &MigrationRecord) {
        for node in [&record.source, &record.target] {
            remove_entry(&mut self.by_node, node, id);
        }
        remove_entry(&mut self.by_instance, &record.instance, id);
    }
}

fn remove_entry<K: Eq + Hash>(index: &mut FxHashMap<K, BTreeSet<String>>, key: &K, id: &str) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

type Records = DocumentCache<MigrationRecord, MigrationIndex>;

/// All migrations, including those that ended recently.
#[derive(Default)]
pub struct Migrations {
    records: Records,
    /// The revision of the guard document; zero before the first migration.
    guard: AtomicI64,
}

impl DocumentFollower for Migrations {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn refresh(&self, ledger: &Ledger, id: &str) -> Result<(), LedgerError> {
        if id == GUARD { self.refresh_guard(ledger) } else { self.records.refresh(ledger, id) }
    }

    fn refresh_all(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        self.refresh_guard(ledger)?;
        self.records.refresh_all(ledger)
    }
}

impl Migrations {
    fn refresh_guard(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let found = ledger.document(KIND, GUARD)?;
        self.guard.store(found.map_or(0, |guard| guard.rev), Ordering::Release);
        self.records.notify();
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, CacheContents<MigrationRecord, MigrationIndex>> {
        self.records.read()
    }

    /// Changes whenever a migration does.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.records.changes()
    }

    /// Wakes the driver.
    pub(crate) fn wake(&self) {
        self.records.notify();
    }

    /// A migration, and the revision of its document.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<StoredMigration> {
        self.records.get(id)
    }

    /// All of them, in the order in which they were decided.
    #[must_use]
    pub fn all(&self) -> Vec<(String, StoredMigration)> {
        self.records.all()
    }

    /// Those that are under way, in the order in which they were decided.
    #[must_use]
    pub fn open(&self) -> Vec<StoredMigration> {
        let contents = self.read();
        contents.documents.values().filter(|stored| stored.value.is_open()).cloned().collect()
    }

    /// The revision of the guard that a decision must have seen; absent before the first one.
    #[must_use]
    pub fn guard(&self) -> Option<i64> {
        Some(self.guard.load(Ordering::Acquire)).filter(|revision| *revision > 0)
    }

    /// An instance's migrations, oldest first.
    #[must_use]
    pub fn of(&self, instance: InstanceId) -> Vec<(String, StoredMigration)> {
        let contents = self.read();
        let ids = contents.index.by_instance.get(&instance).into_iter().flatten();
        let mut found: Vec<(String, StoredMigration)> = ids
            .filter_map(|id| Some((id.clone(), Arc::clone(contents.documents.get(id)?))))
            .collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// An instance's migration that is under way.
    #[must_use]
    pub fn open_of(&self, instance: InstanceId) -> Option<(String, StoredMigration)> {
        self.of(instance).into_iter().find(|(_, stored)| stored.value.is_open())
    }

    /// The node that an instance is being migrated to, while its target is held.
    #[must_use]
    pub fn target_of(&self, instance: InstanceId) -> Option<NodeId> {
        let contents = self.read();
        let ids = contents.index.by_instance.get(&instance)?;
        let records = ids.iter().filter_map(|id| contents.documents.get(id));
        records
            .map(|stored| &stored.value)
            .find(|it| it.is_in_transit())
            .map(|it| it.target.clone())
    }

    /// Whether an instance is being migrated off a node.
    #[must_use]
    pub fn is_leaving(&self, instance: InstanceId, node: &NodeId) -> bool {
        let contents = self.read();
        let Some(ids) = contents.index.by_instance.get(&instance) else { return false };
        let records = ids.iter().filter_map(|id| contents.documents.get(id));
        records.map(|stored| &stored.value).any(|it| it.is_open() && it.source == *node)
    }

    /// What a node's agent has to do for migrations from or to it.
    #[must_use]
    pub fn tasks(&self, books: &CatalogState, node: &NodeId) -> Vec<MigrationTask> {
        let contents = self.read();
        let ids = contents.index.by_node.get(node).into_iter().flatten();
        let concerned = ids.filter_map(|id| contents.documents.get_key_value(id));
        concerned.filter_map(|(id, stored)| task(books, node, id, &stored.value)).collect()
    }
}

fn task(
    books: &CatalogState,
    node: &NodeId,
    id: &str,
    record: &MigrationRecord,
) -> Option<MigrationTask> {
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
