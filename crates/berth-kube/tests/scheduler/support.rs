//! A cluster with schedulers.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_kube::cluster::{MissingRequests, Settings, policies};
use berth_kube::leader_election::Candidate;
use berth_kube::probes::Probes;
use berth_kube::scheduler::{Options, SchedulerError, run};
use berth_kube_fake::{FakeApi, samples};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn start() -> FakeApi {
    start_with(berth_kube_fake::Options::default()).await
}

pub(crate) async fn start_with(options: berth_kube_fake::Options) -> FakeApi {
    FakeApi::start(options).await.unwrap()
}

/// A client that repeats nothing by itself.
pub(crate) fn client(fake: &FakeApi) -> kube::Client {
    let mut config = kube::Config::new(fake.url().parse().unwrap());
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

pub(crate) fn settings() -> Settings {
    let policy = policies::builtin("balanced").unwrap();
    Settings {
        scheduler: "berth".to_owned(),
        policy,
        missing_requests: MissingRequests::Zero,
        ignored_pod_fields: Vec::new(),
    }
}

/// A scheduler that runs.
pub(crate) struct Replica {
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), SchedulerError>>,
    pub(crate) address: String,
}

impl Replica {
    pub(crate) async fn start(fake: &FakeApi, change: impl FnOnce(&mut Options)) -> Self {
        let probes = Probes::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = probes.local_addr().unwrap().to_string();
        let mut options = Options::new(client(fake), settings(), "test");
        options.request_timeout = Duration::from_secs(2);
        options.probes = Some(probes);
        change(&mut options);
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(options, stop.clone()));
        Self { stop, task, address }
    }

    /// One that competes for the lease, impatiently.
    pub(crate) async fn standing(fake: &FakeApi, identity: &str) -> Self {
        let identity = identity.to_owned();
        Self::start(fake, |options| {
            options.lease = Some(candidate(&identity));
            options.identity = identity;
        })
        .await
    }

    /// One that can be killed: it runs in a runtime of its own.
    pub(crate) fn mortal(fake: &FakeApi, identity: &str) -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut options = Options::new(client(fake), settings(), identity);
        options.lease = Some(candidate(identity));
        runtime.spawn(run(options, CancellationToken::new()));
        runtime
    }

    /// Stops it as a signal would.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    pub(crate) async fn get(&self, path: &str, accept: &str) -> (u16, String) {
        let stream = tokio::net::TcpStream::connect(&self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::builder().uri(path).header("host", "berth");
        let request = request.header("accept", accept);
        let body = Full::new(hyper::body::Bytes::new());
        let response = sender.send_request(request.body(body).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(crate) async fn counts(&self) -> Value {
        serde_json::from_str(&self.get("/v1/state", "*/*").await.1).unwrap()
    }
}

/// An impatient candidate.
pub(crate) fn candidate(identity: &str) -> Candidate {
    let mut candidate = Candidate::new("default", "berth-scheduler", identity);
    candidate.duration = Duration::from_secs(2);
    candidate.renew_deadline = Duration::from_millis(1_500);
    candidate.retry_period = Duration::from_millis(200);
    candidate
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came: {what}");
}

pub(crate) async fn add_nodes(fake: &FakeApi, names: &[&str], cpu_milli: u64) {
    for name in names {
        fake.create(samples::node(name, cpu_milli, 65_536)).await.unwrap();
    }
}

/// A pod of ours; its uid.
pub(crate) async fn add_pod(fake: &FakeApi, name: &str, cpu_milli: u64) -> String {
    add(fake, samples::pod("default", name, "berth", cpu_milli, 64)).await
}

pub(crate) async fn add(fake: &FakeApi, object: Value) -> String {
    let made = fake.create(object).await.unwrap();
    made["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// The node that a pod is bound to; empty: none.
pub(crate) fn node_of(fake: &FakeApi, name: &str) -> String {
    let pod = fake.get("pods", "default", name).unwrap_or_default();
    pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn is_bound(fake: &FakeApi, name: &str) -> bool {
    !node_of(fake, name).is_empty()
}

pub(crate) async fn bound(fake: &FakeApi, name: &str) -> String {
    eventually(&format!("{name} is bound"), || is_bound(fake, name)).await;
    node_of(fake, name)
}

/// A condition of a pod.
pub(crate) fn condition(fake: &FakeApi, name: &str, kind: &str) -> Option<Value> {
    let pod = fake.get("pods", "default", name)?;
    let conditions = pod["status"]["conditions"].as_array()?;
    conditions.iter().find(|it| it["type"] == kind).cloned()
}

/// Events about an object: reason and note.
pub(crate) fn events(fake: &FakeApi, name: &str) -> Vec<(String, String)> {
    let all = fake.list("events.events.k8s.io");
    let about = all.iter().filter(|it| it["regarding"]["name"] == name);
    let text = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
    about.map(|it| (text(it, "reason"), text(it, "note"))).collect()
}

pub(crate) fn has_event(fake: &FakeApi, name: &str, reason: &str) -> bool {
    events(fake, name).iter().any(|(it, _)| it == reason)
}

/// A metric; absent: it has no value yet.
pub(crate) async fn metric(replica: &Replica, name: &str) -> Option<f64> {
    let (_, text) = replica.get("/metrics", "*/*").await;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
}

pub(crate) async fn until_metric(replica: &Replica, name: &str, expected: f64) {
    for _ in 0..600 {
        if metric(replica, name).await == Some(expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} is {:?}, not {expected}", metric(replica, name).await);
}

/// Checks what must always hold: every pod was bound at most once, and no node has more than it has.
pub(crate) fn check_books(fake: &FakeApi) {
    let mut bound: BTreeMap<String, usize> = BTreeMap::new();
    for binding in fake.bindings() {
        *bound.entry(binding.uid.clone()).or_default() += 1;
    }
    let twice: Vec<_> = bound.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "bound more than once: {twice:?}");
    let mut used: BTreeMap<String, u64> = BTreeMap::new();
    for pod in fake.list("pods") {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if !node.is_empty() {
            *used.entry(node.to_owned()).or_default() += milli(&pod["spec"]["containers"][0]);
        }
    }
    for node in fake.list("nodes") {
        let name = node["metadata"]["name"].as_str().unwrap();
        let has = node["status"]["allocatable"]["cpu"].as_str().unwrap();
        let has = read_milli(has);
        let used = used.get(name).copied().unwrap_or(0);
        assert!(used <= has, "{name} has {has}m and is asked for {used}m");
    }
}

fn milli(container: &Value) -> u64 {
    read_milli(container["resources"]["requests"]["cpu"].as_str().unwrap_or("0"))
}

fn read_milli(text: &str) -> u64 {
    match text.strip_suffix('m') {
        Some(milli) => milli.parse().unwrap(),
        None => text.parse::<u64>().unwrap() * 1_000,
    }
}

/// A class whose volumes are bound when their first pod is placed.
pub(crate) fn late_class(provisioner: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "late"},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}
