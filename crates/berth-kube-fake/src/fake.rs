//! The handle that a test holds: the server's address, and the hands of an operator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::AdmissionCall;
use crate::api::{Api, Done, User, Writer, lock};
use crate::delete::DeleteOptions;
use crate::failure::Failure;
use crate::object::{self, Key, Object};
use crate::options::{AuditEntry, Faults, Options};
use crate::patch::Patch;
use crate::server::{self, Identity};
use crate::store::{Binding, Departure, TableId};
use crate::update::Part;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No port could be had.
    #[error("no port on this machine could be had")]
    Listen(#[from] std::io::Error),
    /// No certificate could be made.
    #[error("no certificate could be made")]
    Certificate(#[from] rcgen::Error),
    /// The certificate could not be used.
    #[error("the certificate could not be used")]
    Tls(#[from] rustls::Error),
    /// The first objects could not be made.
    #[error("the first objects could not be made")]
    Populate(#[from] Failure),
}

/// What an operator's deed came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The object as it is now.
    pub object: Value,
    /// What webhooks had to say.
    pub warnings: Vec<String>,
}

impl Deref for Reply {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.object
    }
}

impl From<Done> for Reply {
    fn from(done: Done) -> Self {
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
    /// Starts a server with its own, empty cluster.
    ///
    /// # Errors
    ///
    /// No port or no certificate could be had.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let identity = if options.tls { Some(Identity::make()?) } else { None };
        let api = Arc::new(Api::new(options));
        api.populate()?;
        let (listener, address) = server::listen().await?;
        tokio::spawn(server::serve(Arc::clone(&api), listener, identity.clone()));
        crate::controllers::start(&api);
        Ok(Self { api, address, identity })
    }

    /// Where the server listens.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.identity.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The certificate of the server's authority; empty without TLS.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.identity.as_ref().map(|identity| identity.ca_pem.clone()).unwrap_or_default()
    }

    /// A file that `KUBECONFIG` could point at.
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

    fn place(&self, kind: &str, namespace: &str, name: &str) -> Result<(TableId, Key), Failure> {
        Ok((self.api.table_called(kind)?, Key::new(namespace, name)))
    }

    /// Makes an object, as `kubectl create` would. Without a namespace it is made in `default`.
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn create(&self, value: Value) -> Result<Reply, Failure> {
        let id = self.api.table_of(&value)?;
        let own = object::namespace(&value).to_owned();
        let namespace = if own.is_empty() { "default" } else { &own };
        let namespace = self.api.resource(id).namespaced.then_some(namespace);
        self.api.create(&operator(), id, namespace, value).await.map(Reply::from)
    }

    /// Makes many objects that differ little, quickly: the first goes through everything that a
    /// creation goes through, the others are copies of what came of it. `vary` gives each its
    /// name, and whatever else is its own.
    ///
    /// # Errors
    ///
    /// What the server would refuse of the first, or a name that is taken.
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

    /// One object, if it is there. `kind` is `Pod`, `pods` or `deployments.apps`.
    #[must_use]
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let (id, key) = self.place(kind, namespace, name).ok()?;
        self.api.get(id, &key).ok().map(|object| object.value.clone())
    }

    /// All objects of a kind, by namespace and name.
    #[must_use]
    pub fn list(&self, kind: &str) -> Vec<Value> {
        let Ok(id) = self.api.table_called(kind) else { return Vec::new() };
        let resource = self.api.resource(id);
        let objects: Vec<_> = {
            let store = self.api.store();
            let home = store.home(id);
            store.iter(home, None).map(|(_, object)| Arc::clone(object)).collect()
        };
        objects.iter().map(|object| crate::view::shown(&resource, object).value.clone()).collect()
    }

    /// How many objects of a kind there are.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        let Ok(id) = self.api.table_called(kind) else { return 0 };
        self.api.store().len(id)
    }

    /// How many objects of a kind are so. Nothing is copied, so it can be asked often.
    #[must_use]
    pub fn count_where(&self, kind: &str, is_so: impl Fn(&Value) -> bool) -> usize {
        let Ok(id) = self.api.table_called(kind) else { return 0 };
        let objects: Vec<_> = {
            let store = self.api.store();
            let home = store.home(id);
            store.iter(home, None).map(|(_, object)| Arc::clone(object)).collect()
        };
        objects.iter().filter(|object| is_so(&object.value)).count()
    }

    /// Replaces an object, as `kubectl replace` would.
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn update(&self, value: Value) -> Result<Reply, Failure> {
        self.replace(value, Part::Main).await
    }

    /// Replaces an object's status, as its controller would.
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn update_status(&self, value: Value) -> Result<Reply, Failure> {
        self.replace(value, Part::Status).await
    }

    async fn replace(&self, value: Value, part: Part) -> Result<Reply, Failure> {
        let id = self.api.table_of(&value)?;
        let key = Key::of(&value);
        self.api.replace(&operator(), id, &key, part, value).await.map(Reply::from)
    }

    /// Merges fields into an object (RFC 7386).
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn merge(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        fields: Value,
    ) -> Result<Reply, Failure> {
        let (id, key) = self.place(kind, namespace, name)?;
        let patch = Patch::Merge(fields);
        self.api.patch(&operator(), id, &key, Part::Main, &patch).await.map(Reply::from)
    }

    /// Merges fields into an object through its status subresource: `{ "status": … }`.
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn merge_status(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        fields: Value,
    ) -> Result<Reply, Failure> {
        let (id, key) = self.place(kind, namespace, name)?;
        let patch = Patch::Merge(fields);
        self.api.patch(&operator(), id, &key, Part::Status, &patch).await.map(Reply::from)
    }

    /// Deletes an object with the grace that it asks for.
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), Failure> {
        self.delete_with(kind, namespace, name, json!({})).await
    }

    /// Deletes an object with `DeleteOptions`.
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn delete_with(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        options: Value,
    ) -> Result<(), Failure> {
        let (id, key) = self.place(kind, namespace, name)?;
        let options = DeleteOptions::read(&options)?;
        self.api.delete(&operator(), id, &key, &options).await.map(drop)
    }

    /// Sets how many replicas a workload is to have.
    ///
    /// # Errors
    ///
    /// What the server would refuse.
    pub async fn scale(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        replicas: u32,
    ) -> Result<Reply, Failure> {
        self.merge(kind, namespace, name, json!({ "spec": { "replicas": replicas } })).await
    }

    /// Replaces what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        let down = faults.down;
        *lock(&self.api.faults) = faults;
        self.api.down.send_replace(down);
    }

    /// From now on nothing goes wrong.
    pub fn clear_faults(&self) {
        self.set_faults(Faults::default());
    }

    /// Forgets all history: the next watch from a version that anyone knows gets 410, and lists
    /// that were begun cannot go on.
    pub fn compact(&self) {
        self.api.store().compact();
        lock(&self.api.snapshots).clear();
    }

    /// The version of the whole store.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.api.store().version()
    }

    /// Every request so far, if [`Options::audit`] is on.
    #[must_use]
    pub fn audit(&self) -> Vec<AuditEntry> {
        lock(&self.api.audit).clone()
    }

    /// Every binding that was ever accepted.
    #[must_use]
    pub fn bindings(&self) -> Vec<Binding> {
        self.api.store().bindings.clone()
    }

    /// Every pod that is not there any more, in the order in which they went.
    #[must_use]
    pub fn departures(&self) -> Vec<Departure> {
        let gone = self.api.store().departures.clone();
        let departure = |it: &Arc<Object>| Departure { pod: it.value.clone(), seq: it.version };
        gone.iter().map(departure).collect()
    }

    /// Every call of a webhook so far.
    #[must_use]
    pub fn admissions(&self) -> Vec<AdmissionCall> {
        lock(&self.api.admission.calls).clone()
    }

    /// How many pods a namespace may hold; what is over it is refused after webhooks have seen it.
    pub fn set_quota(&self, namespace: &str, pods: Option<usize>) {
        let mut quotas: std::sync::MutexGuard<'_, BTreeMap<String, usize>> =
            lock(&self.api.admission.quotas);
        match pods {
            Some(pods) => quotas.insert(namespace.to_owned(), pods),
            None => quotas.remove(namespace),
        };
    }

    /// Refuses the next creations of pods, after webhooks have seen them.
    pub fn refuse_next_pods(&self, count: usize) {
        *lock(&self.api.admission.refusals) = count;
    }

    /// From now on no volume is provisioned: the claim's selected node is taken back.
    pub fn fail_provisioning(&self, fail: bool) {
        *lock(&self.api.volumes_fail) = fail;
    }

    /// Says whether a running pod is ready, as its kubelet would.
    ///
    /// # Errors
    ///
    /// There is no such pod.
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
    /// There is no such pod.
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
        let (id, key) = self.place("pods", namespace, name)?;
        let writer = operator();
        let changed = self.api.modify(&writer, id, &key, Part::Status, |old| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        });
        changed.await.map(drop)
    }
}
