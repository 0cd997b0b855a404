//! Random pods with random rules come and go: what is placed is placed by the rules, and what waits has no place.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::api::{condition, key, node_of, text};
use crate::checker::{World, check_placement};
use crate::cluster::Cluster;
use crate::kubelets::node;
use crate::objects::{pod, priority_class, template};

const NODES: usize = 40;
const PODS: usize = 500;
/// Every so many pods, one goes.
const DELETE_EVERY: usize = 3;
const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
/// How long nothing may change before the cluster counts as settled.
const QUIET: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(180);

fn nodes(rng: &mut Rng, pool: &str) -> Vec<Value> {
    let mut make = |number: usize| {
        let zone = ["a", "b", "c", "d"][number % 4];
        let disk = ["ssd", "hdd"][rng.usize(..2)];
        let labels = json!({ ZONE: zone, "disk": disk });
        let cpu = [2_000, 4_000, 8_000][rng.usize(..3)];
        let mut made = node(&format!("{pool}-{number}"), cpu, cpu * 2, &labels);
        if rng.u8(..5) == 0 {
            made["spec"]["taints"] = json!([{ "key": "dedicated", "effect": "NoSchedule" }]);
        }
        made
    };
    (0..NODES).map(&mut make).collect()
}

/// A pod with rules that are drawn. Its namespace is the pool.
fn draw_pod(rng: &mut Rng, pool: &str, number: usize) -> Value {
    let app = format!("app-{}", rng.u8(..8));
    let cpu = [50, 100, 250, 500, 1_000][rng.usize(..5)];
    let mut made = template(pool, &app, cpu, [64, 256, 1_024][rng.usize(..3)]);
    let other = format!("app-{}", rng.u8(..8));
    let topology = [ZONE, HOST][rng.usize(..2)];
    let term = |app: &str, topology: &str| json!([{ "labelSelector": { "matchLabels": { "app": app } }, "topologyKey": topology }]);
    let spec = &mut made["spec"];
    if rng.u8(..4) == 0 {
        spec["tolerations"] = json!([{ "key": "dedicated", "operator": "Exists" }]);
    }
    if rng.u8(..5) == 0 {
        spec["nodeSelector"]["disk"] = ["ssd", "hdd"][rng.usize(..2)].into();
    }
    match rng.u8(..12) {
        0 | 1 => {
            spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                term(&app, HOST);
        }
        2 => {
            spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                term(&other, topology);
        }
        3 => {
            spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                term(&app, ZONE);
        }
        4 => {
            let port = 8_000 + i32::from(rng.u8(..3));
            spec["containers"][0]["ports"] = json!([{ "containerPort": port, "hostPort": port }]);
        }
        5 => {
            spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({
                "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": ZONE, "operator": "NotIn", "values": ["a", "d"] },
                ] }],
            });
        }
        6 => spec["priorityClassName"] = "real-churn-high".into(),
        _ => {}
    }
    pod(pool, &format!("churn-{number}"), &made)
}

/// Pods that wait although the checker finds a place for them.
fn left_waiting(nodes: &[Value], pods: &[Value], namespaces: &[Value], of: &str) -> Vec<String> {
    let world = World::new(nodes, pods, namespaces);
    let waiting = pods.iter().filter(|it| {
        text(it, "/metadata/namespace") == of
            && node_of(it).is_empty()
            && it["metadata"]["deletionTimestamp"].is_null()
    });
    let mut found = Vec::new();
    for pod in waiting {
        let names = nodes.iter().map(|it| text(it, "/metadata/name"));
        let place = names.into_iter().find(|it| check_placement(&world, pod, it).is_empty());
        if let Some(place) = place {
            let why = condition(pod, "PodScheduled").map(|it| it["message"].clone());
            found.push(format!("{} waits, and {place} can take it: {why:?}", key(pod)));
        }
        if condition(pod, "PodScheduled").is_none() {
            found.push(format!("{} waits, and nothing says why", key(pod)));
        }
    }
    found
}

/// Waits until the pods of a namespace have not changed for a while.
async fn settle(cluster: &Cluster, namespace: &str) {
    let (began, mut since) = (Instant::now(), Instant::now());
    let mut before = Vec::new();
    while since.elapsed() < QUIET {
        let pods = cluster.recorder.pods(namespace);
        let versions = pods.iter().map(|it| it["metadata"]["resourceVersion"].clone());
        let versions: Vec<Value> = versions.collect();
        if versions != before {
            (before, since) = (versions, Instant::now());
        }
        assert!(began.elapsed() < PATIENCE, "{namespace} does not settle");
        sleep(Duration::from_millis(200)).await;
    }
}

/// Some hundred pods, a third of which are deleted on the way.
pub(crate) async fn random_pods_come_and_go(cluster: &Cluster) {
    let name = "churn";
    let mut rng = Rng::with_seed(20);
    cluster.add_namespace(name).await;
    cluster.add_nodes(name, nodes(&mut rng, name)).await;
    cluster.api.create(priority_class("real-churn-high", 100)).await;
    for number in 0..PODS {
        cluster.api.create(draw_pod(&mut rng, name, number)).await;
        let pods = cluster.live_pods(name);
        if number % DELETE_EVERY == 0 && !pods.is_empty() {
            let gone = text(&pods[rng.usize(..pods.len())], "/metadata/name").to_owned();
            cluster.api.delete("Pod", name, &gone, &json!({})).await;
        }
    }
    settle(cluster, name).await;
    let nodes = cluster.api.list("Node", "").await;
    let pods = cluster.api.list("Pod", "").await;
    let mut namespaces = cluster.api.list("Namespace", "").await;
    namespaces.iter_mut().for_each(|it| it["kind"] = "Namespace".into());
    let left = left_waiting(&nodes, &pods, &namespaces, name);
    let first: Vec<&String> = left.iter().take(5).collect();
    assert!(left.is_empty(), "{} pods: {first:#?}", left.len());
    let live = cluster.live_pods(name);
    let bound = live.iter().filter(|it| !node_of(it).is_empty()).count();
    println!("        {bound} of {} pods are placed, for the others there is no place", live.len());
    cluster.finish(name, name).await;
}
