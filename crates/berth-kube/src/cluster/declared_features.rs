//! Features of nodes that a pod needs (`status.declaredFeatures`): which ones follow from its spec.
//!
//! A node that does not declare a feature may ignore the field that needs it, or fail to start the pod.
//! Features that matter only when a running pod is updated, such as in-place resizing, are checked by
//! the API server and need nothing here.

use k8s_openapi::api::core::v1 as core;

/// Restart rules with the action `RestartAllContainers`.
const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";
/// A user namespace in the network of the host.
const USER_NAMESPACE_ON_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";
/// Mount options of bind mounts.
const BIND_MOUNT_OPTIONS: &str = "VolumeBindMountOptions";

/// The features that a pod needs of its node, in order of their names.
pub(super) fn required(spec: &core::PodSpec) -> Vec<&'static str> {
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let restarts_all = containers()
        .flat_map(|it| it.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers");
    let user_namespace = spec.host_network == Some(true) && spec.host_users == Some(false);
    let has_options = |mounts: Option<&Vec<core::VolumeMount>>| {
        let mut options = mounts.into_iter().flatten().map(|it| it.bind_mount_options.as_ref());
        options.any(|it| it.is_some_and(|options| !options.is_empty()))
    };
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let mount_options = containers().any(|it| has_options(it.volume_mounts.as_ref()))
        || ephemeral.into_iter().any(|it| has_options(it.volume_mounts.as_ref()));
    let all = [
        (restarts_all, RESTART_ALL_CONTAINERS),
        (user_namespace, USER_NAMESPACE_ON_HOST_NETWORK),
        (mount_options, BIND_MOUNT_OPTIONS),
    ];
    all.into_iter().filter(|(needed, _)| *needed).map(|(_, name)| name).collect()
}
