//! Pods per second on one real API server, in turns: bare Binding requests, kube-scheduler, Berth. Each finds a
//! backlog of pods; the rate is counted from the first pod that is bound to the last.
//!
//! `make kube-real-throughput`. It measures: nothing here may fail for being slow.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, pin_mut, stream};
use http::{Method, Request};
use kube::core::WatchEvent;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::api::{ApiServer, path_of, text};
use crate::assets::{ControlPlane, Process, Programs, Setup};
use crate::cluster::wait_for_api;
use crate::coexistence::start_kube_scheduler;
use crate::kubelets::node;
use crate::ratios::{BARE, BERTH, PEER, Round, compare};

/// Binding requests at once: as many as Berth sends.
const CONCURRENCY: usize = 64;
/// How long a round may take.
const PATIENCE: Duration = Duration::from_secs(900);

/// What is known of a pod that changed: nothing more is read, so that the measurement costs little.
#[derive(Clone, Deserialize)]
struct Changed {
    metadata: ChangedMetadata,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangedMetadata {
    resource_version: String,
}

/// A cluster that is measured.
struct Arena {
    api: ApiServer,
    plane: Arc<ControlPlane>,
    nodes: usize,
    pods: usize,
}

fn name_of_node(number: usize) -> String {
    format!("node-{number}")
}

fn measured_pod(number: usize, scheduler: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number}"), "namespace": "default",
            "labels": { "app": format!("app-{}", number % 50) },
        },
        "spec": {
            "schedulerName": scheduler,
            "containers": [{
                "name": "main", "image": "registry.k8s.io/pause:3.10",
                "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
            }],
        },
    })
}

impl Arena {
    async fn create_nodes(&self) {
        let create = |number: usize| async move {
            let zone = ["a", "b", "c"][number % 3];
            let labels = json!({ "topology.kubernetes.io/zone": zone });
            self.api.create(node(&name_of_node(number), 32_000, 131_072, &labels)).await;
        };
        stream::iter(0..self.nodes).for_each_concurrent(CONCURRENCY, create).await;
    }

    async fn create_pods(&self, scheduler: &str) {
        let create = |number: usize| async move {
            self.api.create(measured_pod(number, scheduler)).await;
        };
        stream::iter(0..self.pods).for_each_concurrent(CONCURRENCY, create).await;
    }

    async fn delete_pods(&self) {
        let path = path_of("Pod", "default");
        let options = json!({ "gracePeriodSeconds": 0 });
        loop {
            // It may take longer than a request may.
            let _ = self.api.request(&Method::DELETE, &path, ("application/json", &options)).await;
            let left = format!("{path}?limit=1");
            let left = self.api.request(&Method::GET, &left, ("", &Value::Null)).await.unwrap();
            if left["items"].as_array().is_some_and(Vec::is_empty) {
                return;
            }
        }
    }

    /// Waits until every pod has changed once, which is its binding; how long it took from the first to the last.
    async fn watch_bindings(&self) -> tokio::task::JoinHandle<Duration> {
        let path = path_of("Pod", "default");
        let one = format!("{path}?limit=1");
        let listed = self.api.request(&Method::GET, &one, ("", &Value::Null)).await.unwrap();
        let mut version = text(&listed, "/metadata/resourceVersion").to_owned();
        let (api, pods) = (self.api.clone(), self.pods);
        tokio::spawn(async move {
            let (mut bound, mut first) = (0, None);
            let mut last = Instant::now();
            while bound < pods {
                let uri = format!("{path}?watch=true&resourceVersion={version}&timeoutSeconds=600");
                let kind = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
                let request = Request::get(uri).header("accept", kind).body(Vec::new()).unwrap();
                let events = api.client.request_events::<Changed>(request).await.unwrap();
                pin_mut!(events);
                while let Some(Ok(event)) = events.next().await {
                    let WatchEvent::Modified(object) = event else { continue };
                    version = object.metadata.resource_version;
                    first.get_or_insert_with(Instant::now);
                    last = Instant::now();
                    bound += 1;
                    if bound == pods {
                        break;
                    }
                }
            }
            first.map_or(Duration::ZERO, |first| last.duration_since(first))
        })
    }

    async fn bind_bare(&self) {
        let bind = |number: usize| async move {
            let name = format!("pod-{number}");
            let node = name_of_node(number % self.nodes);
            let body = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
                "target": { "apiVersion": "v1", "kind": "Node", "name": node },
            });
            self.api.post("Pod", ("default", &name), "binding", &body).await.unwrap();
        };
        stream::iter(0..self.pods).for_each_concurrent(CONCURRENCY, bind).await;
    }

    async fn round(&self, who: &'static str, start: Option<&dyn Fn() -> Process>) -> Round {
        self.create_pods(if who == PEER { "default-scheduler" } else { "berth" }).await;
        let watching = self.watch_bindings().await;
        let process = start.map(|it| it());
        if process.is_none() {
            self.bind_bare().await;
        }
        let took = tokio::time::timeout(PATIENCE, watching).await;
        let took = took.unwrap_or_else(|_| panic!("{who} did not finish")).unwrap();
        let usage = process.as_ref().and_then(Process::usage).unwrap_or_default();
        drop(process);
        self.delete_pods().await;
        sleep(Duration::from_secs(1)).await;
        Round { who, pods: self.pods, took, usage }
    }
}

fn report(round: &Round) {
    let ms = round.took.as_millis().max(1);
    println!(
        "{:<15} {:>5} pods in {:>6} ms: {:>5} pods/s; {:>6} ms of processor, {:>4} MiB now, {:>4} MiB at most",
        round.who,
        round.pods,
        ms,
        round.pods as u128 * 1_000 / ms,
        round.usage.cpu_ms,
        round.usage.resident_kib / 1_024,
        round.usage.peak_kib / 1_024,
    );
}

fn start_berth(program: &Path, plane: &ControlPlane, kubeconfig: &Path) -> Process {
    let port = crate::assets::free_port();
    let args = ["kube", "scheduler", "--no-leader-election"].map(str::to_owned);
    let mut args = args.to_vec();
    args.push(format!("--probes=127.0.0.1:{port}"));
    args.push(format!("--kubeconfig={}", kubeconfig.display()));
    args.push("--log-level=warn".to_owned());
    Process::start("berth", program, args, &plane.folder)
}

/// Measures in turns, and prints a line for each round and each comparison.
pub(crate) async fn measure(
    programs: &Programs,
    program: &Path,
    (nodes, pods, rounds): (usize, usize, usize),
) {
    let folder = tempfile::Builder::new().prefix("berth-real-").tempdir().unwrap();
    let setup = Setup { controllers: false, audit: false };
    let plane = Arc::new(ControlPlane::start(programs, folder.path(), setup));
    let admin = plane.kubeconfig_of("admin", "admin", &["system:masters"]);
    let api = ApiServer::connect(&admin).await;
    wait_for_api(&api, &plane).await;
    let version = api.client.apiserver_version().await.unwrap().git_version;
    let arena = Arena { api, plane: Arc::clone(&plane), nodes, pods };
    arena.create_nodes().await;
    println!("Kubernetes {version}, {nodes} nodes, {CONCURRENCY} requests at once");
    let berth = || start_berth(program, &arena.plane, &admin);
    let mut measured = Vec::new();
    let mut keep = |round: Round| {
        report(&round);
        measured.push(round);
    };
    for _ in 0..rounds {
        keep(arena.round(BARE, None).await);
        if let Some(scheduler) = &programs.scheduler {
            let theirs =
                || start_kube_scheduler(scheduler, &arena.plane, &admin, "default-scheduler");
            keep(arena.round(PEER, Some(&theirs)).await);
        }
        keep(arena.round(BERTH, Some(&berth)).await);
    }
    for line in compare(&measured, nodes) {
        println!("{line}");
    }
}
