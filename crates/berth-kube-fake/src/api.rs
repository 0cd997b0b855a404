//! The server's inside: the store, what is recorded, and who asks.
//!
//! Requests over HTTP and a test's own deeds go through the same functions; only faults, sign-in
//! and rights are checked outside.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::failure::Failure;
use crate::list::Snapshots;
use crate::object::{Key, Object};
use crate::options::{AuditEntry, Faults, Options};
use crate::resource::{Resource, built_ins};
use crate::store::{Store, TableId};

/// Takes a lock. A test that panicked while it held one has failed anyway; the others go on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who asks for something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
}

impl User {
    /// The operator at the keyboard.
    pub(crate) fn admin() -> Self {
        let groups = vec!["system:masters".into(), "system:authenticated".into()];
        Self { name: "kubernetes-admin".into(), groups }
    }

    /// A name as the server knows it; service accounts are in their groups.
    pub(crate) fn named(name: &str) -> Self {
        let mut groups = vec!["system:authenticated".to_owned()];
        if let Some((namespace, _)) =
            name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
        {
            groups.insert(0, format!("system:serviceaccounts:{namespace}"));
            groups.insert(0, "system:serviceaccounts".into());
        }
        Self { name: name.into(), groups }
    }

    /// One of the controllers that come with a cluster.
    pub(crate) fn controller(name: &str) -> Self {
        Self::named(&format!("system:serviceaccount:kube-system:{name}"))
    }
}

/// How a write is meant.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) user: User,
    pub(crate) dry_run: bool,
    pub(crate) field_manager: Option<String>,
}

impl Writer {
    pub(crate) fn new(user: User) -> Self {
        Self { user, dry_run: false, field_manager: None }
    }
}

/// A write that was done.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) code: u16,
    pub(crate) object: Arc<Object>,
    pub(crate) warnings: Vec<String>,
}

/// The server's inside.
pub(crate) struct Api {
    pub(crate) options: Options,
    store: Mutex<Store>,
    pub(crate) faults: Mutex<Faults>,
    /// Tells watches that nobody is to get through.
    pub(crate) down: watch::Sender<bool>,
    pub(crate) audit: Mutex<Vec<AuditEntry>>,
    pub(crate) admission: Admission,
    pub(crate) snapshots: Mutex<Snapshots>,
    pub(crate) volumes_fail: Mutex<bool>,
    pub(crate) stop: CancellationToken,
}

impl Api {
    pub(crate) fn new(options: Options) -> Self {
        let store = Store::new(built_ins(), options.history);
        Self {
            store: Mutex::new(store),
            faults: Mutex::new(options.faults()),
            down: watch::Sender::new(false),
            audit: Mutex::default(),
            admission: Admission::default(),
            snapshots: Mutex::default(),
            volumes_fail: Mutex::new(false),
            stop: CancellationToken::new(),
            options,
        }
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// The table that a person means by a word: `Pod`, `pods`, `deployments.apps`.
    pub(crate) fn table_called(&self, word: &str) -> Result<TableId, Failure> {
        let store = self.store();
        store
            .resources()
            .find(|(_, resource)| resource.is_called(word))
            .map(|(id, _)| id)
            .ok_or_else(Failure::no_such_path)
    }

    /// The table of an object, by its own words.
    pub(crate) fn table_of(&self, value: &Value) -> Result<TableId, Failure> {
        let api_version = value["apiVersion"].as_str().unwrap_or_default();
        let kind = value["kind"].as_str().unwrap_or_default();
        self.store().find_kind(api_version, kind).ok_or_else(|| {
            Failure::bad_request(format!("no matches for kind {kind:?} in version {api_version:?}"))
        })
    }

    pub(crate) fn table(&self, group: &str, plural: &str) -> Result<TableId, Failure> {
        self.store().find(group, plural).ok_or_else(Failure::no_such_path)
    }

    pub(crate) fn resource(&self, id: TableId) -> Arc<Resource> {
        Arc::clone(&self.store().table(id).resource)
    }

    /// One object, as the resource shows it.
    pub(crate) fn get(&self, id: TableId, key: &Key) -> Result<Arc<Object>, Failure> {
        let store = self.store();
        let resource = &store.table(id).resource;
        let found = store.get(store.home(id), key);
        let found = found.ok_or_else(|| Failure::not_found(resource, &key.name))?;
        Ok(crate::view::shown(resource, found))
    }

    /// What every cluster has from the start.
    pub(crate) fn populate(&self) -> Result<(), Failure> {
        let mut store = self.store();
        let namespaces = store.find("", "namespaces").ok_or_else(Failure::no_such_path)?;
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let mut value = crate::create::system_fields(json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
            }));
            let resource = Arc::clone(&store.table(namespaces).resource);
            crate::defaults::apply(&resource, &mut value);
            crate::defaults::first_status(&resource, &mut value);
            store.put(namespaces, value);
        }
        let classes =
            store.find("scheduling.k8s.io", "priorityclasses").ok_or_else(Failure::no_such_path)?;
        for (name, priority) in
            [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
        {
            let value = crate::create::system_fields(json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": { "name": name }, "value": priority,
                "preemptionPolicy": "PreemptLowerPriority",
            }));
            store.put(classes, value);
        }
        Ok(())
    }
}
