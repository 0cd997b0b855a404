//! Devices: no device has two claims, and pods are where the devices of their claims can be used.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Violation;
use super::facts::Pod;
use super::selector::{list, selects_node, text};
use super::world::World;

/// Everything that is wrong with claims of devices. `others` may hold ResourceClaims.
pub(crate) fn check_devices(world: &World, pods: &[Value], others: &[Value]) -> Vec<Violation> {
    let claims: Vec<&Value> =
        others.iter().filter(|it| text(it, "/kind") == "ResourceClaim").collect();
    let mut found = Vec::new();
    let mut by_device: BTreeMap<[&str; 3], &str> = BTreeMap::new();
    for claim in &claims {
        for it in list(claim, "/status/allocation/devices/results") {
            let is_shared = it.get("adminAccess") == Some(&Value::Bool(true));
            let device = [text(it, "/driver"), text(it, "/pool"), text(it, "/device")];
            let name = text(claim, "/metadata/name");
            if let Some(other) = by_device.insert(device, name).filter(|_| !is_shared) {
                let text =
                    format!("device {} is allocated to {other} and {name}", device.join("/"));
                found.push(Violation {
                    rule: "devices",
                    pod: String::new(),
                    node: String::new(),
                    text,
                });
            }
        }
    }
    for object in pods {
        let pod = Pod::read(object);
        let Some(node) = pod.node.as_deref().filter(|_| pod.counts()) else { continue };
        for reason in claims_of(object).filter_map(|name| {
            let claim = claims.iter().find(|it| {
                text(it, "/metadata/name") == name
                    && text(it, "/metadata/namespace") == pod.namespace
            });
            wrong_claim(world, object, node, name, claim.copied())
        }) {
            let (pod, node) = (pod.key.clone(), node.to_owned());
            found.push(Violation { rule: "devices", pod, node, text: reason });
        }
    }
    found
}

/// The names of the claims of a pod.
fn claims_of(pod: &Value) -> impl Iterator<Item = &str> {
    list(pod, "/spec/resourceClaims").iter().map(move |it| match text(it, "/resourceClaimName") {
        "" => {
            let statuses = list(pod, "/status/resourceClaimStatuses").iter();
            let mut own = statuses.filter(|status| status["name"] == it["name"]);
            own.next().map_or("", |status| text(status, "/resourceClaimName"))
        }
        name => name,
    })
}

fn wrong_claim(
    world: &World,
    pod: &Value,
    node: &str,
    name: &str,
    claim: Option<&Value>,
) -> Option<String> {
    let Some(claim) = claim else { return Some(format!("claim {name:?} does not exist")) };
    if claim.pointer("/status/allocation").is_none_or(Value::is_null) {
        return Some(format!("claim {name} has no devices"));
    }
    let uid = text(pod, "/metadata/uid");
    if !list(claim, "/status/reservedFor").iter().any(|it| text(it, "/uid") == uid) {
        return Some(format!("claim {name} is not reserved for the pod"));
    }
    let selector = claim.pointer("/status/allocation/nodeSelector").filter(|it| !it.is_null())?;
    let labels = world.nodes.get(node).map(|it| it.labels.clone()).unwrap_or_default();
    let is_here = selects_node(selector, node, &labels);
    (!is_here).then(|| format!("the devices of claim {name} are not available on the node"))
}
