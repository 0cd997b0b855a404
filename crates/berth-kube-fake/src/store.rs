//! Objects, their history and the resource version that orders all changes.
//!
//! Checks no requests; all access is under one lock that is held briefly. Every change increases the
//! version of the whole store by one, so versions of different resources can be compared, and the version
//! of a list tells from where a watch continues.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::failure::Failure;
use crate::object::{self, Key, Object};
use crate::resource::Resource;

/// Takes a lock. A test that panicked while it held one has failed anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TableId(usize);

/// The type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) change: Change,
    pub(crate) version: u64,
    /// The object after the change; for a deletion, its last state with the version of the deletion.
    pub(crate) object: Arc<Object>,
    pub(crate) before: Option<Arc<Object>>,
    line: OnceLock<Bytes>,
}

impl Event {
    /// The line for watches, encoded once for all of them.
    pub(crate) fn line(&self) -> Bytes {
        self.line.get_or_init(|| line(self.change, &self.object)).clone()
    }
}

/// A line of a watch.
pub(crate) fn line(change: Change, object: &Object) -> Bytes {
    let mut out = BytesMut::with_capacity(1024);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(change.name().as_bytes());
    out.put_slice(b"\",\"object\":");
    object.write_whole(&mut out);
    out.put_slice(b"}\n");
    out.freeze()
}

/// The objects of one resource.
pub(crate) struct Table {
    pub(crate) resource: Arc<Resource>,
    /// Whether it is served; a custom resource is, while its definition exists.
    pub(crate) served: bool,
    objects: BTreeMap<Key, Arc<Object>>,
    events: VecDeque<Arc<Event>>,
    /// The version of the last event that was dropped.
    dropped: u64,
    /// No watch can start before this version, and no earlier state is known.
    forgotten: u64,
    changed: watch::Sender<u64>,
}

/// An accepted binding; see [`crate::FakeApi::bindings`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// `namespace/name` of the pod.
    pub pod: String,
    /// The pod's uid.
    pub uid: String,
    /// The node it was bound to.
    pub node: String,
    /// The version of the binding, which orders it among other changes.
    pub seq: u64,
}

/// A deleted pod; see [`crate::FakeApi::deleted_pods`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeletedPod {
    /// The last state of the pod.
    pub pod: Value,
    /// The version of its deletion, comparable with those of bindings.
    pub seq: u64,
}

/// All tables.
pub(crate) struct Store {
    version: u64,
    history: usize,
    tables: Vec<Table>,
    locations: HashMap<String, (TableId, Key)>,
    owned: HashMap<String, BTreeSet<(TableId, Key)>>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) deleted_pods: Vec<Arc<Object>>,
}

impl Store {
    pub(crate) fn new(resources: Vec<Arc<Resource>>, history: usize) -> Self {
        let mut store = Self {
            version: 1,
            history: history.max(1),
            tables: Vec::new(),
            locations: HashMap::new(),
            owned: HashMap::new(),
            bindings: Vec::new(),
            deleted_pods: Vec::new(),
        };
        for resource in resources {
            store.add_table(resource);
        }
        store
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Adds a table, or reuses the one that the resource had before.
    pub(crate) fn add_table(&mut self, resource: Arc<Resource>) -> TableId {
        let same = |table: &Table| {
            table.resource.group == resource.group && table.resource.plural == resource.plural
        };
        if let Some(at) = self.tables.iter().position(same) {
            self.tables[at].served = true;
            self.tables[at].resource = resource;
            return TableId(at);
        }
        self.tables.push(Table {
            resource,
            served: true,
            objects: BTreeMap::new(),
            events: VecDeque::new(),
            dropped: 0,
            forgotten: self.version,
            changed: watch::Sender::new(self.version),
        });
        TableId(self.tables.len() - 1)
    }

    pub(crate) fn stop_serving(&mut self, id: TableId) {
        self.tables[id.0].served = false;
    }

    pub(crate) fn table(&self, id: TableId) -> &Table {
        &self.tables[id.0]
    }

    pub(crate) fn resources(&self) -> impl Iterator<Item = (TableId, &Arc<Resource>)> {
        let served = self.tables.iter().enumerate().filter(|(_, table)| table.served);
        served.map(|(at, table)| (TableId(at), &table.resource))
    }

    /// The table that holds a resource's objects.
    pub(crate) fn find(&self, group: &str, plural: &str) -> Option<TableId> {
        self.resources()
            .find(|(_, resource)| resource.group == group && resource.plural == plural)
            .map(|(id, _)| id)
    }

    /// The table of a kind, by its API version.
    pub(crate) fn find_kind(&self, api_version: &str, kind: &str) -> Option<TableId> {
        self.resources()
            .find(|(_, resource)| resource.kind == kind && resource.api_version() == api_version)
            .map(|(id, _)| id)
    }

    /// The table with the objects of a resource: its own, except for a view.
    pub(crate) fn backing_table(&self, id: TableId) -> TableId {
        match self.tables[id.0].resource.view_of {
            Some(plural) => self.find("", plural).unwrap_or(id),
            None => id,
        }
    }

    pub(crate) fn get(&self, id: TableId, key: &Key) -> Option<&Arc<Object>> {
        self.tables[id.0].objects.get(key)
    }

    pub(crate) fn len(&self, id: TableId) -> usize {
        self.tables[id.0].objects.len()
    }

    /// All objects of a table, or of one namespace, in order.
    pub(crate) fn iter(
        &self,
        id: TableId,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = (&Key, &Arc<Object>)> {
        let start = match namespace {
            Some(namespace) => Bound::Included(Key::new(namespace, "")),
            None => Bound::Unbounded,
        };
        let wanted = namespace.map(str::to_owned);
        self.tables[id.0].objects.range((start, Bound::Unbounded)).take_while(move |(key, _)| {
            wanted.as_deref().is_none_or(|name| *key.namespace == *name)
        })
    }

    /// The table and key of an object, by uid.
    pub(crate) fn by_uid(&self, uid: &str) -> Option<&(TableId, Key)> {
        self.locations.get(uid)
    }

    /// Objects with this uid among their owners.
    pub(crate) fn owned_by(&self, uid: &str) -> impl Iterator<Item = &Arc<Object>> {
        let locations = self.owned.get(uid).into_iter().flatten();
        locations.filter_map(|(id, key)| self.get(*id, key))
    }

    pub(crate) fn dependents(&self, uid: &str) -> Vec<(TableId, Key)> {
        self.owned.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Writes an object and notifies watches.
    pub(crate) fn put(&mut self, id: TableId, mut value: Value) -> Arc<Object> {
        self.version += 1;
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let key = Key::of(&value);
        let resource = Arc::clone(&self.tables[id.0].resource);
        let new = Arc::new(Object::new(resource, value, self.version));
        let before = self.tables[id.0].objects.insert(key.clone(), Arc::clone(&new));
        if let Some(old) = &before {
            self.unindex(id, &key, &old.value);
        }
        self.index(id, &key, &new.value);
        let change = if before.is_some() { Change::Modified } else { Change::Added };
        self.record_event(id, change, Arc::clone(&new), before);
        new
    }

    /// Deletes an object and notifies watches. Returns its last state.
    pub(crate) fn remove(&mut self, id: TableId, key: &Key) -> Option<Arc<Object>> {
        let before = self.tables[id.0].objects.remove(key)?;
        self.version += 1;
        self.unindex(id, key, &before.value);
        let mut value = before.value.clone();
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let last = Arc::new(Object::new(Arc::clone(&before.resource), value, self.version));
        if last.resource.group.is_empty() && last.resource.plural == "pods" {
            self.deleted_pods.push(Arc::clone(&last));
        }
        self.record_event(id, Change::Deleted, Arc::clone(&last), Some(before));
        Some(last)
    }

    fn index(&mut self, id: TableId, key: &Key, value: &Value) {
        self.locations.insert(object::uid(value).to_owned(), (id, key.clone()));
        for owner in object::owners(value).filter_map(|owner| owner["uid"].as_str()) {
            self.owned.entry(owner.to_owned()).or_default().insert((id, key.clone()));
        }
    }

    fn unindex(&mut self, id: TableId, key: &Key, value: &Value) {
        self.locations.remove(object::uid(value));
        for owner in object::owners(value).filter_map(|owner| owner["uid"].as_str()) {
            if let Some(locations) = self.owned.get_mut(owner) {
                locations.remove(&(id, key.clone()));
                if locations.is_empty() {
                    self.owned.remove(owner);
                }
            }
        }
    }

    fn record_event(
        &mut self,
        id: TableId,
        change: Change,
        object: Arc<Object>,
        before: Option<Arc<Object>>,
    ) {
        let version = self.version;
        let table = &mut self.tables[id.0];
        let line = OnceLock::new();
        table.events.push_back(Arc::new(Event { change, version, object, before, line }));
        while table.events.len() > self.history {
            if let Some(event) = table.events.pop_front() {
                table.dropped = event.version;
                table.forgotten = table.forgotten.max(event.version);
            }
        }
        table.changed.send_replace(version);
    }

    /// Drops all history, as a compaction does. The version increases, so that every version seen so far
    /// is expired.
    pub(crate) fn compact(&mut self) {
        self.version += 1;
        for table in &mut self.tables {
            if let Some(last) = table.events.back() {
                table.dropped = last.version;
            }
            table.events.clear();
            table.forgotten = self.version;
            table.changed.send_replace(self.version);
        }
    }

    /// Notifies of changes of a table.
    pub(crate) fn subscribe(&self, id: TableId) -> watch::Receiver<u64> {
        self.tables[id.0].changed.subscribe()
    }

    /// Whether a watch can start from a version.
    pub(crate) fn check_start(&self, id: TableId, version: u64) -> Result<(), Failure> {
        let forgotten = self.tables[id.0].forgotten;
        if version < forgotten { Err(Failure::too_old(version, forgotten)) } else { Ok(()) }
    }

    /// Events of a table after a version, at most `limit`; an error if some of them were dropped.
    pub(crate) fn events_after(
        &self,
        id: TableId,
        version: u64,
        limit: usize,
    ) -> Result<Vec<Arc<Event>>, Failure> {
        let table = &self.tables[id.0];
        if version < table.dropped {
            return Err(Failure::too_old(version, table.forgotten));
        }
        let start = table.events.partition_point(|event| event.version <= version);
        Ok(table.events.iter().skip(start).take(limit).cloned().collect())
    }

    /// The table at a version: the current objects with all later changes undone.
    pub(crate) fn state_at(&self, id: TableId, version: u64) -> Result<Vec<Arc<Object>>, Failure> {
        let table = &self.tables[id.0];
        self.check_start(id, version)?;
        let later = self.events_after(id, version, usize::MAX)?;
        if later.is_empty() {
            return Ok(table.objects.values().cloned().collect());
        }
        let mut objects = table.objects.clone();
        for event in later.iter().rev() {
            match &event.before {
                Some(before) => objects.insert(event.object.key(), Arc::clone(before)),
                None => objects.remove(&event.object.key()),
            };
        }
        Ok(objects.into_values().collect())
    }

    /// Deletes everything in a table, and notifies watches.
    pub(crate) fn clear(&mut self, id: TableId) {
        let keys: Vec<Key> = self.tables[id.0].objects.keys().cloned().collect();
        for key in keys {
            self.remove(id, &key);
        }
    }
}
