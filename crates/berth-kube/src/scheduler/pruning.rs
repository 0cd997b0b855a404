//! Drops what the scheduler does not read of a pod before it waits for the core: while a large cluster is listed,
//! thousands of pods do, and most of a pod is environment, probes and the status of its containers.
//!
//! Only fields are dropped that neither the filters, the scores nor elastic pods look at. Fields that are unknown
//! were noticed when the pod was read.

use k8s_openapi::api::core::v1 as core;

use crate::cluster::observed_pod::ObservedPod;

/// The annotation of a static pod, which a kubelet made from a file.
pub(super) const STATIC_POD: &str = "kubernetes.io/config.mirror";
/// What the names of Berth's annotations contain.
const OURS: &str = "berth.dev/";

/// Drops what is not read of a pod.
pub(super) fn prune_pod(observed: &mut ObservedPod) {
    let pod = &mut observed.pod;
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|name, _| name.contains(OURS) || name == STATIC_POD);
    }
    if let Some(spec) = &mut pod.spec {
        spec.dns_config = None;
        spec.host_aliases = None;
        spec.image_pull_secrets = None;
        let init = spec.init_containers.iter_mut().flatten();
        spec.containers.iter_mut().chain(init).for_each(prune_container);
    }
    if let Some(status) = &mut pod.status {
        status.host_ips = None;
        status.message = None;
        status.pod_ips = None;
        let running = status.container_statuses.iter_mut().flatten();
        let init = status.init_container_statuses.iter_mut().flatten();
        running.chain(init).for_each(prune_status);
    }
}

fn prune_container(container: &mut core::Container) {
    container.args = None;
    container.command = None;
    container.env = None;
    container.env_from = None;
    container.lifecycle = None;
    container.liveness_probe = None;
    container.readiness_probe = None;
    container.security_context = None;
    container.startup_probe = None;
    container.termination_message_path = None;
}

/// What a container uses stays: it counts while it is resized.
fn prune_status(status: &mut core::ContainerStatus) {
    status.container_id = None;
    status.image = String::new();
    status.image_id = String::new();
    status.last_state = None;
    status.state = None;
    status.volume_mounts = None;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::pod::Pod;

    #[test]
    fn a_pruned_pod_is_read_as_the_whole_pod() {
        let pod = json!({
            "metadata": {
                "name": "web-1", "namespace": "shop", "uid": "u", "labels": {"app": "web"},
                "annotations": {
                    "berth.dev/gang": "g", "berth.dev/gang-size": "2", "berth.dev/elastic-min": "1,1Gi",
                    "berth.dev/elastic-max": "2,2Gi", "kubectl.kubernetes.io/restartedAt": "now",
                },
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {
                "schedulerName": "berth", "priority": 3, "hostUsers": false, "hostNetwork": true,
                "nodeSelector": {"disk": "ssd"}, "imagePullSecrets": [{"name": "s"}],
                "tolerations": [{"key": "a", "operator": "Exists"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
                "containers": [{
                    "name": "main", "image": "web:1", "command": ["web"], "args": ["-v"],
                    "env": [{"name": "A", "value": "b"}],
                    "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
                    "securityContext": {"runAsUser": 1},
                    "ports": [{"containerPort": 80, "hostPort": 8080}],
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                }],
                "initContainers": [{
                    "name": "first", "restartPolicy": "Always", "env": [{"name": "A", "value": "b"}],
                    "resources": {"requests": {"cpu": "200m"}},
                }],
            },
            "status": {
                "phase": "Running", "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{
                    "name": "main", "image": "web:1", "imageID": "sha", "ready": true, "restartCount": 0,
                    "state": {"running": {}},
                    "allocatedResources": {"cpu": "2", "memory": "1Gi"},
                }],
            },
        });
        let whole: ObservedPod = serde_json::from_value(pod).unwrap();
        let mut pruned = whole.clone();
        prune_pod(&mut pruned);
        assert_eq!(Pod::read(&pruned), Pod::read(&whole));
        let bytes = |it: &ObservedPod| serde_json::to_string(&it.pod).unwrap().len();
        assert!(bytes(&pruned) * 4 < bytes(&whole) * 3, "{} of {}", bytes(&pruned), bytes(&whole));
    }
}
