//! Volumes: claims must exist, what is bound must be reachable from the node, and a claim for one
//! pod alone is used by one.

use serde_json::Value;

use super::facts::{Node, Pod};
use super::rules::PodFindings;
use super::selector::{list, selects_node, text};
use super::world::World;

/// The claims that a pod uses, as `namespace/name`.
fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let name = pod.key.split_once('/').map_or("", |it| it.1);
    list(&pod.spec, "/volumes").iter().filter_map(move |it| {
        let claim = match text(it, "/persistentVolumeClaim/claimName") {
            "" if it.get("ephemeral").is_some() => format!("{name}-{}", text(it, "/name")),
            "" => return None,
            claim => claim.to_owned(),
        };
        Some(format!("{}/{claim}", pod.namespace))
    })
}

/// Judges one placement.
pub(crate) fn check(world: &World, pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    for key in claims(pod) {
        match world.others.get(&("PersistentVolumeClaim".to_owned(), key.clone())) {
            None => found.add("volumes", format!("claim {key} does not exist")),
            Some(claim) => {
                check_claim(world, &key, claim, node, found);
                alone(world, pod, &key, claim, found);
            }
        }
    }
}

fn check_claim(world: &World, key: &str, claim: &Value, node: &Node, found: &mut PodFindings<'_>) {
    let name = text(claim, "/spec/volumeName");
    if name.is_empty() {
        let class = text(claim, "/spec/storageClassName").to_owned();
        let class = world.others.get(&("StorageClass".to_owned(), class));
        if class.map(|it| text(it, "/volumeBindingMode")) != Some("WaitForFirstConsumer") {
            found.add("volumes", format!("claim {key} is not bound, and does not wait for a pod"));
        }
        return;
    }
    let Some(volume) = world.others.get(&("PersistentVolume".to_owned(), name.to_owned())) else {
        return found.add("volumes", format!("volume {name} of claim {key} does not exist"));
    };
    let required = volume.pointer("/spec/nodeAffinity/required").filter(|it| !it.is_null());
    if required.is_some_and(|it| !selects_node(it, &node.name, &node.labels)) {
        found.add("volumes", format!("volume {name} of claim {key} is not for this node"));
    }
}

fn alone(world: &World, pod: &Pod, key: &str, claim: &Value, found: &mut PodFindings<'_>) {
    let once = |it: &Value| it.as_str() == Some("ReadWriteOncePod");
    if !list(claim, "/spec/accessModes").iter().any(once) {
        return;
    }
    let others = world.pods.values().filter(|it| it.counts() && it.key != pod.key);
    for other in others {
        if claims(other).any(|it| it == *key) {
            found.add("volumes", format!("claim {key} is for one pod, and {} has it", other.key));
        }
    }
}
