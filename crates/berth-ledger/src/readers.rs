//! Connections for reads: kept for the next read, and never more than a fixed number.
//!
//! A read that finds none waits, for as long as a write would be retried. It decides nothing and never
//! looks into the database itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::database::Database;
use crate::error::{Fault, LedgerError};
use crate::transaction::tick;

/// Most connections for reads. Exports and snapshots have connections of their own.
pub const READERS_MAX: usize = 32;

/// Most reads for callers that may be under way or wait for a thread or a connection; further ones are
/// refused.
pub const READS_MAX: usize = 4096;

/// The connections.
#[derive(Default)]
pub(crate) struct ReaderPool {
    state: Mutex<PoolState>,
    returned: Condvar,
    /// Reads for callers that are under way or wait.
    reads: AtomicUsize,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<Box<dyn Database>>,
    /// Connections that are used or idle.
    open: usize,
}

/// The right to one connection; another read may have it when this is dropped.
pub(crate) struct ReaderSlot<'a> {
    pool: &'a ReaderPool,
    /// A connection that was used before, if there was one.
    connection: Option<Box<dyn Database>>,
}

impl ReaderPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that are open, and reads for callers that are under way or wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.lock().open, self.reads.load(Ordering::Relaxed))
    }

    /// Counts a read for a caller.
    ///
    /// # Errors
    /// When too many are under way or wait.
    pub(crate) fn begin_read(&self) -> Result<(), LedgerError> {
        let waiting = self.reads.fetch_add(1, Ordering::Relaxed);
        if waiting < READS_MAX {
            return Ok(());
        }
        self.end_read();
        Err(LedgerError::Overloaded { what: "reads", waiting })
    }

    /// Counts a read that is over, or was given up.
    pub(crate) fn end_read(&self) {
        self.reads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits for the right to a connection.
    ///
    /// # Errors
    /// When none becomes free in time.
    pub(crate) fn acquire(&self, patience: Duration) -> Result<ReaderSlot<'_>, LedgerError> {
        let mut state = self.lock();
        let began = tick();
        while state.idle.is_empty() && state.open >= READERS_MAX {
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                let waiting = self.reads.load(Ordering::Relaxed);
                return Err(LedgerError::Overloaded { what: "reads", waiting });
            }
            let woken = self.returned.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let connection = state.idle.pop();
        state.open += usize::from(connection.is_none());
        Ok(ReaderSlot { pool: self, connection })
    }
}

impl ReaderSlot<'_> {
    /// The connection; if there is none yet, it is opened.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn take(
        &mut self,
        open: impl FnOnce() -> Result<Box<dyn Database>, LedgerError>,
    ) -> Result<Box<dyn Database>, LedgerError> {
        self.connection.take().map_or_else(open, Ok)
    }

    /// Keeps a connection that works for the next read.
    pub(crate) fn keep(mut self, connection: Box<dyn Database>) {
        self.connection = Some(connection);
    }
}

impl Drop for ReaderSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.connection.take() {
            Some(connection) => state.idle.push(connection),
            // It is broken, or was never opened.
            None => state.open -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}

/// Attempts at one read.
const ATTEMPTS_MAX: u32 = 20;

/// Reads, and retries while the database is away, until the budget is used up. The database has as long to
/// answer a statement, so a read takes about twice the budget at worst.
pub(crate) fn read_with_retries<T>(
    tables: &mut dyn Database,
    budget: Duration,
    mut read: impl FnMut(&mut dyn Database) -> Result<T, Fault>,
) -> Result<T, LedgerError> {
    let (mut tries, began) = (0, tick());
    loop {
        let fault = match read(tables) {
            Ok(found) => return Ok(found),
            Err(fault) => fault,
        };
        tables.rollback();
        tries += 1;
        let is_last = tries >= ATTEMPTS_MAX || began.elapsed() >= budget;
        match fault {
            Fault::Disconnected(_) if !is_last => {
                std::thread::sleep(Duration::from_millis(10) * tries);
                // If it fails, so does the next attempt.
                let _ = tables.reconnect();
            }
            Fault::Retry(_) if !is_last => {}
            fault => return Err(fault.into_error(tries)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beyond_the_connections_wait_for_one_that_is_returned() {
        let pool = ReaderPool::default();
        let mut slots: Vec<_> =
            (0..READERS_MAX).map(|_| pool.acquire(Duration::ZERO)).filter_map(Result::ok).collect();
        assert_eq!((slots.len(), pool.counts().0), (READERS_MAX, READERS_MAX));
        let refused = pool.acquire(Duration::ZERO).err();
        assert!(matches!(refused, Some(LedgerError::Overloaded { what: "reads", .. })));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.acquire(Duration::from_secs(120)).is_ok());
            slots.pop();
            assert!(waiting.join().unwrap_or(false), "it gets the one that was returned");
        });
        drop(slots);
        assert_eq!(pool.counts().0, 0, "none of them was opened, so none is kept");
    }

    #[test]
    fn reads_for_callers_beyond_the_limit_are_refused_until_others_end() {
        let pool = ReaderPool::default();
        assert!((0..READS_MAX).all(|_| pool.begin_read().is_ok()));
        let refused = pool.begin_read();
        assert!(matches!(refused, Err(LedgerError::Overloaded { waiting: READS_MAX, .. })));
        pool.end_read();
        assert!(pool.begin_read().is_ok());
    }
}
