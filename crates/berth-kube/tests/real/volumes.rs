//! Volumes that wait for their first pod, with the real binder of volumes.

use serde_json::{Value, json};

use crate::api::{ApiServer, key, text};
use crate::cluster::{Cluster, eventually};
use crate::kubelets::node;
use crate::objects::{stateful_set, template};

fn local_volume(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "real-local",
            "local": { "path": "/disk" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
            ] }] } },
        },
    })
}

/// A StatefulSet with local disks: each pod goes where a disk is free, and comes back to its own.
pub(crate) async fn pods_follow_their_local_volumes(cluster: &Cluster) {
    let name = "volumes";
    cluster.add_namespace(name).await;
    let nodes = (0..6).map(|it| node(&format!("{name}-{it}"), 4_000, 8_192, &json!({})));
    cluster.add_nodes(name, nodes.collect()).await;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": "real-local" },
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    cluster.api.create(class).await;
    for number in [1, 3, 4] {
        let volume = local_volume(&format!("disk-{number}"), &format!("{name}-{number}"));
        cluster.api.create(volume).await;
    }
    let mut made = template(name, "db", 100, 64);
    made["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    let mut set = stateful_set(name, 3, &made);
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "real-local",
            "resources": { "requests": { "storage": "5Gi" } },
        },
    }]);
    cluster.api.create(set).await;
    cluster.rolled_out("StatefulSet", name, "db", 3).await;
    let mut places = Vec::new();
    for number in 0..3 {
        let place = cluster.bound(name, &format!("db-{number}")).await;
        let claim = format!("data-db-{number}");
        let claim = cluster.api.get("PersistentVolumeClaim", name, &claim).await.unwrap();
        let disk = text(&claim, "/spec/volumeName").trim_start_matches("disk-").to_owned();
        assert_eq!(place, format!("{name}-{disk}"));
        places.push(place);
    }
    let before = cluster.recorder.pod(name, "db-1").unwrap()["metadata"]["uid"].clone();
    cluster.api.delete("Pod", name, "db-1", &json!({})).await;
    eventually("it is replaced", async || {
        let pod = cluster.recorder.pod(name, "db-1")?;
        (pod["metadata"]["uid"] != before).then_some(())
    })
    .await;
    assert_eq!(cluster.bound(name, "db-1").await, places[1]);
    // A fourth has no disk.
    cluster.api.scale("StatefulSet", name, "db", 4).await;
    eventually("it is refused", async || {
        let notes = cluster.notes(name, "db-3", "FailedScheduling").await;
        notes.iter().any(|it| it.contains("volume")).then_some(())
    })
    .await;
    cluster.api.scale("StatefulSet", name, "db", 3).await;
    cluster.all_bound(name, 3).await;
    cluster.finish(name, name).await;
    for number in [1, 3, 4] {
        let disk = format!("disk-{number}");
        let open = json!({ "metadata": { "finalizers": null } });
        // The claim's controller may have removed it.
        let _ = cluster.api.merge("PersistentVolume", ("", &disk), "", &open).await;
        cluster.api.delete("PersistentVolume", "", &disk, &json!({})).await;
    }
}

/// The annotation by which a scheduler chooses the node of a volume that is provisioned.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The provisioner of these tests.
const PROVISIONER: &str = "disks.berth.dev";

/// Provisions the claims of a namespace for the nodes that were selected. The first choice of each claim is
/// given back, as a provisioner does that has no room there.
async fn provision(api: ApiServer, namespace: String) {
    let mut given_back = std::collections::BTreeSet::new();
    loop {
        for claim in api.list("PersistentVolumeClaim", &namespace).await {
            let at = (text(&claim, "/metadata/namespace"), text(&claim, "/metadata/name"));
            let Some(node) = claim["metadata"]["annotations"][SELECTED_NODE].as_str() else {
                continue;
            };
            if !text(&claim, "/spec/volumeName").is_empty() {
                continue;
            }
            if given_back.insert(key(&claim)) {
                let fields = json!({ "metadata": { "annotations": { SELECTED_NODE: null } } });
                api.merge("PersistentVolumeClaim", at, "", &fields).await.unwrap();
                continue;
            }
            let uid = text(&claim, "/metadata/uid");
            let mut volume = local_volume(&format!("pvc-{uid}"), node);
            volume["metadata"]["annotations"] =
                json!({ "pv.kubernetes.io/provisioned-by": PROVISIONER });
            let spec = &mut volume["spec"];
            spec["persistentVolumeReclaimPolicy"] = "Retain".into();
            spec["storageClassName"] = "real-late".into();
            spec["local"] = Value::Null;
            spec["csi"] = json!({ "driver": PROVISIONER, "volumeHandle": uid });
            spec["claimRef"] = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": at.0, "name": at.1,
                "uid": uid,
            });
            if let Err(error) = api.try_create(&volume).await {
                // It may be there already.
                assert!(error.to_string().contains("already exists"), "{error}");
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// Volumes that a provisioner makes for the chosen node, also when it refuses the first choice.
pub(crate) async fn volumes_are_provisioned_where_pods_are_placed(cluster: &Cluster) {
    let name = "provision";
    cluster.add_namespace(name).await;
    let nodes = (0..4).map(|it| node(&format!("{name}-{it}"), 4_000, 8_192, &json!({})));
    cluster.add_nodes(name, nodes.collect()).await;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "real-late" },
        "provisioner": PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer",
    });
    cluster.api.create(class).await;
    let provisioner = tokio::spawn(provision(cluster.api.clone(), name.to_owned()));
    let mut made = template(name, "late", 1_000, 64);
    made["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    let mut set = stateful_set(name, 6, &made);
    set["spec"]["podManagementPolicy"] = "Parallel".into();
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "real-late",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }]);
    cluster.api.create(set).await;
    cluster.rolled_out("StatefulSet", name, "late", 6).await;
    for claim in cluster.api.list("PersistentVolumeClaim", name).await {
        assert_eq!(text(&claim, "/status/phase"), "Bound", "{}", key(&claim));
    }
    provisioner.abort();
    cluster.finish(name, name).await;
}
