//! How the ledger's threads and connections are doing: whether the database takes commits, and whether
//! what runs in the background works. Nothing here repairs anything.

use std::time::Duration;

use crate::ledger::Ledger;
use crate::writer::ProbeReply;

impl Ledger {
    /// The longest time that the database has not answered a writer: since the writer began its present
    /// transaction, or one that failed and was followed by no commit.
    #[must_use]
    pub fn writer_unanswered_for(&self) -> Option<Duration> {
        self.queues().iter().filter_map(|queue| queue.unanswered_for()).max()
    }

    /// Says whether the database takes commits. If anything was committed within this time, it is
    /// answered at once; otherwise a writer that has nothing to do commits something that leaves nothing.
    pub fn probe_write(&self, within: Duration, reply: ProbeReply) {
        let has_committed = self.queues().iter().any(|queue| queue.has_committed_within(within));
        match self.queues().first() {
            Some(queue) if !has_committed => queue.probe(reply),
            Some(_) | None => reply(Ok(())),
        }
    }

    /// The length of SQLite's write-ahead log after the last commit, in bytes; 0 on PostgreSQL.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.log().bytes()
    }

    /// How many times SQLite's write-ahead log was copied into the database.
    #[must_use]
    pub fn log_copies(&self) -> u64 {
        self.log().copies()
    }

    /// How many attempts at that failed.
    #[must_use]
    pub fn log_copy_failures(&self) -> u64 {
        self.log().failures()
    }

    /// Whether SQLite's write-ahead log can be copied, as far as the last attempt shows; absent on PostgreSQL.
    #[must_use]
    pub fn is_log_copied(&self) -> Option<bool> {
        (self.database() == "sqlite").then(|| !self.log().is_failing())
    }

    /// Whether hints are exchanged with other servers at this moment; absent if they are not to be.
    #[must_use]
    pub fn are_hints_exchanged(&self) -> Option<bool> {
        self.hints().map(|hints| hints.is_connected())
    }

    /// How many times the connection for hints was lost or could not be opened.
    #[must_use]
    pub fn hint_failures(&self) -> u64 {
        self.hints().map_or(0, |hints| hints.failures())
    }
}
