//! Lists of quotas, pools and policies: from the database, or as they were read last while it does not
//! answer. Decides nothing by them.

use std::sync::Arc;
use std::time::Duration;

use berth_ledger::{Ledger, LedgerError, Pool, QuotaUse, StoredPolicy};

use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::kept_lists::{KeptList, ListRead};
use crate::loop_runner::BackgroundLoop;

/// How long a list may take before the one that is kept is shown.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How old what is kept becomes while the database answers.
const REFRESH_EVERY: Duration = Duration::from_secs(30);

impl ControlPlane {
    /// All tenants with limits, in the order of their names.
    ///
    /// # Errors
    /// When the database does not answer and they were never read.
    pub async fn list_quotas(&self) -> ControlResult<ListRead<QuotaUse>> {
        self.list(&self.kept_lists.quotas, Ledger::quotas).await
    }

    /// All pools, in the order of their ids, each with how many of its values are in use.
    ///
    /// # Errors
    /// As [`ControlPlane::list_quotas`].
    pub async fn list_pools(&self) -> ControlResult<ListRead<(Pool, i64)>> {
        self.list(&self.kept_lists.pools, Ledger::pools).await
    }

    /// All stored policies, in the order of their names.
    ///
    /// # Errors
    /// As [`ControlPlane::list_quotas`].
    pub async fn list_policies(&self) -> ControlResult<ListRead<StoredPolicy>> {
        self.list(&self.kept_lists.policies, Ledger::policies).await
    }

    async fn list<T: Send + 'static>(
        &self,
        kept: &KeptList<T>,
        read: fn(&Ledger) -> Result<Vec<T>, LedgerError>,
    ) -> ControlResult<ListRead<T>> {
        // While the database is known to be away, requests must not pile up on it.
        if self.staleness().is_some()
            && let Some(last) = kept.last()
        {
            return Ok(last);
        }
        let mut reading = std::pin::pin!(self.read(read));
        let found = match tokio::time::timeout(ANSWER_WITHIN, &mut reading).await {
            Ok(found) => found,
            Err(_) => match kept.last() {
                Some(last) => return Ok(last),
                None => reading.await,
            },
        };
        match found {
            Ok(items) => Ok(kept.keep(items)),
            Err(error) if error.is_callers() => Err(error),
            Err(error) => kept.last().ok_or(error),
        }
    }
}

/// Reads the lists from time to time, so that they are in memory when they are needed.
pub(crate) struct ListRefresher(pub(crate) Arc<ControlPlane>);

impl BackgroundLoop for ListRefresher {
    const NAME: &'static str = "lists";
    const STARTS_AT_ONCE: bool = true;
    const PERIOD: Duration = REFRESH_EVERY;

    async fn pass(&mut self) -> ControlResult<()> {
        let control = Arc::clone(&self.0);
        let read = move |ledger: &Ledger| control.kept_lists.refresh(ledger, REFRESH_EVERY / 2);
        self.0.read(read).await
    }
}
