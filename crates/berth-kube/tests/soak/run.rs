//! One run: two replicas and a rival, pods that come and go, an API server that fails, and leaders
//! that are killed while they bind.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_kube_fake::{Binding, DeletedPod, FakeApi, Faults, Options};
use fastrand::Rng;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::invariants;
use crate::replica::{LEASE, NAMESPACE, Replica};
use crate::workloads::{self, Fate, Size, SoakWorkload};

/// How often it is looked whether something has happened.
const GLANCE: Duration = Duration::from_millis(5);

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) size: Size,
    /// Pods, and what becomes of them, are drawn from it.
    pub(crate) seed: u64,
    /// How long a lease is good without a sign of life; absent: everyone leads.
    pub(crate) lease: Option<Duration>,
    /// Leaders that are killed.
    pub(crate) kills: usize,
    /// Events that the API server remembers; who is further behind must list again.
    pub(crate) history: usize,
    /// How long nothing may happen before the run is given up.
    pub(crate) patience: Duration,
}

/// What a leader left behind when it was killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    /// Bindings there were.
    pub(crate) bound: usize,
    /// Pods there were that could be bound and were not.
    pub(crate) waiting: usize,
    /// The most memory that it had.
    pub(crate) peak_mib: Option<u64>,
    /// Until another was the leader.
    pub(crate) handed_over: Duration,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) size: Size,
    pub(crate) nodes: Vec<Value>,
    pub(crate) pods: Vec<Value>,
    pub(crate) events: Vec<Value>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) departures: Vec<DeletedPod>,
    pub(crate) kills: Vec<Kill>,
    /// Pods that the rival was told to have bound.
    pub(crate) by_rival: usize,
    pub(crate) took: Duration,
}

/// Removes the file in the end.
struct Kubeconfig(PathBuf);

impl Kubeconfig {
    fn of(fake: &FakeApi) -> Self {
        let port = fake.url().rsplit(':').next().unwrap_or_default().to_owned();
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("soak-{port}.json"));
        std::fs::write(&path, fake.kubeconfig()).unwrap();
        Self(path)
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// One run, from the first pod to the moment when nothing is left to be done.
pub(crate) async fn run(plan: Plan) -> Record {
    let began = Instant::now();
    let options = Options { kubelet: true, history: plan.history, ..Options::default() };
    let fake = Arc::new(FakeApi::start(options).await.unwrap());
    let crowd = SoakWorkload::new(plan.size, plan.seed);
    furnish(&fake, &crowd).await;
    fake.set_faults(Faults {
        error_rate_permille: 50,
        lost_reply_permille: 20,
        drop_watches_every: Some(Duration::from_secs(3)),
        latency: Some(Duration::from_millis(2)),
        ..Faults::default()
    });
    let mut stage = Stage::new(plan, Arc::clone(&fake), crowd.nodes);
    let share = crowd.coming.len().div_ceil(plan.kills + 1);
    for (act, pods) in crowd.coming.chunks(share).enumerate() {
        let fed = tokio::spawn(feed(Arc::clone(&fake), pods.to_vec(), plan.seed + act as u64));
        if act < plan.kills {
            stage.kill_while_binding(share / 4).await;
            if act % 2 == 1 {
                // Whatever anyone has seen last is too old now.
                fake.compact();
            }
        }
        stage.by_rival += fed.await.unwrap();
    }
    stage.settle().await;
    stage.record(began).await
}

async fn furnish(fake: &FakeApi, crowd: &SoakWorkload) {
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    let first = [namespace].into_iter().chain(workloads::classes());
    for object in first.chain(crowd.nodes.clone()).chain(crowd.there.clone()) {
        fake.create(object).await.unwrap();
    }
}

/// Makes pods one after the other. Some are deleted a moment later, others are bound by a rival. The
/// answer is how many bindings of the rival were accepted for all that it knows.
async fn feed(fake: Arc<FakeApi>, pods: Vec<Value>, seed: u64) -> usize {
    let client = kube::Client::try_from(kube::Config::new(fake.url().parse().unwrap())).unwrap();
    let mut rng = Rng::with_seed(seed);
    let (mut deletions, mut bindings) = (JoinSet::new(), JoinSet::new());
    for (at, pod) in pods.into_iter().enumerate() {
        let made = fake.create(pod.clone()).await.unwrap();
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        match Fate::of(&pod) {
            Some(Fate::Fleeting) => {
                let after = Duration::from_millis(rng.u64(..3_000));
                let again = rng.u8(..3) == 0;
                let fake = Arc::clone(&fake);
                deletions.spawn(async move { withdraw(&fake, pod, &name, after, again).await });
            }
            Some(Fate::Contended) => {
                let after = Duration::from_millis(rng.u64(..30));
                let node = format!("rival-{}", rng.u8(..2));
                let client = client.clone();
                bindings.spawn(async move { rival(client, &name, &node, after).await });
            }
            _ => {}
        }
        if at % 8 == 7 {
            sleep(Duration::from_millis(2)).await;
        }
    }
    deletions.join_all().await;
    bindings.join_all().await.into_iter().filter(|accepted| *accepted).count()
}

/// Deletes a pod after a while, and makes another of its name if that is wanted.
async fn withdraw(fake: &FakeApi, pod: Value, name: &str, after: Duration, again: bool) {
    sleep(after).await;
    fake.delete("pods", "default", name).await.unwrap();
    if !again {
        return;
    }
    // One that was bound goes when its kubelet has stopped it.
    while fake.get("pods", "default", name).is_some() {
        sleep(GLANCE).await;
    }
    fake.create(workloads::that_stays(pod)).await.unwrap();
}

/// Binds a pod that waits for Berth, if it can. Tries once.
async fn rival(client: kube::Client, name: &str, node: &str, after: Duration) -> bool {
    sleep(after).await;
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, "default");
    let body = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
        "target": { "kind": "Node", "name": node },
    });
    let params = PostParams::default();
    let bound = api.create_subresource::<_, Value>("binding", name, &params, &body);
    bound.await.is_ok()
}

/// Where it all happens.
struct Stage {
    plan: Plan,
    fake: Arc<FakeApi>,
    nodes: Vec<Value>,
    kubeconfig: Kubeconfig,
    replicas: Vec<Replica>,
    started: usize,
    kills: Vec<Kill>,
    by_rival: usize,
}

impl Stage {
    /// Two replicas have been started.
    fn new(plan: Plan, fake: Arc<FakeApi>, nodes: Vec<Value>) -> Self {
        let kubeconfig = Kubeconfig::of(&fake);
        let (replicas, kills) = (Vec::new(), Vec::new());
        let mut stage =
            Self { plan, fake, nodes, kubeconfig, replicas, started: 0, kills, by_rival: 0 };
        stage.start_replica();
        stage.start_replica();
        stage
    }

    fn start_replica(&mut self) {
        self.started += 1;
        let identity = format!("replica-{}", self.started);
        self.replicas.push(Replica::start(&self.kubeconfig.0, &identity, self.plan.lease));
    }

    /// Which of the replicas leads, if one does.
    fn leader(&self) -> Option<usize> {
        let lease = self.fake.get("leases", NAMESPACE, LEASE)?;
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        self.replicas.iter().position(|it| it.identity == holder)
    }

    async fn wait_for_leader(&self) -> usize {
        let mut idle = Idle::new(self.plan.patience);
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            assert!(idle.goes_on(0), "nobody leads");
            sleep(GLANCE).await;
        }
    }

    /// Waits until a leader has bound so many more, and kills it at that moment. Another stands by
    /// in its place from then on.
    async fn kill_while_binding(&mut self, more: usize) {
        self.wait_for_leader().await;
        let mark = self.fake.bindings().len() + more;
        let mut idle = Idle::new(self.plan.patience);
        loop {
            let bound = self.fake.bindings().len();
            if bound >= mark {
                break;
            }
            assert!(idle.goes_on(bound), "nothing is bound any more: {bound} of {mark}");
            sleep(GLANCE).await;
        }
        let leader = self.wait_for_leader().await;
        let replica = self.replicas.remove(leader);
        let peak_mib = replica.peak_mib();
        replica.kill();
        let killed = Instant::now();
        let bound = self.fake.bindings().len();
        let waits = |pod: &&Value| {
            pod["spec"]["nodeName"].is_null() && Fate::of(pod) != Some(Fate::Hopeless)
        };
        let waiting = self.fake.list("pods").iter().filter(waits).count();
        self.start_replica();
        self.wait_for_leader().await;
        self.kills.push(Kill { bound, waiting, peak_mib, handed_over: killed.elapsed() });
    }

    /// Waits until everything is as it is to be, or nothing happens any more.
    async fn settle(&self) {
        let mut idle = Idle::new(self.plan.patience);
        loop {
            let began = Instant::now();
            let left = invariants::unfinished(
                self.plan.size,
                &self.fake.list("pods"),
                &self.fake.list("events.events.k8s.io"),
            );
            if left.is_empty() || !idle.goes_on((left, self.fake.bindings().len())) {
                break;
            }
            // Looking at everything takes time from those who are looked at.
            sleep(GLANCE + began.elapsed() * 4).await;
        }
        // Time for what should not happen any more.
        self.fake.clear_faults();
        sleep(Duration::from_secs(2)).await;
    }

    async fn record(self, began: Instant) -> Record {
        let took = began.elapsed();
        self.replicas.into_iter().for_each(Replica::kill);
        let fake = &self.fake;
        Record {
            size: self.plan.size,
            nodes: self.nodes,
            pods: fake.list("pods"),
            events: fake.list("events.events.k8s.io"),
            bindings: fake.bindings(),
            departures: fake.deleted_pods(),
            kills: self.kills,
            by_rival: self.by_rival,
            took,
        }
    }
}

/// Notices when nothing happens for too long.
struct Idle<T> {
    patience: Duration,
    last: Option<T>,
    since: Instant,
}

impl<T: PartialEq> Idle<T> {
    fn new(patience: Duration) -> Self {
        Self { patience, last: None, since: Instant::now() }
    }

    fn goes_on(&mut self, now: T) -> bool {
        if self.last.as_ref() != Some(&now) {
            (self.last, self.since) = (Some(now), Instant::now());
        }
        self.since.elapsed() < self.patience
    }
}

/// The pods that are bound, by uid, no matter who bound them.
pub(crate) fn uids(bindings: &[Binding]) -> BTreeSet<&str> {
    bindings.iter().map(|it| it.uid.as_str()).collect()
}
