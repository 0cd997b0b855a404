//! Volumes that are bound, or made, when their first pod is placed.

use berth_kube_fake::{FakeApi, Options, samples};
use serde_json::{Value, json};

use crate::support::{
    Replica, add, add_nodes, bound, eventually, has_event, is_bound, late_class, start_with,
};

async fn with_binder() -> FakeApi {
    let fake = start_with(Options { volume_binder: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1", "n2"], 4_000).await;
    fake
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

fn with_claim(name: &str, claim: &str) -> Value {
    let mut pod = samples::pod("default", name, "berth", 100, 64);
    pod["spec"]["volumes"] = json!([{
        "name": "data", "persistentVolumeClaim": {"claimName": claim},
    }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    pod
}

#[tokio::test]
async fn a_volume_is_provisioned_for_the_node_before_the_pod_is_bound() {
    let fake = with_binder().await;
    fake.create(late_class("example.dev/disks")).await.unwrap();
    fake.create(claim("data")).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    add(&fake, with_claim("a", "data")).await;
    let node = bound(&fake, "a").await;
    let claim = fake.get("persistentvolumeclaims", "default", "data").unwrap();
    assert_eq!(claim["status"]["phase"], json!("Bound"));
    let selected = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    assert_eq!(selected, &json!(node));
    replica.stop().await;
}

#[tokio::test]
async fn an_existing_volume_decides_the_node() {
    let fake = with_binder().await;
    fake.create(late_class("kubernetes.io/no-provisioner")).await.unwrap();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {
            "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late", "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{
                "key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"],
            }]}]}},
        },
    });
    fake.create(volume).await.unwrap();
    fake.create(claim("data")).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    add(&fake, with_claim("a", "data")).await;
    assert_eq!(bound(&fake, "a").await, "n2");
    let volume = fake.get("persistentvolumes", "", "disk").unwrap();
    assert_eq!(volume["spec"]["claimRef"]["name"], json!("data"));
    replica.stop().await;
}

#[tokio::test]
async fn a_provisioner_that_gives_up_frees_the_node_and_the_pod_is_retried() {
    let fake = with_binder().await;
    fake.create(late_class("example.dev/disks")).await.unwrap();
    fake.create(claim("data")).await.unwrap();
    fake.fail_provisioning(true);
    let replica = Replica::start(&fake, |_| {}).await;
    add(&fake, with_claim("a", "data")).await;
    eventually("it is told", || has_event(&fake, "a", "FailedScheduling")).await;
    assert!(!is_bound(&fake, "a"));
    fake.fail_provisioning(false);
    bound(&fake, "a").await;
    replica.stop().await;
}
