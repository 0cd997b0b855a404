//! Creates claims of devices from templates, removes pods that have ended from claims, and deallocates claims
//! that no pod uses any more, as Kubernetes' resource claim controller does.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{TableFollower, change, pause};
use crate::api::Api;
use crate::create::system_fields;
use crate::delete::{DeleteOptions, delete_in};
use crate::object::{self, Key, Object};
use crate::store::{Store, TableId};

const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

struct Tables {
    claims: TableId,
    templates: TableId,
    pods: TableId,
}

pub(super) async fn run(api: Arc<Api>) {
    let tables = {
        let store = api.store();
        let find = |plural: &str| store.find("resource.k8s.io", plural);
        let (Some(claims), Some(templates), Some(pods)) =
            (find("resourceclaims"), find("resourceclaimtemplates"), store.find("", "pods"))
        else {
            return;
        };
        Tables { claims, templates, pods }
    };
    let followed = [tables.claims, tables.templates, tables.pods];
    let mut followers = followed.map(|id| TableFollower { api: Arc::clone(&api), id, seen: None });
    loop {
        if followers.iter_mut().map(|it| it.take_changes().len()).sum::<usize>() > 0 {
            run_pass(&mut api.store(), &tables);
        }
        pause().await;
    }
}

fn all(store: &Store, id: TableId) -> Vec<Arc<Object>> {
    store.iter(id, None).map(|(_, object)| Arc::clone(object)).collect()
}

fn run_pass(store: &mut Store, tables: &Tables) {
    for pod in all(store, tables.pods) {
        if !is_done(&pod.value) {
            create_claims(store, tables, &pod);
        }
    }
    for claim in all(store, tables.claims) {
        release(store, tables, &claim);
    }
}

/// Whether a pod will not run any more.
fn is_done(pod: &Value) -> bool {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let is_unbound = pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
    matches!(phase, "Succeeded" | "Failed") || (object::is_terminating(pod) && is_unbound)
}

fn create_claims(store: &mut Store, tables: &Tables, pod: &Object) {
    let pod_value = &pod.value;
    let namespace = object::namespace(pod_value);
    let mut statuses: Vec<Value> =
        object::items(&pod_value["status"]["resourceClaimStatuses"]).cloned().collect();
    let known = statuses.len();
    for wanted in object::items(&pod_value["spec"]["resourceClaims"]) {
        let Some(template) = wanted["resourceClaimTemplateName"].as_str() else { continue };
        if statuses.iter().any(|it| it["name"] == wanted["name"]) {
            continue;
        }
        let template = store.get(tables.templates, &Key::new(namespace, template)).cloned();
        let Some(template) = template else { continue };
        let of = wanted["name"].as_str().unwrap_or_default();
        let uid = object::uid(pod_value);
        let name = format!("{}-{of}-{}", object::name(pod_value), &uid[..uid.len().min(5)]);
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "name": name, "namespace": namespace,
                "annotations": { "resource.kubernetes.io/pod-claim-name": of },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Pod", "name": object::name(pod_value),
                    "uid": uid, "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": template.value["spec"]["spec"],
        });
        if store.get(tables.claims, &Key::new(namespace, &name)).is_none() {
            store.put(tables.claims, system_fields(claim));
        }
        statuses.push(json!({ "name": of, "resourceClaimName": name }));
    }
    if statuses.len() > known {
        change(store, tables.pods, &pod.key(), |value| {
            value["status"]["resourceClaimStatuses"] = json!(statuses);
        });
    }
}

fn release(store: &mut Store, tables: &Tables, claim: &Object) {
    let value = &claim.value;
    let namespace = object::namespace(value);
    let uses = |name: &Value, uid: &Value| {
        let pod = store.get(tables.pods, &Key::new(namespace, name.as_str().unwrap_or_default()));
        pod.is_some_and(|pod| object::uid(&pod.value) == uid && !is_done(&pod.value))
    };
    let consumers: Vec<Value> = object::items(&value["status"]["reservedFor"]).cloned().collect();
    let mut left = consumers.clone();
    left.retain(|it| uses(&it["name"], &it["uid"]));
    let owner = object::owners(value).find(|it| it["controller"] == true && it["kind"] == "Pod");
    let is_orphan = owner.is_some_and(|it| !uses(&it["name"], &it["uid"]));
    let is_last = left.is_empty() && (!consumers.is_empty() || object::is_terminating(value));
    if left.len() < consumers.len() || (is_last && !object::finalizers(value).is_empty()) {
        change(store, tables.claims, &claim.key(), |value| {
            value["status"]["reservedFor"] = json!(left);
            if is_last {
                object::remove(&mut value["status"], "reservedFor");
                object::remove(&mut value["status"], "allocation");
                let mut finalizers = object::finalizers(value);
                finalizers.retain(|it| it != FINALIZER);
                value["metadata"]["finalizers"] = json!(finalizers);
                object::tidy_metadata(value);
            }
        });
    }
    let Some(claim) = store.get(tables.claims, &claim.key()).cloned() else { return };
    if object::is_terminating(&claim.value) {
        if object::finalizers(&claim.value).is_empty() {
            store.remove(tables.claims, &claim.key());
        }
    } else if left.is_empty() && is_orphan {
        // It may have been deleted meanwhile.
        let _ = delete_in(store, tables.claims, &claim.key(), &DeleteOptions::default(), false);
    }
}
