//! The garbage collector: deletes objects without an owner, and the content of terminating namespaces.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{TableFollower, change, pause};
use crate::api::Api;
use crate::delete::{DeleteOptions, delete_in};
use crate::object::{self, Key, Object};
use crate::store::{Store, TableId};

const FOREGROUND: &str = "foregroundDeletion";

pub(super) async fn run(api: Arc<Api>) {
    let mut followers: HashMap<TableId, TableFollower> = HashMap::new();
    let mut going: BTreeSet<String> = BTreeSet::new();
    loop {
        run_pass(&api, &mut followers, &mut going);
        empty_namespaces(&mut api.store());
        pause().await;
    }
}

fn run_pass(
    api: &Arc<Api>,
    followers: &mut HashMap<TableId, TableFollower>,
    going: &mut BTreeSet<String>,
) {
    let tables: Vec<TableId> = {
        let store = api.store();
        let own = store.resources().filter(|(_, resource)| resource.view_of.is_none());
        own.map(|(id, _)| id).collect()
    };
    for id in tables {
        let follower = followers.entry(id).or_insert_with(|| TableFollower {
            api: Arc::clone(api),
            id,
            seen: None,
        });
        for event in follower.take_changes() {
            let uid = object::uid(&event.object.value);
            let mut store = api.store();
            if event.gone {
                delete_dependents(&mut store, uid);
            } else {
                if event.before.is_none() {
                    check_owners(&mut store, id, &event.object);
                }
                if object::finalizers(&event.object.value).iter().any(|one| one == FOREGROUND) {
                    going.insert(uid.to_owned());
                }
            }
        }
    }
    going.retain(|uid| !finish_foreground(&mut api.store(), uid));
}

/// Whether an owner certainly does not exist. One of an unknown kind may.
fn is_owner_missing(store: &Store, owner: &Value) -> bool {
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    store.find_kind(text("apiVersion"), text("kind")).is_some()
        && store.by_uid(text("uid")).is_none()
}

fn check_owners(store: &mut Store, id: TableId, dependent: &Object) {
    let mut owners = object::owners(&dependent.value).peekable();
    if owners.peek().is_some() && owners.all(|owner| is_owner_missing(store, owner)) {
        remove(store, id, &dependent.key(), object::uid(&dependent.value));
    }
}

/// Deletes the dependents of a deleted object, or removes the reference if they have another owner.
fn delete_dependents(store: &mut Store, uid: &str) {
    for (id, key) in store.dependents(uid) {
        let Some(dependent) = store.get(id, &key).cloned() else { continue };
        if object::owners(&dependent.value).all(|owner| is_owner_missing(store, owner)) {
            remove(store, id, &key, object::uid(&dependent.value));
            continue;
        }
        change(store, id, &key, |value| {
            if let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| owner["uid"] != uid);
            }
            object::tidy_metadata(value);
        });
    }
}

fn remove(store: &mut Store, id: TableId, key: &Key, uid: &str) {
    let options = DeleteOptions { uid: Some(uid.to_owned()), ..DeleteOptions::default() };
    // It may already be deleted or recreated: both are fine.
    let _ = delete_in(store, id, key, &options, false);
}

/// Deletes the dependents of an object with foreground deletion; `true` once there are none.
fn finish_foreground(store: &mut Store, uid: &str) -> bool {
    let Some((id, key)) = store.by_uid(uid).cloned() else { return true };
    let mut blocked = false;
    for (table, place) in store.dependents(uid) {
        let Some(dependent) = store.get(table, &place).cloned() else { continue };
        blocked |= object::owners(&dependent.value)
            .any(|owner| owner["uid"] == uid && owner["blockOwnerDeletion"] == true);
        if !object::is_terminating(&dependent.value) {
            let options = DeleteOptions {
                propagation: Some("Foreground".into()),
                ..DeleteOptions::default()
            };
            let has_own = !store.dependents(object::uid(&dependent.value)).is_empty();
            let options = if has_own { options } else { DeleteOptions::default() };
            let _ = delete_in(store, table, &place, &options, false);
        }
    }
    if blocked {
        return false;
    }
    let Some(owner) = store.get(id, &key) else { return true };
    let mut left = object::finalizers(&owner.value);
    left.retain(|one| one != FOREGROUND);
    if left.is_empty() {
        store.remove(id, &key);
    } else {
        change(store, id, &key, |value| value["metadata"]["finalizers"] = json!(left));
    }
    true
}

fn empty_namespaces(store: &mut Store) {
    let Some(namespaces) = store.find("", "namespaces") else { return };
    let going: Vec<Key> = store
        .iter(namespaces, None)
        .filter(|(_, namespace)| object::is_terminating(&namespace.value))
        .map(|(key, _)| key.clone())
        .collect();
    for key in going {
        let tables: Vec<TableId> = store
            .resources()
            .filter(|(_, resource)| resource.namespaced && resource.view_of.is_none())
            .map(|(id, _)| id)
            .collect();
        let mut left = 0;
        for id in tables {
            let inside: Vec<Key> =
                store.iter(id, Some(&key.name)).map(|(inside, _)| inside.clone()).collect();
            for one in &inside {
                let _ = delete_in(store, id, one, &DeleteOptions::default(), false);
            }
            left += store.iter(id, Some(&key.name)).count();
        }
        let held = store
            .get(namespaces, &key)
            .is_some_and(|namespace| !object::finalizers(&namespace.value).is_empty());
        if left == 0 && !held {
            store.remove(namespaces, &key);
        }
    }
}
