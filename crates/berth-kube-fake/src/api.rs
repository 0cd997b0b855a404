//! The shared state of the server: the store, recordings, and users.
//!
//! HTTP requests and a test's own calls use the same functions; only faults, authentication and
//! permissions are checked outside.

use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admission_state::AdmissionState;
use crate::failure::Failure;
use crate::object::{Key, Object};
use crate::options::{AuditEntry, Faults, Options};
use crate::resource::{Resource, built_ins};
use crate::snapshots::Snapshots;
use crate::store::{Store, TableId, lock};

/// The user of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
}

impl User {
    /// The cluster administrator.
    pub(crate) fn admin() -> Self {
        let groups = vec!["system:masters".into(), "system:authenticated".into()];
        Self { name: "kubernetes-admin".into(), groups }
    }

    /// A user by name; service accounts are in their groups.
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

    /// One of the built-in controllers.
    pub(crate) fn controller(name: &str) -> Self {
        Self::named(&format!("system:serviceaccount:kube-system:{name}"))
    }
}

/// The user and options of a write.
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

/// The result of a write.
#[derive(Clone, Debug)]
pub(crate) struct WriteResult {
    pub(crate) code: u16,
    pub(crate) object: Arc<Object>,
    pub(crate) warnings: Vec<String>,
}

/// The shared state.
pub(crate) struct Api {
    pub(crate) options: Options,
    store: Mutex<Store>,
    pub(crate) faults: Mutex<Faults>,
    /// Tells watches that connections are to be refused.
    pub(crate) down: watch::Sender<bool>,
    /// Tells watches that they are to fall silent.
    pub(crate) silence: watch::Sender<()>,
    pub(crate) audit: Mutex<Vec<AuditEntry>>,
    pub(crate) admission: AdmissionState,
    pub(crate) snapshots: Mutex<Snapshots>,
    pub(crate) volumes_fail: Mutex<bool>,
    pub(crate) stop: CancellationToken,
}

impl Api {
    pub(crate) fn new(options: Options) -> Self {
        let store = Store::new(built_ins(options.devices), options.history);
        Self {
            store: Mutex::new(store),
            faults: Mutex::new(options.faults()),
            down: watch::Sender::new(false),
            silence: watch::Sender::new(()),
            audit: Mutex::default(),
            admission: AdmissionState::default(),
            snapshots: Mutex::default(),
            volumes_fail: Mutex::new(false),
            stop: CancellationToken::new(),
            options,
        }
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// The table for a word of a person: `Pod`, `pods`, `deployments.apps`.
    pub(crate) fn table_by_name(&self, word: &str) -> Result<TableId, Failure> {
        let store = self.store();
        store
            .resources()
            .find(|(_, resource)| resource.has_name(word))
            .map(|(id, _)| id)
            .ok_or_else(Failure::no_such_path)
    }

    /// The table of an object, by its apiVersion and kind.
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

    /// One object, in the shape of the resource.
    pub(crate) fn get(&self, id: TableId, key: &Key) -> Result<Arc<Object>, Failure> {
        let store = self.store();
        let resource = &store.table(id).resource;
        let found = store.get(store.backing_table(id), key);
        let found = found.ok_or_else(|| Failure::not_found(resource, &key.name))?;
        Ok(crate::view::as_resource(resource, found))
    }
}
