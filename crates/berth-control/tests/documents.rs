//! Caches of documents follow the ledger, also when a read fails or the log was cut in between.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use berth_control::documents::{
    CHANGES_MAX, CacheableDocument, DocumentCache, DocumentChange, DocumentFollower, change_queue,
    sync,
};
use berth_control::supervision::{Supervisor, ThreadMonitor, ThreadWork};
use berth_ledger::{Backend, Expect, Ledger, LedgerError, Op, Options, Text};
use tokio_util::sync::CancellationToken;

const KIND: &str = "note";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Note(String);

impl CacheableDocument for Note {
    const KIND: &'static str = KIND;

    fn decode(_: &str, body: &str) -> serde_json::Result<Option<Self>> {
        serde_json::from_str(body).map(|text| Some(Self(text)))
    }
}

type Notes = DocumentCache<Note>;

/// A cache whose first reads fail, as when the database is away for a moment.
struct FailsAtFirst {
    notes: Arc<Notes>,
    failures: AtomicU32,
}

impl FailsAtFirst {
    fn fail(&self) -> Result<(), LedgerError> {
        let count = |left: u32| left.checked_sub(1);
        match self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Ok(_) => Err(LedgerError::Unreachable("the test says so".into())),
            Err(_) => Ok(()),
        }
    }
}

impl DocumentFollower for FailsAtFirst {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn refresh(&self, ledger: &Ledger, id: &str) -> Result<(), LedgerError> {
        self.fail()?;
        self.notes.refresh(ledger, id)
    }

    fn refresh_all(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        self.fail()?;
        self.notes.refresh_all(ledger)
    }
}

fn monitor() -> ThreadMonitor {
    Arc::<Supervisor>::default().monitor("documents", ThreadWork::ReadsDatabase, None)
}

fn open(folder: &tempfile::TempDir) -> Ledger {
    Ledger::open(Backend::Sqlite(folder.path().join("ledger.db")), Options::default()).unwrap()
}

fn store(ledger: &Ledger, id: &str, text: &str) {
    let (kind, id, body) = (Text::from(KIND), Text::from(id), serde_json::to_string(text).unwrap());
    ledger.administer(Op::PutDocument { kind, id, body, expect: Expect::Any }).unwrap();
}

fn remove(ledger: &Ledger, id: &str) {
    let (kind, id) = (Text::from(KIND), Text::from(id));
    ledger.administer(Op::RemoveDocument { kind, id, expect: Expect::Any }).unwrap();
}

fn known(notes: &Notes, id: &str) -> Option<String> {
    notes.get(id).map(|note| note.value.0.clone())
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1200 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("after a minute, it is still not so that {what}");
}

#[tokio::test]
async fn a_document_whose_read_failed_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder);
    let notes = Arc::new(Notes::default());
    let failing = FailsAtFirst { notes: Arc::clone(&notes), failures: AtomicU32::new(3) };
    let (sender, changes) = change_queue();
    let stop = CancellationToken::new();
    let followers: Vec<Arc<dyn DocumentFollower>> = vec![Arc::new(failing)];
    let task =
        tokio::spawn(sync(ledger.clone(), followers, changes, |_| {}, stop.clone(), monitor()));
    store(&ledger, "a", "revoked");
    sender.send(DocumentChange::Changed(Text::from(KIND), Text::from("a")));
    eventually("the note is known", || known(&notes, "a").is_some()).await;
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn after_a_reload_of_the_replica_everything_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder);
    store(&ledger, "changed", "old");
    store(&ledger, "removed", "old");
    let notes = Arc::new(Notes::default());
    notes.refresh_all(&ledger).unwrap();
    let (sender, changes) = change_queue();
    let stop = CancellationToken::new();
    let followers: Vec<Arc<dyn DocumentFollower>> = vec![Arc::clone(&notes) as _];
    let task =
        tokio::spawn(sync(ledger.clone(), followers, changes, |_| {}, stop.clone(), monitor()));
    // Nothing is said of these changes: the log was cut before it was followed.
    store(&ledger, "changed", "new");
    remove(&ledger, "removed");
    store(&ledger, "made", "new");
    sender.send(DocumentChange::Reloaded);
    eventually("all changes are known", || {
        known(&notes, "changed").as_deref() == Some("new")
            && known(&notes, "removed").is_none()
            && known(&notes, "made").is_some()
    })
    .await;
    stop.cancel();
    task.await.unwrap();
}

/// What is known once a change of one document was read that came after so many of others, if nothing was
/// said of another document.
async fn unannounced_is_known_after(others: usize) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder);
    store(&ledger, "unannounced", "new");
    store(&ledger, "last", "new");
    let notes = Arc::new(Notes::default());
    let (sender, changes) = change_queue();
    for number in 0..others {
        let id = Text::from(format!("other-{number}"));
        sender.send(DocumentChange::Changed(Text::from("another kind"), id));
    }
    sender.send(DocumentChange::Changed(Text::from(KIND), Text::from("last")));
    let followers: Vec<Arc<dyn DocumentFollower>> = vec![Arc::clone(&notes) as _];
    let stop = CancellationToken::new();
    let task = tokio::spawn(sync(ledger, followers, changes, |_| {}, stop.clone(), monitor()));
    eventually("the last change was read", || known(&notes, "last").is_some()).await;
    stop.cancel();
    task.await.unwrap();
    known(&notes, "unannounced").is_some()
}

#[tokio::test]
async fn when_too_many_changes_wait_everything_is_read_again() {
    assert!(!unannounced_is_known_after(CHANGES_MAX - 1).await, "each is read by itself");
    assert!(unannounced_is_known_after(CHANGES_MAX).await);
}

#[test]
fn a_document_that_was_removed_and_stored_again_replaces_a_later_revision() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder);
    let notes = Notes::default();
    store(&ledger, "a", "first");
    store(&ledger, "a", "second");
    notes.refresh(&ledger, "a").unwrap();
    remove(&ledger, "a");
    store(&ledger, "a", "again");
    // One read for both changes, as when they come close together.
    notes.refresh(&ledger, "a").unwrap();
    assert_eq!(known(&notes, "a").as_deref(), Some("again"));
}

#[test]
fn an_own_write_never_replaces_a_later_revision_of_another_server() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder);
    let notes = Notes::default();
    store(&ledger, "a", "ours");
    store(&ledger, "a", "theirs");
    notes.refresh(&ledger, "a").unwrap();
    notes.put("a", Note("ours".to_owned()), 1);
    assert_eq!(known(&notes, "a").as_deref(), Some("theirs"));
}

#[test]
fn a_document_that_cannot_be_decoded_is_as_if_it_were_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder);
    let notes = Notes::default();
    store(&ledger, "a", "good");
    notes.refresh(&ledger, "a").unwrap();
    let (kind, id, body) = (Text::from(KIND), Text::from("a"), "{\"not\": \"a note\"}".to_owned());
    ledger.administer(Op::PutDocument { kind, id, body, expect: Expect::Any }).unwrap();
    notes.refresh(&ledger, "a").unwrap();
    assert_eq!(known(&notes, "a"), None);
}
