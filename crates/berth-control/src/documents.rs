//! Documents of the ledger, cached in memory and kept current.
//!
//! Tokens, tickets, drains, moves, migrations, scheduling states and crash histories are documents
//! that every server must know and any server may change. Each kind has one [`DocumentCache`];
//! [`sync`] follows the change feed and reads again whatever changed, retries reads that failed, and
//! reads everything again after the fleet replica was reloaded, since changes in between were not
//! followed.
//!
//! A cache never goes back to an older state, and a document that cannot be decoded is treated as
//! absent: a token that cannot be read must not keep working.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use berth_ledger::{Ledger, LedgerError, Text};
use rustc_hash::FxHashSet;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::supervision::ThreadMonitor;

/// Documents read at once when all of a kind are loaded.
const PAGE: usize = 1000;

/// How long to wait before failed reads are tried again: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(5);

/// What can be cached.
pub trait CacheableDocument: Sized + Send + Sync + 'static {
    /// The kind of document that it is stored as.
    const KIND: &'static str;

    /// Decodes a stored document; absent when the document is no such object.
    ///
    /// # Errors
    /// When the body cannot be decoded.
    fn decode(id: &str, body: &str) -> serde_json::Result<Option<Self>>;
}

/// Follows inserted and removed documents, to find them by other things than their id.
pub trait DocumentIndex<T>: Default + Send + Sync + 'static {
    /// A document was inserted in place of an earlier revision, if there was one.
    fn insert(&mut self, id: &str, value: &T, previous: Option<&T>);

    /// A document was removed.
    fn remove(&mut self, id: &str, value: &T);
}

impl<T> DocumentIndex<T> for () {
    fn insert(&mut self, _: &str, _: &T, _: Option<&T>) {}
    fn remove(&mut self, _: &str, _: &T) {}
}

/// A document as last read, with the revision that a change must name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// What is stored.
    pub value: T,
    /// The revision of the document.
    pub revision: i64,
}

/// What a cache holds: the documents in order of id, and an index over them.
pub struct CacheContents<T, I = ()> {
    /// The documents, by id.
    pub documents: BTreeMap<String, Arc<Versioned<T>>>,
    /// How else they are found.
    pub index: I,
    /// Documents that this server wrote or removed while a read was under way: what was read may be
    /// older, and the feed brings the newer state.
    written: FxHashSet<String>,
    is_reading: bool,
}

/// All documents of one kind.
pub struct DocumentCache<T, I = ()> {
    contents: RwLock<CacheContents<T, I>>,
    /// Held while the ledger is read, so that the last read is the last one applied.
    reading: Mutex<()>,
    /// Rises with every change.
    changes: watch::Sender<u64>,
}

impl<T, I: Default> Default for DocumentCache<T, I> {
    fn default() -> Self {
        let (documents, index, written) = (BTreeMap::new(), I::default(), FxHashSet::default());
        let contents = CacheContents { documents, index, written, is_reading: false };
        let (contents, reading) = (RwLock::new(contents), Mutex::new(()));
        Self { contents, reading, changes: watch::Sender::new(0) }
    }
}

impl<T: CacheableDocument, I: DocumentIndex<T>> DocumentCache<T, I> {
    /// The documents as of now. Hold it briefly: nothing is updated meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, CacheContents<T, I>> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, CacheContents<T, I>> {
        self.contents.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// One document.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Arc<Versioned<T>>> {
        self.read().documents.get(id).cloned()
    }

    /// All documents, in order of id.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Arc<Versioned<T>>)> {
        let contents = self.read();
        contents.documents.iter().map(|(id, it)| (id.clone(), Arc::clone(it))).collect()
    }

    /// Changes whenever a document does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Has everyone who waits for changes look again.
    pub fn notify(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    /// Records a document that this server just stored. Older revisions than the known one change
    /// nothing.
    pub fn put(&self, id: &str, value: T, revision: i64) {
        self.write().put(id, value, revision, true);
        self.notify();
    }

    /// Records that this server just removed a document.
    pub fn remove(&self, id: &str) {
        self.write().remove(id, true);
        self.notify();
    }

    /// Changes what is known of a document here without storing it, and without a notification.
    pub fn modify(&self, id: &str, change: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        if let Some(known) = self.write().documents.get_mut(id) {
            change(&mut Arc::make_mut(known).value);
        }
    }

    /// Reads one document again.
    ///
    /// # Errors
    /// When the ledger cannot be read; what is known stays until then.
    pub fn refresh(&self, ledger: &Ledger, id: &str) -> Result<(), LedgerError> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.write().is_reading = true;
        let found = ledger.document(T::KIND, id);
        let mut contents = self.write();
        let written = contents.end_read();
        match found? {
            _ if written.contains(id) => {}
            Some(document) => contents.apply(id, T::decode(id, &document.body), document.rev),
            None => contents.remove(id, false),
        }
        drop(contents);
        self.notify();
        Ok(())
    }

    /// Reads all documents again.
    ///
    /// # Errors
    /// When the ledger cannot be read; what is known stays until then.
    pub fn refresh_all(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.write().is_reading = true;
        let found = read_all::<T>(ledger);
        let mut contents = self.write();
        let known: Vec<String> = contents.documents.keys().cloned().collect();
        let written = contents.end_read();
        let found = found?;
        let found_ids: FxHashSet<&str> = found.iter().map(|(id, _, _)| id.as_str()).collect();
        for id in known.iter().filter(|id| !found_ids.contains(id.as_str())) {
            if !written.contains(id) {
                contents.remove(id, false);
            }
        }
        drop(found_ids);
        for (id, decoded, revision) in found {
            if !written.contains(&id) {
                contents.apply(&id, decoded, revision);
            }
        }
        drop(contents);
        self.notify();
        Ok(())
    }
}

/// A document as read: its id, its content or why it has none, and its revision.
type DecodedDocument<T> = (String, serde_json::Result<Option<T>>, i64);

/// Reads all documents. They are decoded page by page, so that the bodies of all of them are never in
/// memory together.
fn read_all<T: CacheableDocument>(ledger: &Ledger) -> Result<Vec<DecodedDocument<T>>, LedgerError> {
    let mut found = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = ledger.documents(T::KIND, after.as_deref(), PAGE)?;
        let Some(last) = page.last() else { return Ok(found) };
        after = Some(last.id.to_string());
        found.extend(page.into_iter().map(|document| {
            let decoded = T::decode(&document.id, &document.body);
            (document.id.to_string(), decoded, document.rev)
        }));
    }
}

impl<T: CacheableDocument, I: DocumentIndex<T>> CacheContents<T, I> {
    /// Ends a read. Returns what this server changed meanwhile.
    fn end_read(&mut self) -> FxHashSet<String> {
        self.is_reading = false;
        std::mem::take(&mut self.written)
    }

    fn apply(&mut self, id: &str, decoded: serde_json::Result<Option<T>>, revision: i64) {
        match decoded {
            Ok(Some(value)) => self.put(id, value, revision, false),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, kind = T::KIND, id, "failed to decode stored document");
                self.remove(id, false);
            }
        }
    }

    fn put(&mut self, id: &str, value: T, revision: i64, is_own: bool) {
        self.note_own(id, is_own);
        let previous = self.documents.get(id);
        // What this server stored may have been changed by another, and read, before it is recorded
        // here. Reads come one after the other and are never older than what they replace, while a
        // document that was removed and stored again starts over at a low revision.
        if is_own && previous.is_some_and(|known| known.revision > revision) {
            return;
        }
        let previous = previous.cloned();
        self.index.insert(id, &value, previous.as_deref().map(|known| &known.value));
        self.documents.insert(id.to_owned(), Arc::new(Versioned { value, revision }));
    }

    fn remove(&mut self, id: &str, is_own: bool) {
        self.note_own(id, is_own);
        if let Some(known) = self.documents.remove(id) {
            self.index.remove(id, &known.value);
        }
    }

    fn note_own(&mut self, id: &str, is_own: bool) {
        if is_own && self.is_reading {
            self.written.insert(id.to_owned());
        }
    }
}

/// A cache that [`sync`] keeps current.
pub trait DocumentFollower: Send + Sync {
    /// The kind of document that it follows.
    fn kind(&self) -> &'static str;

    /// Reads one document again.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    fn refresh(&self, ledger: &Ledger, id: &str) -> Result<(), LedgerError>;

    /// Reads all documents again.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    fn refresh_all(&self, ledger: &Ledger) -> Result<(), LedgerError>;
}

impl<T: CacheableDocument, I: DocumentIndex<T>> DocumentFollower for DocumentCache<T, I> {
    fn kind(&self) -> &'static str {
        T::KIND
    }

    fn refresh(&self, ledger: &Ledger, id: &str) -> Result<(), LedgerError> {
        DocumentCache::refresh(self, ledger, id)
    }

    fn refresh_all(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        DocumentCache::refresh_all(self, ledger)
    }
}

/// What the change feed says of documents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DocumentChange {
    /// The fleet replica was loaded again: any document may have changed.
    Reloaded,
    /// A document of this kind and id was stored or removed.
    Changed(Text, Text),
}

/// Documents that may have to be read; beyond it, all are.
pub const CHANGES_MAX: usize = 10_000;

/// Changes that were not read yet, for [`sync`].
#[derive(Default)]
struct ChangeQueue {
    pending: Mutex<PendingChanges>,
    arrived: Notify,
    closed: AtomicBool,
}

impl ChangeQueue {
    fn lock(&self) -> MutexGuard<'_, PendingChanges> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends changes to [`sync`], and never waits.
pub struct ChangeSender(Arc<ChangeQueue>);

/// What [`sync`] reads changes from.
pub struct ChangeReceiver(Arc<ChangeQueue>);

/// A queue of changes, in which each document is at most once.
#[must_use]
pub fn change_queue() -> (ChangeSender, ChangeReceiver) {
    let queue = Arc::<ChangeQueue>::default();
    (ChangeSender(Arc::clone(&queue)), ChangeReceiver(queue))
}

impl ChangeSender {
    /// Sends a change.
    pub fn send(&self, change: DocumentChange) {
        self.0.lock().push(change);
        self.0.arrived.notify_one();
    }
}

impl Drop for ChangeSender {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.arrived.notify_one();
    }
}

impl ChangeReceiver {
    /// Waits until there are changes. Returns whether there can be any more.
    async fn arrived(&self) -> bool {
        loop {
            if !self.0.lock().changes.is_empty() {
                return true;
            }
            if self.0.closed.load(Ordering::SeqCst) {
                return false;
            }
            self.0.arrived.notified().await;
        }
    }

    fn take(&self) -> Vec<DocumentChange> {
        self.0.lock().take()
    }
}

/// Keeps caches current until the server stops. `applied` runs after each change that was read.
pub async fn sync(
    ledger: Ledger,
    followers: Vec<Arc<dyn DocumentFollower>>,
    changes: ChangeReceiver,
    applied: impl Fn(&DocumentChange) + Send + Sync + 'static,
    stopping: CancellationToken,
    monitor: ThreadMonitor,
) {
    let followers: Arc<[Arc<dyn DocumentFollower>]> = followers.into();
    let applied = Arc::new(applied);
    let mut pending = PendingChanges::default();
    let mut retry_after = RETRY_FIRST;
    loop {
        tokio::select! {
            () = stopping.cancelled() => return monitor.stop(),
            has_changes = changes.arrived() => if !has_changes {
                // The catalogue is gone.
                return;
            },
            () = tokio::time::sleep(retry_after), if !pending.changes.is_empty() => {}
        }
        changes.take().into_iter().for_each(|change| pending.push(change));
        let (work, ledger) = (pending.take(), ledger.clone());
        let (followers, applied) = (Arc::clone(&followers), Arc::clone(&applied));
        let unread = work.clone();
        let read = move || read_changes(&ledger, &followers, work, &*applied);
        let failed = match tokio::task::spawn_blocking(read).await {
            Ok(failed) => failed,
            Err(error) if error.is_panic() => {
                tracing::error!(%error, "reading changed documents panicked; retrying");
                unread
            }
            // The runtime shuts down.
            Err(_) => return monitor.stop(),
        };
        if failed.is_empty() {
            monitor.succeeded();
        } else {
            monitor.failed();
        }
        retry_after = match failed.as_slice() {
            [] => RETRY_FIRST,
            _ => (retry_after * 2).min(RETRY_LONGEST),
        };
        failed.into_iter().for_each(|change| pending.push(change));
    }
}

/// Changes to be read, in the order in which they happened, each once. Too many are one: everything is
/// read again.
#[derive(Default)]
struct PendingChanges {
    changes: Vec<DocumentChange>,
    seen: FxHashSet<DocumentChange>,
}

impl PendingChanges {
    fn push(&mut self, change: DocumentChange) {
        if !self.seen.insert(change.clone()) {
            return;
        }
        if self.changes.len() >= CHANGES_MAX {
            self.take();
            self.seen.insert(DocumentChange::Reloaded);
            self.changes.push(DocumentChange::Reloaded);
        }
        self.changes.push(change);
    }

    fn take(&mut self) -> Vec<DocumentChange> {
        self.seen.clear();
        std::mem::take(&mut self.changes)
    }
}

/// Reads what changed. Returns what must be read again: once a read has failed, nothing that
/// happened after it is read before it, since a document may stand for others that came before.
fn read_changes(
    ledger: &Ledger,
    followers: &[Arc<dyn DocumentFollower>],
    changes: Vec<DocumentChange>,
    applied: &dyn Fn(&DocumentChange),
) -> Vec<DocumentChange> {
    let mut changes = changes.into_iter();
    while let Some(change) = changes.next() {
        match refresh(ledger, followers, &change) {
            Ok(()) => applied(&change),
            Err(error) => {
                tracing::warn!(%error, ?change, "failed to read documents; retrying");
                return std::iter::once(change).chain(changes).collect();
            }
        }
    }
    Vec::new()
}

fn refresh(
    ledger: &Ledger,
    followers: &[Arc<dyn DocumentFollower>],
    change: &DocumentChange,
) -> Result<(), LedgerError> {
    match change {
        DocumentChange::Reloaded => followers.iter().try_for_each(|it| it.refresh_all(ledger)),
        DocumentChange::Changed(kind, id) => followers
            .iter()
            .filter(|follower| follower.kind() == &**kind)
            .try_for_each(|follower| follower.refresh(ledger, id)),
    }
}
