//! What an informer has told of, so that what vanished while it was not watching is noticed.
//!
//! A list that is taken anew says nothing of what has gone since the last one: whoever is not in it
//! has. And an object that was deleted and created again under its name is another one.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;
use rustc_hash::FxHashMap;

use crate::cluster::pod::Key;

/// What an event comes down to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told<K> {
    /// It is there, and looks like this.
    Put(K),
    /// It has gone; its key and uid.
    Gone(Key, Arc<str>),
    /// Everything that there is has been told.
    Listed,
}

type Uids = FxHashMap<Key, Arc<str>>;

/// The objects of one kind that are there.
#[derive(Debug, Default)]
pub(crate) struct Known {
    there: Uids,
    /// Those of the list that is being taken.
    listing: Option<Uids>,
}

impl Known {
    /// What is to be told of an event.
    pub(crate) fn hear<K>(
        &mut self,
        event: Event<K>,
        meta: impl Fn(&K) -> &ObjectMeta,
        tell: &mut impl FnMut(Told<K>),
    ) {
        match event {
            // Also when a list was broken off: what it had told stays in `there`.
            Event::Init => self.listing = Some(Uids::default()),
            Event::InitApply(object) => {
                let (key, uid) = identity(meta(&object));
                if let Some(listing) = &mut self.listing {
                    listing.insert(key.clone(), Arc::clone(&uid));
                }
                self.put(key, uid, object, tell);
            }
            Event::InitDone => {
                let listed = self.listing.take().unwrap_or_default();
                self.there.retain(|key, uid| {
                    let stays = listed.contains_key(key);
                    if !stays {
                        tell(Told::Gone(key.clone(), Arc::clone(uid)));
                    }
                    stays
                });
                tell(Told::Listed);
            }
            Event::Apply(object) => {
                let (key, uid) = identity(meta(&object));
                self.put(key, uid, object, tell);
            }
            Event::Delete(object) => {
                let (key, uid) = identity(meta(&object));
                self.there.remove(&key);
                tell(Told::Gone(key, uid));
            }
        }
    }

    fn put<K>(&mut self, key: Key, uid: Arc<str>, object: K, tell: &mut impl FnMut(Told<K>)) {
        match self.there.get(&key) {
            Some(old) if *old == uid => {}
            Some(old) => {
                tell(Told::Gone(key.clone(), Arc::clone(old)));
                self.there.insert(key, uid);
            }
            None => {
                self.there.insert(key, uid);
            }
        }
        tell(Told::Put(object));
    }
}

fn identity(meta: &ObjectMeta) -> (Key, Arc<str>) {
    (Key::of(meta), meta.uid.as_deref().unwrap_or_default().into())
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

    fn told(known: &mut Known, events: Vec<Event<ObjectMeta>>) -> Vec<String> {
        let mut lines = Vec::new();
        for event in events {
            known.hear(event, |it| it, &mut |told| {
                lines.push(match told {
                    Told::Put(it) => format!("+{}", it.uid.unwrap_or_default()),
                    Told::Gone(_, uid) => format!("-{uid}"),
                    Told::Listed => "listed".to_owned(),
                });
            });
        }
        lines
    }

    #[test]
    fn what_vanished_between_two_lists_is_told_when_the_second_is_complete() {
        let mut known = Known::default();
        let first = vec![
            Event::Init,
            Event::InitApply(object("a", "1")),
            Event::InitApply(object("b", "2")),
            Event::InitDone,
            Event::Apply(object("c", "3")),
        ];
        assert_eq!(told(&mut known, first), ["+1", "+2", "listed", "+3"]);
        let broken_off = vec![Event::Init, Event::InitApply(object("a", "1"))];
        assert_eq!(told(&mut known, broken_off), ["+1"]);
        let second = vec![Event::Init, Event::InitApply(object("b", "2")), Event::InitDone];
        let mut lines = told(&mut known, second);
        lines[1..3].sort();
        assert_eq!(lines, ["+2", "-1", "-3", "listed"]);
    }

    #[test]
    fn another_object_under_the_same_name_replaces_the_first() {
        let mut known = Known::default();
        let first = vec![Event::Init, Event::InitApply(object("a", "1")), Event::InitDone];
        told(&mut known, first);
        let again = vec![Event::Init, Event::InitApply(object("a", "2")), Event::InitDone];
        assert_eq!(told(&mut known, again), ["-1", "+2", "listed"]);
        assert_eq!(told(&mut known, vec![Event::Delete(object("a", "2"))]), ["-2"]);
    }
}
