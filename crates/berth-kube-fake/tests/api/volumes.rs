//! Claims and volumes.

use berth_kube_fake::{FakeApi, Options, samples};
use serde_json::{Value, json};

use crate::support::{eventually, start_with};

const SELECTED: &str = "volume.kubernetes.io/selected-node";

async fn cluster() -> FakeApi {
    let options = Options { volume_binder: true, ..Options::default() };
    let (fake, _client) = start_with(options).await;
    fake.create(samples::node("n", 1, 1)).await.unwrap();
    for (name, provisioner, mode) in [
        ("now", "example.dev/disk", "Immediate"),
        ("late", "example.dev/disk", "WaitForFirstConsumer"),
        ("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
    ] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": name }, "provisioner": provisioner, "volumeBindingMode": mode });
        fake.create(class).await.unwrap();
    }
    fake
}

fn claim(name: &str, class: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                      "resources": { "requests": { "storage": "1Gi" } } } })
}

fn volume(name: &str, class: &str, size: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                      "capacity": { "storage": size }, "local": { "path": "/data" },
                      "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                          { "key": "kubernetes.io/hostname", "operator": "In", "values": ["n"] }
                      ] }] } } } })
}

fn phase(fake: &FakeApi, name: &str) -> String {
    let claim = fake.get("PersistentVolumeClaim", "default", name).unwrap();
    claim["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_claim_takes_the_smallest_volume_that_fits_or_a_new_one() {
    let fake = cluster().await;
    for (name, size) in [("small", "500Mi"), ("large", "10Gi"), ("right", "2Gi")] {
        fake.create(volume(name, "now", size)).await.unwrap();
    }
    fake.create(claim("a", "now")).await.unwrap();
    eventually("it is bound", || phase(&fake, "a") == "Bound").await;
    let bound = fake.get("PersistentVolumeClaim", "default", "a").unwrap();
    assert_eq!(bound["spec"]["volumeName"], "right");
    let volume = fake.get("PersistentVolume", "", "right").unwrap();
    assert_eq!(
        (&volume["status"]["phase"], &volume["spec"]["claimRef"]["name"]),
        (&json!("Bound"), &json!("a"))
    );
    fake.create(claim("b", "now")).await.unwrap();
    fake.create(claim("c", "now")).await.unwrap();
    eventually("both are bound", || phase(&fake, "b") == "Bound" && phase(&fake, "c") == "Bound")
        .await;
    assert_eq!(fake.count("persistentvolumes"), 4, "one was provisioned");
}

#[tokio::test]
async fn a_claim_that_waits_is_provisioned_where_its_pod_goes() {
    let fake = cluster().await;
    fake.create(claim("a", "late")).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(phase(&fake, "a"), "Pending");
    fake.fail_provisioning(true);
    let select = json!({ "metadata": { "annotations": { SELECTED: "n" } } });
    fake.merge("PersistentVolumeClaim", "default", "a", select.clone()).await.unwrap();
    eventually("the choice is given back", || {
        let claim = fake.get("PersistentVolumeClaim", "default", "a").unwrap();
        claim["metadata"]["annotations"][SELECTED].is_null()
    })
    .await;
    fake.fail_provisioning(false);
    fake.merge("PersistentVolumeClaim", "default", "a", select).await.unwrap();
    eventually("it is bound", || phase(&fake, "a") == "Bound").await;
    let volume = &fake.list("persistentvolumes")[0];
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"][0]["values"], json!(["n"]));
}

#[tokio::test]
async fn a_local_volume_that_waits_is_bound_by_naming_the_claim() {
    let fake = cluster().await;
    fake.create(volume("disk", "local", "2Gi")).await.unwrap();
    fake.create(claim("a", "local")).await.unwrap();
    let select = json!({ "metadata": { "annotations": { SELECTED: "n" } } });
    fake.merge("PersistentVolumeClaim", "default", "a", select).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    assert_eq!(phase(&fake, "a"), "Pending", "nobody provisions such a class");
    let name = json!({ "spec": { "claimRef": {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "a" } } });
    fake.merge("PersistentVolume", "", "disk", name).await.unwrap();
    eventually("it is bound", || phase(&fake, "a") == "Bound").await;
}

#[tokio::test]
async fn a_claim_in_use_is_kept() {
    let fake = cluster().await;
    fake.create(claim("a", "now")).await.unwrap();
    let mut pod = samples::pod("default", "p", "berth", 1, 1);
    pod["spec"]["volumes"] =
        json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "a" } }]);
    fake.create(pod).await.unwrap();
    eventually("it is bound", || phase(&fake, "a") == "Bound").await;
    fake.delete("PersistentVolumeClaim", "default", "a").await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(fake.get("PersistentVolumeClaim", "default", "a").is_some());
    fake.delete("Pod", "default", "p").await.unwrap();
    eventually("both are gone", || {
        fake.count("persistentvolumeclaims") == 0 && fake.count("persistentvolumes") == 0
    })
    .await;
}
