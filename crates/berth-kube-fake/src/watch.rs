//! Watches: every change after a version, in order, until the client disconnects, the timeout expires or
//! the history is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::api::Api;
use crate::failure::Failure;
use crate::list::ListQuery;
use crate::object::Object;
use crate::resource::Resource;
use crate::selector::Selection;
use crate::store::{Change, Event, TableId, line};
use crate::view;

/// Events read from the store at once.
const BATCH: usize = 512;

/// Chunks that may wait for a slow reader.
const WAITING: usize = 8;

/// The connection is to be cut without a proper end.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut, as the test asked for")]
pub(crate) struct ConnectionCut;

/// Chunks of a watch.
pub(crate) type Chunks = mpsc::Receiver<Result<Bytes, ConnectionCut>>;

/// An error within a watch that has started.
pub(crate) fn error_line(failure: &Failure) -> Bytes {
    let line = json!({ "type": "ERROR", "object": failure.status() });
    Bytes::from(format!("{line}\n"))
}

fn bookmark(resource: &Resource, version: u64, end_of_initial: bool) -> Bytes {
    let mut object = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": { "resourceVersion": version.to_string(), "creationTimestamp": null },
    });
    if resource.kind == "Pod" {
        // The real server encodes an empty pod like this; clients must use only the version.
        object["spec"] = json!({ "containers": null });
        object["status"] = json!({});
    }
    if end_of_initial {
        object["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    let line: Value = json!({ "type": "BOOKMARK", "object": object });
    Bytes::from(format!("{line}\n"))
}

/// A line of a watch, with the whole object or its metadata.
fn watch_line(change: Change, object: &Object, metadata_only: bool) -> Bytes {
    if metadata_only { line(change, &view::metadata(object)) } else { line(change, object) }
}

/// The line for an event under a selection; `None` if it does not match. An object that leaves the
/// selection is deleted for this client, one that enters it is added.
fn event_line(
    resource: &Arc<Resource>,
    selection: &Selection,
    event: &Event,
    metadata_only: bool,
) -> Option<Bytes> {
    let object = view::as_resource(resource, &event.object);
    let before = event.before.as_ref().map(|before| view::as_resource(resource, before));
    let is = event.change != Change::Deleted && selection.matches(&object.value);
    let was = before.as_ref().is_some_and(|before| selection.matches(&before.value));
    let change = match (was, is) {
        (false, false) => return None,
        (false, true) => Change::Added,
        (true, true) => Change::Modified,
        (true, false) => Change::Deleted,
    };
    if change == Change::Deleted && event.change != Change::Deleted {
        // The client gets the last state that matched, at the version of the change.
        let mut last = before?.value.clone();
        last["metadata"]["resourceVersion"] = json!(event.version.to_string());
        let last = Object::new(Arc::clone(resource), last, event.version);
        return Some(watch_line(change, &last, metadata_only));
    }
    if resource.view_of.is_none() && change == event.change && !metadata_only {
        return Some(event.line());
    }
    Some(watch_line(change, &object, metadata_only))
}

struct Watcher {
    api: Arc<Api>,
    id: TableId,
    resource: Arc<Resource>,
    selection: Selection,
    bookmarks: bool,
    metadata_only: bool,
    seen: u64,
    out: mpsc::Sender<Result<Bytes, ConnectionCut>>,
}

impl Api {
    /// Starts a watch; rejects it at once if it cannot start.
    pub(crate) fn watch(
        self: &Arc<Self>,
        id: TableId,
        query: &ListQuery,
    ) -> Result<Chunks, Failure> {
        query.check()?;
        let version = query.version()?;
        let (out, chunks) = mpsc::channel(WAITING);
        let (home, current, too_old) = {
            let store = self.store();
            let home = store.backing_table(id);
            (home, store.version(), store.check_start(home, version.unwrap_or(u64::MAX)).err())
        };
        let mut watcher = Watcher {
            api: Arc::clone(self),
            id: home,
            resource: self.resource(id),
            selection: query.selection.clone(),
            bookmarks: query.bookmarks,
            metadata_only: query.metadata_only,
            seen: version.unwrap_or(0),
            out,
        };
        let initial = match query.initial_events {
            Some(requested) => requested,
            None => version.unwrap_or(0) == 0,
        };
        if query.initial_events == Some(true) && version.unwrap_or(0) > current {
            return Err(Failure::too_large_version(version.unwrap_or(0), current));
        }
        let too_old = too_old.filter(|_| !initial && version.unwrap_or(0) > 0);
        if let Some(failure) = too_old {
            if self.options.plain_gone {
                return Err(failure);
            }
            // A watch that was accepted gets its errors within the stream.
            let _ = watcher.out.try_send(Ok(error_line(&failure)));
            return Ok(chunks);
        }
        let mut first = Vec::new();
        if initial {
            first = watcher.initial();
            if query.initial_events == Some(true) && query.bookmarks {
                first.push(bookmark(watcher.kind(), watcher.seen, true));
            }
        } else if version.unwrap_or(0) == 0 {
            watcher.seen = current;
        }
        let timeout = query.timeout_s.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = watcher.run(first, timeout) => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(chunks)
    }
}

impl Watcher {
    /// The kind of this watch.
    fn kind(&self) -> &Resource {
        if self.metadata_only { view::metadata_kind() } else { &self.resource }
    }

    /// Sends all existing objects as if they had just been added.
    fn initial(&mut self) -> Vec<Bytes> {
        let objects: Vec<Arc<Object>> = {
            let store = self.api.store();
            self.seen = store.version();
            let namespace = self.selection.namespace.as_deref();
            store.iter(self.id, namespace).map(|(_, object)| Arc::clone(object)).collect()
        };
        let mut lines = Vec::new();
        for object in objects {
            let object = view::as_resource(&self.resource, &object);
            if self.selection.matches(&object.value) {
                lines.push(watch_line(Change::Added, &object, self.metadata_only));
            }
        }
        lines
    }

    async fn send(&self, lines: Vec<Bytes>) -> bool {
        for chunk in join_lines(lines) {
            if self.out.send(Ok(chunk)).await.is_err() {
                return false;
            }
        }
        true
    }

    async fn run(mut self, first: Vec<Bytes>, timeout: Option<Duration>) {
        if !self.send(first).await {
            return;
        }
        let started = Instant::now();
        let end = timeout.map(|timeout| started + timeout);
        let every = self.api.options.bookmark_every;
        let mut next_bookmark = every.map(|every| started + every);
        let cut = crate::store::lock(&self.api.faults).drop_watches_every;
        // Jitter: between half and one and a half of the time.
        let cut = cut.map(|every| started + every / 2 + every * fastrand::u32(..1000) / 1000);
        let mut changed = self.api.store().subscribe(self.id);
        let mut down = self.api.down.subscribe();
        let mut silence = self.api.silence.subscribe();
        loop {
            if silence.has_changed().unwrap_or(false) {
                self.out.closed().await;
                return;
            }
            match self.next_lines() {
                Ok(Some(lines)) => {
                    let delay = crate::store::lock(&self.api.faults).watch_delay;
                    if let Some(delay) = delay {
                        tokio::time::sleep(delay).await;
                    }
                    if !self.send(lines).await {
                        return;
                    }
                    continue;
                }
                Ok(None) => {}
                Err(failure) => {
                    let _ = self.out.send(Ok(error_line(&failure))).await;
                    return;
                }
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = silence.changed() => {
                    self.out.closed().await;
                    return;
                }
                () = at(next_bookmark) => {
                    next_bookmark = every.map(|every| Instant::now() + every);
                    if self.bookmarks && !self.send_bookmark().await {
                        return;
                    }
                }
                () = is_down(&mut down) => {
                    let _ = self.out.send(Err(ConnectionCut)).await;
                    return;
                }
                () = at(cut) => {
                    let _ = self.out.send(Err(ConnectionCut)).await;
                    return;
                }
                () = at(end) => {
                    if self.bookmarks {
                        self.send_bookmark().await;
                    }
                    return;
                }
                () = self.out.closed() => return,
            }
        }
    }

    /// The next lines; empty if there is nothing new.
    fn next_lines(&mut self) -> Result<Option<Vec<Bytes>>, Failure> {
        let events = {
            let store = self.api.store();
            store.events_after(self.id, self.seen, BATCH)?
        };
        let Some(last) = events.last() else { return Ok(None) };
        self.seen = last.version;
        let event_line = |event: &Arc<Event>| {
            event_line(&self.resource, &self.selection, event, self.metadata_only)
        };
        Ok(Some(events.iter().filter_map(event_line).collect()))
    }

    /// Sends a bookmark, if all events up to now are sent.
    async fn send_bookmark(&mut self) -> bool {
        let version = {
            let store = self.api.store();
            match store.events_after(self.id, self.seen, 1) {
                Ok(events) if events.is_empty() => store.version().max(self.seen),
                _ => return true,
            }
        };
        self.seen = version;
        self.send(vec![bookmark(self.kind(), version, false)]).await
    }
}

/// Waits until connections are to be refused.
async fn is_down(down: &mut watch::Receiver<bool>) {
    if down.wait_for(|down| *down).await.is_err() {
        std::future::pending().await
    }
}

/// Waits until a point in time, or forever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Joins lines to chunks of a reasonable size.
fn join_lines(lines: Vec<Bytes>) -> Vec<Bytes> {
    const CHUNK_BYTES: usize = 64 * 1024;
    if lines.len() <= 1 {
        return lines;
    }
    let mut chunks = Vec::new();
    let mut chunk = bytes::BytesMut::new();
    for line in lines {
        chunk.extend_from_slice(&line);
        if chunk.len() >= CHUNK_BYTES {
            chunks.push(std::mem::take(&mut chunk).freeze());
        }
    }
    if !chunk.is_empty() {
        chunks.push(chunk.freeze());
    }
    chunks
}
