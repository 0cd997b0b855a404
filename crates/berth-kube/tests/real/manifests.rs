//! The manifests on a real API server: accepted as they are, and both parts become ready with the rights that
//! they give.

use serde_json::{Value, json};

use crate::api::{is_ready, key, text};
use crate::cluster::{Cluster, NAMESPACE, eventually, manifests};

/// Applies everything and waits until Kubernetes itself says that both Deployments are available.
pub(crate) async fn both_parts_become_ready(cluster: &Cluster) {
    cluster.apply_manifests().await;
    for (name, replicas) in [("berth-scheduler", 2), ("berth-webhook", 1)] {
        eventually(&format!("{name} is available"), async || {
            let deployment = cluster.api.get("Deployment", NAMESPACE, name).await?;
            (deployment["status"]["availableReplicas"] == json!(replicas)).then_some(())
        })
        .await;
    }
    let leader = cluster.leader().await;
    assert!(leader.starts_with("berth-scheduler-"), "{leader}");
    for pod in cluster.recorder.pods(NAMESPACE) {
        assert!(is_ready(&pod), "{} is not ready", key(&pod));
    }
}

/// The webhook writes its CA where the API server looks for it, and applying the manifests again keeps it.
pub(crate) async fn applying_them_again_changes_nothing(cluster: &Cluster) {
    let bundle = async || {
        let entry = cluster.api.get("MutatingWebhookConfiguration", "", "berth-webhook").await?;
        let bundle = text(&entry, "/webhooks/0/clientConfig/caBundle").to_owned();
        Some(bundle).filter(|it| !it.is_empty())
    };
    let before = eventually("the webhook has written its CA", bundle).await;
    let pods = |cluster: &Cluster| -> Vec<Value> {
        let pods = cluster.recorder.pods(NAMESPACE);
        pods.iter().map(|it| it["metadata"]["uid"].clone()).collect()
    };
    let running = pods(cluster);
    cluster.apply_manifests().await;
    assert_eq!(bundle().await.as_ref(), Some(&before));
    assert_eq!(pods(cluster), running, "{} objects were applied", manifests().len());
}

/// The namespace enforces what the manifests say of it: the API server refuses a pod with more rights.
pub(crate) async fn the_namespace_is_restricted(cluster: &Cluster) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "rights", "namespace": NAMESPACE },
        "spec": { "hostNetwork": true, "containers": [{ "name": "main", "image": "x" }] },
    });
    let refused = cluster.api.try_create(&pod).await.unwrap_err().to_string();
    assert!(refused.contains("violates PodSecurity \"restricted"), "{refused}");
}
