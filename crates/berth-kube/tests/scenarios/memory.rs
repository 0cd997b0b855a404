//! What the state keeps of each pod, as the kernel counts it.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::node;

const NODES: usize = 1_000;
const PODS: usize = 20_000;
/// Pods of one deployment.
const REPLICAS: usize = 50;
/// What a pod of a deployment may take, the maps of the state included.
const BYTES_PER_POD: usize = 3_000;

/// A running pod of a deployment, as the API server shows it, with 36 characters of uid.
fn pod(index: usize) -> Value {
    let app = format!("storefront-{}", index / REPLICAS);
    let name = format!("{app}-6d4cf56db6-{index:05}");
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
    let env: Vec<Value> = (0..12)
        .map(|it| json!({"name": format!("SETTING_{it}"), "value": format!("{app}.example.internal")}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": format!("team-{}", index / REPLICAS % 20),
            "uid": format!("0c2f7b0a-9d5e-4c1b-8a3f-{index:012}"), "resourceVersion": index.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "storefront",
                "app.kubernetes.io/version": "1.14.2", "pod-template-hash": "6d4cf56db6", "team": "a",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-6d4cf56db6"),
                "uid": format!("7a1d0f4e-1111-4c1b-8a3f-{:012}", index / REPLICAS), "controller": true,
            }],
        },
        "spec": {
            "schedulerName": "berth", "nodeName": format!("node-{:05}", index % NODES), "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority", "serviceAccountName": "default",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "volumes": [{"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "containers": [{
                "name": "main", "image": format!("registry.example.internal/shop/{app}:1.14.2"), "env": env,
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "livenessProbe": probe, "readinessProbe": probe,
                "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            }],
        },
        "status": {
            "phase": "Running", "startTime": "2026-01-01T00:00:01Z",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{
                "name": "main", "image": "x", "imageID": "sha256:0", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}},
            }],
        },
    })
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn a_pod_of_a_deployment_takes_less_than_three_thousand_bytes() {
    let mut core = Core::of(&[]);
    let large = json!({"status": {"allocatable": {"cpu": "64", "memory": "256Gi"}}});
    for index in 0..NODES {
        core.tell(&node(&format!("node-{index:05}"), &large));
    }
    let told = |core: &mut Core, index: usize| {
        let observed = serde_json::from_value(pod(index)).unwrap();
        core.cluster.put_pod(&observed);
    };
    // What the allocator takes once.
    (0..1_000).for_each(|index| told(&mut core, index));
    let before = resident_bytes();
    (1_000..PODS).for_each(|index| told(&mut core, index));
    let per_pod = resident_bytes().saturating_sub(before) / (PODS - 1_000);
    println!("{per_pod} bytes per pod");
    assert!(per_pod <= BYTES_PER_POD, "{per_pod} bytes per pod");
}
