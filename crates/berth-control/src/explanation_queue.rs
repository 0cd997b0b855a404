//! The turns of explanations that are derived on request: one at a time, few that wait, and fewer of
//! one tenant. A caller beyond the limit is asked to retry later.

use std::sync::{Mutex, PoisonError};

use berth_ledger::invariant_ok;
use rustc_hash::FxHashMap;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::{ControlError, ControlResult, ErrorKind};
use crate::metrics::Metrics;

/// Explanations about one tenant that may be under way or wait.
pub(crate) const OF_TENANT_MAX: usize = 4;

/// Explanations that may be under way or wait.
pub(crate) const EXPLANATIONS_MAX: usize = 32;

/// The queues of explanations.
#[derive(Default)]
pub(crate) struct ExplanationQueues {
    /// Those on a copy of the fleet, which takes memory, and a core while it is built.
    pub(crate) of_requests: ExplanationQueue,
    /// Those that read the log, which takes a core and holds a fleet in memory.
    pub(crate) of_decisions: ExplanationQueue,
}

impl ExplanationQueues {
    /// How many are under way or wait, of requests and of decisions.
    pub(crate) fn lengths(&self) -> [usize; 2] {
        [&self.of_requests, &self.of_decisions].map(ExplanationQueue::length)
    }
}

/// Explanations of one kind: one is derived, the others wait in the order in which they came.
pub(crate) struct ExplanationQueue {
    turn: Semaphore,
    /// How many of each tenant are under way or wait.
    entered: Mutex<FxHashMap<String, usize>>,
}

impl Default for ExplanationQueue {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), entered: Mutex::default() }
    }
}

impl ExplanationQueue {
    /// Waits for the turn of an explanation about a tenant.
    ///
    /// # Errors
    /// When too many wait.
    pub(crate) async fn turn(
        &self,
        metrics: &Metrics,
        tenant: &str,
    ) -> ControlResult<ExplanationTurn<'_>> {
        let place = self.enter(tenant).inspect_err(|_| metrics.limited("explainer"))?;
        // It is never closed.
        let permit = invariant_ok!(self.turn.acquire().await, "explanation_turns_stay_open");
        Ok(ExplanationTurn { _permit: permit, _place: place })
    }

    fn length(&self) -> usize {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    fn enter(&self, tenant: &str) -> ControlResult<QueuePlace<'_>> {
        let mut entered = self.entered.lock().unwrap_or_else(PoisonError::into_inner);
        let of_all: usize = entered.values().sum();
        let of_tenant = entered.get(tenant).copied().unwrap_or(0);
        if of_tenant >= OF_TENANT_MAX || of_all >= EXPLANATIONS_MAX {
            return Err(too_many(of_tenant >= OF_TENANT_MAX));
        }
        *entered.entry(tenant.to_owned()).or_default() += 1;
        Ok(QueuePlace { queue: self, tenant: tenant.to_owned() })
    }
}

/// The turn of one explanation; it ends when this is dropped.
pub(crate) struct ExplanationTurn<'a> {
    // Fields are dropped in this order: the next one begins, then another may enter.
    _permit: Option<SemaphorePermit<'a>>,
    _place: QueuePlace<'a>,
}

/// A place in the queue, also while it is the first.
struct QueuePlace<'a> {
    queue: &'a ExplanationQueue,
    tenant: String,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut entered = self.queue.entered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = entered.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                entered.remove(&self.tenant);
            }
        }
    }
}

fn too_many(of_tenant: bool) -> ControlError {
    let detail = match of_tenant {
        true => format!("{OF_TENANT_MAX} explanations for this caller are being derived"),
        false => format!("{EXPLANATIONS_MAX} explanations are being derived"),
    };
    let title = "too many explanations are asked for at a time";
    ControlError::new(ErrorKind::LimitReached, "tenant_busy", title, detail).retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn few_of_one_tenant_may_wait_and_others_are_let_in() {
        let (queue, metrics) = (ExplanationQueue::default(), Metrics::new());
        let first = queue.turn(&metrics, "loud").await;
        assert!(first.is_ok());
        let waiting: Vec<_> = (1..OF_TENANT_MAX).map(|_| queue.enter("loud")).collect();
        assert!(waiting.iter().all(Result::is_ok));
        assert!(queue.turn(&metrics, "loud").await.is_err());
        let other = queue.enter("quiet");
        assert!(other.is_ok());
        assert!(metrics.text().contains("berth_limited_requests_total{limit=\"explainer\"} 1"));
        drop((first, waiting, other));
        assert!(queue.entered.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
        assert!(queue.turn(&metrics, "loud").await.is_ok(), "whoever leaves makes room");
    }

    #[tokio::test]
    async fn many_tenants_together_fill_the_queue() {
        let queue = ExplanationQueue::default();
        let places: Vec<_> =
            (0..EXPLANATIONS_MAX).map(|n| queue.enter(&format!("tenant-{n}"))).collect();
        assert!(places.iter().all(Result::is_ok));
        assert!(queue.enter("one more").is_err());
    }
}
