//! Lists that are read from the database (quotas, pools, policies), kept for the time when it does not answer.
//!
//! What is kept is shown with its age. Nothing may be decided by it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_ledger::{Ledger, LedgerError, Pool, QuotaUse, StoredPolicy};
use tokio::time::Instant;

/// All lists of a server.
#[derive(Default)]
pub(crate) struct KeptLists {
    pub(crate) quotas: KeptList<QuotaUse>,
    pub(crate) pools: KeptList<(Pool, i64)>,
    pub(crate) policies: KeptList<StoredPolicy>,
}

/// One list as it was read last.
pub(crate) struct KeptList<T>(Mutex<Option<(Instant, Arc<Vec<T>>)>>);

impl<T> Default for KeptList<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// A list, and how old it is if the database did not answer.
#[derive(Clone, Debug)]
pub struct ListRead<T> {
    /// What is in it.
    pub items: Arc<Vec<T>>,
    /// Absent if it was just read.
    pub age: Option<Duration>,
}

impl<T> KeptList<T> {
    /// Keeps what was just read.
    pub(crate) fn keep(&self, items: Vec<T>) -> ListRead<T> {
        let items = Arc::new(items);
        let read = Some((Instant::now(), Arc::clone(&items)));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = read;
        ListRead { items, age: None }
    }

    /// What was read last, with its age; absent if it never was.
    pub(crate) fn last(&self) -> Option<ListRead<T>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, items) = kept.as_ref()?;
        Some(ListRead { items: Arc::clone(items), age: Some(at.elapsed()) })
    }

    /// Whether it was read within this time.
    fn is_recent(&self, time: Duration) -> bool {
        self.last().and_then(|kept| kept.age).is_some_and(|age| age < time)
    }
}

impl KeptLists {
    /// Reads those that nobody has read for this long.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(crate) fn refresh(&self, ledger: &Ledger, time: Duration) -> Result<(), LedgerError> {
        if !self.quotas.is_recent(time) {
            self.quotas.keep(ledger.quotas()?);
        }
        if !self.pools.is_recent(time) {
            self.pools.keep(ledger.pools()?);
        }
        if !self.policies.is_recent(time) {
            self.policies.keep(ledger.policies()?);
        }
        Ok(())
    }
}
