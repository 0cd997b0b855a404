//! Objects of a real API server as JSON, by kind, namespace and name.
//!
//! Requests are repeated while the API server does not answer, since faults are part of the tests: a create that
//! may have succeeded and then finds its object is done.

use std::time::Duration;

use http::{Method, Request};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// How long a request is repeated.
const PATIENCE: Duration = Duration::from_secs(90);

/// A kind: its name, its API, its plural, and whether it is in namespaces.
type Kind = (&'static str, &'static str, &'static str, bool);

const KINDS: [Kind; 35] = [
    ("Namespace", "api/v1", "namespaces", false),
    ("Node", "api/v1", "nodes", false),
    ("Pod", "api/v1", "pods", true),
    ("Service", "api/v1", "services", true),
    ("ServiceAccount", "api/v1", "serviceaccounts", true),
    ("Secret", "api/v1", "secrets", true),
    ("PersistentVolume", "api/v1", "persistentvolumes", false),
    ("PersistentVolumeClaim", "api/v1", "persistentvolumeclaims", true),
    ("Deployment", "apis/apps/v1", "deployments", true),
    ("ReplicaSet", "apis/apps/v1", "replicasets", true),
    ("StatefulSet", "apis/apps/v1", "statefulsets", true),
    ("Job", "apis/batch/v1", "jobs", true),
    ("ReplicationController", "api/v1", "replicationcontrollers", true),
    ("PodDisruptionBudget", "apis/policy/v1", "poddisruptionbudgets", true),
    ("PriorityClass", "apis/scheduling.k8s.io/v1", "priorityclasses", false),
    ("PodGroup", "apis/scheduling.k8s.io/v1alpha2", "podgroups", true),
    ("StorageClass", "apis/storage.k8s.io/v1", "storageclasses", false),
    ("Lease", "apis/coordination.k8s.io/v1", "leases", true),
    ("Event", "apis/events.k8s.io/v1", "events", true),
    ("NetworkPolicy", "apis/networking.k8s.io/v1", "networkpolicies", true),
    ("Role", "apis/rbac.authorization.k8s.io/v1", "roles", true),
    ("RoleBinding", "apis/rbac.authorization.k8s.io/v1", "rolebindings", true),
    ("ClusterRole", "apis/rbac.authorization.k8s.io/v1", "clusterroles", false),
    ("ClusterRoleBinding", "apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", false),
    (
        "MutatingWebhookConfiguration",
        "apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        false,
    ),
    (
        "CustomResourceDefinition",
        "apis/apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        false,
    ),
    ("VirtualMachine", "apis/vm.neon.tech/v1", "virtualmachines", true),
    ("VirtualMachineMigration", "apis/vm.neon.tech/v1", "virtualmachinemigrations", true),
    ("ConfigMap", "api/v1", "configmaps", true),
    ("ResourceQuota", "api/v1", "resourcequotas", true),
    ("DeviceClass", "apis/resource.k8s.io/v1", "deviceclasses", false),
    ("ResourceSlice", "apis/resource.k8s.io/v1", "resourceslices", false),
    ("ResourceClaim", "apis/resource.k8s.io/v1", "resourceclaims", true),
    ("ResourceClaimTemplate", "apis/resource.k8s.io/v1", "resourceclaimtemplates", true),
    ("DeviceTaintRule", "apis/resource.k8s.io/v1beta2", "devicetaintrules", false),
];

/// The path of all objects of a kind; of one namespace if one is given.
pub(crate) fn path_of(kind: &str, namespace: &str) -> String {
    let known = KINDS.iter().find(|it| it.0 == kind);
    let (_, api, plural, is_namespaced) =
        known.unwrap_or_else(|| panic!("kind {kind} has no path"));
    match (*is_namespaced, namespace) {
        (true, namespace) if !namespace.is_empty() => {
            format!("/{api}/namespaces/{namespace}/{plural}")
        }
        _ => format!("/{api}/{plural}"),
    }
}

/// A field of an object as text; empty: it has none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `namespace/name` of an object.
pub(crate) fn key(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

/// The node of a pod; empty: none.
pub(crate) fn node_of(pod: &Value) -> &str {
    text(pod, "/spec/nodeName")
}

/// A condition of an object.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = object.pointer("/status/conditions")?.as_array()?;
    all.iter().find(|it| it["type"] == kind)
}

/// Whether a pod or a node is ready.
pub(crate) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|it| it["status"] == "True")
}

/// The API server, as one user.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) client: kube::Client,
}

/// Whether a request may succeed if it is repeated.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

fn code_of(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

impl ApiServer {
    /// A connection by a kubeconfig.
    pub(crate) async fn connect(kubeconfig: &std::path::Path) -> Self {
        let client = berth_kube::client::connect(Some(kubeconfig), None).await.unwrap();
        Self { client }
    }

    /// One request, not repeated.
    pub(crate) async fn request(
        &self,
        method: &Method,
        path: &str,
        (content_type, body): (&str, &Value),
    ) -> Result<Value, kube::Error> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(body)
            .unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(30), self.client.request(request));
        let timed_out = || kube::Error::Service(format!("{method} {path} timed out").into());
        answer.await.map_err(|_| timed_out())?
    }

    async fn persist(
        &self,
        method: Method,
        path: &str,
        body: (&str, &Value),
    ) -> Result<Value, kube::Error> {
        let since = Instant::now();
        let mut repeated = false;
        loop {
            match self.request(&method, path, body).await {
                Err(error) if is_passing(&error) && since.elapsed() < PATIENCE => {
                    repeated = true;
                    sleep(Duration::from_millis(200)).await;
                }
                Err(error)
                    if repeated && method == Method::POST && code_of(&error) == Some(409) =>
                {
                    let name = text(body.1, "/metadata/name");
                    let found = format!("{path}/{name}");
                    return self.request(&Method::GET, &found, ("", &Value::Null)).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Creates an object.
    pub(crate) async fn try_create(&self, object: &Value) -> Result<Value, kube::Error> {
        let path = path_of(text(object, "/kind"), text(object, "/metadata/namespace"));
        self.persist(Method::POST, &path, ("application/json", object)).await
    }

    /// Creates an object that must be accepted.
    pub(crate) async fn create(&self, object: Value) -> Value {
        let made = self.try_create(&object).await;
        made.unwrap_or_else(|error| panic!("{} was not created: {error}", key(&object)))
    }

    /// Posts to a subresource of an object.
    pub(crate) async fn post(
        &self,
        kind: &str,
        (namespace, name): (&str, &str),
        subresource: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        let path = format!("{}/{name}/{subresource}", path_of(kind, namespace));
        self.persist(Method::POST, &path, ("application/json", body)).await
    }

    /// Applies an object as `kubectl apply --server-side` does; unknown fields are refused.
    pub(crate) async fn apply(&self, object: &Value) -> Result<Value, kube::Error> {
        let path = path_of(text(object, "/kind"), text(object, "/metadata/namespace"));
        let name = text(object, "/metadata/name");
        let path = format!("{path}/{name}?fieldManager=real&fieldValidation=Strict");
        self.persist(Method::PATCH, &path, ("application/apply-patch+yaml", object)).await
    }

    /// An object.
    pub(crate) async fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let path = format!("{}/{name}", path_of(kind, namespace));
        match self.persist(Method::GET, &path, ("", &Value::Null)).await {
            Ok(object) => Some(object),
            Err(error) if code_of(&error) == Some(404) => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// All objects of a kind.
    pub(crate) async fn list(&self, kind: &str, namespace: &str) -> Vec<Value> {
        let path = path_of(kind, namespace);
        let mut found = self.persist(Method::GET, &path, ("", &Value::Null)).await.unwrap();
        match found["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    }

    /// Merges fields into an object; `path` may be empty, `/status` or `/scale`.
    pub(crate) async fn merge(
        &self,
        kind: &str,
        (namespace, name): (&str, &str),
        subresource: &str,
        fields: &Value,
    ) -> Result<Value, kube::Error> {
        let path = format!("{}/{name}{subresource}", path_of(kind, namespace));
        self.persist(Method::PATCH, &path, ("application/merge-patch+json", fields)).await
    }

    /// Sets the replicas of a workload.
    pub(crate) async fn scale(&self, kind: &str, namespace: &str, name: &str, replicas: usize) {
        let fields = json!({ "spec": { "replicas": replicas } });
        self.merge(kind, (namespace, name), "/scale", &fields).await.unwrap();
    }

    /// Deletes an object; it may be gone.
    pub(crate) async fn delete(&self, kind: &str, namespace: &str, name: &str, options: &Value) {
        let path = format!("{}/{name}", path_of(kind, namespace));
        match self.persist(Method::DELETE, &path, ("application/json", options)).await {
            Ok(_) => {}
            Err(error) if matches!(code_of(&error), Some(404 | 409)) => {}
            Err(error) => panic!("{path} was not deleted: {error}"),
        }
    }
}
