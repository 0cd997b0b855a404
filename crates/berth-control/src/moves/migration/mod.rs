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
#[cfg(test)]
mod tests;

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

pub use begin::{Begin, Destination, begin, cancel, destination, preview};
pub(crate) use drive::keep_migrating;
pub use record::{MigrationRecord, view};
pub use report::{Observed, observed, report};

/// The kind of document that a migration is stored as.
pub const KIND: &str = "migration";

/// The document whose revision rises with every migration that is decided. Whoever decides one must
/// have seen all before it, or limits on their number would not hold with several servers.
pub const GUARD: &str = "guard";

pub(crate) type Known = Arc<Versioned<MigrationRecord>>;

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

/// All migrations, also those that ended lately.
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

    /// Changes whenever a migration was begun or went on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.records.changes()
    }

    /// Has the driver look at migrations now.
    pub(crate) fn wake(&self) {
        self.records.notify();
    }

    /// A migration, and the revision of its document.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Known> {
        self.records.get(id)
    }

    /// All of them, in the order in which they were decided.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Known)> {
        self.records.all()
    }

    /// Those that go on, in the order in which they were decided.
    #[must_use]
    pub fn open(&self) -> Vec<Known> {
        let known = self.read();
        known.documents.values().filter(|known| known.value.is_open()).cloned().collect()
    }

    /// The revision that a decision must have seen; absent before the first.
    #[must_use]
    pub fn guard(&self) -> Option<i64> {
        Some(self.guard.load(Ordering::Acquire)).filter(|revision| *revision > 0)
    }

    /// An instance's migrations, oldest first.
    #[must_use]
    pub fn of(&self, instance: InstanceId) -> Vec<(String, Known)> {
        let known = self.read();
        let ids = known.index.by_instance.get(&instance).into_iter().flatten();
        let mut found: Vec<(String, Known)> =
            ids.filter_map(|id| Some((id.clone(), Arc::clone(known.documents.get(id)?)))).collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// The migration that an instance is in.
    #[must_use]
    pub fn open_of(&self, instance: InstanceId) -> Option<(String, Known)> {
        self.of(instance).into_iter().find(|(_, known)| known.value.is_open())
    }

    /// Where an instance is being moved to, while a place is held for it.
    #[must_use]
    pub fn target_of(&self, instance: InstanceId) -> Option<NodeId> {
        let known = self.read();
        let ids = known.index.by_instance.get(&instance)?;
        let records = ids.iter().filter_map(|id| known.documents.get(id));
        records.map(|known| &known.value).find(|it| it.is_on_its_way()).map(|it| it.target.clone())
    }

    /// Whether an instance is on its way off a node.
    #[must_use]
    pub fn is_leaving(&self, instance: InstanceId, node: &NodeId) -> bool {
        let known = self.read();
        let Some(ids) = known.index.by_instance.get(&instance) else { return false };
        let records = ids.iter().filter_map(|id| known.documents.get(id));
        records.map(|known| &known.value).any(|it| it.is_open() && it.source == *node)
    }

    /// What a node's agent has to do for migrations from or to it.
    #[must_use]
    pub fn tasks(&self, books: &CatalogState, node: &NodeId) -> Vec<MigrationTask> {
        let known = self.read();
        let ids = known.index.by_node.get(node).into_iter().flatten();
        let concerned = ids.filter_map(|id| known.documents.get_key_value(id));
        concerned.filter_map(|(id, known)| task(books, node, id, &known.value)).collect()
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
