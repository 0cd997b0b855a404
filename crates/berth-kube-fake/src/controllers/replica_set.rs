//! Replica sets: create pods in growing batches and delete them in the documented order.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::pods::{
    controller_reference, from_template, is_active, is_ready, managed, neighbours,
    sort_for_deletion,
};
use super::{TableFollower, change, work};
use crate::api::{Api, User, Writer};
use crate::delete::DeleteOptions;
use crate::failure::Failure;
use crate::object::{self, Key, Object};
use crate::selector::LabelSelector;
use crate::store::{Store, TableId};

/// Pods that are created or deleted before the set is checked again.
const BURST: usize = 500;

fn writer() -> Writer {
    Writer::new(User::controller("replicaset-controller"))
}

pub(super) async fn run(api: Arc<Api>) {
    let Some(mut sets) = TableFollower::new(&api, "apps", "replicasets") else { return };
    let Some(mut pods) = TableFollower::new(&api, "", "pods") else { return };
    let shared = Arc::clone(&api);
    let dirty = move |waiting: &mut BTreeSet<Key>| {
        for event in sets.take_changes().iter().filter(|event| !event.gone) {
            if event.before.is_none() {
                adopt_orphans(&mut shared.store(), sets.id, pods.id, &event.object);
            }
            waiting.insert(Key::of(&event.object.value));
        }
        let changes = pods.take_changes();
        let mut store = shared.store();
        for event in changes {
            let versions = [Some(&event.object), event.before.as_ref()];
            for uid in
                versions.into_iter().flatten().filter_map(|one| object::controller_uid(&one.value))
            {
                if let Some((id, key)) = store.by_uid(uid)
                    && *id == sets.id
                {
                    waiting.insert(key.clone());
                }
            }
            if !event.gone && object::controller_uid(&event.object.value).is_none() {
                adopt_pod(&mut store, sets.id, pods.id, &event.object);
            }
        }
    };
    work::run_work_queue(api, dirty, reconcile).await;
}

/// Assigns an orphaned pod to the set whose selector it matches.
fn adopt_pod(store: &mut Store, sets: TableId, pods: TableId, pod: &Object) {
    if store.len(sets) == 0 || !is_active(&pod.value) {
        return;
    }
    let namespace = object::namespace(&pod.value);
    let found = store.iter(sets, Some(namespace)).map(|(_, set)| set).find(|set| {
        !object::is_terminating(&set.value)
            && LabelSelector::from_object(&set.value["spec"]["selector"])
                .is_some_and(|selector| selector.matches(&pod.value))
    });
    let Some(set) = found.cloned() else { return };
    change(store, pods, &pod.key(), |value| {
        if object::controller_uid(value).is_some() {
            return;
        }
        let mut owners =
            value["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        owners.push(controller_reference(&set.resource, &set.value));
        value["metadata"]["ownerReferences"] = Value::Array(owners);
    });
}

/// A new set adopts orphaned pods that match it.
fn adopt_orphans(store: &mut Store, sets: TableId, pods: TableId, set: &Object) {
    let Some(selector) = LabelSelector::from_object(&set.value["spec"]["selector"]) else { return };
    let orphans: Vec<Arc<Object>> = store
        .iter(pods, Some(object::namespace(&set.value)))
        .map(|(_, pod)| pod)
        .filter(|pod| object::controller_uid(&pod.value).is_none() && selector.matches(&pod.value))
        .cloned()
        .collect();
    for orphan in orphans {
        adopt_pod(store, sets, pods, &orphan);
    }
}

async fn reconcile(api: Arc<Api>, key: Key) -> Result<(), Failure> {
    let sets = api.table("apps", "replicasets")?;
    let pods = api.table("", "pods")?;
    let set = api.get(sets, &key)?;
    let uid = object::uid(&set.value).to_owned();
    let mut result = Ok(());
    if !object::is_terminating(&set.value) {
        release(&api, pods, &set);
        let mut active = managed(&api.store(), &uid);
        active.retain(|pod| is_active(&pod.value));
        let wanted = set.value["spec"]["replicas"].as_u64().unwrap_or(1);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        if active.len() < wanted {
            result = grow(&api, pods, &set, (wanted - active.len()).min(BURST)).await;
        } else if active.len() > wanted {
            let count = (active.len() - wanted).min(BURST);
            result = shrink(&api, pods, &set, active, count).await;
        }
    }
    write_status(&api, sets, &key, &uid, result.as_ref().err());
    result
}

/// Releases pods whose labels do not match any more.
fn release(api: &Api, pods: TableId, set: &Object) {
    let uid = object::uid(&set.value);
    let Some(selector) = LabelSelector::from_object(&set.value["spec"]["selector"]) else { return };
    let mut store = api.store();
    for pod in managed(&store, uid).iter().filter(|pod| !selector.matches(&pod.value)) {
        change(&mut store, pods, &pod.key(), |value| {
            if let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| owner["uid"] != uid);
            }
            object::tidy_metadata(value);
        });
    }
}

/// Creates pods: one, then two, then four, until one is rejected.
async fn grow(api: &Api, pods: TableId, set: &Object, missing: usize) -> Result<(), Failure> {
    let namespace = object::namespace(&set.value);
    let mut pod = from_template(&set.resource, &set.value, &set.value["spec"]["template"]);
    pod["metadata"]["generateName"] = json!(format!("{}-", object::name(&set.value)));
    let writer = writer();
    let (mut left, mut batch) = (missing, 1);
    while left > 0 {
        let size = left.min(batch);
        let made = (0..size).map(|_| api.create(&writer, pods, Some(namespace), pod.clone()));
        for result in join_all(made).await {
            result?;
        }
        left -= size;
        batch *= 2;
    }
    Ok(())
}

async fn shrink(
    api: &Api,
    pods: TableId,
    set: &Object,
    mut active: Vec<Arc<Object>>,
    count: usize,
) -> Result<(), Failure> {
    let on_node = neighbours(&related(api, set));
    sort_for_deletion(&mut active, &on_node);
    let writer = writer();
    for pod in active.iter().take(count) {
        let uid = Some(object::uid(&pod.value).to_owned());
        let options = DeleteOptions { uid, ..DeleteOptions::default() };
        match api.delete(&writer, pods, &pod.key(), &options).await {
            Ok(_) | Err(Failure { code: 404, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// The pods of all sets with the same owner.
fn related(api: &Api, set: &Object) -> Vec<Arc<Object>> {
    let store = api.store();
    let Some(owner) = object::controller_uid(&set.value) else {
        return managed(&store, object::uid(&set.value));
    };
    let siblings: Vec<String> = store
        .owned_by(owner)
        .filter(|one| one.resource.kind == "ReplicaSet")
        .map(|one| object::uid(&one.value).to_owned())
        .collect();
    siblings.iter().flat_map(|uid| managed(&store, uid)).collect()
}

fn write_status(api: &Api, sets: TableId, key: &Key, uid: &str, failure: Option<&Failure>) {
    let mut store = api.store();
    let mut active = managed(&store, uid);
    active.retain(|pod| is_active(&pod.value));
    let ready = active.iter().filter(|pod| is_ready(&pod.value)).count();
    change(&mut store, sets, key, |set| {
        set["status"]["replicas"] = json!(active.len());
        set["status"]["observedGeneration"] = set["metadata"]["generation"].clone();
        for (field, count) in [
            ("fullyLabeledReplicas", active.len()),
            ("readyReplicas", ready),
            ("availableReplicas", ready),
        ] {
            if count == 0 {
                object::remove(&mut set["status"], field);
            } else {
                set["status"][field] = json!(count);
            }
        }
        match failure {
            Some(failure) => {
                let more = json!({ "reason": "FailedCreate", "message": failure.message });
                object::set_condition(set, "ReplicaFailure", "True", &more);
            }
            None => object::remove(&mut set["status"], "conditions"),
        }
    });
}
