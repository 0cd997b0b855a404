//! A stream of pods while something fails: every pod is bound, once, by the rules.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::api::{ApiServer, text};
use crate::cluster::{Cluster, NAMESPACE, wait_for_api};
use crate::kubelets::node;
use crate::objects::{pod, template};

/// Pods of a stream.
const PODS: usize = 240;
/// Time between two of them.
const INTERVAL: Duration = Duration::from_millis(25);

fn nodes(pool: &str) -> Vec<Value> {
    let make = |number: usize| {
        let zone = ["a", "b", "c"][number % 3];
        let labels = json!({ "topology.kubernetes.io/zone": zone });
        node(&format!("{pool}-{number}"), 4_000, 8_192, &labels)
    };
    (0..30).map(make).collect()
}

/// A stream of pods: most fill the nodes to nine tenths, some must be apart, some are gangs of four.
fn stream_of(name: &str) -> Vec<Value> {
    let make = |number: usize| {
        let mut made = template(name, "stream", 450, 256);
        match number % 12 {
            0 => {
                made["metadata"]["labels"]["app"] = "apart".into();
                made["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{
                    "labelSelector": { "matchLabels": { "app": "apart" } },
                    "topologyKey": "kubernetes.io/hostname",
                }]);
            }
            4..8 => {
                made["metadata"]["labels"]["berth.dev/gang"] =
                    format!("gang-{}", number / 12).into();
                made["metadata"]["labels"]["berth.dev/gang-size"] = "4".into();
            }
            _ => {}
        }
        pod(name, &format!("stream-{number}"), &made)
    };
    (0..PODS).map(make).collect()
}

/// Creates the pods of a stream one after the other, while the API server may not answer.
fn start_stream(api: &ApiServer, name: &str) -> tokio::task::JoinHandle<()> {
    let (api, pods) = (api.clone(), stream_of(name));
    tokio::spawn(async move {
        for pod in pods {
            api.create(pod).await;
            sleep(INTERVAL).await;
        }
    })
}

async fn run(cluster: &Cluster, name: &str, fault: impl AsyncFnOnce()) {
    cluster.add_namespace(name).await;
    cluster.add_nodes(name, nodes(name)).await;
    let stream = start_stream(&cluster.api, name);
    sleep(INTERVAL * 60).await;
    fault().await;
    stream.await.unwrap();
    cluster.all_bound(name, PODS).await;
    cluster.finish(name, name).await;
}

/// The leader is killed: the other replica takes over when the lease has run out.
pub(crate) async fn a_leader_is_killed(cluster: &Cluster) {
    let before = cluster.leader().await;
    run(cluster, "leaderless", async || cluster.parts.kill(&before)).await;
    let lease = cluster.api.get("Lease", NAMESPACE, "berth-scheduler").await.unwrap();
    assert_ne!(text(&lease, "/spec/holderIdentity"), "");
}

/// Every connection between Berth and the API server is cut, again and again.
pub(crate) async fn connections_are_cut(cluster: &Cluster) {
    run(cluster, "cut", async || {
        for _ in 0..8 {
            cluster.link.cut();
            sleep(Duration::from_millis(400)).await;
        }
    })
    .await;
}

/// The API server is killed and comes back.
pub(crate) async fn the_api_server_is_killed(cluster: &Cluster) {
    run(cluster, "apiserver", async || {
        cluster.plane.restart_api_server();
        wait_for_api(&cluster.api, &cluster.plane).await;
    })
    .await;
}

/// etcd is killed and comes back.
pub(crate) async fn etcd_is_killed(cluster: &Cluster) {
    run(cluster, "etcd", async || {
        cluster.plane.restart_etcd();
        wait_for_api(&cluster.api, &cluster.plane).await;
    })
    .await;
}
