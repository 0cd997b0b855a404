//! Berth and kube-scheduler on the same nodes, which are nearly full all the time. Kubernetes lets two schedulers
//! overfill a node together: counted is how often it happens, and by whose binding.

use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::api::{node_of, text};
use crate::assets::{ControlPlane, Process, free_port};
use crate::cluster::{Cluster, eventually};
use crate::kubelets::node;
use crate::objects::{pod, template};
use crate::recorder::SHARED_POOL;

/// Nodes, each with room for eight pods.
const NODES: usize = 20;
/// Bindings that are counted.
const BINDINGS: usize = 1_400;
/// Pods of each scheduler that wait for room.
const WAITING: usize = 16;
/// Pods that go at once.
const GOING: usize = 10;
/// Time between two of these.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// The name of kube-scheduler's profile: `default-scheduler` is for Berth's own pods.
const PEER: &str = "kube-scheduler";

/// Starts kube-scheduler under a name that pods refer to.
pub(crate) fn start_kube_scheduler(
    program: &Path,
    plane: &ControlPlane,
    kubeconfig: &Path,
    name: &str,
) -> Process {
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": { "leaderElect": false },
        "clientConnection": { "kubeconfig": kubeconfig, "qps": 5000, "burst": 10000 },
        "profiles": [{ "schedulerName": name }],
    });
    let path = plane.folder.join("kube-scheduler.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let port = free_port();
    let args = vec![
        format!("--config={}", path.display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
    ];
    Process::start("kube-scheduler", program, args, &plane.folder)
}

/// Creates pods until enough of each scheduler wait. Names go on counting.
async fn fill(cluster: &Cluster, case: &str, created: &mut usize) {
    let pods = cluster.live_pods(case);
    let mut more = Vec::new();
    for scheduler in ["berth", PEER] {
        let waits =
            |it: &&Value| node_of(it).is_empty() && text(it, "/spec/schedulerName") == scheduler;
        for _ in pods.iter().filter(waits).count()..WAITING {
            let mut made = template(case, "half", 500, 64);
            made["spec"]["schedulerName"] = scheduler.into();
            more.push(pod(case, &format!("half-{created}"), &made));
            *created += 1;
        }
    }
    cluster.create_all(more).await;
}

/// Pods come and go while both schedulers fill what becomes free.
pub(crate) async fn two_schedulers_fill_the_same_nodes(cluster: &Cluster) {
    let case = SHARED_POOL;
    let Some(program) = &cluster.kube_scheduler else {
        println!("        there is no kube-scheduler: NOTHING was checked");
        return;
    };
    cluster.add_namespace(case).await;
    let nodes = (0..NODES).map(|it| node(&format!("{case}-{it}"), 4_000, 8_192, &json!({})));
    cluster.add_nodes(case, nodes.collect()).await;
    let user = cluster.plane.kubeconfig_of("kube-scheduler", "system:kube-scheduler", &[]);
    let mut peer = start_kube_scheduler(program, &cluster.plane, &user, PEER);
    let (mut rng, mut created, began) = (Rng::with_seed(18), 0, Instant::now());
    loop {
        fill(cluster, case, &mut created).await;
        let bound = cluster.recorder.bindings_in(case);
        if bound >= BINDINGS {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{bound} bindings; {:?}", peer.failure());
        let pods = cluster.live_pods(case);
        let mut bound: Vec<&Value> = pods.iter().filter(|it| !node_of(it).is_empty()).collect();
        // The nodes are full by now.
        if bound.len() >= NODES * 8 - GOING {
            rng.shuffle(&mut bound);
            for it in bound.iter().take(GOING) {
                let now = json!({ "gracePeriodSeconds": 0 });
                cluster.api.delete("Pod", case, text(it, "/metadata/name"), &now).await;
            }
        }
        sleep(INTERVAL).await;
    }
    peer.kill();
    let shared = cluster.recorder.replay("berth").shared;
    let of = |name: &str| shared.get(name).copied().unwrap_or_default();
    let (ours, theirs) = (of("berth"), of(PEER));
    println!(
        "        over-full nodes: {} of {} bindings ({} of Berth's {}, {} of kube-scheduler's {})",
        ours.overfull + theirs.overfull,
        ours.bindings + theirs.bindings,
        ours.overfull,
        ours.bindings,
        theirs.overfull,
        theirs.bindings,
    );
    assert!(ours.bindings > 20 && theirs.bindings > 20, "both have to take part");
    // Nobody evicts what is too much here: the case is judged without it.
    let pods = format!("{}?gracePeriodSeconds=0", crate::api::path_of("Pod", case));
    let all = ("application/json", &Value::Null);
    cluster.api.request(&http::Method::DELETE, &pods, all).await.unwrap();
    eventually("they are gone", async || cluster.live_pods(case).is_empty().then_some(())).await;
    cluster.finish(case, case).await;
}
