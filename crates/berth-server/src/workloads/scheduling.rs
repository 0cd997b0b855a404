//! Workloads whose members cannot be placed: why, since when, and telling when that changes.
//!
//! Kept as documents of the ledger, so that every server says the same and a restart forgets nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use berth_api::Degraded;
use berth_ledger::{Ledger, LedgerError, Op, Scheduling, SchedulingFailure, Text};

use super::definition::{Definition, WorkloadKey};

/// What is wrong, by workload.
#[derive(Default)]
pub struct Degradations {
    known: RwLock<BTreeMap<WorkloadKey, Arc<Degraded>>>,
}

impl Degradations {
    /// Reads all there are.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn load(ledger: &Ledger) -> Result<Self, LedgerError> {
        let found = Self::default();
        let mut after: Option<String> = None;
        loop {
            let page = ledger.documents(Scheduling::KIND, after.as_deref(), 1000)?;
            let Some(last) = page.last() else { return Ok(found) };
            after = Some(last.id.to_string());
            for document in &page {
                found.learn(&document.id, &document.body);
            }
        }
    }

    /// Reads one anew: a server found out something else.
    pub fn reload(&self, ledger: &Ledger, id: &str) {
        match ledger.document(Scheduling::KIND, id) {
            Ok(Some(document)) => self.learn(id, &document.body),
            Ok(None) => {
                if let Some(key) = key_of(id) {
                    self.known.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
                }
            }
            Err(error) => tracing::warn!(%error, id, "why a workload waits could not be read"),
        }
    }

    fn learn(&self, id: &str, body: &str) {
        match (key_of(id), serde_json::from_str::<Degraded>(body)) {
            (Some(key), Ok(degraded)) => {
                let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
                known.insert(key, Arc::new(degraded));
            }
            (_, Err(error)) => tracing::error!(%error, id, "why a workload waits cannot be read"),
            (None, _) => {}
        }
    }

    /// What is wrong with a workload.
    #[must_use]
    pub fn get(&self, key: &WorkloadKey) -> Option<Arc<Degraded>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// How many workloads have something wrong.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Workloads that have something wrong.
    #[must_use]
    pub fn keys(&self) -> Vec<WorkloadKey> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

fn key_of(id: &str) -> Option<WorkloadKey> {
    let (owner, workload) = id.split_once('\n')?;
    Some((Text::from(owner), Text::from(workload)))
}

/// The operation that says what is wrong with a workload, or that nothing is.
#[must_use]
pub(crate) fn tell(
    key: &WorkloadKey,
    definition: Option<&Definition>,
    wrong: Option<&Degraded>,
) -> Op {
    let (owner, workload) = key.clone();
    let env = definition.and_then(Definition::env).map(Text::from);
    let failing = wrong.map(|wrong| SchedulingFailure {
        code: Text::from(wrong.code.as_str()),
        message: Text::from(wrong.message.as_str()),
        // Plain data always can be written.
        body: serde_json::to_string(wrong).unwrap_or_default(),
    });
    Op::SetScheduling(Box::new(Scheduling { owner, env, workload, failing }))
}
