//! A real cluster with Berth installed from the project's manifests, and what tests do to it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::api::{ApiServer, is_ready, key, node_of, text};
use crate::assets::{ControlPlane, Programs, Setup};
use crate::kubelets::{Kubelets, node};
use crate::network::{CuttableLink, ServiceAddresses};
use crate::parts::Parts;
use crate::recorder::{Recorder, judge_namespace};

/// Where Berth is installed.
pub(crate) const NAMESPACE: &str = "berth-system";
/// The node that its pods run on.
pub(crate) const CONTROL_NODE: &str = "control";
/// The label of the nodes of one case.
pub(crate) const POOL: &str = "real.berth.dev/pool";
/// How long something may take to happen.
const PATIENCE: Duration = Duration::from_secs(120);
/// Requests at once.
const CONCURRENCY: usize = 16;
/// The folder of the manifests.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes");

/// A cluster.
pub(crate) struct Cluster {
    pub(crate) plane: Arc<ControlPlane>,
    pub(crate) api: ApiServer,
    pub(crate) recorder: Recorder,
    pub(crate) parts: Arc<Parts>,
    /// Between Berth and the API server.
    pub(crate) link: CuttableLink,
    /// The program of the scheduler of Kubernetes, if it is there.
    pub(crate) kube_scheduler: Option<PathBuf>,
    /// What was wrong when a case was over.
    pub(crate) violations: Mutex<Vec<String>>,
}

/// The objects of the manifests, in the order of `kubectl apply -k`.
pub(crate) fn manifests() -> Vec<Value> {
    let mut objects = Vec::new();
    for part in ["scheduler", "webhook"] {
        let folder = Path::new(MANIFESTS).join(part);
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            objects.extend(read);
        }
    }
    objects
}

/// Waits until something is there.
pub(crate) async fn eventually<T>(what: &str, mut find: impl AsyncFnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = find().await {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        sleep(Duration::from_millis(100)).await;
    }
}

impl Cluster {
    /// Starts a control plane and everything around it. Berth is not installed yet.
    pub(crate) async fn start(programs: &Programs, folder: &Path, program: &Path) -> Arc<Self> {
        let setup = Setup { controllers: true, audit: true };
        let services = ServiceAddresses::default();
        services.serve(&ControlPlane::service_socket(folder));
        let plane = Arc::new(ControlPlane::start(programs, folder, setup));
        let kubeconfig = plane.kubeconfig_of("admin", "admin", &["system:masters"]);
        let api = ApiServer::connect(&kubeconfig).await;
        wait_for_api(&api, &plane).await;
        let link = CuttableLink::start(&plane.address).await;
        let (recorder, changes) = Recorder::start(&api);
        Kubelets::start(&api, changes);
        let parts = Parts::new(&api, &plane, program, &link.address, &services);
        // Pods of cases select the nodes of their pool.
        api.create(node(CONTROL_NODE, 8_000, 16_384, &json!({}))).await;
        tokio::spawn(Arc::clone(&parts).run());
        let violations = Mutex::default();
        let kube_scheduler = programs.scheduler.clone();
        Arc::new(Self { plane, api, recorder, parts, link, kube_scheduler, violations })
    }

    /// Applies the manifests, as they are.
    pub(crate) async fn apply_manifests(&self) {
        for object in manifests() {
            let applied = self.api.apply(&object).await;
            applied.unwrap_or_else(|error| panic!("{} is refused: {error}", key(&object)));
        }
    }

    /// A namespace in which pods can be created.
    pub(crate) async fn add_namespace(&self, name: &str) {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.api.create(namespace).await;
        eventually("the namespace has a service account", async || {
            self.api.get("ServiceAccount", name, "default").await
        })
        .await;
    }

    /// Nodes of a case, ready and without taints of their start.
    pub(crate) async fn add_nodes(&self, pool: &str, nodes: Vec<Value>) {
        let count = nodes.len();
        let create = |mut node: Value| async move {
            node["metadata"]["labels"][POOL] = pool.into();
            self.api.create(node).await;
        };
        stream::iter(nodes).for_each_concurrent(CONCURRENCY, create).await;
        eventually("the nodes are ready", async || {
            let nodes = self.api.list("Node", "").await;
            let not_ready = |it: &Value| it["key"] == "node.kubernetes.io/not-ready";
            let starting = |node: &&Value| {
                let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
                node["metadata"]["labels"][POOL] == pool && !taints.iter().any(not_ready)
            };
            (nodes.iter().filter(starting).count() >= count).then_some(())
        })
        .await;
    }

    /// Creates pods, many at once.
    pub(crate) async fn create_all(&self, objects: Vec<Value>) {
        let create = |object: Value| async move { drop(self.api.create(object).await) };
        stream::iter(objects).for_each_concurrent(CONCURRENCY, create).await;
    }

    /// Pods of a namespace that are neither ending nor ended.
    pub(crate) fn live_pods(&self, namespace: &str) -> Vec<Value> {
        let mut pods = self.recorder.pods(namespace);
        pods.retain(|it| {
            it["metadata"]["deletionTimestamp"].is_null()
                && !["Succeeded", "Failed"].contains(&text(it, "/status/phase"))
        });
        pods
    }

    /// Waits until so many live pods of a namespace have a node, and no other pod is without one.
    pub(crate) async fn all_bound(&self, namespace: &str, count: usize) {
        let since = Instant::now();
        loop {
            let pods = self.live_pods(namespace);
            let waiting: Vec<&Value> = pods.iter().filter(|it| node_of(it).is_empty()).collect();
            if waiting.is_empty() && pods.len() == count {
                return;
            }
            let first = waiting.first().map(|it| format!("{}: {}", key(it), it["status"]));
            let (found, waiting) = (pods.len(), waiting.len());
            assert!(
                since.elapsed() < PATIENCE,
                "{namespace}: {found} pods of {count}, {waiting} wait, first of all {first:?}"
            );
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until a pod has a node, and returns the node.
    pub(crate) async fn bound(&self, namespace: &str, name: &str) -> String {
        let what = format!("{namespace}/{name} is bound");
        eventually(&what, async || {
            let pod = self.recorder.pod(namespace, name)?;
            Some(node_of(&pod).to_owned()).filter(|it| !it.is_empty())
        })
        .await
    }

    /// Waits until a Deployment or StatefulSet, whose pods have its name as label `app`, has this many ready pods, all of its newest template.
    pub(crate) async fn rolled_out(&self, kind: &str, namespace: &str, name: &str, count: usize) {
        eventually(&format!("{kind} {namespace}/{name} has {count} ready pods"), async || {
            let object = self.api.get(kind, namespace, name).await?;
            let status = &object["status"];
            let is = |field: &str| status[field].as_u64().unwrap_or(0) == count as u64;
            let observed = status["observedGeneration"] == object["metadata"]["generation"];
            (observed && is("replicas") && is("readyReplicas") && is("updatedReplicas"))
                .then_some(())
        })
        .await;
        eventually("the watch shows them", async || {
            let pods = self.live_pods(namespace);
            let mut of_app = pods.iter().filter(|it| it["metadata"]["labels"]["app"] == name);
            of_app.all(is_ready).then_some(())
        })
        .await;
    }

    /// Notes of the events about an object with a reason.
    pub(crate) async fn notes(&self, namespace: &str, name: &str, reason: &str) -> Vec<String> {
        let events = self.api.list("Event", namespace).await;
        let about = events
            .iter()
            .filter(|it| text(it, "/regarding/name") == name && text(it, "/reason") == reason);
        about.map(|it| text(it, "/note").to_owned()).collect()
    }

    /// Judges where the pods of a case are, and removes them and their nodes.
    pub(crate) async fn finish(&self, namespace: &str, pool: &str) {
        let found = judge_namespace(&self.api, namespace).await;
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        self.api.delete("Namespace", "", namespace, &json!({})).await;
        eventually(&format!("the pods of {namespace} are gone"), async || {
            self.api.list("Pod", namespace).await.is_empty().then_some(())
        })
        .await;
        let nodes = self.api.list("Node", "").await;
        let of_pool = nodes.iter().filter(|it| it["metadata"]["labels"][POOL] == pool);
        stream::iter(of_pool)
            .for_each_concurrent(CONCURRENCY, |it| async move {
                self.api.delete("Node", "", text(it, "/metadata/name"), &json!({})).await;
            })
            .await;
    }

    /// Runs a command of Berth as an administrator; its exit code, and what it printed.
    pub(crate) async fn berth(&self, words: &[&str]) -> (Option<i32>, String) {
        let admin = self.plane.folder.join("admin.kubeconfig");
        let mut command = tokio::process::Command::new(&self.parts.program);
        let output = command.args(words).arg("--kubeconfig").arg(admin).output().await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    /// The pod of the scheduler that leads.
    pub(crate) async fn leader(&self) -> String {
        eventually("a scheduler leads", async || {
            let lease = self.api.get("Lease", NAMESPACE, "berth-scheduler").await?;
            let holder = text(&lease, "/spec/holderIdentity").to_owned();
            self.recorder.pod(NAMESPACE, &holder).map(|_| holder)
        })
        .await
    }
}

/// Waits until the API server answers.
pub(crate) async fn wait_for_api(api: &ApiServer, plane: &ControlPlane) {
    let since = Instant::now();
    loop {
        let ready =
            api.client.request_text(http::Request::get("/readyz").body(Vec::new()).unwrap());
        if ready.await.is_ok_and(|it| it == "ok") {
            return;
        }
        let failures = plane.failures();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        let limit = ControlPlane::start_timeout();
        assert!(since.elapsed() < limit, "the API server does not answer");
        sleep(Duration::from_millis(200)).await;
    }
}
