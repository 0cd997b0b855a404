//! A work queue: each object is handled by one task at a time, and retried after a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pause;
use crate::api::Api;
use crate::failure::Failure;
use crate::object::Key;

/// The first delay after a failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(5);

/// The longest delay.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Handles objects forever. `dirty` names those that changed; `reconcile` handles one.
pub(super) async fn run_work_queue<L, F>(
    api: Arc<Api>,
    mut dirty: impl FnMut(&mut BTreeSet<Key>) + Send,
    reconcile: L,
) where
    L: Fn(Arc<Api>, Key) -> F + Send,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let mut waiting: BTreeSet<Key> = BTreeSet::new();
    let mut busy: BTreeSet<Key> = BTreeSet::new();
    let mut later: BTreeMap<Key, Instant> = BTreeMap::new();
    let mut failures: BTreeMap<Key, u32> = BTreeMap::new();
    let mut tasks: JoinSet<(Key, Result<(), Failure>)> = JoinSet::new();
    loop {
        dirty(&mut waiting);
        let now = Instant::now();
        let due: Vec<Key> =
            later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            later.remove(&key);
            waiting.insert(key);
        }
        let ready: Vec<Key> = waiting.difference(&busy).cloned().collect();
        for key in ready {
            waiting.remove(&key);
            busy.insert(key.clone());
            let reconciling = reconcile(Arc::clone(&api), key.clone());
            tasks.spawn(async move { (key, reconciling.await) });
        }
        pause().await;
        while let Some(joined) = tasks.try_join_next() {
            // A panic is reported by the task; its object is not handled any more.
            let Ok((key, result)) = joined else { continue };
            busy.remove(&key);
            match result {
                Ok(()) | Err(Failure { code: 404, .. }) => {
                    failures.remove(&key);
                }
                Err(_) => {
                    let count = failures.entry(key.clone()).or_insert(0);
                    let wait = (FIRST_WAIT * 2_u32.saturating_pow(*count)).min(LONGEST_WAIT);
                    *count = (*count + 1).min(20);
                    later.insert(key, Instant::now() + wait);
                }
            }
        }
    }
}
