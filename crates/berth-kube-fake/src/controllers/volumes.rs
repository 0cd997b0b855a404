//! Binds and provisions volumes, and protects those in use.
//!
//! A claim whose class waits for its first consumer is bound only to a volume that names it
//! (`spec.claimRef`, which a scheduler writes); only the annotation with the selected node starts
//! provisioning, as with the real controller.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{TableFollower, change, pause};
use crate::api::Api;
use crate::create::system_fields;
use crate::object::{self, Key, Object};
use crate::quantity::Quantity;
use crate::selector::LabelSelector;
use crate::store::{Store, TableId, lock};

const SELECTED: &str = "volume.kubernetes.io/selected-node";
const BOUND: &str = "pv.kubernetes.io/bind-completed";
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

struct Tables {
    claims: TableId,
    volumes: TableId,
    classes: TableId,
    nodes: TableId,
    pods: TableId,
}

pub(super) async fn run(api: Arc<Api>) {
    let tables = {
        let store = api.store();
        let find = |group: &str, plural: &str| store.find(group, plural);
        let (Some(claims), Some(volumes), Some(classes), Some(nodes), Some(pods)) = (
            find("", "persistentvolumeclaims"),
            find("", "persistentvolumes"),
            find("storage.k8s.io", "storageclasses"),
            find("", "nodes"),
            find("", "pods"),
        ) else {
            return;
        };
        Tables { claims, volumes, classes, nodes, pods }
    };
    let mut claims = TableFollower { api: Arc::clone(&api), id: tables.claims, seen: None };
    let mut volumes = TableFollower { api: Arc::clone(&api), id: tables.volumes, seen: None };
    let mut classes = TableFollower { api: Arc::clone(&api), id: tables.classes, seen: None };
    let mut going = false;
    loop {
        let changed = claims.take_changes().len()
            + volumes.take_changes().len()
            + classes.take_changes().len()
            > 0;
        if changed || going {
            going = run_pass(&api, &tables);
        }
        pause().await;
    }
}

/// Checks everything; `true` if something waits for pods to end.
fn run_pass(api: &Api, tables: &Tables) -> bool {
    let mut store = api.store();
    let fail = *lock(&api.volumes_fail);
    let all = |store: &Store, id: TableId| -> Vec<Arc<Object>> {
        store.iter(id, None).map(|(_, object)| Arc::clone(object)).collect()
    };
    for volume in all(&store, tables.volumes) {
        sync_volume(&mut store, tables, &volume);
    }
    let mut going = false;
    for claim in all(&store, tables.claims) {
        if object::is_terminating(&claim.value) {
            going |= !unprotect_claim(&mut store, tables, &claim);
        } else if claim.value["spec"]["volumeName"].as_str().is_none_or(str::is_empty) {
            sync_claim(&mut store, tables, &claim, fail);
        } else {
            finish_claim(&mut store, tables, &claim);
        }
    }
    going
}

fn sync_volume(store: &mut Store, tables: &Tables, volume: &Object) {
    let reference = &volume.value["spec"]["claimRef"];
    let phase = if reference.is_null() {
        "Available"
    } else {
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        let claim = store.get(tables.claims, &Key::new(text("namespace"), text("name")));
        let same = claim.is_some_and(|claim| {
            text("uid").is_empty() || text("uid") == object::uid(&claim.value)
        });
        let bound = claim.is_some_and(|claim| {
            same && claim.value["spec"]["volumeName"] == volume.value["metadata"]["name"]
        });
        match (bound, same, text("uid").is_empty()) {
            (true, ..) => "Bound",
            (false, false, false) => "Released",
            _ => "Available",
        }
    };
    if phase == "Released" && volume.value["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
        store.remove(tables.volumes, &volume.key());
        return;
    }
    if object::is_terminating(&volume.value) && phase != "Bound" {
        store.remove(tables.volumes, &volume.key());
        return;
    }
    change(store, tables.volumes, &volume.key(), |value| value["status"]["phase"] = json!(phase));
}

fn is_used(store: &Store, tables: &Tables, claim: &Object) -> bool {
    let name = object::name(&claim.value);
    store.iter(tables.pods, Some(object::namespace(&claim.value))).any(|(_, pod)| {
        !super::pods::is_finished(&pod.value)
            && object::items(&pod.value["spec"]["volumes"])
                .any(|volume| volume["persistentVolumeClaim"]["claimName"] == name)
    })
}

/// Removes the protection of a claim that no pod uses; `false` if one does.
fn unprotect_claim(store: &mut Store, tables: &Tables, claim: &Object) -> bool {
    if is_used(store, tables, claim) {
        return false;
    }
    let mut left = object::finalizers(&claim.value);
    left.retain(|one| one != "kubernetes.io/pvc-protection");
    if left.is_empty() {
        store.remove(tables.claims, &claim.key());
    } else {
        change(store, tables.claims, &claim.key(), |value| {
            value["metadata"]["finalizers"] = json!(left);
        });
    }
    true
}

fn storage(amounts: &Value) -> i128 {
    amounts["storage"].as_str().and_then(Quantity::parse).map_or(0, |amount| amount.nanos)
}

fn names_claim(volume: &Value, claim: &Value) -> bool {
    let reference = &volume["spec"]["claimRef"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    text("namespace") == object::namespace(claim)
        && text("name") == object::name(claim)
        && (text("uid").is_empty() || text("uid") == object::uid(claim))
}

fn fits(volume: &Value, claim: &Value) -> bool {
    let class =
        |value: &Value| value["spec"]["storageClassName"].as_str().unwrap_or_default().to_owned();
    let modes: Vec<&Value> = object::items(&volume["spec"]["accessModes"]).collect();
    let selector = &claim["spec"]["selector"];
    volume["spec"]["claimRef"].is_null()
        && !object::is_terminating(volume)
        && class(volume) == class(claim)
        && volume["spec"]["volumeMode"] == claim["spec"]["volumeMode"]
        && storage(&volume["spec"]["capacity"]) >= storage(&claim["spec"]["resources"]["requests"])
        && object::items(&claim["spec"]["accessModes"]).all(|mode| modes.contains(&mode))
        && (selector.is_null()
            || LabelSelector::from_object(selector).is_some_and(|s| s.matches(volume)))
}

fn sync_claim(store: &mut Store, tables: &Tables, claim: &Object, fail: bool) {
    let value = &claim.value;
    let named = store
        .iter(tables.volumes, None)
        .map(|(_, volume)| Arc::clone(volume))
        .find(|volume| names_claim(&volume.value, value));
    if let Some(volume) = named {
        bind(store, tables, claim, &volume);
        return;
    }
    let class = value["spec"]["storageClassName"].as_str().unwrap_or_default();
    let class = store.get(tables.classes, &Key::new("", class)).cloned();
    let waits = class
        .as_ref()
        .is_some_and(|class| class.value["volumeBindingMode"] == "WaitForFirstConsumer");
    if !waits {
        let best = store
            .iter(tables.volumes, None)
            .map(|(_, volume)| volume)
            .filter(|volume| fits(&volume.value, value))
            .min_by_key(|volume| storage(&volume.value["spec"]["capacity"]))
            .cloned();
        if let Some(volume) = best {
            bind(store, tables, claim, &volume);
            return;
        }
    }
    let Some(class) = class else { return };
    let provisioner = class.value["provisioner"].as_str().unwrap_or_default();
    if provisioner == NO_PROVISIONER {
        return;
    }
    let node = object::annotation(value, SELECTED).map(str::to_owned);
    if waits && node.is_none() {
        return;
    }
    provision(store, tables, claim, &class, node.as_deref(), fail);
}

fn provision(
    store: &mut Store,
    tables: &Tables,
    claim: &Object,
    class: &Object,
    node: Option<&str>,
    fail: bool,
) {
    let found = node.and_then(|name| store.get(tables.nodes, &Key::new("", name)).cloned());
    if fail || (node.is_some() && found.is_none()) {
        // The provisioner returns the choice of the node to the scheduler.
        change(store, tables.claims, &claim.key(), |value| {
            object::remove(&mut value["metadata"]["annotations"], SELECTED);
            object::tidy_metadata(value);
        });
        return;
    }
    let value = &claim.value;
    let provisioner = class.value["provisioner"].clone();
    let mut volume = system_fields(json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": format!("pvc-{}", object::uid(value)),
            "annotations": { PROVISIONED_BY: provisioner },
            "finalizers": ["kubernetes.io/pv-protection"],
        },
        "spec": {
            "capacity": { "storage": value["spec"]["resources"]["requests"]["storage"] },
            "accessModes": value["spec"]["accessModes"],
            "volumeMode": value["spec"]["volumeMode"],
            "storageClassName": class.value["metadata"]["name"],
            "persistentVolumeReclaimPolicy": class.value["reclaimPolicy"],
            "claimRef": reference(value),
            "csi": { "driver": provisioner, "volumeHandle": object::uid(value) },
        },
        "status": { "phase": "Pending" },
    }));
    if let Some(node) = found {
        let host = object::label(&node.value, "kubernetes.io/hostname");
        let host = host.unwrap_or(object::name(&node.value));
        volume["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{
            "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [host] },
            ],
        }] } });
    }
    let made = store.put(tables.volumes, volume);
    change(store, tables.claims, &claim.key(), |value| {
        value["metadata"]["annotations"][PROVISIONER] = provisioner.clone();
    });
    if let Some(claim) = store.get(tables.claims, &claim.key()).cloned() {
        bind(store, tables, &claim, &made);
    }
}

fn reference(claim: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": object::namespace(claim), "name": object::name(claim),
        "uid": object::uid(claim), "resourceVersion": claim["metadata"]["resourceVersion"],
    })
}

/// Writes both sides: first the volume, then the claim.
fn bind(store: &mut Store, tables: &Tables, claim: &Object, volume: &Object) {
    let named = !volume.value["spec"]["claimRef"].is_null();
    change(store, tables.volumes, &volume.key(), |value| {
        value["spec"]["claimRef"] = reference(&claim.value);
        if !named {
            value["metadata"]["annotations"][BY_CONTROLLER] = json!("yes");
        }
        value["status"]["phase"] = json!("Bound");
    });
    change(store, tables.claims, &claim.key(), |value| {
        value["spec"]["volumeName"] = volume.value["metadata"]["name"].clone();
        value["metadata"]["annotations"][BOUND] = json!("yes");
        value["metadata"]["annotations"][BY_CONTROLLER] = json!("yes");
    });
    if let Some(claim) = store.get(tables.claims, &claim.key()).cloned() {
        finish_claim(store, tables, &claim);
    }
}

/// A claim that names a volume is bound once the volume exists, and lost if it is deleted.
fn finish_claim(store: &mut Store, tables: &Tables, claim: &Object) {
    let name = claim.value["spec"]["volumeName"].as_str().unwrap_or_default();
    let volume = store.get(tables.volumes, &Key::new("", name)).cloned();
    let complete = object::annotation(&claim.value, BOUND).is_some();
    match volume {
        None if complete => {
            change(store, tables.claims, &claim.key(), |value| {
                value["status"]["phase"] = json!("Lost");
            });
        }
        None => {}
        Some(volume) if volume.value["spec"]["claimRef"].is_null() => {
            bind(store, tables, claim, &volume);
        }
        Some(volume) if names_claim(&volume.value, &claim.value) => {
            change(store, tables.claims, &claim.key(), |value| {
                value["metadata"]["annotations"][BOUND] = json!("yes");
                value["status"] = json!({
                    "phase": "Bound", "accessModes": volume.value["spec"]["accessModes"],
                    "capacity": volume.value["spec"]["capacity"],
                });
            });
        }
        Some(_) => {}
    }
}
