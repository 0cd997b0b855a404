//! Turns watch events into changes, and notices deletions that a watch missed.
//!
//! A new list does not mention what was deleted since the last one: whatever is not in it is gone.
//! And an object that was deleted and recreated under the same name is a different object.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;
use rustc_hash::FxHashMap;

use crate::cluster::pod::Key;

/// The effect of a watch event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchDelta<K> {
    /// The object was created or updated.
    Updated(K),
    /// The object with this key and uid was deleted.
    Deleted(Key, Arc<str>),
    /// The list is complete.
    Synced,
}

type Uids = FxHashMap<Key, Arc<str>>;

/// The objects of one kind that exist.
#[derive(Debug, Default)]
pub(crate) struct ObjectIndex {
    present: Uids,
    /// Objects of the list that is in progress.
    listing: Option<Uids>,
}

impl ObjectIndex {
    /// Emits the changes that a watch event stands for.
    pub(crate) fn apply_event<K>(
        &mut self,
        event: Event<K>,
        meta: impl Fn(&K) -> &ObjectMeta,
        emit: &mut impl FnMut(WatchDelta<K>),
    ) {
        match event {
            // An interrupted list starts over: what it has reported stays in `present`.
            Event::Init => self.listing = Some(Uids::default()),
            Event::InitApply(object) => {
                let (key, uid) = identity(meta(&object));
                if let Some(listing) = &mut self.listing {
                    listing.insert(key.clone(), Arc::clone(&uid));
                }
                self.put(key, uid, object, emit);
            }
            Event::InitDone => {
                let listed = self.listing.take().unwrap_or_default();
                self.present.retain(|key, uid| {
                    let stays = listed.contains_key(key);
                    if !stays {
                        emit(WatchDelta::Deleted(key.clone(), Arc::clone(uid)));
                    }
                    stays
                });
                emit(WatchDelta::Synced);
            }
            Event::Apply(object) => {
                let (key, uid) = identity(meta(&object));
                self.put(key, uid, object, emit);
            }
            Event::Delete(object) => {
                let (key, uid) = identity(meta(&object));
                self.present.remove(&key);
                emit(WatchDelta::Deleted(key, uid));
            }
        }
    }

    fn put<K>(&mut self, key: Key, uid: Arc<str>, object: K, emit: &mut impl FnMut(WatchDelta<K>)) {
        match self.present.get(&key) {
            Some(old) if *old == uid => {}
            Some(old) => {
                emit(WatchDelta::Deleted(key.clone(), Arc::clone(old)));
                self.present.insert(key, uid);
            }
            None => {
                self.present.insert(key, uid);
            }
        }
        emit(WatchDelta::Updated(object));
    }
}

fn identity(meta: &ObjectMeta) -> (Key, Arc<str>) {
    (Key::of(meta), meta.uid.as_deref().unwrap_or_default().into())
}

/// The resource version of an object as a number, to tell which of two states is newer. API servers
/// that store objects in etcd use numbers; for others, the state that arrives last counts.
pub(crate) fn resource_version(meta: &ObjectMeta) -> Option<u64> {
    parse_version(meta.resource_version.as_deref()?)
}

/// A resource version as a number.
pub(crate) fn parse_version(version: &str) -> Option<u64> {
    version.parse().ok()
}

/// Whether `version` is not newer than `known`.
pub(crate) fn is_stale(version: Option<u64>, known: Option<u64>) -> bool {
    matches!((version, known), (Some(version), Some(known)) if version <= known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, uid: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        }
    }

    fn apply_all(index: &mut ObjectIndex, events: Vec<Event<ObjectMeta>>) -> Vec<String> {
        let mut lines = Vec::new();
        for event in events {
            index.apply_event(event, |it| it, &mut |delta| {
                lines.push(match delta {
                    WatchDelta::Updated(it) => format!("+{}", it.uid.unwrap_or_default()),
                    WatchDelta::Deleted(_, uid) => format!("-{uid}"),
                    WatchDelta::Synced => "synced".to_owned(),
                });
            });
        }
        lines
    }

    #[test]
    fn objects_missing_from_a_new_list_are_deleted_when_the_list_is_complete() {
        let mut index = ObjectIndex::default();
        let first = vec![
            Event::Init,
            Event::InitApply(object("a", "1")),
            Event::InitApply(object("b", "2")),
            Event::InitDone,
            Event::Apply(object("c", "3")),
        ];
        assert_eq!(apply_all(&mut index, first), ["+1", "+2", "synced", "+3"]);
        let interrupted = vec![Event::Init, Event::InitApply(object("a", "1"))];
        assert_eq!(apply_all(&mut index, interrupted), ["+1"]);
        let second = vec![Event::Init, Event::InitApply(object("b", "2")), Event::InitDone];
        let mut lines = apply_all(&mut index, second);
        lines[1..3].sort();
        assert_eq!(lines, ["+2", "-1", "-3", "synced"]);
    }

    #[test]
    fn a_recreated_object_of_the_same_name_replaces_the_first() {
        let mut index = ObjectIndex::default();
        let first = vec![Event::Init, Event::InitApply(object("a", "1")), Event::InitDone];
        apply_all(&mut index, first);
        let again = vec![Event::Init, Event::InitApply(object("a", "2")), Event::InitDone];
        assert_eq!(apply_all(&mut index, again), ["-1", "+2", "synced"]);
        assert_eq!(apply_all(&mut index, vec![Event::Delete(object("a", "2"))]), ["-2"]);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let stale = |version, known| is_stale(parse_version(version), parse_version(known));
        assert!(stale("99", "100"));
        assert!(stale("100", "100"));
        assert!(!stale("101", "100"));
        assert!(!stale("zebra", "100"));
        assert!(!is_stale(parse_version("1"), None));
    }
}
