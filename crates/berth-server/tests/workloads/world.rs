//! A small world for workloads: one server or several on one ledger, a few nodes of each kind, and
//! agents that start and stop what they are told, over the same HTTP as real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::Role;
use berth_control::ControlOptions;
use berth_engine::{Amounts, CapacityType, NodeFacts, NodeId, Timestamp};
use berth_ledger::{Answer, Backend, Op, Outcome};
use berth_pgtemp::TempPostgres;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::common::{Reply, Server, TENANT, TIMEOUT};

/// How long anything may take to settle before a test says that it does not.
const PATIENCE: Duration = TIMEOUT;

/// Which database a world is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite,
    Postgres,
}

/// How agents behave; can be changed at any time.
#[derive(Debug, Default)]
pub(crate) struct Manners {
    /// Nodes whose agents are silent.
    pub(crate) silent: BTreeSet<String>,
    /// Nodes whose agents start nothing.
    pub(crate) slow: BTreeSet<String>,
    /// Nodes on which nothing boots.
    pub(crate) broken: BTreeSet<String>,
    /// Nodes whose agents do not say that something has stopped.
    pub(crate) stuck: BTreeSet<String>,
    /// Instances that die as soon as they run.
    pub(crate) doomed_images: BTreeSet<String>,
    /// Instances to be reported as failed, once.
    pub(crate) to_die: BTreeSet<String>,
}

/// Servers, nodes and agents.
pub(crate) struct World {
    pub(crate) servers: Vec<Server>,
    pub(crate) token: String,
    pub(crate) manners: Arc<Mutex<Manners>>,
    nodes: Arc<Mutex<Vec<String>>>,
    crew: JoinHandle<()>,
    change: fn(&mut ControlOptions),
    backend: Backend,
    _postgres: Option<TempPostgres>,
    _folder: tempfile::TempDir,
}

impl World {
    /// One server on SQLite.
    pub(crate) async fn new() -> Self {
        Self::with(Store::Sqlite, 1, |_| {}).await
    }

    /// So many servers on one ledger.
    pub(crate) async fn with(
        store: Store,
        servers: usize,
        change: fn(&mut ControlOptions),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (postgres, backend) = match store {
            Store::Sqlite => {
                assert_eq!(servers, 1, "an embedded ledger has one server");
                (None, Backend::Sqlite(folder.path().join("ledger.db")))
            }
            Store::Postgres => {
                let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
                let url = postgres.url();
                (Some(postgres), Backend::Postgres(url))
            }
        };
        let mut started = Vec::new();
        for _ in 0..servers {
            let backend = backend.clone();
            started.push(
                Server::start_with(|options| {
                    options.backend = backend;
                    change(options);
                })
                .await,
            );
        }
        let token = started[0].token(Role::Admin).await;
        let manners = Arc::new(Mutex::new(Manners::default()));
        let nodes = Arc::new(Mutex::new(Vec::new()));
        let crew = tokio::spawn(work(
            started[0].url.clone(),
            token.clone(),
            Arc::clone(&nodes),
            Arc::clone(&manners),
        ));
        let world = Self {
            servers: started,
            token,
            manners,
            nodes,
            crew,
            change,
            backend,
            _postgres: postgres,
            _folder: folder,
        };
        world
            .until("every server knows the token", |world| async move {
                for server in &world.servers {
                    if server.get(&world.token, "/v1/whoami").await.status != 200 {
                        return false;
                    }
                }
                true
            })
            .await;
        world
    }

    /// A node with 16 cores and 64 GiB.
    pub(crate) async fn node(&self, id: &str, kind: CapacityType) {
        self.node_with(id, |facts| facts.capacity_type = kind).await;
    }

    /// A node with 16 cores and 64 GiB, changed.
    pub(crate) async fn node_with(&self, id: &str, change: impl FnOnce(&mut NodeFacts)) {
        let server = &self.servers[0];
        let mut facts = NodeFacts::new(id, Amounts::new(16_000, 65_536).with_disk(1 << 20));
        facts.heartbeat_at = Timestamp(server.control.now().as_second());
        change(&mut facts);
        let answer = server.control.submit(Op::put_node(facts)).await.unwrap();
        assert_eq!(answer, Answer::Outcome(Outcome::Done));
        server.control.wait_for_read_your_writes().await;
        self.nodes.lock().unwrap().push(id.to_owned());
    }

    /// So many on-demand nodes `o1`, `o2`, … and spot nodes `s1`, `s2`, ….
    pub(crate) async fn fleet(&self, on_demand: u32, spot: u32) {
        for number in 1..=on_demand {
            self.node(&format!("o{number}"), CapacityType::OnDemand).await;
        }
        for number in 1..=spot {
            self.node(&format!("s{number}"), CapacityType::Spot).await;
        }
    }

    /// Stops the first server and starts another in its place, on the same ledger.
    pub(crate) async fn restart(&mut self) {
        self.crew.abort();
        let old = self.servers.remove(0);
        let weak = Arc::downgrade(&old.control);
        old.stop().await;
        let began = Instant::now();
        while weak.strong_count() > 0 {
            assert!(began.elapsed() < PATIENCE, "the stopped server is still in use");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (backend, change) = (self.backend.clone(), self.change);
        let fresh = Server::start_with(|options| {
            options.backend = backend;
            change(options);
        })
        .await;
        self.crew = tokio::spawn(work(
            fresh.url.clone(),
            self.token.clone(),
            Arc::clone(&self.nodes),
            Arc::clone(&self.manners),
        ));
        self.servers.insert(0, fresh);
    }

    /// Changes how agents behave.
    pub(crate) fn agents<T>(&self, change: impl FnOnce(&mut Manners) -> T) -> T {
        change(&mut self.manners.lock().unwrap())
    }

    /// Stores a workload of the test's tenant: fields other than `template` are given, each member
    /// takes one core and 1 GiB.
    pub(crate) async fn apply(&self, name: &str, fields: Value) -> Reply {
        let mut body = json!({
            "template": { "resources": { "cpu_milli": 1000, "memory_mib": 1024 } },
        });
        merge(&mut body, fields);
        self.servers[0].put(&self.token, &path(name), &body).await
    }

    /// Changes how many should run.
    pub(crate) async fn scale(&self, name: &str, replicas: u32) -> Reply {
        let body = json!({ "replicas": replicas });
        self.servers[0].post(&self.token, &format!("{}/scale", path(name)), &body).await
    }

    /// A workload as it is.
    pub(crate) async fn workload(&self, name: &str) -> Value {
        self.servers[0].get(&self.token, &path(name)).await.expect(200).json()
    }

    /// A workload's members.
    pub(crate) async fn members(&self, name: &str) -> Vec<Value> {
        let path = format!("{}/members", path(name));
        let reply = self.servers[0].get(&self.token, &path).await.expect(200);
        reply.json()["items"].as_array().unwrap().clone()
    }

    /// Slots and kinds of those that run and stay, such as `0O 1O 2S`.
    pub(crate) async fn slots(&self, name: &str) -> String {
        let members = self.members(name).await;
        let stays =
            |member: &&Value| member["state"] != "releasing" && member["handed_over"] != true;
        let slot = |member: &Value| {
            let kind = if member["on"] == "spot" { 'S' } else { 'O' };
            format!("{}{kind}", member["slot"])
        };
        let slots: Vec<String> = members.iter().filter(stays).map(slot).collect();
        slots.join(" ")
    }

    /// Waits until a workload is as it should be, and nobody is on the way out.
    pub(crate) async fn ready(&self, name: &str) -> Value {
        self.until(&format!("{name} is ready"), |world| async move {
            let found = world.workload(name).await;
            found["status"]["state"] == "ready" && found["status"]["leaving"] == 0
        })
        .await;
        self.workload(name).await
    }

    /// Waits until a workload is degraded for this reason.
    pub(crate) async fn degraded(&self, name: &str, code: &str) -> Value {
        self.until(&format!("{name} is degraded: {code}"), |world| async move {
            world.workload(name).await["status"]["reason"]["code"] == code
        })
        .await;
        self.workload(name).await
    }

    /// Waits until these are the slots of those that stay.
    pub(crate) async fn wait_for_slots(&self, name: &str, slots: &str) {
        let began = Instant::now();
        loop {
            let found = self.slots(name).await;
            if found == slots {
                return;
            }
            let state = self.workload(name).await["status"].clone();
            assert!(began.elapsed() < PATIENCE, "{name} has {found}, not {slots}: {state}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until something holds.
    pub(crate) async fn until<'a, F: Future<Output = bool>>(
        &'a self,
        what: &str,
        holds: impl Fn(&'a Self) -> F,
    ) {
        let began = Instant::now();
        while !holds(self).await {
            assert!(began.elapsed() < PATIENCE, "it never happened: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends a request as an admin to the first server.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.servers[0].post(&self.token, path, body).await
    }

    /// Events of a kind, oldest first.
    pub(crate) async fn events(&self, kind: &str) -> Vec<Value> {
        let path = format!("/v1/events?kinds={kind}&limit=1000");
        let reply = self.servers[0].get(&self.token, &path).await.expect(200);
        reply.json()["items"].as_array().unwrap().clone()
    }

    /// Creates one member of a workload whose caller creates them, as the first server answers it.
    pub(crate) async fn create(&self, workload: &str) -> Value {
        let body = creation(workload, &json!({}));
        let reply = self.post("/v1/placements", &body).await.expect(201);
        reply.json()["instances"][0].clone()
    }

    /// The same, in short: its slot and the kind of node it is on, such as `3S`.
    pub(crate) async fn next_slot(&self, workload: &str) -> String {
        in_short(&self.create(workload).await["slot"])
    }

    /// Says that an instance is gone because its machine was taken away, as its agent would. That is
    /// no crash, so nothing backs off.
    pub(crate) async fn lose(&self, instance: &Value) {
        let path = format!("/v1/claims/{}/release", instance.as_str().unwrap());
        self.post(&path, &json!({ "confirmed": true, "reason": "reclaim" })).await.expect(200);
        self.servers[0].control.wait_for_read_your_writes().await;
    }

    /// The one that has a slot of the newest revision.
    pub(crate) async fn holder(&self, workload: &str, slot: u32) -> Value {
        let members = self.members(workload).await;
        let mut held = members.into_iter().rev().filter(|member| member["slot"] == slot);
        held.find(|member| member["handed_over"] != true).unwrap()
    }

    /// Looks at a workload's members again and again until `done` says so of its status; whatever
    /// is seen on the way is shown to `see`.
    pub(crate) async fn watch(
        &self,
        name: &str,
        mut see: impl FnMut(&[Value]),
        done: impl Fn(&Value) -> bool,
    ) {
        let began = Instant::now();
        loop {
            let members = self.members(name).await;
            see(&members);
            let found = self.workload(name).await;
            if done(&found) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{name} never got there: {}", found["status"]);
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// An environment of the test's tenant.
    pub(crate) async fn env(&self, name: &str) -> Value {
        let path = format!("/v1/environments/{name}?tenant={TENANT}");
        self.servers[0].get(&self.token, &path).await.expect(200).json()
    }

    /// Stores something that must be taken.
    pub(crate) async fn put(&self, path: &str, body: &Value) {
        let reply = self.servers[0].put(&self.token, path, body).await;
        assert!(reply.status.is_success(), "{path}: {}", reply.text);
    }
}

/// A request for one member of a workload, with fields put over its instance.
pub(crate) fn creation(workload: &str, fields: &Value) -> Value {
    let mut instance = json!({
        "workload": workload,
        "resources": { "cpu_milli": 1000, "memory_mib": 1024 },
    });
    merge(&mut instance, fields.clone());
    json!({ "tenant": TENANT, "instances": [instance] })
}

/// A slot in short, such as `0O` or `3S`.
pub(crate) fn in_short(slot: &Value) -> String {
    let kind = if slot["on"] == "spot" { 'S' } else { 'O' };
    format!("{}{kind}", slot["slot"])
}

/// Whether a workload is as it should be, and nobody is on the way out.
pub(crate) fn is_ready(workload: &Value) -> bool {
    workload["status"]["state"] == "ready" && workload["status"]["leaving"] == 0
}

/// How many of these are so.
pub(crate) fn count(members: &[Value], is_so: impl Fn(&Value) -> bool) -> usize {
    members.iter().filter(|member| is_so(member)).count()
}

impl Drop for World {
    fn drop(&mut self) {
        self.crew.abort();
    }
}

/// Where a workload of the test's tenant is.
pub(crate) fn path(name: &str) -> String {
    format!("/v1/workloads/{TENANT}/{name}")
}

/// Puts fields over others, object by object.
pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// All agents of a world: each says what runs, and does as it is told.
async fn work(
    url: String,
    token: String,
    nodes: Arc<Mutex<Vec<String>>>,
    manners: Arc<Mutex<Manners>>,
) {
    let http = reqwest::Client::new();
    let mut running: BTreeMap<String, BTreeMap<String, Value>> = BTreeMap::new();
    loop {
        let all = nodes.lock().unwrap().clone();
        for node in all {
            if manners.lock().unwrap().silent.contains(&node) {
                continue;
            }
            let reports: Vec<Value> =
                running.get(&node).map(|it| it.values().cloned().collect()).unwrap_or_default();
            let sent = http
                .post(format!("{url}/v1/nodes/{}/heartbeat", NodeId::new(&node)))
                .bearer_auth(&token)
                .json(&json!({ "running": reports }))
                .send()
                .await;
            let Ok(sent) = sent else { continue };
            let Ok(heard) = sent.json::<Value>().await else { continue };
            let mut next = BTreeMap::new();
            for assignment in heard["assignments"].as_array().into_iter().flatten() {
                if let Some(report) = report(&node, assignment, &mut manners.lock().unwrap()) {
                    next.insert(assignment["instance"].as_str().unwrap().to_owned(), report);
                }
            }
            running.insert(node, next);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What an agent says of an instance that it was told of.
fn report(node: &str, assignment: &Value, manners: &mut Manners) -> Option<Value> {
    let instance = assignment["instance"].as_str().unwrap().to_owned();
    let image = assignment["image"].as_str().unwrap_or_default();
    let state = match assignment["state"].as_str().unwrap() {
        "releasing" if manners.stuck.contains(node) => "stopping",
        "releasing" => "stopped",
        "held" | "binding" if manners.slow.contains(node) => return None,
        "held" | "binding" if manners.broken.contains(node) => "failed",
        "active" if manners.doomed_images.contains(image) => "failed",
        _ if manners.to_die.remove(&instance) => "failed",
        _ => "running",
    };
    Some(json!({ "instance": instance, "fence": assignment["fence"], "state": state }))
}
