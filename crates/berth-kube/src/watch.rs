//! Watches: a stream of events that outlives API outages, and what the events change.
//!
//! Listing, watching, resuming and bookmarks are kube-rs's `watcher`. Two things are added. Its backoff is
//! reset by `Init`, which only says that a list begins: while lists fail, the delay would never grow.
//! And a new list does not mention what was deleted since the last one: whatever is not in it is gone,
//! and an object that was recreated under the same name is a different one. kube-rs's `reflector` swaps
//! its store at that point without saying what went, and holds whole objects; [`ObjectIndex`] holds keys
//! and uids. See `docs/decisions/0032-what-we-take-from-kube-rs.md`.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::Resource;
use kube::runtime::watcher::{self, Event, watcher};
use rustc_hash::FxHashMap;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::client::backoff_delay;
use crate::cluster::pod::Key;

/// Lists and watches objects until stopped. After an error the stream pauses, longer after each one
/// in a row.
pub(crate) fn watch_events<K>(
    api: Api<K>,
    config: watcher::Config,
    stop: CancellationToken,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = watcher(api, config).boxed();
    let with_backoff =
        stream::unfold((events, 0, false), async |(mut events, failures, failed)| {
            if failed {
                tokio::time::sleep(backoff_delay(failures)).await;
            }
            let event = events.next().await?;
            let failures = match &event {
                Ok(Event::Init) => failures,
                Ok(_) => 0,
                Err(_) => failures + 1,
            };
            let failed = event.is_err();
            Some((event, (events, failures, failed)))
        });
    with_backoff.take_until(stop.cancelled_owned())
}

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
    /// The changes that a watch event stands for.
    pub(crate) fn apply_event<K: Resource>(&mut self, event: Event<K>) -> Vec<WatchDelta<K>> {
        match event {
            // An interrupted list starts over: what it has reported stays in `present`.
            Event::Init => {
                self.listing = Some(Uids::default());
                Vec::new()
            }
            Event::InitApply(object) => {
                let (key, uid) = identity(object.meta());
                if let Some(listing) = &mut self.listing {
                    listing.insert(key.clone(), Arc::clone(&uid));
                }
                self.put(key, uid, object)
            }
            Event::InitDone => {
                let listed = self.listing.take().unwrap_or_default();
                let deleted = self.present.extract_if(|key, _| !listed.contains_key(key));
                let deleted = deleted.map(|(key, uid)| WatchDelta::Deleted(key, uid));
                deleted.chain([WatchDelta::Synced]).collect()
            }
            Event::Apply(object) => {
                let (key, uid) = identity(object.meta());
                self.put(key, uid, object)
            }
            Event::Delete(object) => {
                let (key, uid) = identity(object.meta());
                self.present.remove(&key);
                vec![WatchDelta::Deleted(key, uid)]
            }
        }
    }

    fn put<K>(&mut self, key: Key, uid: Arc<str>, object: K) -> Vec<WatchDelta<K>> {
        let before = self.present.insert(key.clone(), Arc::clone(&uid));
        let replaced = before.filter(|before| *before != uid);
        let deleted = replaced.map(|before| WatchDelta::Deleted(key, before));
        deleted.into_iter().chain([WatchDelta::Updated(object)]).collect()
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
    use k8s_openapi::api::core::v1::Namespace;

    use super::*;

    fn object(name: &str, uid: &str) -> Namespace {
        let (name, uid) = (Some(name.to_owned()), Some(uid.to_owned()));
        Namespace {
            metadata: ObjectMeta { name, uid, ..ObjectMeta::default() },
            ..Namespace::default()
        }
    }

    fn apply_all(index: &mut ObjectIndex, events: Vec<Event<Namespace>>) -> Vec<String> {
        let deltas = events.into_iter().flat_map(|event| index.apply_event(event));
        let line = |delta| match delta {
            WatchDelta::Updated(Namespace { metadata, .. }) => {
                format!("+{}", metadata.uid.unwrap_or_default())
            }
            WatchDelta::Deleted(_, uid) => format!("-{uid}"),
            WatchDelta::Synced => "synced".to_owned(),
        };
        deltas.map(line).collect()
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
