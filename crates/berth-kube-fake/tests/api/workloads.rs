//! Deployments, replica sets and stateful sets at work.

use std::collections::{BTreeMap, BTreeSet};

use berth_kube_fake::{FakeApi, Options, samples};
use serde_json::{Value, json};

use crate::support::{eventually, start_with};

async fn cluster() -> FakeApi {
    let options = Options { kubelet: true, controllers: true, ..Options::default() };
    let (fake, _client) = start_with(options).await;
    fake.create(samples::node("n", 64_000, 65_536)).await.unwrap();
    fake
}

/// Binds every pod that is not bound: the scheduler of these tests.
async fn bind_all(fake: &FakeApi) {
    for pod in fake.list("pods") {
        if pod["spec"]["nodeName"].is_null() {
            let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
            let path = format!(
                "/api/v1/namespaces/{}/pods/{}/binding",
                namespace.as_str().unwrap(),
                name.as_str().unwrap()
            );
            crate::support::post(fake, &path, &json!({ "target": { "name": "n" } })).await;
        }
    }
}

/// Lets time pass, with a scheduler, until something holds.
async fn scheduled(fake: &FakeApi, what: &str, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        while !holds() {
            bind_all(fake).await;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came: {what}");
}

fn names(fake: &FakeApi) -> BTreeSet<String> {
    let pods = fake.list("pods");
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_deployment_rolls_out_within_its_leeway() {
    let fake = cluster().await;
    let mut wanted = samples::deployment("default", "web", 4);
    wanted["spec"]["strategy"] = json!({
        "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } });
    fake.create(wanted).await.unwrap();
    let status = |field: &str| {
        fake.get("Deployment", "default", "web").unwrap()["status"][field].as_u64().unwrap_or(0)
    };
    scheduled(&fake, "four are ready", || status("readyReplicas") == 4).await;
    let pods = fake.list("pods");
    let set = &fake.list("replicasets")[0];
    let hash = set["metadata"]["labels"]["pod-template-hash"].clone();
    assert!(hash.is_string());
    for pod in &pods {
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["controller"]), (&json!("ReplicaSet"), &json!(true)));
        assert_eq!(pod["metadata"]["labels"]["pod-template-hash"], hash);
        assert!(pod["metadata"]["generateName"].is_string());
    }
    let image = json!({ "spec": { "template": { "spec": { "containers": [
        { "name": "main", "image": "example.invalid/app:2" } ] } } } });
    fake.merge("Deployment", "default", "web", image).await.unwrap();
    let active = |fake: &FakeApi| {
        let pods = fake.list("pods");
        let live = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        live.count()
    };
    let ready = |fake: &FakeApi| {
        let is_ready = |pod: &Value| {
            pod["metadata"]["deletionTimestamp"].is_null()
                && pod["status"]["conditions"].as_array().is_some_and(|all| {
                    all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
                })
        };
        fake.list("pods").iter().filter(|pod| is_ready(pod)).count()
    };
    scheduled(&fake, "all four are new", || {
        assert!(active(&fake) <= 5, "more than the surge allows");
        assert!(ready(&fake) >= 3, "fewer than must be available");
        status("observedGeneration") == 2
            && ["updatedReplicas", "readyReplicas", "replicas"].iter().all(|f| status(f) == 4)
    })
    .await;
    let sets = fake.list("replicasets");
    let sizes: BTreeMap<u64, u64> = sets
        .iter()
        .map(|set| {
            let revision = &set["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
            let revision = revision.as_str().unwrap().parse().unwrap();
            (revision, set["spec"]["replicas"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(sizes, BTreeMap::from([(1, 0), (2, 4)]));
}

#[tokio::test]
async fn a_smaller_deployment_loses_its_cheapest_pods() {
    let fake = cluster().await;
    fake.create(samples::deployment("default", "web", 4)).await.unwrap();
    let ready = || {
        let deployment = fake.get("Deployment", "default", "web").unwrap();
        deployment["status"]["readyReplicas"].as_u64().unwrap_or(0)
    };
    scheduled(&fake, "four are ready", || ready() == 4).await;
    let all: Vec<String> = names(&fake).into_iter().collect();
    for (name, cost) in all.iter().zip(["100", "1", "100", "1"]) {
        let cost = json!({ "metadata": { "annotations": {
            "controller.kubernetes.io/pod-deletion-cost": cost } } });
        fake.merge("Pod", "default", name, cost).await.unwrap();
    }
    fake.scale("Deployment", "default", "web", 2).await.unwrap();
    eventually("two are left", || fake.count("pods") == 2).await;
    assert_eq!(names(&fake), BTreeSet::from([all[0].clone(), all[2].clone()]));
}

#[tokio::test]
async fn lost_and_failed_pods_are_replaced() {
    let fake = cluster().await;
    fake.create(samples::replica_set("default", "web", 2)).await.unwrap();
    let ready = || {
        let set = fake.get("ReplicaSet", "default", "web").unwrap();
        set["status"]["readyReplicas"].as_u64().unwrap_or(0)
    };
    scheduled(&fake, "two are ready", || ready() == 2).await;
    let first: Vec<String> = names(&fake).into_iter().collect();
    fake.set_phase("default", &first[0], "Failed").await.unwrap();
    fake.delete("Pod", "default", &first[1]).await.unwrap();
    scheduled(&fake, "both are replaced", || {
        ready() == 2 && fake.get("Pod", "default", &first[1]).is_none()
    })
    .await;
    assert!(fake.get("Pod", "default", &first[0]).is_some(), "a failed pod is kept to be read");
    assert_eq!(fake.count("pods"), 3);
}

#[tokio::test]
async fn a_refused_pod_is_tried_again() {
    let fake = cluster().await;
    fake.refuse_next_pods(3);
    fake.create(samples::replica_set("default", "web", 2)).await.unwrap();
    eventually("both are made in the end", || fake.count("pods") == 2).await;
    fake.set_quota("default", Some(2));
    fake.scale("ReplicaSet", "default", "web", 3).await.unwrap();
    eventually("the set says why", || {
        let set = fake.get("ReplicaSet", "default", "web").unwrap();
        set["status"]["conditions"][0]["message"].to_string().contains("exceeded quota")
    })
    .await;
    assert_eq!(fake.count("pods"), 2);
}

#[tokio::test]
async fn what_has_lost_its_owner_goes() {
    let fake = cluster().await;
    fake.create(samples::deployment("default", "web", 2)).await.unwrap();
    eventually("two pods", || fake.count("pods") == 2).await;
    fake.delete("Deployment", "default", "web").await.unwrap();
    eventually("all is gone", || fake.count("pods") == 0 && fake.count("replicasets") == 0).await;

    fake.create(samples::deployment("default", "kept", 1)).await.unwrap();
    eventually("one pod", || fake.count("pods") == 1).await;
    let orphan = json!({ "propagationPolicy": "Orphan" });
    fake.delete_with("Deployment", "default", "kept", orphan).await.unwrap();
    let set = &fake.list("replicasets")[0];
    assert!(set["metadata"]["ownerReferences"].is_null());
    assert_eq!(fake.count("pods"), 1);

    let mut stray = samples::pod("default", "stray", "berth", 1, 1);
    stray["metadata"]["ownerReferences"] = json!([
        { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "none", "uid": "none" }]);
    fake.create(stray).await.unwrap();
    eventually("the stray is gone", || fake.get("Pod", "default", "stray").is_none()).await;
}

#[tokio::test]
async fn a_foreground_deletion_waits_for_dependants() {
    let fake = cluster().await;
    fake.create(samples::replica_set("default", "web", 1)).await.unwrap();
    eventually("one pod", || fake.count("pods") == 1).await;
    let held = fake.list("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let hold = json!({ "metadata": { "finalizers": ["example.dev/hold"] } });
    fake.merge("Pod", "default", &held, hold).await.unwrap();
    let foreground = json!({ "propagationPolicy": "Foreground" });
    fake.delete_with("ReplicaSet", "default", "web", foreground).await.unwrap();
    eventually("the pod is asked to go", || {
        fake.get("Pod", "default", &held).unwrap()["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    assert!(fake.get("ReplicaSet", "default", "web").is_some());
    let release = json!({ "metadata": { "finalizers": null } });
    fake.merge("Pod", "default", &held, release).await.unwrap();
    eventually("the set is gone", || fake.get("ReplicaSet", "default", "web").is_none()).await;
}

#[tokio::test]
async fn a_stateful_set_keeps_order_and_names() {
    let fake = cluster().await;
    let mut set = samples::stateful_set("default", "db", 3);
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"],
                  "resources": { "requests": { "storage": "1Gi" } } } }]);
    fake.create(set).await.unwrap();
    eventually("the first pod", || fake.count("pods") == 1).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(names(&fake), BTreeSet::from(["db-0".to_owned()]), "the next waits for it");
    let ready = || {
        let set = fake.get("StatefulSet", "default", "db").unwrap();
        set["status"]["readyReplicas"].as_u64().unwrap_or(0)
    };
    scheduled(&fake, "three are ready", || ready() == 3).await;
    let second = fake.get("Pod", "default", "db-1").unwrap();
    let labels = &second["metadata"]["labels"];
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "1");
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "db-1");
    assert!(fake.get("PersistentVolumeClaim", "default", "data-db-1").is_some());
    let uid = second["metadata"]["uid"].clone();
    fake.delete("Pod", "default", "db-1").await.unwrap();
    scheduled(&fake, "the second is back", || {
        fake.get("Pod", "default", "db-1").is_some_and(|pod| pod["metadata"]["uid"] != uid)
            && ready() == 3
    })
    .await;
    fake.scale("StatefulSet", "default", "db", 1).await.unwrap();
    eventually("one is left", || fake.count("pods") == 1).await;
    assert_eq!(names(&fake), BTreeSet::from(["db-0".to_owned()]));
    assert_eq!(fake.count("persistentvolumeclaims"), 3, "claims outlive pods");
}

#[tokio::test]
async fn a_stateful_set_is_updated_from_the_highest_number_down() {
    let fake = cluster().await;
    fake.create(samples::stateful_set("default", "db", 3)).await.unwrap();
    let status = |field: &str| {
        fake.get("StatefulSet", "default", "db").unwrap()["status"][field].as_u64().unwrap_or(0)
    };
    scheduled(&fake, "three are ready", || status("readyReplicas") == 3).await;
    let change = json!({ "spec": {
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 2 } },
        "template": { "metadata": { "annotations": { "a": "b" } } } } });
    fake.merge("StatefulSet", "default", "db", change).await.unwrap();
    let updated = |number: u32| {
        let pod = fake.get("Pod", "default", &format!("db-{number}"));
        pod.is_some_and(|pod| pod["metadata"]["annotations"]["a"] == "b")
    };
    scheduled(&fake, "the last is updated", || updated(2) && status("readyReplicas") == 3).await;
    assert!(!updated(1) && !updated(0));
    fake.delete("Pod", "default", "db-0").await.unwrap();
    scheduled(&fake, "the first is back", || {
        fake.get("Pod", "default", "db-0").is_some_and(|pod| pod["status"]["phase"] == "Running")
    })
    .await;
    assert!(!updated(0), "below the partition it is made from the old template");
    let all = json!({ "spec": { "updateStrategy": { "rollingUpdate": { "partition": 0 } } } });
    fake.merge("StatefulSet", "default", "db", all).await.unwrap();
    scheduled(&fake, "all are updated", || (0..3).all(updated) && status("readyReplicas") == 3)
        .await;
}

#[tokio::test]
async fn a_namespace_takes_its_content_along() {
    let fake = cluster().await;
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" } });
    fake.create(namespace).await.unwrap();
    fake.create(samples::deployment("team", "web", 2)).await.unwrap();
    eventually("two pods", || fake.count("pods") == 2).await;
    fake.delete("Namespace", "", "team").await.unwrap();
    let late = fake.create(samples::pod("team", "late", "berth", 1, 1)).await.unwrap_err();
    assert!(matches!(late.code, 403 | 404), "{late}");
    eventually("the namespace is gone", || fake.get("Namespace", "", "team").is_none()).await;
    assert_eq!(fake.count("pods"), 0);
}
