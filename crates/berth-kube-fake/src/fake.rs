//! The handle for tests: the server's address, and operations of a cluster administrator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission_state::AdmissionCall;
use crate::api::{Api, User, WriteResult, Writer};
use crate::delete::DeleteOptions;
use crate::failure::Failure;
use crate::object::{self, Key, Object};
use crate::options::{AuditEntry, Faults, Options};
use crate::patch::Patch;
use crate::server::{self, Identity, StartError};
use crate::store::{Binding, DeletedPod, TableId, lock};
use crate::update::ObjectPart;

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The object after the operation.
    pub object: Value,
    /// Warnings of webhooks.
    pub warnings: Vec<String>,
}

impl Deref for Reply {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.object
    }
}

impl From<WriteResult> for Reply {
    fn from(done: WriteResult) -> Self {
        Self { object: done.object.value.clone(), warnings: done.warnings }
    }
}

/// A running server. Dropping it stops it.
pub struct FakeApi {
    api: Arc<Api>,
    address: SocketAddr,
    identity: Option<Identity>,
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.stop();
    }
}

fn operator() -> Writer {
    Writer::new(User::admin())
}

impl FakeApi {
    /// Starts a server with an empty cluster.
    ///
    /// # Errors
    ///
    /// When no port is available, or no certificate can be created.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let identity = if options.tls { Some(Identity::make()?) } else { None };
        let api = Arc::new(Api::new(options));
        api.create_initial_objects()?;
        let (listener, address) = server::listen().await?;
        tokio::spawn(server::serve(Arc::clone(&api), listener, identity.clone()));
        crate::controllers::start(&api);
        Ok(Self { api, address, identity })
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.identity.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The CA certificate of the server; empty without TLS.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.identity.as_ref().map(|identity| identity.ca_pem.clone()).unwrap_or_default()
    }

    /// The content of a kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        let mut cluster = json!({ "server": self.url() });
        if let Some(identity) = &self.identity {
            let bytes = k8s_openapi::ByteString(identity.ca_pem.clone().into_bytes());
            cluster["certificate-authority-data"] =
                serde_json::to_value(bytes).unwrap_or(Value::Null);
        }
        let mut user = json!({});
        if let Some(token) = &self.api.options.token {
            user["token"] = json!(token);
        }
        // JSON is YAML.
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "imitation",
            "clusters": [{ "name": "imitation", "cluster": cluster }],
            "users": [{ "name": "caller", "user": user }],
            "contexts": [{
                "name": "imitation",
                "context": { "cluster": "imitation", "user": "caller", "namespace": "default" },
            }],
        })
        .to_string()
    }

    /// Stops the server, its controllers and all watches.
    pub fn stop(&self) {
        self.api.stop.cancel();
    }

    fn locate(&self, kind: &str, namespace: &str, name: &str) -> Result<(TableId, Key), Failure> {
        Ok((self.api.table_by_name(kind)?, Key::new(namespace, name)))
    }

    /// Creates an object, as `kubectl create` does; by default in the namespace `default`.
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn create(&self, value: Value) -> Result<Reply, Failure> {
        let id = self.api.table_of(&value)?;
        let own = object::namespace(&value).to_owned();
        let namespace = if own.is_empty() { "default" } else { &own };
        let namespace = self.api.resource(id).namespaced.then_some(namespace);
        self.api.create(&operator(), id, namespace, value).await.map(Reply::from)
    }

    /// Creates many similar objects quickly: the first goes through the whole creation, the others are
    /// copies of the result. `vary` sets the name of each, and whatever else differs.
    ///
    /// # Errors
    ///
    /// When the server rejects the first one, or a name is taken.
    pub async fn create_many(
        &self,
        first: Value,
        count: usize,
        vary: impl Fn(usize, &mut Value),
    ) -> Result<(), Failure> {
        let mut first = first;
        vary(0, &mut first);
        let made = self.create(first).await?.object;
        let id = self.api.table_of(&made)?;
        for at in 1..count {
            let mut value = made.clone();
            vary(at, &mut value);
            object::remove(&mut value["metadata"], "resourceVersion");
            let value = crate::create::system_fields(value);
            let mut store = self.api.store();
            if store.get(id, &Key::of(&value)).is_some() {
                let resource = Arc::clone(&store.table(id).resource);
                return Err(Failure::already_exists(&resource, object::name(&value)));
            }
            store.put(id, value);
        }
        Ok(())
    }

    /// An object, if it exists. `kind` is `Pod`, `pods` or `deployments.apps`.
    #[must_use]
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let (id, key) = self.locate(kind, namespace, name).ok()?;
        self.api.get(id, &key).ok().map(|object| object.value.clone())
    }

    /// All objects of a kind, ordered by namespace and name.
    #[must_use]
    pub fn list(&self, kind: &str) -> Vec<Value> {
        let Ok(id) = self.api.table_by_name(kind) else { return Vec::new() };
        let resource = self.api.resource(id);
        let objects: Vec<_> = {
            let store = self.api.store();
            let home = store.backing_table(id);
            store.iter(home, None).map(|(_, object)| Arc::clone(object)).collect()
        };
        objects
            .iter()
            .map(|object| crate::view::as_resource(&resource, object).value.clone())
            .collect()
    }

    /// The number of objects of a kind.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        let Ok(id) = self.api.table_by_name(kind) else { return 0 };
        self.api.store().len(id)
    }

    /// The number of objects of a kind that match. Copies nothing, so it can be called often.
    #[must_use]
    pub fn count_where(&self, kind: &str, is_so: impl Fn(&Value) -> bool) -> usize {
        let Ok(id) = self.api.table_by_name(kind) else { return 0 };
        let objects: Vec<_> = {
            let store = self.api.store();
            let home = store.backing_table(id);
            store.iter(home, None).map(|(_, object)| Arc::clone(object)).collect()
        };
        objects.iter().filter(|object| is_so(&object.value)).count()
    }

    /// Replaces an object, as `kubectl replace` does.
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn update(&self, value: Value) -> Result<Reply, Failure> {
        self.replace(value, ObjectPart::Main).await
    }

    /// Replaces an object's status, as its controller does.
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn update_status(&self, value: Value) -> Result<Reply, Failure> {
        self.replace(value, ObjectPart::Status).await
    }

    async fn replace(&self, value: Value, part: ObjectPart) -> Result<Reply, Failure> {
        let id = self.api.table_of(&value)?;
        let key = Key::of(&value);
        self.api.replace(&operator(), id, &key, part, value).await.map(Reply::from)
    }

    /// Merges fields into an object (RFC 7386).
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn merge(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        fields: Value,
    ) -> Result<Reply, Failure> {
        self.merge_part((kind, namespace, name), ObjectPart::Main, fields).await
    }

    /// Merges fields into an object through its status subresource: `{ "status": … }`.
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn merge_status(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        fields: Value,
    ) -> Result<Reply, Failure> {
        self.merge_part((kind, namespace, name), ObjectPart::Status, fields).await
    }

    async fn merge_part(
        &self,
        (kind, namespace, name): (&str, &str, &str),
        part: ObjectPart,
        fields: Value,
    ) -> Result<Reply, Failure> {
        let (id, key) = self.locate(kind, namespace, name)?;
        let patch = Patch::Merge(fields);
        self.api.patch(&operator(), id, &key, part, &patch).await.map(Reply::from)
    }

    /// Deletes an object with its own grace period.
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), Failure> {
        self.delete_with(kind, namespace, name, json!({})).await
    }

    /// Deletes an object with `DeleteOptions`.
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn delete_with(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        options: Value,
    ) -> Result<(), Failure> {
        let (id, key) = self.locate(kind, namespace, name)?;
        let options = DeleteOptions::read(&options)?;
        self.api.delete(&operator(), id, &key, &options).await.map(drop)
    }

    /// Sets the number of replicas of a workload.
    ///
    /// # Errors
    ///
    /// When the server rejects it.
    pub async fn scale(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        replicas: u32,
    ) -> Result<Reply, Failure> {
        self.merge(kind, namespace, name, json!({ "spec": { "replicas": replicas } })).await
    }

    /// Replaces the faults.
    pub fn set_faults(&self, faults: Faults) {
        let down = faults.down;
        *lock(&self.api.faults) = faults;
        self.api.down.send_replace(down);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.set_faults(Faults::default());
    }

    /// The watches that are open now stay open and deliver nothing more, as when a connection is lost and
    /// no packet says so. Later ones work.
    pub fn silence_watches(&self) {
        self.api.silence.send_replace(());
    }

    /// Compacts the history: watches from any version known so far get 410, and paged lists cannot be
    /// continued.
    pub fn compact(&self) {
        self.api.store().compact();
        lock(&self.api.snapshots).clear();
    }

    /// The current resource version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.api.store().version()
    }

    /// All requests so far, if [`Options::audit`] is on.
    #[must_use]
    pub fn audit(&self) -> Vec<AuditEntry> {
        lock(&self.api.audit).clone()
    }

    /// All bindings that were accepted.
    #[must_use]
    pub fn bindings(&self) -> Vec<Binding> {
        self.api.store().bindings.clone()
    }

    /// All pods that were deleted, in order.
    #[must_use]
    pub fn deleted_pods(&self) -> Vec<DeletedPod> {
        let gone = self.api.store().deleted_pods.clone();
        let deleted = |it: &Arc<Object>| DeletedPod { pod: it.value.clone(), seq: it.version };
        gone.iter().map(deleted).collect()
    }

    /// All calls of webhooks so far.
    #[must_use]
    pub fn admissions(&self) -> Vec<AdmissionCall> {
        lock(&self.api.admission.calls).clone()
    }

    /// Sets the pod quota of a namespace; pods beyond it are rejected after the webhooks were called.
    pub fn set_quota(&self, namespace: &str, pods: Option<usize>) {
        let mut quotas: std::sync::MutexGuard<'_, BTreeMap<String, usize>> =
            lock(&self.api.admission.quotas);
        match pods {
            Some(pods) => quotas.insert(namespace.to_owned(), pods),
            None => quotas.remove(namespace),
        };
    }

    /// Rejects the next creations of pods, after the webhooks were called.
    pub fn refuse_next_pods(&self, count: usize) {
        *lock(&self.api.admission.refusals) = count;
    }

    /// Stops provisioning: the selected node of a claim is removed.
    pub fn fail_provisioning(&self, fail: bool) {
        *lock(&self.api.volumes_fail) = fail;
    }

    /// Sets whether a running pod is ready, as its kubelet does.
    ///
    /// # Errors
    ///
    /// When there is no such pod.
    pub async fn set_ready(&self, namespace: &str, name: &str, ready: bool) -> Result<(), Failure> {
        let status = if ready { "True" } else { "False" };
        self.change_status(namespace, name, |pod| {
            object::set_condition(pod, "Ready", status, &Value::Null);
            object::set_condition(pod, "ContainersReady", status, &Value::Null);
        })
        .await
    }

    /// Ends a pod: `Failed` or `Succeeded`.
    ///
    /// # Errors
    ///
    /// When there is no such pod.
    pub async fn set_phase(&self, namespace: &str, name: &str, phase: &str) -> Result<(), Failure> {
        self.change_status(namespace, name, |pod| {
            pod["status"]["phase"] = json!(phase);
            let ready = if phase == "Running" { "True" } else { "False" };
            object::set_condition(pod, "Ready", ready, &Value::Null);
        })
        .await
    }

    async fn change_status(
        &self,
        namespace: &str,
        name: &str,
        change: impl Fn(&mut Value),
    ) -> Result<(), Failure> {
        let (id, key) = self.locate("pods", namespace, name)?;
        let writer = operator();
        let changed = self.api.modify(&writer, id, &key, ObjectPart::Status, |old| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        });
        changed.await.map(drop)
    }
}
