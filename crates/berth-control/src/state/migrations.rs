//! Live migrations as they are stored, and what agents have to do for them.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLockReadGuard};

use berth_api::{MigrationAction, MigrationReason, MigrationState, MigrationTask};
use berth_engine::elastic::Size;
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{ClaimKey, ClaimState, Ledger, LedgerError, invariant};
use jiff::Timestamp;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::catalog::CatalogState;
use crate::documents::{
    CacheContents, CacheableDocument, DocumentCache, DocumentFollower, DocumentIndex, Versioned,
};

/// A migration as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationRecord {
    /// The instance.
    pub instance: InstanceId,
    /// The tenant.
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: String,
    /// Where it was.
    pub source: NodeId,
    /// Where it goes.
    pub target: NodeId,
    /// Its state.
    pub state: MigrationState,
    /// Why.
    pub reason: MigrationReason,
    /// What it costs.
    pub cost: u64,
    /// What it frees on the source.
    pub frees: Size,
    /// The fence of the claim that moves, when it was decided.
    pub fence: i64,
    /// How much is copied, as reported by agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_permille: Option<u16>,
    /// Why it failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it was decided.
    pub since: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
}

impl MigrationRecord {
    /// Whether it is under way.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !self.state.is_over()
    }

    /// Whether its target is held, and the instance runs on the source.
    #[must_use]
    pub const fn is_in_transit(&self) -> bool {
        matches!(self.state, MigrationState::TargetHeld | MigrationState::Copying)
    }

    /// The migration in its next state, as of now. Whether it may go there was checked before: what agents
    /// and callers ask for is refused, and does not come here.
    pub(crate) fn in_state(&self, next: MigrationState, now: Timestamp) -> Self {
        invariant!(
            self.state.may_become(next),
            "migration_state_transition",
            instance = self.instance,
            target = self.target,
            from = self.state,
            to = next
        );
        Self { state: next, changed_at: now, ..self.clone() }
    }

    pub(crate) fn concerns(&self, node: &NodeId) -> bool {
        self.source == *node || self.target == *node
    }

    pub(crate) fn message(&self) -> String {
        let (source, target) = (&self.source, &self.target);
        let why = self.why.as_deref().unwrap_or("no reason was given");
        match self.state {
            MigrationState::Planned => format!("a place on {target} is about to be held"),
            MigrationState::TargetHeld => {
                format!("a place on {target} is held; the agent of {source} is to send it")
            }
            MigrationState::Copying => {
                format!("the agents of {source} and {target} copy it; it runs on {source}")
            }
            MigrationState::Switched => {
                format!("it runs on {target}; the agent of {source} cleans up")
            }
            MigrationState::Done => format!("it runs on {target}"),
            MigrationState::Failed | MigrationState::Cancelled => {
                format!("it was not moved off {source}: {why}")
            }
        }
    }
}

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
    pub fn tasks(&self, catalog: &CatalogState, node: &NodeId) -> Vec<MigrationTask> {
        let contents = self.read();
        let ids = contents.index.by_node.get(node).into_iter().flatten();
        let concerned = ids.filter_map(|id| contents.documents.get_key_value(id));
        concerned.filter_map(|(id, stored)| task(catalog, node, id, &stored.value)).collect()
    }
}

fn task(
    catalog: &CatalogState,
    node: &NodeId,
    id: &str,
    record: &MigrationRecord,
) -> Option<MigrationTask> {
    let is_source = record.source == *node;
    let held = catalog.claims.get(&ClaimKey::target(record.instance));
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
    let runs = catalog.claims.get(&ClaimKey::primary(record.instance));
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
