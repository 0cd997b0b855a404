//! Migrations of virtual machines, as `VirtualMachineMigration` objects show them: what is under way, how
//! long a machine rests after one, and which nodes it left.
//!
//! The objects are the only memory: every leader reads the same from them. Nothing is started here.

use std::sync::Arc;

use berth_engine::NodeId;
use berth_engine::elastic::MigrationSettings;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::cluster::pod::{Key, Pod};
use crate::cluster::pod_store::PodEntry;

/// The annotation with the node that a migration starts from.
pub const SOURCE_NODE: &str = "berth.dev/source-node";
/// The annotation with the node that was chosen as its target.
pub const TARGET_NODE: &str = "berth.dev/target-node";
/// The label of migrations that a scheduler started, with its name.
pub const STARTED_BY: &str = "berth.dev/started-by";

/// The longest rest after a failure, and how long an ended migration is remembered.
const DAY_S: i64 = 86_400;
/// How long a migration may take until its target runs.
const START_TIMEOUT_S: i64 = 120;

/// How far a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationPhase {
    /// Its target does not run yet.
    Pending,
    /// Memory is copied.
    Running,
    /// The machine runs on the target.
    Done,
    /// It runs where it was.
    Failed,
}

/// A migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Migration {
    /// The machine's name; it is in the namespace of the migration.
    pub vm: Arc<str>,
    /// How far it is.
    pub phase: MigrationPhase,
    /// Where it starts.
    pub source: Option<Arc<str>>,
    /// The chosen target.
    pub target: Option<Arc<str>>,
    /// The pod on the target.
    pub target_pod: Option<Arc<str>>,
    /// The scheduler that started it.
    pub started_by: Option<String>,
    /// When it was created, in seconds.
    pub created: i64,
    /// When its phase changed last, as far as its conditions say.
    pub changed: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
}

impl Migration {
    /// Reads an object. `None`: it names no machine.
    #[must_use]
    pub fn read(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let named = |pointer: &str| text(pointer).filter(|it| !it.is_empty()).map(Arc::from);
        let annotation = |name: &str| object.pointer("/metadata/annotations")?.get(name)?.as_str();
        let seconds =
            |text: &str| text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
        let created = text("/metadata/creationTimestamp").and_then(seconds).unwrap_or(0);
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let changes = conditions.into_iter().flatten();
        let changes = changes.filter_map(|it| seconds(it.get("lastTransitionTime")?.as_str()?));
        Some(Self {
            vm: named("/spec/vmName")?,
            phase: match text("/status/phase") {
                Some("Running") => MigrationPhase::Running,
                Some("Succeeded") => MigrationPhase::Done,
                Some("Failed") => MigrationPhase::Failed,
                _ => MigrationPhase::Pending,
            },
            source: annotation(SOURCE_NODE).map(Arc::from).or_else(|| named("/status/sourceNode")),
            target: annotation(TARGET_NODE).map(Arc::from).or_else(|| named("/status/targetNode")),
            target_pod: named("/status/targetPodName"),
            started_by: object
                .pointer("/metadata/labels")
                .and_then(|it| it.get(STARTED_BY)?.as_str())
                .map(str::to_owned),
            created,
            changed: changes.max().unwrap_or(created).max(created),
            deleting: text("/metadata/deletionTimestamp").is_some(),
        })
    }

    /// Whether it is under way.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        matches!(self.phase, MigrationPhase::Pending | MigrationPhase::Running)
    }
}

/// All migrations.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct MigrationStore {
    all: FxHashMap<Key, Migration>,
    /// Migrations of each machine.
    by_vm: FxHashMap<Key, Vec<Key>>,
    served: bool,
}

impl MigrationStore {
    /// Adds or updates a migration, and returns its machine.
    pub(super) fn put(&mut self, object: &Value) -> Option<Key> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let key = Key::new(text("/metadata/namespace")?, text("/metadata/name")?);
        self.remove(&key);
        let migration = Migration::read(object)?;
        let vm = Key { namespace: Arc::clone(&key.namespace), name: Arc::clone(&migration.vm) };
        self.by_vm.entry(vm.clone()).or_default().push(key.clone());
        self.all.insert(key, migration);
        Some(vm)
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(old) = self.all.remove(key) else { return };
        let vm = Key { namespace: Arc::clone(&key.namespace), name: old.vm };
        if let Some(keys) = self.by_vm.get_mut(&vm) {
            keys.retain(|it| it != key);
            if keys.is_empty() {
                self.by_vm.remove(&vm);
            }
        }
    }

    pub(super) fn set_served(&mut self, served: bool) {
        self.served = served;
    }

    /// Whether the cluster has such objects.
    pub(super) const fn is_served(&self) -> bool {
        self.served
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Migration)> {
        self.all.iter()
    }

    /// The migrations of a machine, the last one first.
    pub(super) fn of_vm(&self, vm: &Key) -> Vec<&Migration> {
        let keys = self.by_vm.get(vm).into_iter().flatten();
        let mut found: Vec<&Migration> = keys.filter_map(|it| self.all.get(it)).collect();
        found.sort_by_key(|it| std::cmp::Reverse((it.changed, it.created)));
        found
    }

    /// The migration of a machine that is under way.
    pub(super) fn active(&self, vm: &Key) -> Option<&Migration> {
        let keys = self.by_vm.get(vm).into_iter().flatten();
        keys.filter_map(|it| self.all.get(it)).find(|it| it.is_active())
    }

    /// For how many more seconds a machine is left alone after its migrations.
    pub(super) fn rest_s(&self, vm: &Key, limits: MigrationSettings, now: i64) -> i64 {
        let all = self.of_vm(vm);
        let Some(last) = all.first() else { return 0 };
        let rest = match last.phase {
            MigrationPhase::Pending | MigrationPhase::Running => return 0,
            MigrationPhase::Done => limits.cooldown_s.into(),
            MigrationPhase::Failed => {
                let failures =
                    all.iter().take_while(|it| it.phase == MigrationPhase::Failed).count();
                backoff_s(limits, failures)
            }
        };
        last.changed.saturating_add(rest).saturating_sub(now).max(0)
    }

    /// How recently a machine was moved, in millionths of eight cooldowns.
    pub(super) fn recency_ppm(&self, vm: &Key, limits: MigrationSettings, now: i64) -> u32 {
        let all = self.of_vm(vm);
        let last = all.iter().find(|it| it.phase == MigrationPhase::Done);
        last.map_or(0, |it| recency_ppm(it.changed, limits, now))
    }

    /// Nodes that a machine left within a day.
    pub(super) fn nodes_left(&self, vm: &Key, now: i64) -> Vec<NodeId> {
        let left = |it: &&Migration| {
            it.phase == MigrationPhase::Done && now.saturating_sub(it.changed) <= DAY_S
        };
        let left = self.of_vm(vm).into_iter().filter(left);
        left.filter_map(|it| it.source.as_deref().map(NodeId::new)).collect()
    }

    /// Migrations of a scheduler that are to be deleted: those that ended long ago, and those whose target
    /// did not start in time. The second value says which.
    pub(super) fn expired(
        &self,
        scheduler: &str,
        limits: MigrationSettings,
        now: i64,
    ) -> Vec<(Key, bool)> {
        let age = |it: &Migration| now.saturating_sub(it.changed);
        let mut expired: Vec<(Key, bool)> = Vec::new();
        for (key, it) in &self.all {
            if it.started_by.as_deref() != Some(scheduler) || it.deleting {
                continue;
            }
            // One that copies is left to its controller, which is told the timeout.
            let too_slow = it.phase == MigrationPhase::Pending
                && now.saturating_sub(it.created) > START_TIMEOUT_S;
            let remembered = DAY_S.max(limits.cooldown_s.into());
            if too_slow || (!it.is_active() && age(it) > remembered) {
                expired.push((key.clone(), too_slow));
            }
        }
        expired.sort();
        expired
    }
}

/// How long to wait after this many failures in a row.
#[must_use]
pub fn backoff_s(limits: MigrationSettings, failures: usize) -> i64 {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
    i64::from(limits.backoff_s).saturating_mul(1 << doublings).min(DAY_S)
}

/// How recently something happened: a million now, falling to zero within eight cooldowns.
pub(super) fn recency_ppm(at: i64, limits: MigrationSettings, now: i64) -> u32 {
    let span = i64::from(limits.cooldown_s).saturating_mul(8).clamp(1, DAY_S);
    let left = span.saturating_sub(now.saturating_sub(at)).clamp(0, span);
    u32::try_from(left.saturating_mul(1_000_000) / span).unwrap_or(0)
}

/// The key of the machine of a pod.
pub(super) fn vm_key(pod: &Pod) -> Option<Key> {
    let name = pod.vm.as_deref()?;
    Some(Key { namespace: Arc::clone(&pod.key.namespace), name: name.into() })
}

impl Cluster {
    /// Whether a pod's machine is being moved away from it.
    pub(super) fn is_leaving(&self, entry: &PodEntry) -> bool {
        let Some(migration) = self.active_migration(&entry.pod) else { return false };
        migration.target_pod.as_deref() != Some(&*entry.pod.key.name)
    }

    /// The migration of a pod's machine that is under way.
    pub(super) fn active_migration(&self, pod: &Pod) -> Option<&Migration> {
        self.elastic.migrations.active(&vm_key(pod)?)
    }

    /// Nominates the node that a migration chose for its target, so that the pod goes there if it still
    /// can.
    pub(in crate::cluster) fn nominate_migration_target(&mut self, uid: &str) {
        let is_open = |it: &&PodEntry| it.nominated.is_none() && it.assigned.is_none();
        let Some(entry) = self.pods.get(uid).filter(is_open) else { return };
        let Some(migration) = self.active_migration(&entry.pod) else { return };
        let is_target = migration.target_pod.as_deref() == Some(&*entry.pod.key.name);
        if let Some(target) = migration.target.clone().filter(|_| is_target)
            && self.nodes.index_of(&target).is_some()
        {
            self.nominate(uid, &target);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, phase: &str, at: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "shop", "creationTimestamp": "1970-01-01T00:00:00Z",
                "labels": {STARTED_BY: "berth"}, "annotations": {SOURCE_NODE: "a", TARGET_NODE: "b"},
            },
            "spec": {"vmName": "vm"},
            "status": {"phase": phase, "conditions": [{"lastTransitionTime": at}]},
        })
    }

    #[test]
    fn a_machine_rests_after_a_move_and_longer_after_each_failure() {
        let limits =
            MigrationSettings { cooldown_s: 600, backoff_s: 60, ..MigrationSettings::default() };
        let (vm, mut store) = (Key::new("shop", "vm"), MigrationStore::default());
        assert_eq!(store.rest_s(&vm, limits, 0), 0);
        store.put(&object("m1", "Succeeded", "1970-01-01T00:01:40Z"));
        assert_eq!(store.rest_s(&vm, limits, 100), 600);
        assert_eq!((store.rest_s(&vm, limits, 700), store.rest_s(&vm, limits, 699)), (0, 1));
        assert_eq!(store.nodes_left(&vm, 200), [NodeId::new("a")]);
        assert!(store.nodes_left(&vm, 100 + DAY_S + 1).is_empty());
        store.put(&object("m2", "Failed", "1970-01-01T00:20:00Z"));
        assert_eq!(store.rest_s(&vm, limits, 1200), 60);
        store.put(&object("m3", "Failed", "1970-01-01T00:30:00Z"));
        assert_eq!(store.rest_s(&vm, limits, 1800), 120);
        assert!(store.active(&vm).is_none());
        store.put(&object("m4", "", "1970-01-01T00:40:00Z"));
        assert!(store.active(&vm).is_some());
        let expired = store.expired("berth", limits, 2400);
        assert_eq!(expired, [(Key::new("shop", "m4"), true)], "its target did not start");
        let later = store.expired("berth", limits, 2400 + DAY_S);
        assert_eq!(later.len(), 4);
        assert!(store.expired("other", limits, 2400 + DAY_S).is_empty());
    }
}
