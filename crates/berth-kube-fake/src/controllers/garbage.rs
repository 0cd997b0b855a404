//! The garbage collector: deletes objects without an owner, and the content of terminating namespaces.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Follower, change, pause};
use crate::api::Api;
use crate::delete::{DeleteOptions, delete_in};
use crate::object::{self, Key, Object};
use crate::store::{Store, TableId};

const FOREGROUND: &str = "foregroundDeletion";

pub(super) async fn run(api: Arc<Api>) {
    let mut followers: HashMap<TableId, Follower> = HashMap::new();
    let mut going: BTreeSet<String> = BTreeSet::new();
    loop {
        look(&api, &mut followers, &mut going);
        empty_namespaces(&mut api.store());
        pause().await;
    }
}

fn look(api: &Arc<Api>, followers: &mut HashMap<TableId, Follower>, going: &mut BTreeSet<String>) {
    let tables: Vec<TableId> = {
        let store = api.store();
        let own = store.resources().filter(|(_, resource)| resource.view_of.is_none());
        own.map(|(id, _)| id).collect()
    };
    for id in tables {
        let follower = followers.entry(id).or_insert_with(|| Follower {
            api: Arc::clone(api),
            id,
            seen: None,
        });
        for notice in follower.news() {
            let uid = object::uid(&notice.object.value);
            let mut store = api.store();
            if notice.gone {
                bereave(&mut store, uid);
            } else {
                if notice.before.is_none() {
                    check_owners(&mut store, id, &notice.object);
                }
                if object::finalizers(&notice.object.value).iter().any(|one| one == FOREGROUND) {
                    going.insert(uid.to_owned());
                }
            }
        }
    }
    going.retain(|uid| !finish_foreground(&mut api.store(), uid));
}

/// Whether an owner certainly does not exist. One of an unknown kind may.
fn is_lost(store: &Store, owner: &Value) -> bool {
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    store.find_kind(text("apiVersion"), text("kind")).is_some()
        && store.by_uid(text("uid")).is_none()
}

fn check_owners(store: &mut Store, id: TableId, dependant: &Object) {
    let mut owners = object::owners(&dependant.value).peekable();
    if owners.peek().is_some() && owners.all(|owner| is_lost(store, owner)) {
        remove(store, id, &dependant.key(), object::uid(&dependant.value));
    }
}

/// Deletes the dependents of a deleted object, or removes the reference if they have another owner.
fn bereave(store: &mut Store, uid: &str) {
    for (id, key) in store.owned_places(uid) {
        let Some(dependant) = store.get(id, &key).cloned() else { continue };
        if object::owners(&dependant.value).all(|owner| is_lost(store, owner)) {
            remove(store, id, &key, object::uid(&dependant.value));
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
    for (table, place) in store.owned_places(uid) {
        let Some(dependant) = store.get(table, &place).cloned() else { continue };
        blocked |= object::owners(&dependant.value)
            .any(|owner| owner["uid"] == uid && owner["blockOwnerDeletion"] == true);
        if !object::is_terminating(&dependant.value) {
            let options = DeleteOptions {
                propagation: Some("Foreground".into()),
                ..DeleteOptions::default()
            };
            let has_own = !store.owned_places(object::uid(&dependant.value)).is_empty();
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
